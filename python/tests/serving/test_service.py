import json

import numpy as np
import pytest
from lazy_modules import keras
from served import frame_dataset, make_columns, to_json_rows
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError
from gpukeras.data.recipe.columns import NumberRule
from gpukeras.data.recipe.recipe import Recipe, TableEncoding
from gpukeras.export import archive
from gpukeras.models import mlp
from gpukeras.serving.requests import parse_request
from gpukeras.serving.service import ServedModel, find_terms, load_served
from gpukeras.training import calibrate, fit, predict

pytestmark = pytest.mark.tf


def ask(served, *bodies):
    requests = [parse_request(json.dumps(body).encode(), served.recipe) for body in bodies]
    return served.predict(requests)


@pytest.fixture(scope="module")
def regression():
    data = frame_dataset()
    model = mlp.build_mlp(data, {"units": [4], "seed": 1})
    fit.fit(model, data, {"epochs": 1})
    return model


def test_requests_are_answered_as_predict_does_whatever_their_number(regression):
    columns, served = make_columns(30, seed=2), ServedModel(regression, 16)
    expected = predict.predict(regression, {"kind": "columns", "columns": columns})["values"]
    rows = to_json_rows(columns)
    found = ask(served, {"rows": rows[:1]}, {"rows": rows[1:4]}, {"rows": rows[4:]})
    assert list(map(len, found)) == [1, 3, 26]
    np.testing.assert_allclose(sum(found, []), expected, rtol=1e-6)


@pytest.mark.slow
def test_logical_columns_are_described_and_checked_as_such():
    columns = make_columns()
    flags = {"name": "f", "kind": "logical", "values": columns[0]["values"] > 0}
    model = mlp.build_mlp(frame_dataset([*columns, flags]), {"units": [4], "seed": 1})
    fit.fit(model, frame_dataset([*columns, flags]), {"epochs": 1})
    served = ServedModel(model, 4)
    about = served.describe()["inputs"]["columns"][-1]
    assert about == {"name": "f", "kind": "logical", "values": "true or false"}
    rows = [
        {**row, "f": bool(flag)}
        for row, flag in zip(to_json_rows(columns), flags["values"], strict=True)
    ]
    given = {"kind": "columns", "columns": [*columns, flags]}
    expected = predict.predict(model, given)["values"]
    np.testing.assert_allclose(sum(ask(served, {"rows": rows}), []), expected, rtol=1e-6)
    with pytest.raises(DataError, match="Column `f` of `rows` must hold true or false"):
        ask(served, {"rows": [{**rows[0], "f": 1}]})


def test_intervals_are_those_of_a_calibrated_model(regression):
    data, columns = frame_dataset(), make_columns(4, seed=3)
    calibrate.calibrate(regression, data)
    given = {"kind": "columns", "columns": columns}
    expected = calibrate.predict_interval(regression, given, interval=0.8)
    (found,) = ask(ServedModel(regression, 4), {"rows": to_json_rows(columns), "interval": 0.8})
    np.testing.assert_allclose([row[".pred_lower"] for row in found], expected["lower"], rtol=1e-6)


def test_classes_and_probabilities_of_a_model_from_a_file(tmp_path):
    data, model = make_dataset(60), make_model()
    fit.fit(model, data, {"epochs": 1})
    archive.save_archive(model, str(tmp_path / "m.keras"))
    served = load_served(str(tmp_path / "m.keras"), 4)
    x = np.random.default_rng(1).normal(size=(6, 5))
    known = predict.predict(model, {"kind": "array", "values": x})["values"]
    probabilities, classes = (
        ask(served, {"x": x.tolist(), "type": kind})[0] for kind in ("response", "class")
    )
    np.testing.assert_allclose([list(row.values()) for row in probabilities], known, rtol=1e-5)
    assert list(probabilities[0]) == ["a", "b", "c"]
    assert classes == [["a", "b", "c"][place] for place in known.argmax(axis=1)]
    assert served.describe()["label"] == {"name": "", "kind": "class", "levels": ["a", "b", "c"]}
    assert served.describe()["inputs"] == {"form": "x", "shape": [5], "names": []}


def test_a_model_without_a_recipe_is_described_by_its_input(model):
    served = ServedModel(model, 4)
    served.warm_up()
    assert served.describe()["inputs"] == {"form": "x", "shape": [5], "names": []}
    with pytest.raises(ModelError, match=r"takes rows of shape \(5,\)"):
        ask(served, {"x": [[1, 2]]})


@pytest.fixture
def model():
    return make_model()


@pytest.mark.tensorflow
def test_warming_up_compiles_all_sizes(regression):
    served = ServedModel(regression, 16)
    served.warm_up()
    before = regression.predict_function
    traces = before.experimental_get_tracing_count()
    rows = to_json_rows(make_columns(20))
    for count in (1, 2, 5, 16, 20):
        ask(served, {"rows": rows[:count]})
    assert regression.predict_function is before
    assert before.experimental_get_tracing_count() == traces


def test_no_clients_rows_depend_on_anothers():
    def centred(x):
        return x - keras.ops.mean(x, axis=0)

    x = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, activation=centred)])
    served = ServedModel(model, 16)
    served.warm_up()
    found = ask(served, {"x": x[:3].tolist()}, {"x": x[3:].tolist()})
    for rows, known in zip(found, (x[:3], x[3:]), strict=True):
        np.testing.assert_allclose(rows, model.predict(known, verbose=0), rtol=1e-4, atol=1e-6)


def test_a_model_with_a_state_is_not_served():
    model = keras.Sequential(
        [keras.Input((3, 1), batch_size=4), keras.layers.LSTM(2, stateful=True)]
    )
    with pytest.raises(ModelError, match="`model` keeps a state from batch to batch"):
        ServedModel(model, 4)


def test_columns_are_described_by_name_and_type(regression):
    about = ServedModel(regression, 4).describe()
    by_name = {column["name"]: column for column in about["inputs"]["columns"]}
    assert list(by_name) == ["a", "b", "day", "at", "took"]
    assert by_name["b"]["levels"] == ["x", "y", "z"]
    assert by_name["took"]["units"] == "hours"


@pytest.mark.parametrize(
    ("formula", "names", "terms"),
    [
        ("", ["a(b"], []),
        ("y ~ .", ["a", "b.c"], []),
        ("y ~ log(wt) + cyl", ["log(wt)", "cyl"], ["log(wt)"]),
        ("y ~ a * b", ["a", "b", "a:b"], ["a:b"]),
        ("y ~ `time (s)`", ["time (s)"], []),
        ("y ~ a + offset(log(n))", ["a", "offset(log(n))"], ["offset(log(n))"]),
    ],
)
def test_terms_that_r_computes_are_told(formula, names, terms):
    rules = tuple(NumberRule(name) for name in names)
    assert find_terms(Recipe(TableEncoding(rules), formula=formula)) == terms
    assert find_terms(None) == []
