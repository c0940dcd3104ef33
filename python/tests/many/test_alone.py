"""Models that a stack would not serve train one after another, and the table is the same."""

import numpy as np
import pytest
from precisions import tolerance
from small_fits import make_dataset, make_model
from stacked import difference, fit_many

from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular.members import BatchEnsemble, MeanOfMembers, MembersModel

pytestmark = pytest.mark.tf
OPTIONS = {"epochs": 4, "early_stopping": {"patience": 1, "min_delta": 0.02}}


def make_eager():
    model = make_model()
    model.run_eagerly = True
    return model


@pytest.mark.slow
def test_a_model_that_cannot_be_stacked_is_trained_as_by_fit():
    data = make_dataset(rows=50)
    fits = fit_many([make_eager()], data, seeds=[1, 2], folds=2, **OPTIONS)
    assert (fits.plan.stacks, fits.plan.alone) == ((), (0, 1, 2, 3))
    assert fits.plan.reason == "4 models alone: it runs eagerly"
    together = fit_many([make_model()], data, seeds=[1, 2], folds=2, **OPTIONS)
    assert together.plan.alone == ()
    for one, other in zip(fits.fitted, together.fitted, strict=True):
        assert one.history.stopped == other.history.stopped
        assert one.history.best_epoch == other.history.best_epoch
        for name, values in one.history.metrics.items():
            # Half a precision may turn one of a fold's 25 rows of validation.
            a_row = 1 / 25 if "accuracy" in name and tolerance() else 0.0
            assert values == pytest.approx(other.history.metrics[name], abs=a_row + 1e-5)
        np.testing.assert_allclose(one.outputs, other.outputs, atol=1e-5)


@pytest.mark.slow
def test_metrics_of_members_are_those_of_their_mean_in_a_stack_too():
    import keras

    def make():
        given = keras.Input((5,))
        members = keras_class(BatchEnsemble)(3, 16, "normal", seed=1)(given)
        output = keras_class(MeanOfMembers)()(keras.layers.Softmax()(members))
        model = keras_class(MembersModel)(given, output)
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    data = make_dataset(rows=64, batch_size=16)  # as many rows as members
    together, eager = fit_many([make()], data, folds=2, epochs=1), make()
    assert together.plan.alone == ()
    eager.run_eagerly = True
    alone = fit_many([eager], data, folds=2, epochs=1)
    for one, other in zip(together.fitted, alone.fitted, strict=True):
        for name, values in one.history.metrics.items():
            a_row = 1 / 32 if "accuracy" in name and tolerance() else 0.0
            assert values == pytest.approx(other.history.metrics[name], abs=a_row + 1e-4)


@pytest.mark.nightly  # eager models, and two structures, by themselves in each run
def test_structures_may_be_mixed():
    fits = fit_many([make_eager(), make_model()], make_dataset(rows=64), folds=2, epochs=1)
    assert (fits.plan.stacks, fits.plan.alone) == (((2, 3),), (0, 1))
    assert fits.plan.reason.endswith("train together; 2 models alone: it runs eagerly")


@pytest.mark.slow
def test_a_stack_that_cannot_be_compiled_leaves_its_models_to_fit():
    import keras
    import tensorflow as tf

    def plain(x):
        return x + tf.ensure_shape(tf.numpy_function(lambda x: x, [x], x.dtype), x.shape)

    model = make_model(layers=[keras.layers.Lambda(plain)])
    fits = fit_many([model], make_dataset(rows=64), folds=2, epochs=1)
    assert (fits.plan.stacks, fits.plan.alone) == ((), (0, 1))
    assert "2 models alone: a stack of them failed: " in fits.plan.reason
    assert max(difference(fits, 2, epochs=1, engine="auto")) < 1e-5


@pytest.mark.tensorflow
def test_a_model_for_which_memory_runs_out_is_left_to_fit():
    import keras
    import tensorflow as tf

    class Large(keras.layers.Layer):  # asks for too much, as often as it is told to
        refusals = 0

        def call(self, x, training=False):
            if training and Large.refusals:
                Large.refusals -= 1
                raise tf.errors.ResourceExhaustedError(None, None, "no memory is left")
            return x

    models = [make_model(layers=[Large()])]
    Large.refusals = 3  # that of its checks, the stack's of two models, and that of the first
    fits = fit_many(models, make_dataset(rows=64), seeds=[1, 2], epochs=1)
    assert Large.refusals == 0
    assert fits.plan.alone == (0, 1)
    assert "a stack of them failed: no memory is left" in fits.plan.reason
    assert {one.history.stopped for one in fits.fitted} == {"completed"}


@pytest.mark.slow
def test_recurrent_layers_train_alone():
    import keras

    from gpukeras.data import builder

    rng = np.random.default_rng(0)
    features = {"kind": "array", "values": rng.normal(size=(24, 4, 2))}
    data = builder.assemble(
        features, {"batch_size": 8, "seed": 1}, {"kind": "number", "values": rng.normal(size=24)}
    )
    model = keras.Sequential([keras.Input((4, 2)), keras.layers.LSTM(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fits = fit_many([model], data, folds=2, epochs=1)
    assert fits.plan.alone == (0, 1)
    assert "no program for stacks of recurrent layers" in fits.plan.reason
    assert fits.fitted[0].outputs.shape == (12, 1)


def test_models_that_have_not_begun_when_the_user_stops_stay_as_they_are():
    model = make_eager()
    heard = []

    def on_event(event):
        heard.append(event["kind"])
        return event["kind"] == "epoch"

    fits = fit_many([model], make_dataset(rows=64), folds=2, epochs=2, on_event=on_event)
    assert [one.history.epochs for one in fits.fitted] == [1, 0]
    assert {one.history.stopped for one in fits.fitted} == {"interrupted"}
    for one, other in zip(fits.model(2).get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
