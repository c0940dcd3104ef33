"""Summaries of models: implied families, weights, ranks and what is refused."""

import numpy as np
import pytest
from familied import dataset, features, labels_of, model_of

from gpukeras import DataError, ModelError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.models.calibration import Calibration, tie_calibration
from gpukeras.models.families.deviance import Rows
from gpukeras.models.families.spec import Family
from gpukeras.training import fit
from gpukeras.training.model_summary import (
    find_rank,
    imply_family,
    read_dispersion,
    read_residuals,
    summarise_model,
)
from gpukeras.training.predict import predict

pytestmark = pytest.mark.tf


def test_a_loss_implies_its_family_also_from_logits():
    import keras

    data = dataset("binomial")
    x, y = features().astype("float32"), labels_of("binomial")["values"]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    found = summarise_model(model, data)
    assert (found.family, found.implied, found.df) == ("binomial", True, 3)
    mean = model.evaluate(x, y, verbose=0)
    assert found.log_likelihood == pytest.approx(-mean * len(x), rel=1e-5)
    several = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    several.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    codes = labels_of("ordinal")["values"] - 1
    found = summarise_model(several, dataset("ordinal"))
    assert (found.family, found.df, found.df_residual) == ("multinomial", 6, 114)
    mean = several.evaluate(x, codes, verbose=0)
    assert found.deviance == pytest.approx(2 * mean * len(x), rel=1e-5)
    model = model_of("multi_label", family=None)
    model.compile("sgd", "binary_crossentropy")
    assert imply_family(model, dataset("multi_label").recipe).name == "multi_label"


def test_the_null_model_of_a_squared_error_has_the_mean():
    data = dataset("gaussian")
    model = model_of("gaussian", family=None, units=[4])
    y = labels_of("gaussian")["values"]
    found = summarise_model(model, data)
    off = y - predict(model, data=data)["values"]
    assert found.deviance == pytest.approx(off @ off, rel=1e-5)
    assert found.null_deviance == pytest.approx(y.var() * len(y), rel=1e-5)
    assert found.explained == pytest.approx(1 - found.deviance / found.null_deviance)
    assert found.dispersion == pytest.approx(found.deviance / len(y))
    assert (found.linear, found.df, found.aic, found.terms) == (False, None, None, ())
    punished = summarise_model(model_of("poisson", penalty=0.1), dataset("poisson"))
    assert (punished.linear, punished.penalised) == (True, True)
    assert (punished.aic, punished.bic) == (None, None)


def test_rows_without_a_weight_or_trials_do_not_count():
    labels = labels_of("trials")
    labels["values"][:5] = 0
    weights = np.ones(120)
    weights[5:15] = 0
    x, options = features(), {"batch_size": 120, "shuffle": False}
    data = data_dataset.build_dataset(
        {"kind": "array", "values": x}, options, labels, weights=weights
    )
    model = model_of("trials", data)
    assert summarise_model(model, data).rows == 105
    rest = {**labels, "values": labels["values"][15:]}
    own = data_dataset.build_dataset(
        {"kind": "array", "values": x[15:]}, options, rest, recipe=data.recipe
    )
    found = [summarise_model(model, one) for one in (data, own)]
    assert found[0].deviance == pytest.approx(found[1].deviance, rel=1e-6)
    assert found[0].aic == pytest.approx(found[1].aic, rel=1e-6)
    none = data_dataset.build_dataset(
        {"kind": "array", "values": x}, options, labels, weights=np.r_[1.0, np.zeros(119)]
    )
    with pytest.raises(DataError, match="`data` has no rows with a weight above 0"):
        summarise_model(model_of("trials", none), none)  # its only row has no trials


@pytest.mark.parametrize("weighed", [False, True])
def test_weights_of_classes_do_not_count(weighed):
    given = {"kind": "array", "values": features()}
    options, labels = {"batch_size": 120, "shuffle": False}, labels_of("binomial")
    weights = np.arange(120) % 3 + 1.0 if weighed else None
    plain = data_dataset.build_dataset(given, options, labels, weights=weights)
    classes = {"0": 5.0, "1": 0.0}
    data = data_dataset.build_dataset(
        given, options, labels, weights=weights, class_weight=classes, recipe=plain.recipe
    )
    model = model_of("binomial", plain)
    assert summarise_model(model, data) == summarise_model(model, plain)
    np.testing.assert_array_equal(
        read_residuals(model, data, kind="deviance"), read_residuals(model, plain, kind="deviance")
    )


