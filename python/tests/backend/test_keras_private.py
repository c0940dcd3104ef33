"""What is private in Keras and TensorFlow is as expected in the installed versions."""

import numpy as np
import pytest
from small_fits import make_model

from gpukeras.backend import keras_private, runtime

pytestmark = pytest.mark.tf


def nested():
    keras = runtime.keras()
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5)], name="inner")
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, name="last")(inner(inputs)))


def test_layers_are_listed_at_any_depth_or_just_below():
    model = nested()
    kinds = sorted(type(layer).__name__ for layer in keras_private.list_layers(model))
    assert kinds == [*["Dense"] * 2, "Dropout", "Functional", *["InputLayer"] * 2, "Sequential"]
    below = keras_private.list_layers(model, include_self=False, recursive=False)
    assert [layer.name for layer in below][1:] == ["inner", "last"]
    assert keras_private.has_layers(model)
    assert not keras_private.has_layers(below[2])
    assert len(keras_private.own_trainable(below[2])) == 2
    generators = map(keras_private.list_seed_generators, keras_private.list_layers(model))
    assert sum(map(len, generators)) == 1


def test_a_graph_gives_its_calls_in_order():
    model, keras = nested(), runtime.keras()
    graph = keras_private.functional_of(model.get_layer("inner"))
    assert keras_private.is_sequential_like(model.get_layer("inner"))
    assert not keras_private.is_sequential_like(model)
    assert keras_private.functional_of(model) is None
    assert keras_private.runs_through_graph(model)
    assert keras_private.has_nodes(model)
    assert [node.is_input for node in keras_private.list_nodes(graph)] == [True, False, False]
    assert [one.name for one in keras_private.list_operations(model)][1:] == ["inner", "last"]
    assert keras_private.list_operations(keras.layers.Dense(1)) == []


def test_losses_and_metrics_are_given_back_as_compile_had_them():
    model = make_model()
    loss, metrics = keras_private.compiled_loss(model), keras_private.compiled_metrics(model)
    assert keras_private.given_losses(loss) == ("sparse_categorical_crossentropy", None)
    assert keras_private.given_metrics(metrics) == (["accuracy"], None)
    assert keras_private.given_losses(None) == keras_private.given_metrics(None) == (None, None)
    assert vars(model)[keras_private.COMPILED_LOSS] is loss
    assert vars(model)[keras_private.COMPILED_METRICS] is metrics
    x, y = np.ones((2, 5), "float32"), np.zeros(2)
    value = keras_private.compute_loss(model, x=x, y=y, y_pred=model(x), sample_weight=None)
    assert float(value) > 0
    assert keras_private.loss_tracker(model).name == "loss"
    huber = runtime.keras().losses.Huber(delta=2.0)
    assert keras_private.loss_options(huber)["delta"] == 2.0
    assert keras_private.loss_options(object()) == {}


def test_a_model_is_built_and_says_how():
    keras, model = runtime.keras(), make_model()
    assert keras_private.takes_training(model)
    keras_private.build_symbolically(model, (np.ones((2, 5), "float32"), np.zeros(2)))
    assert keras_private.compiled_metrics(model).built
    keras_private.forget_losses(model)
    keras_private.set_initial_epoch(model, 3)
    assert keras_private.initial_epoch(model) == 3
    layer = keras.layers.Dense(2)
    layer.build((None, 4))
    assert keras_private.read_build_shapes(layer) == {"input_shape": (None, 4)}
    assert keras_private.read_build_shapes(object()) == {}


def test_an_optimizer_shows_its_rate_and_its_steps():
    keras = runtime.keras()
    optimizer = make_model(optimizer=keras.optimizers.Adam(0.25)).optimizer
    assert int(keras_private.step_count(optimizer).numpy()) == 0
    assert float(keras_private.learning_rate(optimizer).numpy()) == 0.25
    assert keras_private.LEARNING_RATE in vars(optimizer)
    assert keras_private.learning_rate(object()) is None
    assert list(keras_private.inner_optimizers(optimizer)) == []
    assert callable(keras_private.variable_key(optimizer))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert callable(keras_private.common_apply(scaled))
    assert hasattr(scaled, keras_private.APPLY)
    assert hasattr(optimizer, keras_private.VARIABLE_KEY)


def test_a_concrete_function_takes_other_captured_values():
    tf = runtime.tensorflow()
    weight = tf.Variable(2.0)
    concrete = tf.function(lambda x: weight * x).get_concrete_function(tf.TensorSpec([]))
    assert keras_private.can_call_captured(concrete)
    other = tf.Variable(5.0)
    for function in (concrete, keras_private.drop_captures(concrete)):
        found = keras_private.call_captured(function, [tf.constant(3.0)], [other.handle])
        assert float(found) == 15.0
    assert runtime.started()
    strategy = type("Strategy", (), {"_collective_key_base": 10})
    keras_private.separate_collective_keys(strategy, 100)
    assert strategy._collective_key_base == 110
    assert isinstance(tf.distribute.MirroredStrategy._collective_key_base, int)


def test_a_pipeline_that_calls_python_eagerly_is_known():
    tf = runtime.tensorflow()

    def twice(row):
        return tf.py_function(lambda value: value * 2, [row], tf.float32)

    plain = tf.data.Dataset.from_tensor_slices(tf.ones((4, 2)))
    assert not keras_private.uses_py_function(plain.map(lambda row: row * 2).batch(2))
    assert keras_private.uses_py_function(plain.map(twice).batch(2).repeat())
    assert keras_private.uses_py_function(tf.data.Dataset.zip((plain, plain.map(twice))))
    nested = plain.interleave(lambda row: tf.data.Dataset.from_tensors(row).map(twice))
    assert keras_private.uses_py_function(nested)


def test_rows_are_drawn_in_the_order_of_keras():
    tf, keras, seen = runtime.tensorflow(), runtime.keras(), []

    class Noting(keras.Sequential):
        def train_step(self, data):
            tf.py_function(lambda x: seen.extend(x.numpy()[:, 0].astype(int)), [data[0]], [])
            return super().train_step(data)

    keras.utils.set_random_seed(5)
    model = Noting([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.arange(20.0)[:, None]
    model.fit(rows, rows, batch_size=8, epochs=2, verbose=0)
    draw = keras_private.row_orders(model, 20)
    found = [*draw(), *draw()]
    assert found == seen
    assert sorted(found[:20]) == list(range(20))
    assert found[:20] != list(range(20))


def test_pipelines_that_draw_at_random_are_known():
    tf = runtime.tensorflow()
    plain = tf.data.Dataset.range(9).map(lambda x: x + 1).batch(2)
    assert not keras_private.draws_at_random(plain)
    assert keras_private.draws_at_random(tf.data.Dataset.range(9).shuffle(3).batch(2))
    drawn = plain.map(lambda x: tf.random.uniform([2])).prefetch(1)
    assert keras_private.draws_at_random(drawn)


def test_the_function_of_a_metric_is_found():
    keras = runtime.keras()
    function = keras.losses.mean_squared_error
    wrapped = keras.metrics.MeanMetricWrapper(function)
    assert keras_private.wrapped_function(wrapped) is function
    assert keras_private.wrapped_function(keras.metrics.AUC()) is None


def test_logs_become_what_evaluate_returns():
    model = make_model()
    model.evaluate(np.zeros((4, 5)), np.zeros(4), verbose=0)
    assert keras_private.flatten_logs(model, {"accuracy": 2.0, "loss": 1.0}) == [1.0, 2.0]
