"""Epochs of a stack are those of each model alone; one that the user ends has never been."""

import numpy as np
import pytest
from familied import dataset as family_dataset
from familied import model_of
from nightly import few
from small_fits import make_dataset, make_model
from stacked import ALONE, difference, fit_alone, fit_many

pytestmark = pytest.mark.tf
SIZES = [5, 33, 20]
GROUPS = {"names": ["a", "b", "c"], "codes": np.repeat(range(3), SIZES)}


@pytest.mark.slow
def test_a_loss_that_depends_on_the_batch_sees_the_batches_of_a_model_alone():
    data = family_dataset("cox", batch_size=50)
    fits = fit_many([model_of("cox", data)], data, folds=3, epochs=2)
    assert len(fits.members[0].held_out) % 50 > 0
    assert max(difference(fits, 2, epochs=2)) < ALONE  # the baseline hazard is among the weights


def make_adding():
    import keras

    class Adding(keras.layers.Layer):
        def call(self, values):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(values)))
            return values

    return Adding()


def make_penalised():
    import keras

    return keras.layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.3))


@pytest.mark.varies
@pytest.mark.parametrize("make", [make_penalised, make_adding])
def test_what_layers_add_to_the_loss_of_a_batch_counts(make):
    model = make_model(layers=[make()])
    fits = fit_many([model], make_dataset(rows=58), folds=2, most=2, epochs=2)
    assert fits.plan.stacks == ((0, 1),)
    assert max(difference(fits, 2, epochs=2)) < ALONE  # with short last batches


@pytest.mark.slow
@pytest.mark.parametrize("drop_last", few([False, True], False))
def test_rates_are_those_of_each_model_s_own_steps(drop_last):
    import keras

    model = make_model(layers=[keras.layers.BatchNormalization()])
    data = make_dataset(rows=58, batch_size=8, drop_last=drop_last)
    schedule = {"kind": "one_cycle", "max_rate": 0.5}
    fits = fit_many([model], data, groups=GROUPS, schedule=schedule, epochs=2)
    assert max(difference(fits, 3, schedule=schedule, epochs=2)) < ALONE


def test_a_plateau_lowers_the_rates_of_each_model_by_itself():
    schedule = {"kind": "plateau", "patience": 1, "min_delta": 0.2, "min_rate": 1e-3}
    data = make_dataset(rows=60)
    fits = fit_many([make_model()], data, folds=2, schedule=schedule, epochs=4)
    assert max(difference(fits, 2, schedule=schedule, epochs=4)) < ALONE
    _, alone = fit_alone(fits, 2, schedule=schedule, epochs=4)
    assert alone.learning_rate[-1] < alone.learning_rate[0]


@pytest.mark.parametrize("epochs", few([1, 2], 1))
def test_weights_that_are_no_numbers_are_taken_back_though_the_loss_is_one(epochs):
    import keras

    from gpukeras.data.dataset.map_dataset import build_dataset

    x = np.array([1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1], float)  # a gradient at 0 is no number
    features = {"kind": "array", "values": x[:, None]}
    labels = {"kind": "number", "values": 2 * x}
    data = build_dataset(features, {"batch_size": 2, "shuffle": False, "scale": False}, labels)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", lambda y, p: keras.ops.norm(y - p))
    groups = {"names": ["a", "b"], "codes": np.repeat(range(2), 6)}
    fits = fit_many([model], data, groups=groups, most=2, epochs=epochs)
    assert fits.plan.stacks == ((0, 1),)
    assert [one.history.stopped for one in fits.fitted] == ["non_finite", "completed"]
    np.testing.assert_array_equal(fits.model(1).get_weights(), model.get_weights())
    assert fits.fitted[0].history.epochs == 0
    assert max(difference(fits, 2, epochs=epochs)) < ALONE


def test_a_model_without_an_epoch_predicts_nothing():
    import keras

    from gpukeras.data.dataset.map_dataset import build_dataset

    y = np.repeat([1, 1e30], 12)  # whose square is infinite
    features = {"kind": "array", "values": np.ones((24, 1))}
    options = {"batch_size": 4, "scale": False, "validation": 0.25, "seed": 1}
    data = build_dataset(features, options, {"kind": "number", "values": y})
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    groups = {"names": ["a", "b"], "codes": np.repeat(range(2), 12)}
    fits = fit_many([model], data, groups=groups, most=2)
    assert fits.plan.stacks == ((0, 1),)
    assert [one.history.stopped for one in fits.fitted] == ["completed", "non_finite"]
    assert len(fits.held_out(1)["rows"]) > 0
    assert fits.held_out(2) is None


@pytest.mark.slow
def test_a_model_without_rows_to_validate_on_is_watched_by_its_training():
    data = make_dataset(rows=60, validation=0.25)
    codes = np.zeros(60, int)
    codes[data.train_rows[:20]] = 1
    groups = {"names": ["a", "b"], "codes": codes}
    stopping = {"patience": 1}
    fits = fit_many([make_model()], data, groups=groups, most=2, early_stopping=stopping)
    assert fits.plan.stacks == ((0, 1),)
    assert len(fits.members[1].held_out) == 0
    assert max(difference(fits, 2, early_stopping=stopping)) < ALONE


@pytest.mark.slow
def test_an_epoch_that_the_user_ends_has_never_been():
    heard = []

    def on_event(event):
        heard.append(event["kind"])
        return heard.count("waiting") == 2

    data = make_dataset(rows=60)
    models = [make_model(), make_model(layers=[make_layer()])]
    import gpukeras.training.listener as listener

    before, listener.EVENT_S = listener.EVENT_S, 0.0  # an event before each block
    try:
        fits = fit_many(models, data, on_event=on_event, epochs=3)
    finally:
        listener.EVENT_S = before
    assert heard == ["waiting", "epoch", "waiting"]
    first, second = fits.fitted
    assert (first.history.epochs, first.history.stopped) == (1, "interrupted")
    assert (second.history.epochs, second.history.stopped) == (0, "interrupted")
    whole = fit_many(models, data, epochs=1)
    for one, other in zip(fits.model(1).get_weights(), whole.model(1).get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(fits.model(2).get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def make_layer():
    import keras

    return keras.layers.Dense(4)


def test_images_are_augmented_in_training_only():
    from gpukeras.data import builder

    rng = np.random.default_rng(0)
    features = {"kind": "array", "values": rng.uniform(size=(24, 4, 4, 1))}
    labels = {"kind": "number", "values": rng.normal(size=24)}

    def fits_of(augment):
        data = builder.assemble(features, {"batch_size": 8, "seed": 1}, labels, augment=augment)
        return fit_many([make_image_model()], data, folds=2, epochs=1)

    plain, still, varied = map(
        fits_of, (None, {"flip": "none"}, {"brightness": 0.9, "value_range": [0, 1]})
    )
    for one, other in zip(plain.fitted, still.fitted, strict=True):
        assert one.history.metrics["loss"] == pytest.approx(other.history.metrics["loss"])
    for one, other in zip(plain.fitted, varied.fitted, strict=True):
        assert one.history.metrics["loss"] != pytest.approx(other.history.metrics["loss"])
    number, rows = 1, varied.members[0].held_out
    x = features["values"][rows].astype("float32")
    alone = varied.model(number).predict(x, verbose=0)
    np.testing.assert_allclose(varied.held_out(number)["values"], alone.ravel(), atol=1e-6)


def make_image_model():
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model
