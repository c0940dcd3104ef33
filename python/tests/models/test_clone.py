"""A copy predicts the same and shares nothing."""

import functools

import numpy as np
import pytest
from lazy_modules import keras, tf
from small_fits import make_dataset, make_model

from gpukeras.backend import keras_private
from gpukeras.core.errors import ModelError
from gpukeras.models import clone, model_recipes

pytestmark = pytest.mark.tf
ROWS = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)


def own_loss(true, predicted):
    return keras.losses.sparse_categorical_crossentropy(true, predicted)


@pytest.mark.float32(reason="loss scaling leaves its only step out")
def test_a_copy_is_the_same_and_its_own():
    model, data = make_model(optimizer="adam", layers=[keras.layers.Dropout(0.5)]), make_dataset()
    model.compile(
        keras.optimizers.Adam(0.01), own_loss, metrics=[keras.metrics.SparseCategoricalAccuracy()]
    )
    model.train_on_batch(ROWS, np.zeros(6))
    model_recipes.tie_recipe(model, data.recipe)
    copy = clone.copy_model(model)
    np.testing.assert_array_equal(copy(ROWS), model(ROWS))
    assert type(copy) is keras.Sequential
    assert copy.compiled
    assert model.compiled
    assert float(copy.optimizer.learning_rate) == pytest.approx(0.01)
    assert model_recipes.recipe_of(copy) is data.recipe
    before = np.asarray(model(ROWS))
    copy.train_on_batch(ROWS, np.zeros(6))
    np.testing.assert_array_equal(model(ROWS), before)
    assert not np.array_equal(copy(ROWS), before)


def test_a_model_that_runs_eagerly_is_copied_without_a_warning():
    model = make_model()
    model.compile("sgd", "mse", run_eagerly=True, steps_per_execution=3)
    model.jit_compile = True  # as Keras leaves it where there is a GPU
    copy = clone.copy_model(model)
    assert (copy.run_eagerly, copy.jit_compile) == (True, False)
    assert copy.steps_per_execution == 3


