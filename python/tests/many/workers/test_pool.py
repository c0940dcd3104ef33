"""Models that do not stack end in worker processes as one after another; dead workers are replaced.

The workers of a file's tests are shared, because one takes seconds to start.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest
from children import PATHS, PATIENCE_S
from small_fits import make_dataset, make_model
from stacked import ALONE, difference, fit_many

from gpukeras.backend import runtime
from gpukeras.backend.jax_backend import SHARES
from gpukeras.many.futures import Futures
from gpukeras.many.jobs import Job
from gpukeras.many.workers import pool as pools
from gpukeras.many.workers.plan import WorkerResources, WorkersPlan
from gpukeras.many.workers.pool import (
    WorkersError,
    make_environment,
    make_setup,
    open_pool,
)

pytestmark = pytest.mark.tf
PLAN = WorkersPlan((WorkerResources("cpu", 1), WorkerResources("cpu", 1)), "two")
ROWS = np.arange(60, dtype=np.int32)


@pytest.fixture(scope="module")
def lean():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)
        patch.delattr(os, "pread")  # Windows has none
        yield


class Engine:
    """An engine that starts workers as R's package future does, on this computer."""

    def __init__(self):
        self.children = {}

    def start(self, *arguments):
        command = [sys.executable, "-m", "gpukeras.many.workers.main", *arguments]
        env = {**os.environ, "PYTHONPATH": PATHS}
        self.children[arguments[2]] = subprocess.Popen(command, env=env)

    def end(self, place):
        status = self.children[place].poll()
        return "" if status is None else f"exit status {status}"


def plan_of(engine):
    futures = Futures(
        2, lambda folder, place, setup: engine.start(folder, setup, place), engine.end
    )
    return replace(PLAN, futures=futures)


@pytest.fixture(scope="module", params=["child", pytest.param("engine", marks=pytest.mark.slow)])
def pool(lean, request):
    engine = Engine()
    plan = PLAN if request.param == "child" else plan_of(engine)
    with open_pool(plan, make_dataset(60)) as opened:
        yield opened
    for child in engine.children.values():
        child.wait(PATIENCE_S)
    assert workers() == []


def workers():
    """The worker processes of this one."""
    children = psutil.Process().children()
    return [one for one in children if "gpukeras.many.workers.main" in one.cmdline()]


def make_job(number, model, epochs=1, **options):
    return Job(number, model, ROWS[:40], ROWS[40:], {"epochs": epochs, **options})


@pytest.mark.slow
def test_models_of_different_shapes_end_as_one_after_another(lean):
    models, folders = [make_model(layers=[make_layer(units)]) for units in (2, 3)], []
    given = {"seeds": [1, 2], "most": 1, "early_stopping": {"patience": 1, "min_delta": 0.02}}
    models[0].run_eagerly = models[1].run_eagerly = True  # no stacks
    data = make_dataset(60, batch_size=16)
    here = fit_many(models, data, epochs=4, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "write_rows", note_folder(folders))
        fits = fit_many(models, data, epochs=4, workers=2, **given)
    assert fits.plan.reason.endswith("; 4 models in 2 worker processes with 1 thread each")
    for number, (one, other) in enumerate(zip(fits.fitted, here.fitted, strict=True), start=1):
        assert one.history.stopped == other.history.stopped
        assert one.history.best_epoch == other.history.best_epoch
        for name, values in one.history.metrics.items():
            assert values == pytest.approx(other.history.metrics[name], abs=ALONE)
        pairs = zip(fits.model(number).weights, here.model(number).weights, strict=True)
        for mine, theirs in pairs:
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=ALONE)
    assert workers() == []
    assert [folder.exists() for folder in folders] == [False]


def make_layer(units):
    import keras

    return keras.layers.Dense(units, "tanh")


def note_folder(folders):
    write = pools.write_rows

    def noted(data, folder):
        folders.append(folder)
        write(data, folder)

    return noted


def test_a_killed_worker_fails_its_model_only(pool):
    model = make_model()
    list(pool.run([make_job(1, model), make_job(2, model)], lambda: False))
    first = workers()
    assert len(first) == 2
    killed = []

    def kill_one():
        if not killed:
            killed.append(first[0].pid)
            os.kill(first[0].pid, signal.SIGKILL)
        return False

    tasks = [make_job(number, model, epochs=60) for number in range(3, 7)]
    found = {each.number: answer for each, answer in pool.run(tasks, kill_one)}
    errors = [answer.error for answer in found.values() if answer.error]
    assert errors in (
        ["its worker was killed by SIGKILL, as Linux does where memory runs out"],
        ["its worker ended: exit status -9"],
    )
    assert sorted(found) == [3, 4, 5, 6]
    assert sum(answer.fitted is not None for answer in found.values()) == 3
    assert len(workers()) == 2
    assert killed[0] not in [one.pid for one in workers()]


