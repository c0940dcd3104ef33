import json
import os
import subprocess
import sys

import numpy as np
import pytest
from children import PATHS
from nightly import few
from searched import assert_same, make_stream, state_of, stochastic_model, train_once
from small_fits import make_dataset

from gpukeras import DataError, ModelError, SpecError
from gpukeras.backend import devices, runtime
from gpukeras.engine import epoch_loop
from gpukeras.models import model_recipes, state
from gpukeras.training.batch_size import found_size
from gpukeras.tuner import batch_size
from gpukeras.tuner.batch_size import BatchSearchSpec, choose_range, find_batch_size, repeat_head
from gpukeras.tuner.knee import FITS, FULL


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """What is measured is not tested, so it need not take long."""
    monkeypatch.setattr(batch_size, "MEASURE_S", 0.01)
    monkeypatch.setattr(epoch_loop, "CALL_S", 0.005)


# What is searched --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({}, 10_000, (32, 1000, "rows")),
        ({}, 100, (32, 32, "rows")),
        ({}, 20, (20, 20, "rows")),
        ({"until": "memory"}, 10_000, (32, 10_000, "rows")),
        ({"low": 8, "high": 64}, 10_000, (8, 64, "to")),
        ({"high": 64}, 50, (32, 50, "rows")),
        ({"high": 16}, 10_000, (16, 16, "to")),
        ({"high": 1}, 10_000, (1, 1, "to")),
        ({"low": 4096}, 10_000, (4096, 4096, "rows")),
        ({"low": 8.0, "high": 16.0}, 10_000, (8, 16, "to")),
    ],
)
def test_the_range_follows_from_options_and_rows(options, rows, expected):
    assert choose_range(BatchSearchSpec(**options), rows) == expected


@pytest.mark.parametrize(
    ("options", "arg"),
    [
        ({"low": 0}, "from"),
        ({"low": 2.5}, "from"),
        ({"low": "32"}, "from"),
        ({"high": 0}, "to"),
        ({"low": 64, "high": 32}, "to"),
        ({"until": "never"}, "until"),
        ({"engine": "warp"}, "engine"),
        ({"seconds": -1}, "seconds"),
        ({"sizes": 3}, "sizes"),
    ],
)
def test_bad_options_are_refused_by_name(options, arg):
    with pytest.raises(SpecError) as caught:
        BatchSearchSpec.from_dict(options)
    assert caught.value.details["arg"] == arg


def test_a_first_size_beyond_the_rows_is_refused():
    with pytest.raises(SpecError, match="`from` is 300, more than the 200 training rows"):
        choose_range(BatchSearchSpec(low=300), 200)


# Searching ---------------------------------------------------------------------------------------


@pytest.mark.tensorflow
@pytest.mark.tf
def test_a_search_measures_each_size_and_recommends_one_of_them(model):
    report = find_batch_size(model, make_dataset(2000), {"high": 200, "until": "memory"})
    sizes = [point.batch_size for point in report.points]
    assert sizes == [32, 64, 128, 200]
    assert all(point.rows_per_s > 0 for point in report.points)
    assert {point.status for point in report.points} == {FITS}
    on_cpu = report.device == "CPU:0"
    assert all((point.peak_bytes is None) == on_cpu for point in report.points)
    assert report.recommended in sizes
    assert (report.largest, report.stopped) == (200, "to")
    assert (report.engine, report.device) == ("graph_loop", devices.current().device)
    assert "`to` was reached" in report.reason
    assert found_size(model, make_dataset(2000)) == report.recommended


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("engine", few(["keras", "graph_loop", "compiled"], "graph_loop"))
def test_the_model_is_left_as_it_was(engine):
    engine = engine if engine in runtime.engine_names() else "compiled"  # the loop that JAX has
    model, data = stochastic_model(), make_dataset(300)
    train_once(model, data)
    before = state_of(model)
    report = find_batch_size(model, data, {"low": 16, "high": 32, "engine": engine})
    assert report.engine == engine
    assert_same(model, before)
    assert model.steps_per_execution == 1
    first = train_once(model, data)
    state.apply_snapshot(model, state.Snapshot(before))
    assert train_once(model, data) == first


@pytest.mark.tf
def test_the_model_is_left_as_it_was_after_an_error_and_an_interrupt():
    model, data = stochastic_model(), make_dataset(300)
    train_once(model, data)
    before, failures = state_of(model), [KeyboardInterrupt(), RuntimeError("broken")]
    for failure in failures:

        def fail(event, failure=failure):
            if event["kind"] == "size":
                raise failure

        with pytest.raises(type(failure)):
            find_batch_size(model, data, {"high": 64}, fail)
        assert_same(model, before)
    assert found_size(model, make_dataset(2000)) is None