def test_a_model_of_the_user_s_class_is_copied():
    class Own(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense = keras.layers.Dense(3)

        def call(self, rows):
            return self.dense(rows)

        def build(self, shape):
            self.dense.build(shape)
            self.built = True

    model = Own()
    model.build((None, 5))
    np.testing.assert_array_equal(clone.copy_model(model)(ROWS), model(ROWS))
    with pytest.raises(ModelError, match="sequential or functional"):
        clone.check_graph(model)


def adapted():
    normal = keras.layers.Normalization()
    normal.adapt(np.arange(20.0).reshape(4, 5))
    return normal


def double(rows):
    return 2 * rows


LAYERS = {
    "code of the session": lambda: keras.layers.Lambda(lambda rows: rows + 1),
    "functions of the session": lambda: keras.layers.Dense(3, activation=double),
    "means of a normalization": adapted,
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_what_a_layer_holds_is_copied(make):
    model = keras.Sequential([keras.Input((5,)), make()])
    np.testing.assert_array_equal(clone.copy_model(model)(ROWS), model(ROWS))


def adapted_to_texts(mode):
    words = keras.layers.TextVectorization(output_mode=mode)
    words.adapt(["a b", "c d a"])
    return words, tf.constant([["a b"], ["c"]])


def adapted_to_codes(mode):
    codes = keras.layers.IntegerLookup(output_mode=mode)
    codes.adapt(np.array([3, 5, 7]))
    return codes, tf.constant([[7], [4]])


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("adapt", "mode"),
    [(adapted_to_texts, "tf_idf"), (adapted_to_texts, "count"), (adapted_to_codes, "one_hot")],
)
@pytest.mark.parametrize("copy", [clone.copy_model, lambda model: clone.copy_with_seed(model, 1)])
def test_what_a_layer_was_adapted_to_is_copied(adapt, mode, copy):
    layer, rows = adapt(mode)
    model = keras.Sequential([keras.Input((1,), dtype=rows.dtype.name), layer])
    np.testing.assert_array_equal(copy(model).predict(rows), model.predict(rows))


@pytest.mark.slow
@pytest.mark.float32(reason="Keras has no int8 for float16")
def test_a_quantized_model_is_copied():
    model = make_model()
    model.layers[0].quantize("int8")
    np.testing.assert_array_equal(clone.copy_model(model)(ROWS), model(ROWS))


def times(number, name):
    def function(x):
        return x * number

    function.__name__ = name
    return function


@pytest.mark.parametrize("names", [("act", "act"), ("relu", "relu"), ("<lambda>", "<lambda>")])
def test_functions_that_share_a_name_stay_apart(names):
    first, second = (times(number, name) for number, name in zip((2.0, -3.0), names, strict=True))
    layers = [
        keras.layers.Dense(4, activation=first),
        keras.layers.Dense(4, activation="relu"),
        keras.layers.Dense(4, activation=second),
        keras.layers.Lambda(first),
    ]
    model = make_model(layers=layers)
    for copy in (clone.copy_model(model), clone.copy_model(model, in_float32=True)):
        np.testing.assert_array_equal(copy(ROWS), model(ROWS))
    renewed = clone.copy_with_seed(model, 1)
    renewed.set_weights(model.get_weights())
    np.testing.assert_array_equal(renewed(ROWS), model(ROWS))
    assert (first.__name__, second.__name__) == names


def test_a_layer_of_the_copy_sees_a_function_by_its_own_name():
    class Told(keras.layers.Layer):
        def __init__(self, function, **options):
            super().__init__(**options)
            self.function = keras.activations.get(function)
            self.told = self.function.__name__

        def call(self, x):
            return self.function(x)

        def get_config(self):
            config = {"function": keras.activations.serialize(self.function)}
            return {**super().get_config(), **config}

    model = make_model(layers=[Told(times(2.0, "act")), Told(times(-3.0, "act"))])
    copies = (
        clone.copy_model(model),
        clone.copy_model(model, in_float32=True),
        clone.copy_with_seed(model, 1),
    )
    for copy in copies:
        assert [layer.told for layer in copy.layers if hasattr(layer, "told")] == ["act", "act"]


def test_metrics_of_ones_own_are_made_again():
    class Doubled(keras.metrics.Mean):
        def __init__(self, times=2.0, **options):
            super().__init__(**options)
            self.times = times

        def get_config(self):
            return {**super().get_config(), "times": self.times}

    class Odd(keras.metrics.Mean):
        def __init__(self, times):
            super().__init__(name="odd")

    def gini(true, predicted):
        return keras.ops.mean(predicted, axis=-1)

    model = make_model()
    model.compile("sgd", own_loss, metrics=[keras.metrics.MeanMetricWrapper(gini), Doubled(3.0)])
    copied = keras_private.given_metrics(keras_private.compiled_metrics(clone.copy_model(model)))
    wrapper, doubled = copied[0]
    assert keras_private.wrapped_function(wrapper) is gini
    assert (type(doubled), doubled.times) == (Doubled, 3.0)
    model.compile("sgd", own_loss, metrics=[Odd(1.0)])
    with pytest.raises(ModelError, match="metric `odd` cannot be made again: .*'name'") as caught:
        clone.copy_model(model)
    assert caught.value.details["arg"] == "model"


def test_what_cannot_be_copied_is_said():
    class Closed(keras.layers.Layer):
        def __init__(self, size):
            super().__init__()

        def call(self, rows):
            return rows

        def get_config(self):
            return {}

    with pytest.raises(ModelError, match="cannot be copied"):
        clone.copy_model(keras.Sequential([keras.Input((5,)), Closed(3)]))
    with pytest.raises(ModelError, match="no weights yet"):
        clone.copy_model(keras.Sequential([keras.layers.Dense(3)]))


@functools.cache
def make_classes():
    """A class whose compile() has an argument of its own, and one that says it besides."""

    class Scaled(keras.Model):
        """Its loss is multiplied by an argument of its own compile()."""

        def compile(self, optimizer="sgd", loss=None, scale=1.0, **options):
            super().compile(optimizer, loss, **options)
            self.scale = scale

        def compute_loss(self, *args, **options):
            return self.scale * super().compute_loss(*args, **options)

    class Telling(Scaled):
        """It says how it was compiled."""

        def get_compile_config(self):
            return {"optimizer": self.optimizer, "loss": self.loss, "scale": self.scale}

        def compile_from_config(self, config):
            self.compile(**keras.saving.deserialize_keras_object(config))

    return Scaled, Telling


def compiled(kind):
    given = keras.Input((5,))
    model = kind(given, keras.layers.Dense(3)(given))
    model.compile(keras.optimizers.SGD(0.3), "mse", scale=5.0)
    return model


def test_arguments_of_a_compile_of_ones_own_are_copied_as_its_class_says():
    _, telling = make_classes()
    model, rows = compiled(telling), (ROWS, np.ones((6, 3)))
    copy = clone.copy_model(model)
    assert copy.evaluate(*rows, verbose=0) == pytest.approx(model.evaluate(*rows, verbose=0))
    assert copy.optimizer is not model.optimizer
    assert float(copy.optimizer.learning_rate) == pytest.approx(0.3)


def test_arguments_of_a_compile_of_ones_own_that_nobody_tells_are_refused():
    scaled, _ = make_classes()
    with pytest.raises(ModelError, match="arguments of its own: scale") as caught:
        clone.copy_model(compiled(scaled))
    assert "compile_from_config" in caught.value.hint


def with_settings():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, kernel_regularizer="l2")])
    kernel, bias = model.variables
    kernel.constraint = keras.constraints.NonNeg()
    kernel.regularizer = keras.regularizers.L2(3.0)
    bias.trainable = False
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay([kernel], ["bias"])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("copy", [clone.copy_model, lambda model: clone.copy_with_seed(model, 1)])
def test_settings_of_single_variables_are_copied(copy):
    model = with_settings()
    assert clone.has_settings(model)
    copied = copy(model)
    kernel, bias = copied.variables
    assert isinstance(kernel.constraint, keras.constraints.NonNeg)
    assert (kernel.regularizer.l2, kernel.trainable, bias.trainable) == (3.0, True, False)
    optimizer = keras_private.without_scaling(copied.optimizer)
    assert all(keras_private.is_left_out_of_decay(optimizer, each) for each in copied.variables)
    copied.train_on_batch(ROWS, np.ones((6, 3)))
    assert (kernel.numpy() >= 0).all()


