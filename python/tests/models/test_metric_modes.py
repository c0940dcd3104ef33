"""Whether higher or lower values of a metric are better: by the metric, by its name, or refused."""

import inspect

import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset

from gpukeras.backend import keras_private
from gpukeras.core.errors import SpecError
from gpukeras.models.metric_modes import MODES, choose_mode, find_mode
from gpukeras.training import fit


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("val_mean_absolute_error", "min"),
        ("false_positives", "min"),
        ("brier_score", "min"),
        ("my_cross_entropy", "min"),
        ("rmse2", "min"),
        ("mae[3]", "min"),
        ("accuracy_loss", "min"),
        ("accelerometer_mae", "min"),
        ("accuracy", "max"),
        ("val_sparse_categorical_accuracy", "max"),
        ("acc", "max"),
        ("val_auc_2", "max"),
        ("precision_at_recall", "max"),
        ("head_recall", "max"),
        ("f1_score", "max"),
        ("r2_score", "max"),
        ("val_mean_io_u", "max"),
        ("true_negatives_1", "max"),
        ("cosine_similarity", "max"),
        ("val_auc2", "max"),
        ("f1_score[1,2]", "max"),
        ("gini", None),
        ("c_index", None),
        ("accuracy_error", None),
        ("loss_of_accuracy", "min"),
    ],
)
def test_a_metrics_name_tells_which_is_better(metric, mode):
    assert find_mode(metric) == mode


@pytest.mark.parametrize(
    ("metric", "directions", "mode"),
    [
        ("val_gini", {"gini": "up"}, "max"),
        ("val_out_gini", {"gini": "up"}, "max"),
        ("gini[2]", {"gini": "down"}, "min"),
        ("my_accuracy", {"my_accuracy": "down"}, "min"),
        ("out_f1_score", {"score": "down", "f1_score": "up"}, "max"),
        ("gini2", {"gini": "up"}, None),
        ("val_loss", {"loss": "up"}, "min"),
    ],
)
def test_what_a_metric_says_itself_comes_before_its_name(metric, directions, mode):
    assert find_mode(metric, directions) == mode


def test_a_metric_that_says_nothing_is_refused():
    with pytest.raises(SpecError, match='higher or lower values of "val_gini"') as caught:
        choose_mode("val_gini", {"other": "up"}, arg="mode", hint="Say it.")
    assert caught.value.details == {"arg": "mode"}
    assert caught.value.hint == "Say it."


def keras_metrics():
    """Keras' metrics that can be made without more, and say what is better."""
    for name, kind in inspect.getmembers(keras.metrics, inspect.isclass):
        try:
            metric = kind()
        except TypeError:  # asks for a threshold, or a number of classes
            continue
        if hasattr(metric, "_direction"):
            yield name, metric


@pytest.mark.tf
def test_names_of_keras_metrics_say_what_the_metrics_say():
    known = dict(keras_metrics())
    assert len(known) > 25
    wrong = [name for name, each in known.items() if find_mode(each.name) != MODES[each._direction]]
    assert not wrong


def gini(y_true, y_pred):
    return keras.ops.mean(y_pred)


def compile_with(metrics):
    inputs = keras.Input((5,))
    outputs = {"a": keras.layers.Dense(1, name="a")(inputs)}
    outputs["b"] = keras.layers.Dense(1, name="b")(inputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", metrics=metrics)
    return model


@pytest.mark.tf
def test_metrics_of_a_model_say_what_is_better():
    class Skill(keras.metrics.Mean):
        _direction = "up"

        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(y_pred)

    model = compile_with({"a": [Skill(name="skill"), gini], "b": ["mae"]})
    rows = np.zeros((4, 5), "float32")
    model.evaluate(rows, {"a": rows[:, 0], "b": rows[:, 0]}, verbose=0)
    directions = keras_private.metric_directions(model)
    assert directions == {"skill": "up", "mae": "down"}
    names = [name for name in model.get_metrics_result() if "loss" not in name]
    modes = {name: find_mode(name, directions) for name in names}
    assert modes == {"a_skill": "max", "a_gini": None, "b_mae": "min"}


def a_model(metrics):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    return model


@pytest.mark.tf
def test_a_training_refuses_what_keras_own_early_stopping_refuses():
    data = make_dataset()
    own = keras.callbacks.EarlyStopping("gini", patience=1)
    with pytest.raises(ValueError, match="maximized or minimized"):
        a_model([gini]).fit(*data.arrays, epochs=2, verbose=0, callbacks=[own])
    stopping = {"patience": 1, "monitor": "gini"}
    for option in ({"early_stopping": stopping}, {"schedule": {"kind": "plateau", **stopping}}):
        with pytest.raises(SpecError, match='higher or lower values of "gini"') as caught:
            fit.fit(a_model([gini]), data, {"epochs": 2, **option})
        assert caught.value.details["arg"] == "mode"
    told = {**stopping, "mode": "max"}
    fit.fit(a_model([gini]), data, {"epochs": 2, "early_stopping": told})