def test_a_training_by_weights_of_classes_leaves_no_information_criterion():
    given, labels = {"kind": "array", "values": features()}, labels_of("binomial")
    plain = data_dataset.build_dataset(given, {"batch_size": 120}, labels)
    data = data_dataset.build_dataset(
        given, {"batch_size": 120}, labels, class_weight={"0": 5.0, "1": 1.0}, recipe=plain.recipe
    )
    model = model_of("binomial", plain)
    fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"})
    found = summarise_model(model, plain)
    assert (found.aic, found.bic) == (None, None)
    assert found.log_likelihood is not None
    fit.fit(model, plain, {"epochs": 1, "engine": "graph_loop"})
    assert summarise_model(model, plain).aic is not None


def test_residuals_of_a_calibrated_model_are_those_of_its_predictions():
    data = dataset("binomial")
    for model in (model_of("binomial", data), model_of("binomial", data, family=None)):
        before = summarise_model(model, data)
        squares = read_residuals(model, data, kind="deviance")
        reading = {1: "sigmoid", 2: "softmax"}[model.output_shape[-1]]
        tie_calibration(model, Calibration("classes", 120, reading=reading, temperature=3.0))
        mean = predict(model, data=data)["values"]
        mean = mean[:, -1] if mean.ndim > 1 else mean
        found = read_residuals(model, data)
        np.testing.assert_allclose(found, labels_of("binomial")["values"] - mean, atol=1e-5)
        np.testing.assert_array_equal(read_residuals(model, data, kind="deviance"), squares)
        assert summarise_model(model, data) == before


def test_a_partial_likelihood_without_events_is_0():
    data = dataset("cox")
    labels = {**labels_of("cox")}
    labels["values"][:, 1] = 0
    given = {"kind": "array", "values": features()}
    other = data_dataset.build_dataset(given, {"batch_size": 8}, labels, recipe=data.recipe)
    found = summarise_model(model_of("cox", data), other)
    assert (found.log_likelihood, found.aic, found.bic) == (0, 4, None)
    events = labels_of("cox")["values"][:, 1].sum()
    found = summarise_model(model_of("cox", data), data)
    assert found.bic - found.aic == pytest.approx(2 * np.log(events) - 4)


def test_collinear_columns_count_once():
    x = features()
    wide = np.column_stack([x, x[:, 0] - 2 * x[:, 1], np.ones(120), x[:, 0] ** 2])
    for rank, columns in {3: [0, 1, 2, 3], 4: [0, 1, 2, 3, 4], 2: [0]}.items():
        given = {"kind": "array", "values": wide[:, columns]}
        data = data_dataset.build_dataset(given, {"batch_size": 8}, labels_of("poisson"))
        assert find_rank(data, np.arange(120)) == rank


def test_a_dispersion_is_one_number_or_none():
    ones = np.ones(3)
    rows = Rows(ones, np.column_stack([ones, 4 * ones]), ones, 0 * ones)
    cases = [
        (Family("gamma", "log", "constant"), (0.25, "dispersion")),
        (Family("gaussian", "identity", "constant"), (16.0, "variance")),
        (Family("negative_binomial", "log", "constant"), (4.0, "size")),
        (Family("beta", "logit", "constant"), (5.0, "precision")),
        (Family("gamma", "log", "rows"), (None, "")),
        (Family("poisson", "log"), (None, "")),
        (Family("gaussian", "identity"), (3.0, "variance")),
    ]
    for family, expected in cases:
        assert read_dispersion(family, rows, 6.0, 2) == expected


def test_models_without_a_likelihood_are_refused():
    model = model_of("gaussian", family=None)
    model.compile("sgd", "mean_absolute_error")
    with pytest.raises(ModelError, match="its loss is no likelihood that gpukeras knows"):
        summarise_model(model, dataset("gaussian"))
    bare = data_dataset.build_dataset(
        {"kind": "array", "values": features()}, {"batch_size": 8, "shuffle": False}
    )
    with pytest.raises(DataError, match="`data` has no labels to compare predictions with"):
        summarise_model(model, bare)
    model = model_of("poisson")
    model.set_weights([np.full(each.shape, np.nan) for each in model.get_weights()])
    with pytest.raises(ModelError, match="gives `data` no finite likelihood: it predicts NaN"):
        summarise_model(model, dataset("poisson"))
