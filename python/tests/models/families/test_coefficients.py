"""Coefficients on the scale of the data, against the model's own predictions."""

import numpy as np
import pytest
from familied import ROWS, features, labels_of, model_of

from gpukeras.data import builder
from gpukeras.data.recipe.recipe import ArrayEncoding, ImageEncoding, Recipe
from gpukeras.models.families import coefficients
from gpukeras.models.families.deviance import invert_link
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.spec import Family
from gpukeras.training import predict

pytestmark = pytest.mark.tf
POISSON = Family("poisson", "log")
SCALED = features() * [3.0, 0.1] + [10.0, -2.0]


def framed(name, offset=False):
    """A data frame of numbers that are standardised, a factor, and perhaps an offset."""
    numbers = {"a": SCALED[:, 0], "b": SCALED[:, 1]}
    columns = [{"name": key, "kind": "numeric", "values": each} for key, each in numbers.items()]
    codes = np.arange(ROWS, dtype=np.int32) % 2 + 1
    columns.append({"name": "g", "kind": "factor", "values": codes, "levels": ["x", "y"]})
    given = {"kind": "columns", "columns": columns}
    if offset:
        shift = {"name": "o", "kind": "numeric", "values": features()[:, 0] + 2, "offset": True}
        columns.append(shift)
        groups = [{"name": "features", "columns": ["a", "b", "g"]}]
        given["groups"] = [*groups, {"name": "offset", "columns": ["o"]}]
    encoded = np.column_stack([*numbers.values(), codes == 1, codes == 2])
    data = builder.assemble(given, {"batch_size": ROWS}, labels_of(name))
    return data, encoded, features()[:, 0] + 2 if offset else np.zeros(ROWS)


@pytest.mark.parametrize(
    ("name", "offset"),
    [("poisson", True), ("gaussian", False), ("binomial", True), ("gamma", False)],
)
def test_coefficients_of_the_data_predict_what_the_model_does(name, offset):
    data, encoded, shift = framed(name, offset)
    for family in (name, None) if name in ("gaussian", "binomial") and not offset else (name,):
        model = model_of(name, data, family=family)
        known = family_of(model) or Family("gaussian", "identity")
        terms = coefficients.read_coefficients(model, data.recipe, known)
        assert [one.term for one in terms] == ["(Intercept)", "a", "b", "g=x", "g=y"]
        values = np.array([one.estimate for one in terms])
        eta = values[0] + encoded @ values[1:] + shift
        found = predict.predict(model, data=data)["values"]
        np.testing.assert_allclose(invert_link(known.link, eta)[0], found, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [True, False])
def test_columns_that_do_not_vary_have_no_coefficient_and_their_part_is_the_intercepts(scale):
    numbers = {"a": SCALED[:, 0], "five": np.full(ROWS, 5.0)}
    columns = [{"name": key, "kind": "numeric", "values": each} for key, each in numbers.items()]
    columns.append({"name": "yes", "kind": "logical", "values": np.ones(ROWS)})
    matrix = np.column_stack(list(numbers.values()))
    for given in ({"kind": "columns", "columns": columns}, {"kind": "array", "values": matrix}):
        if given["kind"] == "array" and not scale:
            continue  # such columns train beside the intercept
        data = builder.assemble(given, {"batch_size": ROWS, "scale": scale}, labels_of("gaussian"))
        model = model_of("gaussian", data, family="gaussian")
        terms = coefficients.read_coefficients(model, data.recipe, family_of(model))
        start, slope, *unknown = [one.estimate for one in terms]
        assert np.isnan(unknown).all()
        assert unknown
        found = predict.predict(model, data=data)["values"]
        np.testing.assert_allclose(start + SCALED[:, 0] * slope, found, rtol=2e-4, atol=1e-5)


def test_several_predictors_have_their_names():
    data, encoded, _ = framed("zero_inflated_poisson")
    model = model_of("zero_inflated_poisson", data)
    terms = coefficients.read_coefficients(model, data.recipe, family_of(model))
    values = {}
    for one in terms:
        values.setdefault(one.predictor, []).append(one.estimate)
    found = predict.predict(model, data=data, type="parameters")["values"]
    for place, (name, back) in enumerate({"log(rate)": "log", "logit(zero)": "logit"}.items()):
        eta = values[name][0] + encoded @ np.array(values[name][1:])
        np.testing.assert_allclose(invert_link(back, eta)[0], found[:, place], rtol=2e-4)
    data, encoded, _ = framed("gaussian")
    model = model_of("gaussian", data, family={"name": "gaussian", "dispersion": "rows"})
    terms = coefficients.read_coefficients(model, data.recipe, family_of(model))
    values = np.array([one.estimate for one in terms if one.predictor == "log(sd)"])
    found = predict.predict(model, data=data, type="parameters")["values"][:, 1]
    np.testing.assert_allclose(np.exp(values[0] + encoded @ values[1:]), found, rtol=2e-4)


