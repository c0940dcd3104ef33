import numpy as np
import pytest
from precisions import EXACT_APPROX
from tables import make_columns, make_table

from gpukeras import DataError
from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular import builder, members
from gpukeras.training import evaluate, fit

pytestmark = pytest.mark.tf


def build(data, **options):
    given = {"kind": "tabm", "units": 8, "blocks": 1, "members": 4, "dropout": 0, **options}
    return builder.build_tabular(data, given)


@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 64).astype(np.float32)])
def test_each_member_has_its_own_loss_in_training(weights):
    data = make_table()
    model = build(data)
    rows, labels = data.arrays[0], data.arrays[1]
    each = np.asarray(model(rows, training=True))
    found = model.compute_loss(rows, labels, each, weights, training=True)
    chosen = -np.log(np.take_along_axis(each, labels.reshape(-1, 1, 1), axis=2))[..., 0]
    shares = np.ones(64) if weights is None else weights
    assert float(found) == pytest.approx((chosen.mean(axis=1) * shares).mean(), rel=1e-5)
    mean = each.mean(axis=1)
    np.testing.assert_allclose(np.asarray(model(rows)), mean, rtol=1e-5, atol=1e-7)
    joint = -np.log(np.take_along_axis(mean, labels.reshape(-1, 1), axis=1)).mean()
    assert float(found) != EXACT_APPROX(joint, rel=1e-4) or weights is not None


@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 64).astype(np.float32)])
def test_a_loss_that_sums_over_rows_is_the_mean_over_members(weights):
    data = make_table("number")
    model = build(data)
    model.compile("sgd", runtime.keras().losses.MeanSquaredError(reduction="sum"))
    rows, labels = data.arrays[0], data.arrays[1]
    each = np.asarray(model(rows, training=True))
    squares = np.square(each[..., 0] - labels.reshape(-1, 1)).mean(axis=1)
    shares = np.ones(64) if weights is None else weights
    found = model.compute_loss(rows, labels, each, weights, training=True)
    assert float(found) == pytest.approx((squares * shares).sum(), rel=1e-5)


def test_labels_are_missed_as_in_other_models():
    data = make_table("number")
    features = {"kind": "columns", "columns": make_columns()}
    unlabelled = data_dataset.build_dataset(features, {}, recipe=data.recipe)
    with pytest.raises(DataError, match="`data` has no labels"):
        fit.fit(build(data), unlabelled, {"epochs": 1})


def test_evaluation_has_the_loss_of_the_mean_prediction():
    data = make_table()
    model = build(data)
    mean = np.asarray(model(data.arrays[0]))
    joint = -np.log(np.take_along_axis(mean, data.arrays[1].reshape(-1, 1), axis=1)).mean()
    metrics = evaluate.evaluate(model, data)["metrics"]
    assert metrics["loss"] == pytest.approx(joint, rel=1e-5)


def test_training_reports_the_metric_of_the_mean_prediction():
    data = make_table("number", batch_size=64)
    model = build(data, optimizer="sgd", learning_rate=1e-12)
    rows, labels = data.arrays[0], data.arrays[1]
    apart = np.abs(np.asarray(model(rows))[:, 0] - labels).mean()
    report = fit.fit(model, data, {"epochs": 1, "engine": "keras"})
    assert report.history["mean_absolute_error"][0] == pytest.approx(apart, rel=1e-4)


def test_members_begin_to_differ_in_the_first_layer_alone():
    made = keras_class(members.BatchEnsemble)
    layer = made(6, 5, "random-signs", seed=3)
    layer.build((None, 4))
    r, s, bias = (np.asarray(one) for one in (layer.r, layer.s, layer.bias))
    assert set(np.unique(r)) == {-1.0, 1.0}
    assert (s == 1).all()
    assert (bias == bias[0]).all()
    assert np.abs(bias).max() <= 0.5
    chunked = made(6, 5, "normal", [1, 3], seed=3)
    chunked.build((None, 4))
    r = np.asarray(chunked.r)
    assert (r[:, 1:] == r[:, 1:2]).all()  # one value for a feature of three places
    assert len(np.unique(r)) == 10
    plain = made(6, 5)
    plain.build((None, 4))
    assert (np.asarray(plain.r) == 1).all()
    assert plain.get_config()["members"] == 5
