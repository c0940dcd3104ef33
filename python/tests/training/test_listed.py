"""Several inputs and outputs that were given without names: the model gets lists, as from Keras."""

import itertools
import json

import numpy as np
import pytest
from nightly import few

from gpukeras.backend import runtime
from gpukeras.core.errors import ModelError
from gpukeras.data import builder
from gpukeras.data.recipe.serialization import from_portable, to_portable
from gpukeras.models import compatibility, model_recipes
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf

RNG = np.random.default_rng(1)
X = [RNG.normal(size=(20, width)).astype("float32") for width in (2, 3)]
Y = [RNG.normal(size=(20, 1)).astype("float32") for _ in X]


def make_own():
    keras = runtime.keras()

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.heads = [keras.layers.Dense(1), keras.layers.Dense(1)]

        def call(self, inputs):
            assert isinstance(inputs, (list, tuple))
            return [head(part) for head, part in zip(self.heads, inputs, strict=True)]

    model = Own()
    model(X)
    return model


def make_functional(named=False):
    keras = runtime.keras()
    inputs = [keras.Input((2,), name="z"), keras.Input((3,), name="a")]
    outputs = [keras.layers.Dense(1, name=f"to_{one.name}")(one) for one in inputs]
    if named:
        return keras.Model(
            {one.name: one for one in inputs}, dict(zip(["p", "o"], outputs, strict=True))
        )
    return keras.Model(inputs, outputs)


def make_unnamed():
    keras = runtime.keras()
    inputs = [keras.Input((2,)), keras.Input((3,))]
    return keras.Model(inputs, [keras.layers.Dense(1)(one) for one in inputs])


def compiled(make):
    runtime.keras().utils.set_random_seed(1)
    model = make()
    model.compile("sgd", loss=["mse", "mae"], loss_weights=[1.0, 0.3])
    return model


def listed(parts):
    features = [{"kind": "array", "values": values, "names": []} for values in parts]
    inputs = [{"name": f"input_{n}", "features": part} for n, part in enumerate(features, 1)]
    return {"kind": "inputs", "inputs": inputs, "listed": True}


def listed_labels(parts):
    outputs = [
        {"name": f"output_{n}", "labels": {"name": "y", "kind": "matrix", "values": values}}
        for n, values in enumerate(parts, 1)
    ]
    return {"kind": "outputs", "outputs": outputs, "listed": True}


def as_arrays():
    options = {"batch_size": 8, "shuffle": False}
    return builder.assemble(listed(X), options, labels=listed_labels(Y))


def as_pipeline():
    dataset = runtime.tensorflow().data.Dataset.from_tensor_slices((tuple(X), tuple(Y))).batch(8)
    return builder.assemble({"kind": "tfdata", "dataset": dataset}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rows", "engine"),
    few(
        itertools.product(
            (make_own, make_functional, make_unnamed),
            (as_arrays, as_pipeline),
            ("keras", "graph_loop"),
        ),
        (make_own, as_arrays, "graph_loop"),
        (make_unnamed, as_arrays, "graph_loop"),
        (make_functional, as_pipeline, "graph_loop"),
    ),
)
def test_lists_train_as_in_keras(make, rows, engine):
    wanted, model = compiled(make), compiled(make)
    model.set_weights(wanted.get_weights())
    history = wanted.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    report = fit.fit(model, rows(), {"epochs": 2, "engine": engine})
    np.testing.assert_allclose(report.history["loss"], history["loss"], rtol=1e-6)
    for ours, theirs in zip(model.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    found = predict.predict(model, listed(X))["outputs"]
    for part, theirs in zip(found, wanted.predict(X, verbose=0), strict=True):
        np.testing.assert_allclose(part["values"], theirs[:, 0], rtol=1e-5, atol=1e-6)


def test_a_model_that_nothing_trained_predicts_from_a_list():
    model = make_own()
    found = predict.predict(model, listed(X))["outputs"]
    for part, theirs in zip(found, model.predict(X, verbose=0), strict=True):
        np.testing.assert_allclose(part["values"], theirs[:, 0], rtol=1e-6)


def test_inputs_without_names_of_the_users_go_by_their_layers():
    model = compiled(make_unnamed)
    names = compatibility.read_parts(model)["inputs"]
    assert names == [layer.name for layer in model.layers[:2]]
    wanted = model.predict(X, verbose=0)
    by_name = dict(listed(X), listed=False)
    for part, name in zip(by_name["inputs"], names, strict=True):
        part["name"] = name
    by_name["inputs"].reverse()
    found = predict.predict(model, by_name)["outputs"]
    for part, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(part["values"], theirs[:, 0], rtol=1e-6)
    np.testing.assert_array_equal(model.predict(X, verbose=0)[0], wanted[0])


def test_outputs_of_one_layer_have_no_names_of_their_own():
    keras = runtime.keras()
    given = keras.Input((2,))
    heads = [keras.layers.Dense(1, kernel_initializer="ones")(given)] * 2
    model = keras.Model(given, heads)
    model.compile("sgd", loss=["mse", "mse"])
    features = {"kind": "array", "values": X[0], "names": []}
    data = builder.assemble(features, {"batch_size": 8}, labels=listed_labels(Y))
    wanted = model.evaluate(X[0], Y, verbose=0)[0]
    np.testing.assert_allclose(evaluate.evaluate(model, data)["metrics"]["loss"], wanted, 1e-5)
    found = predict.predict(model, features)["outputs"]
    assert [part["name"] for part in found] == ["output_1", "output_2"]


def test_a_model_whose_inputs_have_names_is_not_fed_by_place():
    model = make_functional(named=True)
    model.compile("sgd", loss="mse")
    message = "has the inputs z, a, but the data has input_1, input_2"
    with pytest.raises(ModelError, match=message):
        fit.fit(model, as_arrays(), {"epochs": 1})


def test_a_saved_recipe_knows_that_there_were_no_names():
    recipe = as_arrays().recipe
    assert recipe.features.listed
    assert recipe.label.listed
    assert from_portable(json.loads(json.dumps(to_portable(recipe)))) == recipe
    model = compiled(make_own)
    model_recipes.tie_recipe(model, recipe)
    assert model_recipes.recipe_of(model).features.listed