def test_settings_of_layers_are_not_taken_for_those_of_variables():
    layer = keras.layers.Dense(
        3, kernel_constraint="non_neg", bias_regularizer=lambda bias: 0.1, trainable=False
    )
    assert not clone.has_settings(make_model(layers=[layer]))


def make_own(scale):
    def loss(true, predicted):
        return scale * keras.losses.sparse_categorical_crossentropy(true, predicted)

    frozen = keras.layers.Dense(4, trainable=False)
    dropout = keras.layers.Dropout(0.5, seed=1)
    last = keras.layers.Dense(3, activation="softmax")
    model = keras.Sequential([keras.Input((5,)), adapted(), frozen, dropout, last])
    model.compile("sgd", loss)
    return model


def test_a_seed_gives_weights_that_train_anew_and_keeps_the_others():
    model = make_own(2.0)
    one, same, other = (clone.copy_with_seed(model, seed) for seed in (1, 1, 2))
    for mine, alike in zip(one.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, alike)
    weights = [each.layers[-1].get_weights()[0] for each in (model, one, other)]
    assert not np.allclose(weights[0], weights[1])
    assert not np.allclose(weights[1], weights[2])
    for place in (0, 1):  # what was adapted, and what is frozen
        for kept, mine in zip(
            model.layers[place].get_weights(), one.layers[place].get_weights(), strict=True
        ):
            np.testing.assert_array_equal(kept, mine)
    dropped = [each.layers[2].seed_generator.state.numpy() for each in (one, other)]
    assert not np.array_equal(*dropped)
    loss = one.evaluate(ROWS, np.zeros(6), verbose=0)
    assert loss == pytest.approx(-2 * np.log(np.asarray(one(ROWS))[:, 0]).mean(), rel=1e-5)


def test_a_seed_gives_batch_normalizations_that_train_the_first_means():
    normal = [keras.layers.BatchNormalization(trainable=trains) for trains in (True, False)]
    model = make_model(layers=normal)
    for layer in normal:
        layer.moving_mean.assign(np.full(8, 3.0))
        layer.moving_variance.assign(np.full(8, 2.0))
    begun, kept = clone.copy_with_seed(model, 1).layers[1:3]
    np.testing.assert_array_equal(begun.moving_mean, np.zeros(8))
    np.testing.assert_array_equal(begun.moving_variance, np.ones(8))
    np.testing.assert_array_equal(kept.moving_mean, np.full(8, 3.0))