@pytest.mark.tf
def test_the_listener_ends_a_search_that_keeps_what_was_measured(model):
    seen = []

    def listen(event):
        seen.append(event["kind"])
        return event["kind"] == "size" and event["batch_size"] == 64

    options = {"high": 512, "seconds": 600}  # a busy computer may need more than the usual 20
    report = find_batch_size(model, make_dataset(2000), options, listen)
    assert [point.batch_size for point in report.points] == [32, 64]
    assert report.stopped == "interrupted"
    assert set(seen) == {"size", "waiting"}
    assert found_size(model, make_dataset(2000)) is None
    nothing = find_batch_size(model, make_dataset(2000), {}, lambda event: True)
    assert (nothing.points, nothing.recommended, nothing.largest) == ((), None, None)


@pytest.mark.tf
def test_the_time_is_bounded(model):
    report = find_batch_size(model, make_dataset(2000), {"seconds": 0.0, "high": 512})
    assert [point.batch_size for point in report.points] == [32]
    assert report.stopped == "time"


@pytest.mark.tf
def test_a_session_that_allows_only_an_engine_is_heeded(model):
    model.run_eagerly = True
    report = find_batch_size(model, make_dataset(200), {"high": 32})
    assert (report.engine, report.engine_reason) == (
        "keras",
        "the model was compiled with run_eagerly",
    )


@pytest.mark.tf
def test_what_cannot_be_trained_on_is_refused(model):
    uncompiled = runtime.keras().Sequential([runtime.keras().layers.Dense(3)])
    for wrong, error in ((uncompiled, ModelError), ("model", SpecError)):
        with pytest.raises(error):
            find_batch_size(wrong, make_dataset(), {})
    with pytest.raises(ModelError, match="takes rows of shape"):
        find_batch_size(model, make_dataset(columns=4), {})
    model_recipes.tie_recipe(model, make_dataset(100, scale=True).recipe)
    with pytest.raises(DataError, match="encoded by its own means"):
        find_batch_size(model, make_dataset(100, seed=5, scale=True), {})


@pytest.mark.tf
def test_a_model_that_was_not_built_is_built_and_measured():
    keras = runtime.keras()
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert find_batch_size(model, make_dataset(200), {"high": 32}).recommended == 32


# Rows in sequence --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.tf
def test_a_stream_is_measured_on_its_first_chunk_without_asking_for_more(model):
    calls = []
    data = make_stream(calls)
    before = list(calls)
    report = find_batch_size(model, data, {"high": 128})
    assert calls == before
    assert report.samples == "its first 20 rows, repeated"
    assert [point.batch_size for point in report.points] == [32, 64, 128]


@pytest.mark.tf
def test_repeated_rows_are_those_in_memory():
    data = make_stream([])
    repeated = repeat_head(data, 50)
    head = data.batch(20)
    assert len(repeated.rows("train")) == 50
    for source, array in zip(repeated.sources, head, strict=True):
        np.testing.assert_array_equal(
            source.gather(repeated.rows("train")), np.resize(array, (50, *array.shape[1:]))
        )


# Memory ------------------------------------------------------------------------------------------

# A row's activations take 8 x 4096 floats, by ops whose memory is TensorFlow's own: XLA's CPU
# programs abort the process where their scratch memory is refused, and so do oneDNN's matrix
# products, which are left out.
LIMITED = """
import json, resource, sys
import numpy as np
from small_fits import make_dataset, make_model
from gpukeras.engine import epoch_loop as running
from gpukeras.backend import runtime
from gpukeras.models import state as snapshots
from gpukeras.core.errors import OutOfMemoryError
from gpukeras.tuner import batch_size as batch_sizes

batch_sizes.MEASURE_S, running.CALL_S = 0.01, 0.005
keras = runtime.keras()
model = make_model(layers=[
    keras.layers.RepeatVector(4096), keras.layers.Activation("gelu"),
    keras.layers.GlobalAveragePooling1D(),
])
data = make_dataset(32768)
batch_sizes.find_batch_size(model, data, {"low": 8, "high": 8})  # TensorFlow's own memory is taken
before = snapshots.take_snapshot(model).arrays
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 800 * 2**20
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
options = {"low": 64, "until": "memory", "seconds": 3600.0}
report = batch_sizes.find_batch_size(model, data, options)
after = snapshots.take_snapshot(model).arrays
same = all(np.array_equal(before[name], after[name]) for name in before)
try:
    batch_sizes.find_batch_size(model, data, {"low": 16384})
    refused = ""
except OutOfMemoryError as error:
    refused = str(error)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
again = batch_sizes.find_batch_size(model, data, {"low": 8, "high": 8}).recommended
points = [(p.batch_size, p.status) for p in report.points]
found = [report.stopped, report.largest, report.recommended]
print(json.dumps([points, *found, same, refused, again]))
"""


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_the_search_ends_where_memory_really_does_and_the_model_survives():
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED],
        env={
            **os.environ,
            "PYTHONPATH": PATHS,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    points, stopped, largest, recommended, same, refused, again = json.loads(
        ran.stdout.splitlines()[-1]
    )
    assert points[-1][1] == FULL
    assert all(status == FITS for _, status in points[:-1])
    assert (stopped, largest) == ("memory", points[-2][0])
    assert recommended <= largest
    assert same
    assert "ran out of memory at batch size 16384, the first" in refused
    assert again == 8
