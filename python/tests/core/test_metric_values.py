import csv
import json
import math

import numpy as np
import pytest
from nightly import few
from small_fits import make_dataset

from gpukeras import SpecError
from gpukeras.backend import runtime
from gpukeras.core.metric_values import order_metrics, read_metrics, split_components
from gpukeras.data.dataset import map_dataset
from gpukeras.training import evaluate, fit

ENGINES = ["keras", "graph_loop", "compiled"]


def test_metrics_are_plain_numbers_in_order():
    logs = {"val_loss": np.float32(2), "acc": 1, "loss": np.float64("nan"), "val_acc": 0}
    metrics = read_metrics(logs)
    assert list(metrics) == ["loss", "acc", "val_loss", "val_acc"]
    assert {type(value) for value in metrics.values()} == {float}
    assert math.isnan(metrics["loss"])
    assert read_metrics(None) == {}


def test_order_metrics():
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    expected = ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert order_metrics(names) == expected


def test_arrays_become_lists_and_what_is_no_number_is_left_out():
    logs = {"f1": np.float32([0.5, 1]), "one": np.array([2]), "note": "1", "what": object()}
    assert read_metrics(logs) == {"f1": [0.5, 1.0], "one": 2.0}


def test_components_are_named_by_their_place_from_1():
    metrics = {"loss": 1.0, "f1": [0.5, 1.0], "confusion": [[1.0, 2.0], [3.0, 4.0]]}
    assert split_components(metrics) == {
        "loss": 1.0,
        "f1[1]": 0.5,
        "f1[2]": 1.0,
        "confusion[1,1]": 1.0,
        "confusion[1,2]": 2.0,
        "confusion[2,1]": 3.0,
        "confusion[2,2]": 4.0,
    }


# Trainings ----------------------------------------------------------------------------------------


def make_rows(rows=150, **options):
    """One-hot labels, as F1Score takes them."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 5))
    y = np.eye(3)[np.digitize(x[:, 0], [-0.5, 0.5])]
    labels = {"kind": "matrix", "values": np.asfortranarray(y), "levels": []}
    options = {"batch_size": 32, "seed": 1, "shuffle": False, **options}
    features = {"kind": "array", "values": np.asfortranarray(x)}
    return map_dataset.build_dataset(features, options, labels), x, y


def make_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    layers = [keras.Input((5,)), keras.layers.Dense(3, "softmax")]

    class Confusion(keras.metrics.Metric):
        """A matrix."""

        def __init__(self):
            super().__init__(name="confusion")
            self.sums = self.add_weight(shape=(3, 3), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.sums.assign_add(keras.ops.matmul(keras.ops.transpose(y_true), y_pred))

        def result(self):
            return self.sums + 0.0

    model = keras.Sequential(layers)
    metrics = [keras.metrics.F1Score(), Confusion(), "accuracy"]
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", metrics=metrics)
    return model


@pytest.mark.tf
@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop"))
def test_metrics_that_are_arrays_are_keras_own(engine, tmp_path):
    data, x, y = make_rows()
    more = (x[:40], y[:40])
    keras_model, ours = make_model(), make_model()
    theirs = keras_model.fit(
        x, y, batch_size=32, epochs=2, shuffle=False, verbose=0, validation_data=more
    )
    log, told = tmp_path / "log.csv", []
    report = fit.fit(
        ours,
        data,
        {"epochs": 2, "engine": engine, "tensorboard": str(tmp_path), "early_stopping": 5},
        validation=make_rows(40)[0],
        callbacks=[runtime.keras().callbacks.CSVLogger(str(log))],
        functions={"on_epoch_end": lambda epoch, metrics: told.append(metrics) or {}},
        on_event=lambda event: told.append(event["metrics"]) if event["kind"] == "epoch" else None,
    )
    assert set(report.history) == set(theirs.history)
    for name, values in theirs.history.items():
        np.testing.assert_allclose(np.array(report.history[name]), np.array(values), rtol=1e-4)
    assert np.shape(report.history["val_f1_score"]) == (2, 3)
    assert np.shape(report.history["confusion"]) == (2, 3, 3)
    assert len(told) == 4
    assert {type(value) for metrics in told for value in metrics.values()} == {float}
    assert told[-1]["val_confusion[3,1]"] == report.history["val_confusion"][-1][2][0]
    with log.open() as lines:
        assert len(list(csv.DictReader(lines))) == 2
    assert list(tmp_path.glob("validation/events*"))


@pytest.mark.slow
@pytest.mark.tf
def test_a_component_can_be_watched_and_a_whole_array_cannot():
    early = {"patience": 1, "monitor": "f1_score[2]", "min_delta": 1}
    report = fit.fit(make_model(), make_rows()[0], {"epochs": 9, "early_stopping": early})
    assert (report.epochs, report.stopped) == (2, "early")
    with pytest.raises(SpecError, match='`monitor` is "f1_score", which is not among') as caught:
        fit.fit(make_model(), make_rows()[0], {"early_stopping": {**early, "monitor": "f1_score"}})
    assert "f1_score[1], f1_score[2], f1_score[3]" in caught.value.hint


@pytest.mark.slow
@pytest.mark.tf
def test_arrays_survive_a_checkpoint(tmp_path):
    options = {"engine": "graph_loop", "checkpoint": str(tmp_path / "run")}
    model = make_model()
    fit.fit(model, make_rows()[0], {"epochs": 1, **options})
    report = fit.fit(make_model(), make_rows()[0], {"epochs": 3, **options})
    whole = fit.fit(make_model(), make_rows()[0], {"epochs": 3, "engine": "graph_loop"})
    assert report.history == whole.history
    written = json.loads((tmp_path / "run" / "history.json").read_text())
    assert written["history"]["f1_score"] == report.history["f1_score"]


@pytest.mark.slow
@pytest.mark.tf
def test_evaluation_gives_a_number_for_each_component():
    data, x, y = make_rows()
    model = make_model()
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    found = evaluate.evaluate(model, data)["metrics"]
    assert found["f1_score[3]"] == pytest.approx(float(expected["f1_score"][2]), rel=1e-4)
    assert list(found)[0] == "loss"


@pytest.mark.tf
def test_a_callback_may_log_what_is_no_number():
    class Notes(runtime.keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["note"], logs["extra"] = "fine", [1, 2]

    report = fit.fit(make_model(), make_rows()[0], {"epochs": 1}, callbacks=[Notes()])
    assert report.history["extra"] == [[1.0, 2.0]]
    assert "note" not in report.history


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop", "compiled"))
def test_a_step_of_the_users_own_may_log_a_loss_a_row(engine):
    keras = runtime.keras()

    class Own(keras.Sequential):
        def train_step(self, data):
            super().train_step(data)
            return {"loss": keras.ops.mean(keras.ops.square(data[0]), axis=-1)}

    model = Own([keras.Input((5,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    report = fit.fit(model, make_dataset(64), {"epochs": 1, "engine": engine})
    assert np.isfinite(report.history["loss"]).all()
