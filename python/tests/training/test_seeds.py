"""With a seed, trainings end with the same bits: no clock, no cache and no load decides."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import run_python
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.backend import devices, runtime
from gpukeras.engine.engine_facts import read_engine_facts
from gpukeras.training import fit
from gpukeras.training.batch_size import remember_batch_size

CHILD = str(Path(__file__).parents[1] / "support" / "seeded_child.py")
KINDS = ["fit", "validation", "own", "many", "tune", "compiled", "keras"]
BUSY = "while True: sum(range(100_000))"


def train(kind, seeded, cache):
    child = run_python(CHILD, kind, seeded, GPUKERAS_XLA_CACHE=str(cache))
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@contextlib.contextmanager
def busy():
    """Processes that take the computer's cores."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(4)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("kind", few(KINDS, "fit"))
def test_a_training_with_a_seed_repeats_with_a_cold_and_a_warm_cache_on_a_busy_cpu(kind, tmp_path):
    cold = train(kind, "setup", tmp_path)
    with busy():
        assert train(kind, "keras", tmp_path) == cold
    if kind == "fit":
        assert cold["engine"] == "graph_loop"
        assert "would not repeat" in cold["reason"]


@pytest.mark.nightly  # what is remembered and what is foreseen: test_autotune_cache.py, in each run
@pytest.mark.tf
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_with_a_seed_repeats_after_its_cache_was_filled_and_cleared(kind, tmp_path):
    cold = train(kind, "tensorflow", tmp_path)
    assert run_python(CHILD, "remember", "setup", GPUKERAS_XLA_CACHE=str(tmp_path)).returncode == 0
    assert train(kind, "setup", tmp_path) == cold
    shutil.rmtree(tmp_path)
    assert train(kind, "setup", tmp_path) == cold
    assert train(kind, "keras", "off") == cold


@pytest.mark.slow
@pytest.mark.tf
def test_every_seed_of_a_session_is_seen(monkeypatch):
    monkeypatch.undo()
    runtime.keras().utils.set_random_seed(7)
    assert runtime.read_seed() == 7
    runtime.keras().utils.clear_session()
    assert devices.read_seed() == 7
    assert devices.repeats()
    assert read_engine_facts(make_model(), "auto").repeats


@pytest.mark.tf
def test_a_size_that_was_found_by_measuring_is_not_used_with_a_seed(monkeypatch):
    model, data = make_model(), make_dataset(100)
    remember_batch_size(model, 20)
    assert fit.fit(model, data, {"epochs": 1}).plan.batch_size == 20
    monkeypatch.setattr(runtime, "read_seed", lambda: 1)
    report = fit.fit(model, data, {"epochs": 1})
    assert report.plan.batch_size == 32
    assert "gpu_batch_size() found 20 rows by measuring" in " ".join(report.notes)
    assert fit.fit(model, data, {"epochs": 1}, batch_size=20).plan.batch_size == 20
