"""Two trainings from the same state: what differs first is named, and equal ones are equal."""

import numpy as np
import pytest
from lazy_modules import keras, tf
from small_fits import make_dataset, make_model
from streamed import chunk, classes, stream

from gpukeras.core.errors import SpecError
from gpukeras.diagnostics.layer_runs import Difference
from gpukeras.diagnostics.reproduce import (
    ReproduceSpec,
    compare_histories,
    explain,
    largest_difference,
    reproduce,
)
from gpukeras.models.state import Snapshot, take_snapshot


def test_the_first_epoch_and_metric_are_found():
    one = {"loss": [1.0, 0.5, float("nan")], "accuracy": [0.1, 0.2, 0.3]}
    assert compare_histories(one, one) == (0, "", ())
    other = {"loss": [1.0, 0.5, float("nan")], "accuracy": [0.1, 0.25, 0.4]}
    assert compare_histories(one, other) == (2, "accuracy", (0.2, 0.25))


def test_the_largest_difference_is_of_all_arrays():
    one = Snapshot({"a": np.array([1.0, 2.0]), "b": np.array([3, 4])})
    other = Snapshot({"a": np.array([1.0, 2.5]), "b": np.array([3, 6])})
    assert largest_difference(one, one) == 0
    assert largest_difference(one, other) == 2
    broken = Snapshot({"a": np.array([1.0, np.nan]), "b": np.array([3, 4])})
    assert largest_difference(one, broken) == float("inf")
    assert largest_difference(broken, broken) == 0


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (Difference("rows", "function", step=3), "gave others, first in batch 3"),
        (Difference("optimizer", step=2), "first the update of the optimizer in step 2"),
        (
            Difference("gradient", "dense/kernel", step=1),
            'the gradient of "dense/kernel" in step 1',
        ),
        (Difference("compiled", step=4), "first step 4, but only in the compiled function"),
        (Difference("step", step=5), "first step 5; layers are compared on TensorFlow only"),
        (Difference("unknown"), "the first 9 of which were equal"),
    ],
)
def test_differences_are_explained(first, text):
    assert text in explain(first, 9)


def test_options_are_checked():
    with pytest.raises(SpecError, match="`steps` must be a whole number of at least 1, not 0."):
        ReproduceSpec(steps=0)


@pytest.mark.tf
def test_trainings_that_repeat_are_equal_and_leave_the_model_as_it_was():
    model = make_model(layers=[keras.layers.Dropout(0.3), keras.layers.BatchNormalization()])
    before = take_snapshot(model).arrays
    found = reproduce(model, make_dataset(validation=0.2), {"epochs": 2})
    assert found.equal
    assert (found.kind, found.epoch, found.largest, found.step) == ("", 0, 0, 0)
    text = "Two trainings of 2 epochs from the same state were equal, bit by bit."
    assert found.sentence == text
    after = take_snapshot(model).arrays
    assert all(np.array_equal(values, after[name]) for name, values in before.items())
    settings = {one.name: one for one in found.settings}
    assert settings["seed of the dataset"].value == "1"
    assert settings["TF_DETERMINISTIC_OPS"].value == "not set"
    assert settings["threads"].value
    assert settings["keras"].value == keras.__version__


@pytest.mark.slow
@pytest.mark.tf
def test_a_layer_with_random_numbers_of_no_seed_is_named():
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + 0.01 * tf.random.normal(tf.shape(x))

    model = make_model(layers=[keras.layers.Dense(4, name="even"), Noise(name="odd")])
    tf.random.set_seed(None)
    found = reproduce(model, make_dataset(), {"epochs": 1})
    assert not found.equal
    assert (found.kind, found.name, found.layer_class) == ("layer", "odd", "Noise")
    assert found.operations == ("RandomStandardNormal",)
    assert (found.epoch, found.step) == (1, 1)
    assert found.largest > 0
    assert found.sentence == (
        'Two trainings from the same state differ: first the output of the layer "odd" of Noise in '
        "step 1 (RandomStandardNormal)."
    )


@pytest.mark.slow
@pytest.mark.tf
def test_a_gradient_that_differs_is_named():
    @tf.custom_gradient
    def drift(x):
        return tf.identity(x), lambda upstream: upstream + 0.01 * tf.random.normal(tf.shape(x))

    class Drift(keras.layers.Layer):
        def call(self, x):
            return drift(x)

    model = make_model(layers=[Drift()])
    tf.random.set_seed(None)
    found = reproduce(model, make_dataset(), {"epochs": 1})
    # What is behind the layer has the same gradients; the first weight before it has not.
    assert found.kind == "gradient"
    assert found.name == model.layers[0].bias.path


@pytest.mark.tf
def test_an_update_that_differs_is_named_and_leaves_the_state():
    class Shaking(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            noise = 0.01 * tf.random.normal(tf.shape(gradient))
            super().update_step(gradient + noise, variable, learning_rate)

    model = make_model(optimizer=Shaking())
    tf.random.set_seed(None)
    before = take_snapshot(model).arrays
    found = reproduce(model, make_dataset(), {"epochs": 1})
    assert (found.kind, found.step) == ("optimizer", 1)
    after = take_snapshot(model).arrays
    assert all(np.array_equal(values, after[name]) for name, values in before.items())


@pytest.mark.tf
def test_a_step_that_differs_as_a_whole_only_is_told():
    class Own(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            kernel = self.layers[0].kernel
            kernel.assign_add(0.01 * tf.random.normal(kernel.shape))
            return logs

    model = Own([keras.Input((5,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    tf.random.set_seed(None)
    found = reproduce(model, make_dataset(), {"epochs": 1})
    assert (found.kind, found.step) == ("compiled", 1)


@pytest.mark.tf
def test_a_function_that_gives_other_rows_each_time_is_named():
    generator = np.random.default_rng()  # seeded by the operating system

    def draw(epoch, batch):
        x = generator.normal(size=(8, 5))
        return None if batch % 4 == 0 and batch else chunk(x, classes((x[:, 0] > 0) + 0))

    data = stream(draw, steps=3, batch_size=8, seed=1)
    found = reproduce(make_model(), data, {"epochs": 1})
    assert (found.kind, found.step) == ("rows", 1)
    assert found.sentence == (
        "Two trainings from the same state differ: the function that gives the rows gave others, "
        "first in batch 1."
    )
