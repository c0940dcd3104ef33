"""Metrics that got worse, refusals, and what a report holds."""

import math

import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras.compression import report
from gpukeras.compression.metrics import Figures
from gpukeras.core.errors import CompressionError, SpecError
from gpukeras.models.clone import copy_model


def figures(**metrics):
    return Figures(1000.0, 900.0, 10, 9, 20.0, (), metrics, "validation" if metrics else "")


@pytest.mark.parametrize(
    ("before", "after", "metric", "chosen", "drop"),
    [
        ({"loss": 1.0, "accuracy": 0.9}, {"loss": 2.0, "accuracy": 0.8}, None, "accuracy", 0.1),
        ({"loss": 1.0, "accuracy": 0.9}, {"loss": 2.0, "accuracy": 0.8}, "loss", "loss", 1.0),
        ({"loss": 1.0, "mean_absolute_error": 3.0}, {"loss": 1.0, "mean_absolute_error": 2.5}, None,
         "mean_absolute_error", -0.5),
        ({"loss": 1.0, "auc": 0.5}, {"loss": 1.0, "auc": 0.75}, None, "auc", -0.25),
        ({"loss": 1.0, "a_loss": 1.0}, {"loss": 1.5, "a_loss": 2.0}, None, "loss", 0.5),
        ({"loss": 1.0, "skill": 0.5}, {"loss": 1.0, "skill": 0.25}, None, "skill", 0.25),
        ({"loss": 1.0, "gini": 0.5}, {"loss": 1.5, "gini": 0.25}, None, "loss", 0.5),
        ({"loss": 1.0, "gini": 0.5}, {"loss": 1.5, "gini": 0.25}, "gini", "gini", None),
        ({}, {}, None, "", None),
    ],
)  # fmt: skip
def test_the_drop_goes_by_what_is_better(before, after, metric, chosen, drop):
    found = report.find_drop(figures(**before), figures(**after), metric, {"skill": "up"})
    assert found[0] == chosen
    assert found[1] == (None if drop is None else pytest.approx(drop))


def test_a_metric_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match="Metrics are loss, accuracy"):
        report.find_drop(figures(loss=1, accuracy=1), figures(loss=1, accuracy=1), "f1", {})


@pytest.mark.parametrize(
    ("after", "max_drop", "refused"),
    [(0.85, 0.05, True), (0.85, 0.06, False), (0.95, 0.0, False), (0.1, None, False),
     (math.nan, 0.5, True)],
)  # fmt: skip
def test_a_model_that_lost_too_much_is_refused(after, max_drop, refused):
    pair = figures(loss=1.0, accuracy=0.901), figures(loss=1.0, accuracy=after)
    _, drop = report.find_drop(*pair, None, {})
    if not refused:
        report.check_drop(*pair, "accuracy", drop, max_drop)
        return
    words = rf"accuracy goes from 0.901 to {after:.4g}, and `max_drop` allows {max_drop:g}\."
    with pytest.raises(CompressionError, match=words) as caught:
        report.check_drop(*pair, "accuracy", drop, max_drop)
    assert caught.value.details["metric"] == "accuracy"
    assert caught.value.details["before"] == 0.901


@pytest.mark.tf
def test_a_limit_without_metrics_is_refused():
    with pytest.raises(SpecError, match="`max_drop` needs rows"):
        report.check_drop(figures(), figures(), "", None, 0.1)
    with pytest.raises(SpecError, match="`max_drop` needs `data`"):
        report.check_requested(make_model(), report.ReportSpec(max_drop=0.1), None, None)
    report.check_requested(make_model(), report.ReportSpec(), None, None)


@pytest.mark.tf
def test_a_limit_of_a_metric_that_does_not_say_what_is_better_is_refused_before_any_work():
    spec = report.ReportSpec(max_drop=0.1, metric="gini")
    with pytest.raises(SpecError, match='higher or lower values of "gini"') as caught:
        report.check_requested(make_model(), spec, make_dataset(), None)
    assert caught.value.details["arg"] == "metric"
    pair = figures(loss=1.0, gini=0.5), figures(loss=1.0, gini=0.25)
    with pytest.raises(SpecError, match='higher or lower values of "gini"'):
        report.check_drop(*pair, "gini", None, 0.1)


@pytest.mark.tf
def test_both_models_are_measured_and_the_worse_one_refused():
    model, data = make_model(), make_dataset(validation=0.2)
    worse = copy_model(model)
    worse.layers[-1].bias.assign([1e3, 0.0, 0.0])  # always the same class
    work = report.Work("quantize", {"mode": "int8"}, 0.0)
    found = report.conclude(model, worse, work, report.ReportSpec(batch_size=4), data=data)
    assert found.metric == "accuracy"
    assert found.drop == found.before.metrics["accuracy"] - found.after.metrics["accuracy"]
    assert [one.rows for one in found.after.latency] == [1, 4]
    assert found.before.part == "validation"
    assert found.device == "CPU:0"
    never = report.ReportSpec(max_drop=0.0, metric="loss")
    with pytest.raises(CompressionError, match="loss goes from"):
        report.conclude(model, worse, work, never, data=data)


@pytest.mark.tf
def test_what_is_not_known_is_said():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, rows):
            return self.dense(rows)

        def get_config(self):
            raise NotImplementedError("cannot be saved")

    model = Own()
    model(keras.ops.zeros((1, 5)))
    found = report.conclude(model, model, report.Work("prune", {}, 0.0), report.ReportSpec())
    assert found.before.disk_bytes is None
    assert "Size on disk is not known" in " ".join(found.notes)
    assert (found.metric, found.drop) == ("", None)


@pytest.mark.tf
def test_rows_that_were_trained_on_are_said_to_be():
    model, data = make_model(), make_dataset()
    work = report.Work("prune", {}, 0.0)
    found = report.conclude(model, model, work, report.ReportSpec(), data=data)
    assert found.before.part == "all"
    assert "none were kept apart" in found.notes[0]
    assert found.drop == 0