@pytest.mark.slow
def test_a_worker_that_dies_with_nothing_to_do_is_replaced(pool):
    model = make_model()
    list(pool.run([make_job(1, model), make_job(2, model)], lambda: False))
    dead = workers()[0]
    dead.kill()
    psutil.wait_procs([dead])
    found = list(pool.run([make_job(3, model), make_job(4, model)], lambda: False))
    assert [answer.error for _, answer in found] == ["", ""]


def test_what_is_wrong_in_a_training_is_its_answer(pool):
    model = make_model()
    given = [make_job(1, model, engine="none such"), make_job(2, model)]
    found = {each.number: answer for each, answer in pool.run(given, lambda: False)}
    assert found[1].fitted is None
    assert found[1].error.startswith("`engine` must be one of")
    assert found[2].fitted.history.stopped == "completed"


def test_own_code_does_not_cross(pool):
    def own_loss(actual, predicted):
        return (actual - predicted) ** 2

    model = make_model()
    model.compile("sgd", own_loss)
    found = pool.run([make_job(1, model), make_job(2, make_model())], lambda: False)
    (_, refused), (_, trained) = sorted(found, key=lambda each: each[0].number)
    assert (refused.crossed, refused.error) == (
        False,
        "models have functions or classes of your own",
    )
    assert trained.fitted.history.stopped == "completed"


def test_settings_of_single_variables_do_not_cross(pool):
    model = make_model()
    model.variables[0].trainable = False
    ((_, refused),) = pool.run([make_job(1, model)], lambda: False)
    assert (refused.crossed, refused.error) == (False, "models have settings of single variables")


def test_a_model_s_file_goes_when_no_job_needs_it(pool):
    models = [make_model(), make_model(), make_model()]
    jobs = [make_job(number, model) for number, model in enumerate((*models, models[2]), 1)]
    found = list(pool.run(jobs, lambda: False))
    assert [answer.error for _, answer in found] == [""] * 4
    assert len(list(pool._folder.glob("model-*.keras"))) == 1


def test_the_user_ends_all(lean):
    others, asked = workers(), []
    with open_pool(PLAN, make_dataset(60)) as pool:
        model = make_model()
        tasks = [make_job(number, model, epochs=100_000) for number in (1, 2)]
        assert list(pool.run(tasks, lambda: asked.append(len(workers())) or len(asked) > 2)) == []
        assert asked[-1] == len(others) + 2
    assert workers() == others


def test_workers_that_cannot_start_are_an_error(monkeypatch):
    monkeypatch.setattr(pools, "PROGRAM", "gpukeras.none_such")
    with open_pool(PLAN, make_dataset(60)) as pool:
        model = make_model()
        with pytest.raises(WorkersError, match="a worker ended, exit status 1: .*none_such"):
            list(pool.run([make_job(1, model)], lambda: False))


def test_models_train_here_where_workers_cannot_start(monkeypatch):
    monkeypatch.setattr(pools, "PROGRAM", "gpukeras.none_such")
    model = make_model()
    model.run_eagerly = True
    fits = fit_many([model], make_dataset(60), seeds=[1, 2], epochs=1, workers=2)
    assert (
        "; one after another, as no worker could train them: a worker ended, exit status 1"
        in fits.plan.reason
    )
    assert max(difference(fits, 2, epochs=1, engine="auto")) < ALONE


@pytest.mark.slow
def test_a_worker_s_share_of_a_card_is_its_limit(monkeypatch):
    resources = WorkerResources("GPU:1", 4, memory_mib=6_000, total_mib=24_000)
    setup = make_setup(resources)
    assert (setup["device"], setup["memory"], setup["threads"]) == ("GPU:1", 6_000, 4)
    old, new = SHARES
    assert old not in make_environment(resources)
    monkeypatch.setattr(runtime, "backend", lambda: "jax")
    setup = make_setup(resources)
    assert (setup["memory"], setup["threads"], setup["backend"]) == ("growth", None, "jax")
    assert make_environment(resources)[old] == "0.250"
    monkeypatch.setenv(new, ".9")  # the user's, beside which JAX refuses the older name
    variables = make_environment(resources)
    assert (variables[new], old in variables) == ("0.250", False)
