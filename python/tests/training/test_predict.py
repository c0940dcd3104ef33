import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError
from gpukeras.backend import tensor_ops
from gpukeras.core import r_buffer
from gpukeras.data import plan
from gpukeras.data.dataset import map_dataset
from gpukeras.models import mlp, model_recipes
from gpukeras.training import fit, predict

pytestmark = pytest.mark.tf


def test_predict_is_keras_predict_whatever_the_number_of_rows(model, monkeypatch):
    monkeypatch.setattr(plan, "EVALUATION_ROWS", 64)
    data = make_dataset(300)
    result = predict.predict(model, data=data)
    assert result["values"].shape == (300, 3)
    np.testing.assert_allclose(
        result["values"], model.predict(data.arrays[0], verbose=0), atol=1e-6
    )


def test_predict_applies_the_recipe_of_training():
    data = make_dataset(200, scale=True)
    model = make_model()
    fit.fit(model, data, {"epochs": 1})
    x = np.array([[10.0, 0, 0, 0, 0]])
    one = predict.predict(model, {"kind": "array", "values": x})["values"]
    two = predict.predict(model, {"kind": "array", "values": np.vstack([x, -x])})["values"]
    np.testing.assert_allclose(one[0], two[0], atol=1e-6)
    learned = model_recipes.recipe_of(model).features
    scaled = (x - np.array(learned.center)) / np.array(learned.scale)
    np.testing.assert_allclose(one, model.predict(scaled, verbose=0), atol=1e-5)


@pytest.mark.parametrize("kind", ["array", "columns"])
def test_values_of_which_training_had_only_one_do_not_count_and_are_named(kind):
    def given_rows(x):
        columns = [
            {"name": name, "kind": "numeric", "values": x[:, place], "levels": []}
            for place, name in enumerate("ab")
        ]
        array = {"kind": "array", "values": x, "names": ["a", "b"]}
        return array if kind == "array" else {"kind": "columns", "columns": columns}

    known = np.column_stack([np.arange(32.0), np.full(32, 3.0)])
    labels = {"kind": "numeric", "values": known[:, 0], "levels": []}
    data = map_dataset.build_dataset(given_rows(known), {"scale": True, "batch_size": 8}, labels)
    model = mlp.build_mlp(data, {"units": [], "seed": 1})
    fit.fit(model, data, {"epochs": 1})
    expected = predict.predict(model, given_rows(known))
    found = predict.predict(model, given_rows(known + [0.0, 40.0]))
    np.testing.assert_array_equal(found["values"], expected["values"])
    assert found["unlearned"][0].startswith(
        "Column `b` of `newdata` was the same in all training rows"
    )
    assert "unlearned" not in expected


def test_predict_works_on_a_model_that_gpukeras_did_not_train(model):
    values = predict.predict(model, {"kind": "array", "values": np.zeros((2, 5))})["values"]
    assert values.shape == (2, 3)
    with pytest.raises(DataError, match="not trained by gpukeras"):
        predict.predict(model, {"kind": "columns", "columns": []})
    with pytest.raises(ModelError, match=r"shape \(5,\)"):
        predict.predict(model, {"kind": "array", "values": np.zeros((2, 4))})
    rows = {"kind": "array", "values": np.zeros((2, 5))}
    codes = predict.predict(model, rows, type="class")["values"]
    assert codes.tolist() == values.argmax(-1).tolist()
    model.compile("sgd", "mse")
    with pytest.raises(DataError, match="trained on classes"):
        predict.predict(model, rows, type="class")


@pytest.mark.parametrize(
    "loss",
    [
        lambda loss: {"out": loss},
        lambda loss: keras.losses.BinaryCrossentropy(from_logits=True, name="own"),
    ],
    ids=["by output", "named"],
)
def test_classes_are_those_of_logits_whatever_a_loss_is_called(loss):
    rows = keras.Input((5,))
    model = keras.Model(rows, keras.layers.Dense(1, name="out")(rows))
    model.set_weights([np.eye(5)[:, :1], np.zeros(1)])
    logits = np.array([-0.2, 0.2, 0.4, 0.7])
    model.compile("sgd", loss(keras.losses.BinaryCrossentropy(from_logits=True)))
    data = make_dataset(4, classes=2)
    x = np.concatenate([logits[:, None], np.zeros((4, 4))], axis=1)
    model_recipes.tie_recipe(model, data.recipe)
    found = predict.predict(model, {"kind": "array", "values": x}, type="class")
    assert found["values"].tolist() == [1, 2, 2, 2]


