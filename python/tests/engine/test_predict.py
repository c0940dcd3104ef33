"""Predictions are Keras' own, however many rows go through the model at once."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_fits import make_model
from streamed import chunk, slices, stream, tfdata

from gpukeras.backend import devices, jax_backend, runtime, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.memory import aligned_empty
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.engine import batch_rows
from gpukeras.engine import predict as engine_predict
from gpukeras.training import keras_functions
from gpukeras.training import predict as training_predict


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 10**6))
def test_batches_are_alike_and_within_memory(rows, row_bytes, model_bytes):
    size = batch_rows.choose_rows(rows, row_bytes, model_bytes, "CPU:0")
    assert 1 <= size <= rows
    most = tensor_ops.batch_bytes("CPU:0") // (row_bytes + model_bytes)
    assert size <= max(most, batch_rows.ALIGNED_ROWS)
    calls = -(-rows // size)
    assert calls * size - rows < calls * batch_rows.ALIGNED_ROWS  # padding


def test_a_model_that_tells_nothing_gets_the_batches_of_an_evaluation():
    found = batch_rows.choose_rows(10**6, 80, None, "CPU:0")
    assert found == batch_rows.choose_evaluation_rows(80, 10**6)


@given(st.integers(1, 10**7), st.none() | st.integers(1, 10**8))
def test_an_evaluation_has_batches_of_few_sizes_within_memory(row_bytes, model_bytes):
    size = batch_rows.choose_evaluated_rows(row_bytes, model_bytes, "CPU:0")
    assert size == 2 ** int(np.log2(size))
    assert 32 <= size <= batch_rows.choose_evaluation_rows(row_bytes, 10**9)
    most = 1.5 * tensor_ops.batch_bytes("CPU:0")
    assert size == 32 or size * (row_bytes + (model_bytes or 0)) <= most
    large = batch_rows.choose_evaluated_rows(row_bytes, model_bytes, "GPU:0")
    assert large == batch_rows.choose_evaluation_rows(row_bytes, 10**9) >= size


@pytest.mark.tf
def test_a_model_without_variables_is_where_the_session_computes(monkeypatch):
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((5,)), keras.layers.ReLU()])
    monkeypatch.setattr(devices, "_current", devices.Setup("GPU:1"))
    assert batch_rows.model_device(model) == "GPU:1"


def test_on_jax_a_cpu_has_small_batches():
    assert jax_backend.batch_bytes("CPU:0") < jax_backend.batch_bytes("GPU:0")


ROWS = np.random.default_rng(1).normal(size=(203, 5)).astype(np.float32)


def predict(model, rows=ROWS):
    return engine_predict.predict_rows(
        model, MemoryRows(rows), Recipe(ArrayEncoding(rows.shape[1:]))
    )


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.tf
@pytest.mark.parametrize("room", [10**9, 5000, 1])
def test_predictions_are_keras_own(monkeypatch, room):
    monkeypatch.setattr(tensor_ops, "batch_bytes", lambda device: room)
    model = make_model()
    close(predict(model), model.predict(ROWS, verbose=0))


@pytest.mark.tf
@pytest.mark.parametrize("start", [0, 1], ids=["aligned", "not aligned"])
def test_rows_that_are_read_only_are_predicted_too(start):
    rows = aligned_empty((203 + start, 5), np.float32)[start:]
    rows[:] = ROWS
    model, expected = make_model(), None
    for _ in range(2):
        found = predict(model, rows)
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
        rows.flags.writeable = False
    close(found, model.predict(ROWS, verbose=0))


@pytest.mark.tf
def test_what_a_row_takes_is_counted_by_layers():
    assert batch_rows.count_row_bytes(make_model()) == 4 * (8 + 3)


@pytest.mark.tf
def test_recurrent_layers_multiply_all_times_at_once():
    keras = runtime.keras()
    layers = keras.layers

    def count(inputs, *others):
        found = batch_rows.count_row_bytes(keras.Sequential([keras.Input(inputs), *others]))
        return found // 4

    one = keras.Sequential([keras.Input((5, 3)), layers.LSTM(2)])
    assert count((5, 3), layers.LSTM(2)) == count((5, 3), one) == 2 + 5 * 8
    assert count((5, 3), layers.Bidirectional(layers.GRU(2))) == 4 + 2 * 5 * 6
    images = layers.ConvLSTM2D(2, 1)
    assert count((5, 4, 4, 1), images) == 4 * 4 * 2 + 5 * 4 * 4 * 8
    given, state = keras.Input((5, 3)), keras.Input((2,))
    model = keras.Model([given, state], layers.SimpleRNN(2)(given, initial_state=state))
    assert batch_rows.count_row_bytes(model) == 4 * (5 * 3 + 2 + 2 + 5 * 2)


@pytest.mark.tf
@pytest.mark.parametrize("form", [dict, list])
def test_several_outputs_keep_their_structure(form):
    keras = runtime.keras()
    given = keras.Input((5,))
    one = keras.layers.Dense(3, name="one")(given)
    two = keras.layers.Dense(1, name="two")(given)
    model = keras.Model(given, {"one": one, "two": two} if form is dict else [one, two])
    found, expected = predict(model), model.predict(ROWS, verbose=0)
    assert type(found) is type(expected) is form
    places = ["one", "two"] if form is dict else [0, 1]
    for place in places:
        close(found[place], expected[place])


@pytest.mark.tensorflow
@pytest.mark.tf
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_predict_step_of_the_models_own_is_respected(eagerly):
    keras = runtime.keras()

    class Doubling(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

        def predict_step(self, data):
            return 2.0 * super().predict_step(data)

    model = Doubling()
    model.compile(run_eagerly=eagerly)
    expected = 2.0 * model(ROWS).numpy()
    close(predict(model), expected)


def refused(jit):
    """A model with an op that XLA has no kernel for."""
    tf, keras = runtime.tensorflow(), runtime.keras()

    class Text(keras.layers.Layer):
        def call(self, x):
            return x + tf.cast(tf.size(tf.strings.as_string(x[:1])), x.dtype)

    model = keras.Sequential([keras.Input((5,)), Text(), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=jit)
    return model


@pytest.mark.tf
@pytest.mark.parametrize("jit", [True, False])
def test_what_xla_refuses_is_predicted_without_it(jit):
    model = refused(jit)
    expected = model(ROWS).numpy()
    close(predict(model), expected)
    assert model.jit_compile is jit


@pytest.mark.tf
def test_a_forbidden_compiler_is_not_used_for_predictions(monkeypatch):
    from dataclasses import replace

    from gpukeras.backend import devices

    forbidding = replace(devices.current(), jit=False)
    monkeypatch.setattr(devices, "current", lambda: forbidding)
    model = make_model()
    model.jit_compile = True
    with keras_functions.jit_policy(model):
        predict(model)
        assert model.jit_compile is False
        concrete = model.predict_function([(runtime.tensorflow().constant(ROWS),)])
        assert concrete.shape == (203, 3)
    assert model.jit_compile is True


@pytest.mark.tf
def test_memory_that_runs_out_halves_the_batches():
    tf, model = runtime.tensorflow(), make_model()
    own, sizes = model.predict_on_batch, []

    def limited(features):
        sizes.append(len(features))
        if len(features) > 60:
            raise tf.errors.ResourceExhaustedError(None, None, "no more")
        return own(features)

    model.predict_on_batch = limited
    close(predict(model), model.predict(ROWS, verbose=0))
    assert sizes == [203, 102, 51, 51, 51, 51]


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_batches_keep_their_order_however_many_are_on_their_way(monkeypatch, workers):
    monkeypatch.setattr(engine_predict, "choose_rows", lambda *facts: 10)
    monkeypatch.setattr(engine_predict, "WORKERS", workers)
    model = make_model()
    close(predict(model), model.predict(ROWS, verbose=0))


@pytest.mark.tensorflow
@pytest.mark.tf
def test_a_model_that_runs_eagerly_runs_in_the_main_thread(monkeypatch):
    monkeypatch.setattr(engine_predict, "choose_rows", lambda *facts: 10)
    seen = set()

    class Own(type(make_model())):
        def predict_step(self, data):
            seen.add(threading.current_thread())
            return super().predict_step(data)

    model = Own([runtime.keras().layers.Dense(3)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.build((None, 5))
    predict(model)
    assert seen == {threading.main_thread()}


@pytest.mark.tf
def test_batches_that_were_predicted_before_memory_ran_out_are_kept(monkeypatch):
    monkeypatch.setattr(engine_predict, "choose_rows", lambda *facts: 80)
    monkeypatch.setattr(engine_predict, "WORKERS", 0)
    tf, model = runtime.tensorflow(), make_model()
    own, starts = model.predict_on_batch, []

    def limited(features):
        starts.append(float(features[0, 0]))
        if len(starts) == 2:
            raise tf.errors.ResourceExhaustedError(None, None, "no more")
        return own(features)

    model.predict_on_batch = limited
    close(predict(model), model.predict(ROWS, verbose=0))
    assert starts == [float(ROWS[row, 0]) for row in (0, 80, 80, 120, 160, 200)]


def as_dtype(x, name):
    return runtime.tensorflow().cast(x, name)


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("output", "found"),
    [
        (lambda x: {"text": runtime.tensorflow().strings.as_string(x), "x": x}, "text"),
        (lambda x: runtime.tensorflow().strings.as_string(x), "text"),
        (lambda x: [x, runtime.tensorflow().constant("text")], "text"),
        (lambda x: [x, "ab"], "text"),
        (lambda x: [x, runtime.tensorflow().constant(1.0)], "a single number for all rows"),
        (lambda x: runtime.tensorflow().RaggedTensor.from_tensor(x), "ragged rows"),
        (lambda x: as_dtype(x, "complex64"), "numbers of the type complex64"),
        (lambda x: [x, as_dtype(x, "float8_e4m3fn")], "numbers of the type float8_e4m3fn"),
    ],
    ids=["nested", "alone", "of no row", "of Python", "number", "ragged", "complex", "float8"],
)
def test_outputs_that_are_no_numbers_are_refused_by_a_sentence(output, found):
    class Model(runtime.keras().Model):
        def call(self, x):
            return output(x)

    wanted = f"`model` gives {found}, but each of its outputs must hold real numbers"
    with pytest.raises(ModelError, match=wanted):
        training_predict.predict(Model(), {"kind": "array", "values": ROWS, "names": []})
    with pytest.raises(ModelError, match=wanted):
        training_predict.predict(Model(), data=tfdata(slices(ROWS).batch(50)))


@pytest.mark.tf
@pytest.mark.parametrize("make", [lambda x: {"a": (x, x), "b": x}, lambda x: [{"c": x}, x]])
def test_outputs_within_outputs_are_refused_by_a_sentence(make):
    class Model(runtime.keras().Model):
        def call(self, x):
            return make(x)

    with pytest.raises(ModelError, match="The output `(a|output_1)` of `model` is several itself"):
        training_predict.predict(Model(), {"kind": "array", "values": ROWS, "names": []})


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("wanted", "rows"),
    [((), ROWS[:, 0]), ((), ROWS[:, :1]), ((5, 1), ROWS), ((5,), ROWS[..., None])],
    ids=["vector", "column", "longer", "shorter"],
)
def test_a_last_axis_of_one_is_added_or_taken_away_as_in_keras(wanted, rows):
    keras = runtime.keras()
    given = keras.Input(wanted)
    model = keras.Model(given, 2.0 * given + 1.0)
    model.compile("sgd", "mse")
    expected = model.predict(rows, verbose=0)
    for more in (
        {"features": {"kind": "array", "values": rows, "names": []}},
        {"data": tfdata(slices(rows).batch(50), batched=True)},
        {"data": stream(lambda epoch, batch: chunk(rows) if batch == 1 else None)},
    ):
        found = training_predict.predict(model, **more)["values"]
        close(found.reshape(expected.shape), expected)
