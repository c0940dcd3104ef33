"""A model that was observed is as it was before."""

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
from nightly import few
from small_fits import make_model

from gpukeras.backend import devices, runtime, tensor_ops, tracing
from gpukeras.diagnostics import usage
from gpukeras.diagnostics.batches import read_parts
from gpukeras.training import model_guard


def state_of(model):
    """Everything of a model that training could change, by value and by identity."""
    optimizer = model.optimizer
    variables = [*model.variables, *model.metrics_variables, *optimizer.variables]
    return {
        "variables": [id(each) for each in variables],
        "values": [each.numpy().tolist() for each in variables],
        "devices": tensor_ops.variable_devices(model),
        "optimizer": (id(optimizer), optimizer.built, float(optimizer.iterations)),
        "metrics": [id(each) for each in model.metrics],
        "metrics_built": [each.built for each in model.metrics if hasattr(each, "built")],
        "loss_built": model._compile_loss.built,
        "functions": [model.train_function, model.test_function, model.predict_function],
        "settings": [model.stop_training, model.steps_per_execution, model.jit_compile],
        "own": sorted(vars(model)),
        "losses": len(model.losses),
        "seed": np.random.get_state()[1].tolist(),
        "soft": runtime.tensorflow().config.get_soft_device_placement(),
    }


def make_stateful():
    keras = runtime.keras()
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=3)]
    layers.append(keras.layers.Dense(4, activity_regularizer="l2", dtype="float32"))
    return make_model(optimizer=keras.optimizers.Adam(0.1), layers=layers)


@pytest.mark.tf
def test_recurrent_layers_keep_the_state_that_they_had():
    keras = runtime.keras()
    recurrent = keras.layers.LSTM(3, stateful=True)
    model = keras.Sequential([keras.Input((4, 2), batch_size=8), recurrent])
    model.compile("sgd", "mse")
    rows = np.random.default_rng(1).normal(size=(8, 4, 2))
    model.predict(rows, verbose=0)
    before = [np.array(state) for state in recurrent.states]
    with model_guard.kept_model(model):
        model.fit(rows, np.ones((8, 3)), batch_size=8, verbose=0)
    for state, value in zip(recurrent.states, before, strict=True):
        np.testing.assert_array_equal(np.array(state), value)


@pytest.mark.tf
@pytest.mark.parametrize("trained", few([False, True], True))
def test_the_model_is_as_before(dataset, trained):
    model = make_stateful()
    if trained:
        model.steps_per_execution = 3
        model.fit(*dataset.arrays, epochs=2, verbose=0)
        model.evaluate(*dataset.arrays, verbose=0)
        model.stop_training = True
    before = state_of(model)
    use = usage.read_use(model, dataset, devices.current().device, batches=2)
    assert use["steps"] > 0
    after = state_of(model)
    if trained:
        after["losses"] = before["losses"]  # of the last batch of an earlier step
    assert after == before


@pytest.mark.tf
def test_the_model_is_as_before_also_after_an_exception(dataset):
    model = make_stateful()
    before = state_of(model)

    class StopError(Exception):
        pass

    def train_and_stop():
        with model_guard.untouched(model, usage.Source(dataset, devices.current().device).batch):
            model.make_train_function(force=True)
            model.train_function(iter([dataset.batch(32)]))
            assert model.optimizer.built
            raise StopError

    with pytest.raises(StopError):
        train_and_stop()
    assert state_of(model) == before


@pytest.mark.cpu(reason="XLA, by which Keras trains on a GPU, leaves assertions out")
@pytest.mark.tf
def test_a_step_that_fails_is_told_and_leaves_the_model(dataset):
    keras, tf = runtime.keras(), runtime.tensorflow()

    class Failing(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                with tf.control_dependencies([tf.debugging.assert_less(x, tf.cast(-1e4, x.dtype))]):
                    return tf.identity(x)
            return x

    model = make_model(optimizer="adam", layers=[Failing()])
    before = state_of(model)
    use = usage.read_use(model, dataset, devices.current().device, batches=2)
    assert "InvalidArgumentError" in use["unread"]["first_s"]
    assert use["hard_placement_error"] is None
    assert use["first_s"] is use["median_s"] is use["trace"] is None
    assert use["variables"] == {"CPU:0": 4}
    assert state_of(model) == before


@pytest.mark.slow
@pytest.mark.tf
def test_an_interrupt_goes_on_and_leaves_the_model(dataset):
    model = make_stateful()
    before = state_of(model)

    source = usage.Source(dataset, devices.current().device)

    def interrupt():
        with model_guard.untouched(model, source.batch):
            reading = usage._Reading(model, source, devices.current().device, 2)
            reading._read_first()
            read_parts({"unread": {}}, {"trace": lambda: (_ for _ in ()).throw(KeyboardInterrupt)})

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert state_of(model) == before


OPTIMIZERS = [
    (lambda keras: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)), None),
    (lambda keras: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1), None),
    (lambda keras: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), None),
    (lambda keras: "adam", "mixed_float16"),
]


@pytest.mark.nightly  # Adam in `test_the_model_is_as_before()`
@pytest.mark.tf
@pytest.mark.parametrize(("optimizer", "policy"), few(OPTIMIZERS, OPTIMIZERS[-1]))
def test_any_optimizer_is_as_before(dataset, optimizer, policy):
    keras = runtime.keras()
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(3, "softmax", dtype=policy)], name="small"
    )
    if policy:
        model.dtype_policy = policy
    metrics = ["accuracy", keras.metrics.SparseCategoricalAccuracy()]
    model.compile(optimizer(keras), "sparse_categorical_crossentropy", metrics=metrics)
    for _ in range(2):
        before = state_of(model)
        use = usage.read_use(model, dataset, devices.current().device, batches=2)
        assert set(use["unread"]) <= {
            "numeric",
            "peak_rise_bytes",
            "capability",
            "card",
            "cpu_only_ops",
        }
        assert state_of(model) == before
        model.fit(*dataset.arrays, verbose=0)


@pytest.mark.slow
@pytest.mark.tf
def test_looked_up_rows_are_as_before():
    keras = runtime.keras()
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    random = np.random.default_rng(1)
    arrays = random.integers(0, 50, (40, 3)).astype("float32"), random.normal(size=40)
    model.fit(*arrays, verbose=0)
    before = state_of(model)
    use = usage.read_use(model, arrays, devices.current().device, batches=2)
    assert use["expected_bytes"] == 32 * (3 * 4 + 8)  # no gradient is as large as the table
    assert state_of(model) == before


@pytest.mark.slow
@pytest.mark.tf
def test_an_optimizer_without_a_config_is_no_obstacle(dataset):
    keras = runtime.keras()

    class Own(keras.optimizers.SGD):
        def get_config(self):
            raise NotImplementedError

    model = make_model(optimizer=Own(0.1))
    weights = model.get_weights()
    use = usage.read_use(model, dataset, devices.current().device, batches=2)
    assert use["steps"] > 0
    assert float(model.optimizer.iterations) == 0
    for one, two in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
@pytest.mark.tf
def test_a_model_without_weights_gets_them_as_fit_would_make_them(dataset):
    keras = runtime.keras()

    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    plain, checked = make(), make()
    plain.build((None, 5))
    usage.read_use(checked, dataset, devices.current().device, batches=2)
    for one, two in zip(plain.get_weights(), checked.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
@pytest.mark.tf
def test_nothing_is_left_behind(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usage.read_use(make_model(), dataset, devices.current().device, batches=2)
    assert list(Path(tmp_path).iterdir()) == []
    gc.collect()
    with tracing.collect_graphs() as graphs:
        pass
    assert graphs == []
