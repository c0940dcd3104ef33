"""What was traced serves again as long as it is the same program; a layer counts its tracings."""

import gc
import weakref

import numpy as np
import pytest
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.engine import engine_cache
from gpukeras.training import evaluate
from gpukeras.training import fit as training_fit

pytestmark = pytest.mark.tf


def counted(**options):
    """A model, and a list that grows whenever the model is traced."""
    keras, traced = runtime.keras(), []

    class Counting(keras.layers.Layer):
        def call(self, x):
            traced.append(x)
            return x

    model = make_model(layers=[Counting(), keras.layers.Dropout(0.5, seed=1)], **options)
    traced.clear()
    return model, traced


def fit(model, rows=200, **options):
    data = make_dataset(rows, batch_size=options.pop("batch_size", 32))
    return training_fit.fit(model, data, {"epochs": 1, "engine": "graph_loop", **options})


def count(traced, train):
    before = len(traced)
    train()
    return len(traced) - before


@pytest.mark.parametrize("engine", few(["keras", "graph_loop", "compiled", "auto"], "graph_loop"))
def test_a_later_training_traces_nothing(engine):
    model, traced = counted()
    assert count(traced, lambda: fit(model, engine=engine)) > 0
    assert count(traced, lambda: fit(model, engine=engine)) == 0


def test_the_price_of_tracing_is_remembered():
    model, _ = counted()
    fit(model)
    _, engines = vars(model)[engine_cache.ATTRIBUTE]["train"]
    traced_s = engines.started_s
    fit(model)
    assert engines.started_s == traced_s > 0


def test_a_later_evaluation_traces_nothing():
    model, traced = counted()
    fit(model)
    data = make_dataset()
    assert count(traced, lambda: evaluate.evaluate(model, data)) > 0
    assert count(traced, lambda: evaluate.evaluate(model, data)) == 0


CHANGES = {
    "compiled again": lambda model: model.compile("sgd", model.loss),
    "a layer is frozen": lambda model: setattr(model.layers[0], "trainable", False),
    "a loss of its own": lambda model: setattr(model, "train_step", model.test_step),
}


@pytest.mark.varies
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_model_is_traced_anew(change):
    model, traced = counted()
    fit(model)
    change(model)
    assert count(traced, lambda: fit(model)) > 0


def test_few_batches_of_another_number_take_the_same_program():
    model, traced = counted()
    fit(model)
    assert count(traced, lambda: fit(model, rows=300)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    few(
        [
            {"batch_size": 16},
            {"clip_norm": 1.0},
            {"ema": 0.5},
            {"schedule": {"kind": "one_cycle"}},
            {"engine": "compiled"},
        ],
        {"batch_size": 16},
        {"ema": 0.5},
    ),
    ids=str,
)
def test_another_training_is_traced_anew_and_the_first_one_again(options):
    model, traced = counted()
    fit(model)
    assert count(traced, lambda: fit(model, **options)) > 0
    before = model.optimizer.learning_rate
    assert count(traced, lambda: fit(model)) >= 0
    assert model.optimizer.learning_rate is before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "sizes"),
    few(
        [("keras", (200, 200, 230)), ("graph_loop", (200, 200, 230)), ("compiled", (200, 200))],
        ("graph_loop", (200, 200, 230)),
    ),
)
def test_a_reused_program_trains_as_a_new_one(engine, sizes):
    found = []
    for reused in (True, False):
        model, _ = counted(optimizer="adam")
        for rows in sizes:
            if not reused:
                vars(model).pop(engine_cache.ATTRIBUTE, None)
            report = fit(model, rows, engine=engine)
            assert report.rows == rows
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.float32(reason="loss scaling leaves out steps")
def test_a_training_that_failed_leaves_nothing_behind():
    model, _ = counted()
    rate = float(model.optimizer.learning_rate.numpy())
    model.optimizer.learning_rate.assign(1e30)
    assert fit(model, 2000).stopped == "non_finite"
    model.optimizer.learning_rate.assign(rate)
    report = fit(model, 2000)
    assert (report.stopped, report.skipped_steps) == ("completed", 0)
    assert np.isfinite(report.history["loss"]).all()


@pytest.mark.slow
def test_averages_of_the_weights_are_given_up_after_their_training():
    tf = runtime.tensorflow()
    model, _ = counted()
    fit(model)
    before = vars(model)[engine_cache.ATTRIBUTE]["train"][1]

    def variables():
        gc.collect()
        found = [each for each in gc.get_objects() if isinstance(each, tf.Variable)]
        return {id(each): each for each in found}

    # Other tests of this process have left some too.
    known = variables()
    fit(model, ema=0.5)
    assert vars(model)[engine_cache.ATTRIBUTE]["train"][1] is before
    assert variables().keys() <= known.keys()


@pytest.mark.slow
def test_the_model_is_saved_copied_and_forgotten_as_before(tmp_path):
    model = make_model()
    fit(model)
    keras = runtime.keras()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for copy in (again, keras.models.clone_model(model)):
        assert engine_cache.ATTRIBUTE not in vars(copy)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("engine", few(["keras", "graph_loop"], "graph_loop"))
def test_a_frozen_layer_without_weights_to_train_is_heeded(engine):
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    between = keras.layers.BatchNormalization(center=False, scale=False)
    model = keras.Sequential([keras.Input((5,)), between, keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    training_fit.fit(model, make_dataset(), {"epochs": 1, "engine": engine})
    before = between.moving_mean.numpy()
    between.trainable = False
    training_fit.fit(model, make_dataset(), {"epochs": 1, "engine": engine})
    np.testing.assert_array_equal(between.moving_mean.numpy(), before)
    between.trainable = True
    training_fit.fit(model, make_dataset(), {"epochs": 1, "engine": engine})
    assert (between.moving_mean.numpy() != before).all()
