"""The three engines train alike, every row once, and the choice survives what it meets."""

import functools
from pathlib import Path

import numpy as np
import pytest
from children import run_script
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras import ModelError
from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.data import plan as data_plan
from gpukeras.data.loader import loader
from gpukeras.engine import engine_cache
from gpukeras.engine import engines as engine_module
from gpukeras.engine.trip_counts import ProgramSizes
from gpukeras.training import fit

pytestmark = pytest.mark.tf
ENGINES = ("keras", "graph_loop", "compiled")


def weights_after(engine, optimizer, epochs=1, rows=210, **layers):
    data = make_dataset(rows, batch_size=16)
    model = make_model(optimizer=optimizer, **layers)
    report = fit.fit(model, data, {"epochs": epochs, "engine": engine})
    return report, np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(ENGINES, "keras", "compiled"))
def test_the_same_as_plain_keras_on_the_same_batches(engine):
    data = make_dataset(200, batch_size=16, shuffle=False)
    plain, ours = make_model(), make_model()
    plain.fit(*data.arrays, batch_size=16, epochs=2, shuffle=False, verbose=0)
    fit.fit(ours, data, {"epochs": 2, "engine": engine})
    for expected, found in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def count_traces(model):
    """A list that gets the rows of each batch that a model's step is traced for."""
    traced, own = [], model.train_step

    def step(data):
        traced.append(data[0].shape[0])
        return own(data)

    model.train_step = step
    return traced


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_few_batches_and_the_short_last_one_share_a_program(several, monkeypatch):
    if several:
        monkeypatch.setattr(engine_module, "FEW_BATCHES", 5)
    data = make_dataset(200, batch_size=16, shuffle=False)
    plain, ours = make_model(), make_model()
    plain.fit(*data.arrays, batch_size=16, epochs=2, shuffle=False, verbose=0)
    traced = count_traces(ours)
    fit.fit(ours, data, {"epochs": 2, "engine": "graph_loop"})
    assert traced == ([16, None] if several else [None])
    for expected, found in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_a_program_for_few_batches_gives_way_where_there_are_many(monkeypatch):
    model, data, rows = make_model(), make_dataset(200, batch_size=16), []
    for limit in (3000, 5, 3000):
        monkeypatch.setattr(engine_module, "FEW_BATCHES", limit)
        fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"})
        kept = getattr(model, engine_cache.ATTRIBUTE)["train"][1]
        rows.append(kept._made["graph_loop"].rows)
    assert rows == [0, 192, 192]


@pytest.mark.nightly
def test_batch_normalisation_and_clipping_too():
    keras = runtime.keras()
    results = []
    for engine in ENGINES:
        optimizer = keras.optimizers.AdamW(clipnorm=0.5)
        layers = [keras.layers.BatchNormalization()]
        report, _ = weights_after(engine, optimizer, epochs=2, layers=layers)
        results.append(report.history["loss"])
    np.testing.assert_allclose(results[1:], [results[0]] * 2, atol=1e-3)


def counting_model(rows):
    """A model that counts how often each row (its number is the only feature) was trained."""
    tf, keras = runtime.tensorflow(), runtime.keras()

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.seen = tf.Variable(tf.zeros(rows, tf.int32))

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            numbers = tf.cast(data[0][:, 0], tf.int32)
            self.seen.scatter_nd_add(numbers[:, None], tf.ones_like(numbers))
            return {"loss": tf.reduce_sum(data[1]), "rows": tf.shape(numbers)[0]}

    model = Counting()
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize(
    ("rows", "batch_size"), few([(97, 10), (64, 64), (65, 64), (300, 1)], (97, 10))
)
def test_every_row_is_trained_once_an_epoch(engine, rows, batch_size):
    from gpukeras.data.dataset import map_dataset

    x = np.arange(rows, dtype=float).reshape(-1, 1)
    y = {"kind": "numeric", "values": np.arange(rows) + 0.5, "levels": []}
    options = {"batch_size": batch_size, "seed": 3}
    data = map_dataset.build_dataset({"kind": "array", "values": x}, options, y)
    model = counting_model(rows)
    report = fit.fit(model, data, {"epochs": 3, "engine": engine})
    np.testing.assert_array_equal(model.seen.numpy(), 3)
    assert set(report.history) == {"loss", "rows"}  # a step's own logs arrive


def test_every_row_is_trained_once_by_programs_of_known_length(monkeypatch):
    monkeypatch.setattr(engine_module, "knows_trip_counts", lambda device, deterministic: True)
    test_every_row_is_trained_once_an_epoch("compiled", 97, 10)