def test_a_quantile_alone_has_coefficients():
    data, encoded, _ = framed("quantile")
    for quantiles in ([0.2], [0.2, 0.8]):
        model = model_of("quantile", data, family={"name": "quantile", "quantiles": quantiles})
        terms = coefficients.read_coefficients(model, data.recipe, family_of(model))
        values = np.array([one.estimate for one in terms])
        if len(quantiles) > 1:
            assert terms == ()
            continue
        found = predict.predict(model, data=data)["values"][:, 0]
        np.testing.assert_allclose(values[0] + encoded @ values[1:], found, rtol=2e-4, atol=1e-5)


def test_other_models_have_no_coefficients():
    data, *_ = framed("poisson")
    hidden = model_of("poisson", data, units=[3])
    assert coefficients.find_linear(hidden, family_of(hidden)) is None
    assert coefficients.read_coefficients(hidden, data.recipe, family_of(hidden)) == ()
    assert coefficients.list_encoded(Recipe(ImageEncoding((2, 2, 1)))) == []
    named = ArrayEncoding((2,), (4.0, 5.0), center=(1.0, 2.0), names=("u", "v"), marked=(0,))
    found = [(one.name, one.center, one.scale) for one in coefficients.list_encoded(Recipe(named))]
    assert found == [("u", 1.0, 4.0), ("u=NA", 0.0, 1.0), ("v", 2.0, 5.0)]


@pytest.mark.parametrize(
    ("family", "count"),
    [
        (Family("gaussian", "identity"), 5),  # lm(): the variance too
        (Family("poisson", "log"), 4),
        (Family("negative_binomial", "log", "constant"), 5),
        (Family("gaussian", "identity", "rows"), 8),
        (Family("multinomial", "logit", columns=3), 8),  # nnet::multinom()
        (Family("ordinal", "logit", columns=3), 5),  # MASS::polr(): 3 slopes, 2 thresholds
        (Family("cox", "log", columns=2), 3),
        (Family("discrete_time", "logit", columns=2, breaks=(1.0, 2.0)), 8),
        (Family("discrete_time", "logit", breaks=(1.0, 2.0), proportional=True), 5),
    ],
)
def test_parameters_are_counted_as_by_r(family, count):
    assert coefficients.count_parameters(family, rank=4) == count


def joined(order):
    """A linear model of two inputs, whose dense layer takes them in an order."""
    import keras

    inputs = {name: keras.Input((1,), name=name) for name in ("u", "v")}
    both = keras.layers.Concatenate()([inputs[name] for name in order])
    return keras.Model(list(inputs.values()), keras.layers.Dense(1)(both))


@pytest.mark.parametrize("order", [("u", "v"), ("v", "u")])
def test_coefficients_have_the_names_of_the_inputs_that_the_layer_takes(order):
    model = joined(order)
    model.layers[-1].set_weights([np.array([[2.0], [5.0]]), np.ones(1)])
    for given in (("u", "v"), ("v", "u")):
        parts = [
            {"name": name, "features": {"kind": "array", "values": features()[:, :1]}}
            for name in given
        ]
        data = builder.assemble(
            {"kind": "inputs", "inputs": parts}, {"batch_size": ROWS}, labels_of("gaussian")
        )
        terms = coefficients.read_coefficients(model, data.recipe, Family("gaussian", "identity"))
        found = {one.term: one.estimate for one in terms}
        assert found == {"(Intercept)": 1.0, f"{order[0]}$1": 2.0, f"{order[1]}$1": 5.0}


def unlike(case):
    """A model of one dense layer whose weights are no coefficients of the rows."""
    import keras

    layers, row = keras.layers, keras.Input((2,))
    dense = layers.Dense(1, "sigmoid" if case == "sigmoid" else None)
    made = {
        "rescaled": lambda: dense(layers.Rescaling(0.1, 3)(row)),
        "sigmoid": lambda: dense(row),
        "turned": lambda: dense(row[:, ::-1]),
        "logarithm": lambda: dense(keras.ops.log1p(keras.ops.abs(row))),
    }
    model = keras.Model(row, made[case]())
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("case", ["rescaled", "sigmoid", "turned", "logarithm"])
def test_weights_behind_something_else_are_no_coefficients(case):
    values = {"kind": "array", "values": features()}
    data = builder.assemble(values, {"batch_size": ROWS}, labels_of("gaussian"))
    family = Family("gaussian", "identity")
    assert coefficients.read_coefficients(unlike(case), data.recipe, family) == ()


def test_several_rescalings_of_an_output_count_one_after_the_other():
    import keras

    layers, row = keras.layers, keras.Input((2,))
    linear = layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")(row)
    model = keras.Model(row, layers.Rescaling(2.0, 1.0)(layers.Rescaling(3.0, 5.0)(linear)))
    values = {"kind": "array", "values": features()}
    data = builder.assemble(values, {"batch_size": ROWS}, labels_of("gaussian"))
    terms = coefficients.read_coefficients(model, data.recipe, Family("gaussian", "identity"))
    assert [one.estimate for one in terms] == [17.0, 6.0, 6.0]