def test_predict_refuses_missing_values(model):
    with pytest.raises(DataError, match="Column `2` of `newdata`"):
        predict.predict(model, {"kind": "array", "values": np.full((1, 5), [[0, np.nan, 0, 0, 0]])})


def test_missing_values_of_all_rows_are_counted_though_few_are_predicted_at_a_time(
    model, monkeypatch
):
    monkeypatch.setattr(tensor_ops, "batch_bytes", lambda device: 1)
    rows = np.zeros((100, 5))
    rows[[40, 99], 1] = np.nan
    with pytest.raises(DataError, match=r"Column `2` of `newdata` has 2 missing values"):
        predict.predict(model, {"kind": "array", "values": rows})


def test_many_values_are_written_where_r_has_room(model, monkeypatch):
    monkeypatch.setattr(r_buffer, "SMALLEST", 30)
    rows = {"kind": "array", "values": np.random.default_rng(1).normal(size=(10, 5))}
    expected, made = predict.predict(model, rows)["values"], []

    def ask(rows, columns, names):
        made.append(np.zeros((rows, columns), order="F"))
        return made[-1]

    assert predict.predict(model, rows, buffer=ask)["values"] == "buffer"
    np.testing.assert_array_equal(made[0], expected)
    few = {"kind": "array", "values": rows["values"][:9]}
    np.testing.assert_array_equal(predict.predict(model, few, buffer=ask)["values"], expected[:9])
    assert len(made) == 1


def test_classes_need_no_room(monkeypatch):
    monkeypatch.setattr(r_buffer, "SMALLEST", 1)
    model, _, features = fit_columns("impute", **THREE)
    asked = []
    record = predict.predict(model, features, type="class", buffer=lambda *size: asked.append(size))
    assert (len(record["values"]), asked) == (6, [])


def fit_columns(na, **labels):
    """A model that was trained on a frame in which rows 2 and 4 lack a value."""
    frame = [
        {"name": "a", "kind": "numeric", "values": np.array([1.0, np.nan, 3.0, 4.0, 5.0, 6.0])},
        {"name": "f", "kind": "factor", "values": np.array([1, 2, 1, 0, 2, 2])},
    ]
    frame[1]["levels"] = ["u", "v"]
    features = {"kind": "columns", "columns": frame}
    data = map_dataset.build_dataset(features, {"na": na, "scale": True}, labels)
    model = mlp.build_mlp(data, {"units": 4})
    fit.fit(model, data, {"epochs": 1, "engine": "keras"})
    return model, data, features


NUMBERS = {"kind": "numeric", "values": np.arange(6.0), "levels": []}
THREE = {"kind": "factor", "values": np.array([1, 2, 3, 1, 2, 3]), "levels": ["a", "b", "c"]}


@pytest.mark.parametrize("labels", [NUMBERS, THREE], ids=["number", "class"])
def test_rows_that_training_left_out_keep_their_place(labels):
    model, data, features = fit_columns("drop", **labels)
    record = predict.predict(model, features)
    own = predict.predict(model, data=data)
    assert record["missing"].tolist() == [2, 4]
    assert len(record["values"]) == 6
    np.testing.assert_allclose(record["values"][[0, 2, 4, 5]], own["values"], atol=1e-6)
    assert "missing" not in own


def test_new_rows_that_all_lack_a_value_have_no_prediction_but_a_shape():
    model, _, features = fit_columns("drop", **THREE)
    only = [{**column, "values": column["values"][[1, 3]]} for column in features["columns"]]
    record = predict.predict(model, {"kind": "columns", "columns": only})
    assert record["missing"].tolist() == [1, 2]
    assert record["values"].shape == (2, 3)


def test_a_column_that_lacks_is_named_though_rows_are_dropped():
    model, _, features = fit_columns("drop", **NUMBERS)
    with pytest.raises(DataError, match="lacks the column `a`"):
        predict.predict(model, {"kind": "columns", "columns": features["columns"][1:]})


def test_imputed_rows_are_predicted_as_in_training():
    model, data, features = fit_columns("impute", **NUMBERS)
    record = predict.predict(model, features)
    np.testing.assert_allclose(
        record["values"], predict.predict(model, data=data)["values"], atol=1e-6
    )
    assert "missing" not in record