@pytest.mark.slow
@pytest.mark.tensorflow  # on JAX: test_jax_engines.py
def test_a_block_takes_at_most_two_calls_of_programs_of_known_length(monkeypatch):
    parts = []
    split = ProgramSizes.split

    def record(sizes, count):
        parts.append(split(sizes, count))
        return parts[-1]

    monkeypatch.setattr(engine_module, "knows_trip_counts", lambda device, deterministic: True)
    monkeypatch.setattr(ProgramSizes, "split", record)
    data, blocks = make_dataset(400, batch_size=8), 2
    monkeypatch.setattr(data_plan, "BLOCK_BYTES", 25 * 8 * data.row_bytes)
    monkeypatch.setattr(data_plan, "BLOCK_SHARE", 0.0)
    model = make_model()
    options = {"epochs": 1, "engine": "compiled"}
    fit.fit(model, data, options)
    assert parts[:3] == [[1], [1], [1] * 23]  # times are unknown, then no program is as long
    while 25 not in parts[-1]:  # XLA compiles it in a thread
        fit.fit(model, data, options)
    parts.clear()
    fit.fit(model, data, options)
    assert sum(map(sum, parts)) == 50
    assert sum(map(len, parts)) <= 2 * blocks


def test_a_gpu_has_larger_blocks_unless_rows_are_varied():
    data, device = make_dataset(4000, columns=1000), devices.current().device
    memory = devices.gpu_bytes(device)
    size = data_plan.BLOCK_BYTES if memory is None else int(data_plan.BLOCK_SHARE * memory)
    assert (memory is None) == device.startswith("CPU")
    assert data.plan(device).block_bytes == size
    blocks = list(loader.open_loader(data, data.plan(device)).epoch(0))
    assert [block.batches for block in blocks] == ([63, 62] if memory is None else [125])
    data.map = abs
    assert data.plan(device).block_bytes == data_plan.BLOCK_BYTES


@pytest.mark.nightly
def test_a_step_of_ones_own_is_compiled_once_whatever_batches_a_call_takes(tmp_path):
    script = f"""
        import sys
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]!r}
        import test_engines
        test_engines.test_every_row_is_trained_once_an_epoch("compiled", 300, 1)
        answer = True
    """
    assert run_script(script, XLA_FLAGS=f"--xla_dump_to={tmp_path}")
    assert len(list(tmp_path.glob("*_program_*.before_optimizations.txt"))) == 1


@pytest.mark.slow
def test_a_graph_that_xla_refuses_falls_back():
    tf, keras = runtime.tensorflow(), runtime.keras()

    class PythonLayer(keras.layers.Layer):
        def call(self, x):
            doubled = tf.py_function(lambda value: value * 2.0, [x], tf.float32)
            return tf.ensure_shape(doubled, x.shape) if x.shape.rank else doubled

        def compute_output_shape(self, shape):
            return shape

    def fresh():
        model = keras.Sequential(
            [keras.Input((5,)), PythonLayer(), keras.layers.Dense(3, "softmax")]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    data = make_dataset(400, batch_size=2)
    with pytest.raises(ModelError, match='engine "compiled" cannot run this model'):
        fit.fit(fresh(), data, {"epochs": 1, "engine": "compiled"})
    report = fit.fit(fresh(), data, {"epochs": 10})
    assert report.engine.engine != "compiled"
    refused = [trial for trial in report.engine.trials if trial.engine == "compiled"]
    assert not refused or refused[0].refused


@pytest.mark.tensorflow
def test_auto_measures_real_batches_and_says_so():
    data = make_dataset(20_000, batch_size=8)
    report = fit.fit(make_model(), data, {"epochs": 4})
    assert report.engine.trials
    assert "us a batch" in report.engine.reason
    assert report.history["accuracy"][-1] > 0.8


def test_dropout_under_xla_keeps_its_rate():
    keras, tf = runtime.keras(), runtime.tensorflow()

    layer = keras.layers.Dropout(0.25, seed=1)

    @tf.function(jit_compile=True)
    def dropped():
        return layer(tf.ones((200, 200)), training=True)

    with tensor_ops.threefry_dropout():
        values = dropped().numpy()
    assert abs((values == 0).mean() - 0.25) < 0.01
    np.testing.assert_allclose(values[values > 0], 1 / 0.75, rtol=1e-6)
    assert not isinstance(tf.nn.experimental.stateless_dropout, functools.partial)
