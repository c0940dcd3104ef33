"""Small models and datasets that several test files use."""

import atexit
import contextlib
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pretended_gpu
import pytest
from precisions import set_precision
from processor_time import (  # noqa: F401
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.engine import autotune_cache

# The tests on a GPU need no hypothesis, and run on computers where it is missing.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import settings

    # The same cases on every machine and every run; `--hypothesis-profile=default` looks for new
    # ones.
    # `make test-nightly` takes more of them, where a test does not say how many.
    settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
    settings.register_profile("nightly", derandomize=True, deadline=None, max_examples=400)
    settings.load_profile("repeatable")

# All processes of a run share XLA's programs; the user's own stay as they are.
if "GPUKERAS_XLA_CACHE" not in os.environ:
    os.environ["GPUKERAS_XLA_CACHE"] = tempfile.mkdtemp(prefix="gpukeras-cache-")
    atexit.register(shutil.rmtree, os.environ["GPUKERAS_XLA_CACHE"], ignore_errors=True)


# For processes that a test or the core starts.
LEAN = str(Path(__file__).parent / "support" / "lean")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LEAN, os.environ.get("PYTHONPATH")]))

# Helpers that start processes: a test file that uses one is left out by `make test-fast`.
STARTERS = {
    "children",
    "clusters",
    "channels",
    "checkpointed",
    "computers",
    "keras_forks",
    "object_servers",
    "postgres",
    "savings",
    "stub_driver",
}
# What leaves a file out of `make test-fast` as a whole.
MARKS = r"pytestmark = \[?pytest\.mark\.(tf|process|costly|slow|nightly)\b"
LEFT_OUT = re.compile(
    rf"^({MARKS}|(from|import) (subprocess|{'|'.join(STARTERS)})\b)", re.MULTILINE
)


def is_fast(config):
    return "not tf" in config.option.markexpr


def pytest_ignore_collect(collection_path, config):
    # To import what is left out would take `make test-fast` longer than a fifth of its tests.
    if is_fast(config) and collection_path.name.startswith("test_"):
        return LEFT_OUT.search(collection_path.read_text(encoding="utf-8")) is not None or None
    return None


def pytest_collection_finish(session):
    # It is imported by the first test that needs it: `make test-fast` runs none.
    if "keras" in sys.modules and not session.config.getoption("--pretend-gpu"):
        raise pytest.UsageError("a test file imports Keras where it is read, not where it is run")
    # Nothing that was imported will be garbage; tracing makes many objects, and little of them is.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items):
    begun = set()
    for item in items:
        used = vars(item.module).values()
        if any(each is subprocess or getattr(each, "__module__", "") in STARTERS for each in used):
            item.add_marker("process")
        if reason := why_left_out(item):
            item.add_marker(pytest.mark.skip(reason=reason))
        if not has_marker(item, "varies") or has_marker(item, "nightly"):
            continue
        function = item.nodeid.partition("[")[0]
        if function in begun:
            item.add_marker("slow")
        begun.add(function)


def why_left_out(item):
    """Why a test is skipped under an option of the session, or ""."""
    exact = item.get_closest_marker("float32")
    cpu = item.get_closest_marker("cpu")
    if exact and item.config.getoption("--precision") != "float32":
        return exact.kwargs["reason"]
    if cpu and item.config.getoption("--pretend-gpu"):
        return cpu.kwargs["reason"]
    if has_marker(item, "tensorflow") and os.environ.get("KERAS_BACKEND") == "jax":
        return "asks for what Keras on TensorFlow alone has or does"
    return ""


def has_marker(item, name):
    return item.get_closest_marker(name) is not None


def pytest_addoption(parser):
    parser.addoption(
        "--precision",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
        default="float32",
        help="the dtype policy that tests make their models under",
    )
    parser.addoption(
        "--pretend-gpu",
        action="store_true",
        help="a part of the CPU plays a GPU; KERAS_BACKEND may be jax",
    )


def pytest_configure(config):
    if config.getoption("--pretend-gpu"):
        pretended_gpu.pretend()


# Of the session, as fixtures of a file make models before those of a test are called; and of the
# test, as the one before may have set another policy.
@pytest.fixture(scope="session", autouse=True)
def session_precision(request):
    set_precision(request.config.getoption("--precision"))


@pytest.fixture(autouse=True)
def test_precision(session_precision, request):
    yield
    set_precision(request.config.getoption("--precision"))
    if is_fast(request.config):
        assert "keras" not in sys.modules, "imports Keras, and is not marked `tf`"


@pytest.fixture(autouse=True)
def measures_engines(monkeypatch):
    # No test starts with the engine that won in another one, or with the seed that it gave.
    monkeypatch.setattr(autotune_cache, "LASTING", ())
    monkeypatch.setattr(runtime, "read_seed", lambda: None)


@pytest.fixture
def dataset():
    return make_dataset()


@pytest.fixture
def model():
    return make_model()
