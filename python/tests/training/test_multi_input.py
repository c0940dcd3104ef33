"""Several inputs and outputs: trained as Keras trains them, predicted, saved."""

import functools
import itertools

import numpy as np
import pytest
from grouped import (
    CODES,
    IMAGE,
    LABELS,
    OPTIONS,
    PRICE,
    RNG,
    ROWS,
    SHAPES,
    TABLE,
    X,
    array,
    build,
    frame,
    inputs,
    outputs,
    same_weights,
    two_heads,
)
from nightly import NIGHTLY, few

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset
from gpukeras.data.loader import profile
from gpukeras.data.loader.loader import open_loader, sample_rows
from gpukeras.data.recipe.serialization import same_encoding
from gpukeras.data.saved.writer import save_dataset
from gpukeras.explain.gradients import attribute
from gpukeras.export import recipe_json
from gpukeras.models import mlp
from gpukeras.training import evaluate, fit, predict
from gpukeras.training.model_summary import summarise_model

# Training ----------------------------------------------------------------------------------------


@pytest.mark.tf
def test_a_block_is_taken_apart_on_the_device():
    data = build()
    block = next(iter(open_loader(data, data.plan("CPU:0")).epoch(0)))
    features, labels = block.arrays
    assert {name: tuple(part.shape) for name, part in features.items()} == {
        "image": (ROWS, 4, 4, 2),
        "table": (ROWS, 3),
    }
    assert [labels["price"].dtype.name, labels["cut"].dtype.name] == ["float32", "int32"]
    np.testing.assert_array_equal(labels["cut"], CODES - 1)
    assert set(sample_rows(data, 4)[0]) == {"image", "table"}


def keras_data():
    x = {"image": IMAGE.astype(np.float32), "table": TABLE.astype(np.float32)}
    return x, {"price": PRICE.astype(np.float32), "cut": (CODES - 1).astype(np.int32)}


@functools.cache
def fit_by_keras(style, weighted):
    """A model that Keras itself fitted, with its history: the other side of several comparisons."""
    import tensorflow as tf

    # Keras itself repeats the weights of arrays for each output, and then fails for lists of them.
    weights = [np.linspace(0.5, 2, ROWS).astype(np.float32)] if weighted else []
    batches = tf.data.Dataset.from_tensor_slices((*keras_data(), *weights)).batch(8)
    model = two_heads(SHAPES, style)
    return model, model.fit(batches, epochs=2, shuffle=False, verbose=0).history


@functools.cache
def fit_whole_rows(validation=0.0):
    """A model that the engine "keras" fitted on rows in memory, with its history."""
    model, data = two_heads(SHAPES), build(validation=validation)
    return model, fit.fit(model, data, {"epochs": 2, "engine": "keras"}).history


@pytest.mark.tf
@pytest.mark.parametrize(
    ("style", "cache", "weighted"),
    few(
        itertools.product(("list", "dict"), ("auto", "disk"), (False, True)), ("dict", "auto", True)
    ),
)
def test_a_fit_ends_with_the_weights_of_keras_own(style, cache, weighted):
    weights = np.linspace(0.5, 2, ROWS) if weighted else None
    data = map_dataset.build_dataset(X, {**OPTIONS, "cache": cache}, LABELS, weights)
    mine, (other, history) = two_heads(SHAPES, style), fit_by_keras(style, weighted)
    report = fit.fit(mine, data, {"epochs": 2, "engine": "keras"})
    same_weights(mine, other)
    assert set(report.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("engine", few(["graph_loop", "compiled"], "graph_loop"))
def test_the_other_engines_learn_the_same(engine):
    model, data = two_heads(SHAPES), build(validation=1 / 3)
    found = fit.fit(model, data, {"epochs": 2, "engine": engine}).history
    _, expected = fit_whole_rows(1 / 3)
    for name in ("loss", "price_loss", "cut_accuracy", "val_loss", "val_price_loss"):
        np.testing.assert_allclose(expected[name], found[name], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.tf
def test_a_fit_of_grouped_columns_is_keras_own():
    shapes = {"numbers": (2,), "kind": (3,)}
    data = build(frame(), scale=True)
    mine, other = two_heads(shapes), two_heads(shapes)
    fit.fit(mine, data, {"epochs": 2, "engine": "keras"})
    rows = data.arrays[0]
    x = {"numbers": rows[:, :2], "kind": rows[:, 2:]}
    other.fit(x, keras_data()[1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    same_weights(mine, other)


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("cache", few(["auto", True], "auto"))
def test_chunks_of_several_inputs_are_trained_as_whole_rows_are(cache):
    def chunk(epoch, batch):
        if batch > 4:
            return None
        rows = slice(12 * (batch - 1), 12 * batch)
        labels = outputs(
            cut={**LABELS["outputs"][1]["labels"], "values": CODES[rows]},
            price={"kind": "numeric", "values": PRICE[rows], "levels": []},
        )
        features = inputs(table=array(TABLE[rows]), image=array(IMAGE[rows]))
        return {"features": features, "labels": labels, "weights": None}

    features = {"kind": "generator", "call": chunk, "steps": None}
    stream = builder.assemble(features, {**OPTIONS, "cache": cache})
    mine, (other, _) = two_heads(SHAPES), fit_whole_rows()
    fit.fit(mine, stream, {"epochs": 2, "engine": "keras"})
    same_weights(mine, other)


@pytest.mark.tf
def test_what_taking_rows_apart_costs_is_measured(monkeypatch):
    monkeypatch.setattr(profile, "MOST_S", 0.0)
    assert {"gather", "unpack"} <= {stage.stage for stage in profile.measure_costs(build())}


@pytest.mark.tf
def test_images_with_several_outputs_are_augmented():
    options = {**OPTIONS, "batch_size": ROWS}
    data = builder.assemble(array(IMAGE), options, LABELS, augment={"flip": "horizontal"})
    features, labels = next(iter(open_loader(data, data.plan("CPU:0")).epoch(0))).arrays
    assert features.shape == (ROWS, 4, 4, 2)
    assert not np.array_equal(features, IMAGE.astype(np.float32))
    np.testing.assert_array_equal(labels["cut"], CODES - 1)


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize(
    ("cache", "batched"),
    few(itertools.product(("auto", True), (False, True)), ("auto", True)),
)
def test_dicts_of_a_tf_data_dataset_are_inputs_and_outputs(cache, batched):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices(keras_data())
    rows = rows.batch(12) if batched else rows
    features = {"kind": "tfdata", "dataset": rows, "steps": None, "batched": None}
    data = builder.assemble(features, {**OPTIONS, "cache": cache})
    mine, (other, _) = two_heads(SHAPES), fit_by_keras("list", False)
    fit.fit(mine, data, {"epochs": 2, "engine": "keras"})
    same_weights(mine, other)
    found = predict.predict(mine, data=data)["outputs"]
    wanted = other.predict(keras_data()[0], verbose=0)
    for record, values in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.squeeze(record["values"]), np.squeeze(values), rtol=1e-4, atol=1e-6
        )
    again = builder.assemble(features, OPTIONS, recipe=data.recipe)
    assert same_encoding(again.recipe, data.recipe)


@pytest.mark.tensorflow
@pytest.mark.tf
def test_dicts_of_a_tf_data_dataset_that_cannot_be_taken_are_refused():
    import tensorflow as tf

    def assemble(x, y=None, **options):
        parts = x if y is None else (x, y)
        rows = tf.data.Dataset.from_tensor_slices(parts)
        features = {"kind": "tfdata", "dataset": rows, "batched": False}
        recipe = options.pop("recipe", None)
        return builder.assemble(features, {**OPTIONS, **options}, recipe=recipe)

    x, y = keras_data()
    with pytest.raises(SpecError, match="the tf.data dataset gives text"):
        assemble({"name": np.array(["a", "b"])})
    with pytest.raises(DataError, match="single output"):
        assemble(x, {"price": y["price"]})
    with pytest.raises(SpecError, match="taken as they are, not scaled"):
        assemble(x, y, scale=True)
    with pytest.raises(DataError, match="must have image, table, as in training, not image, more"):
        assemble({"image": x["image"], "more": x["table"]}, y, recipe=assemble(x, y).recipe)


@pytest.mark.slow
@pytest.mark.tf
def test_custom_losses_and_a_loss_on_one_output_only():
    import keras

    def own(y, prediction):
        return keras.ops.mean(keras.ops.square(y - prediction), axis=-1)

    losses = {"price": own, "cut": keras.losses.SparseCategoricalCrossentropy()}
    report = fit.fit(two_heads(SHAPES, loss=losses), build(), {"epochs": 1})
    assert np.isfinite(report.history["price_loss"][0])
    model = two_heads(SHAPES, "dict", {"price": "mean_squared_error"}, metrics=None)
    only = outputs(price=LABELS["outputs"][0]["labels"])
    with pytest.warns(UserWarning, match="Gradients do not exist"):  # of the other head
        report = fit.fit(model, build(labels=only), {"epochs": 1, "engine": "keras"})
    assert report.epochs == 1


# Models that do not fit --------------------------------------------------------------------------


@pytest.mark.tf
def test_a_model_that_does_not_fit_is_refused_by_name():
    model = two_heads(SHAPES)
    one = map_dataset.build_dataset(array(TABLE), OPTIONS, LABELS)
    with pytest.raises(ModelError, match="takes the inputs image, table, but the data has a sing"):
        fit.fit(model, one, {"epochs": 1})
    other = build(inputs(picture=array(IMAGE), table=array(TABLE)))
    with pytest.raises(ModelError, match="inputs image, table, but the data has picture, table"):
        fit.fit(model, other, {"epochs": 1})
    narrow = build(inputs(image=array(IMAGE), table=array(TABLE[:, :2])))
    with pytest.raises(ModelError, match=r"The input `table` of `model` takes rows of shape \(3,"):
        fit.fit(model, narrow, {"epochs": 1})
    single = build(labels=LABELS["outputs"][0]["labels"])
    with pytest.raises(ModelError, match="outputs price, cut, but `y` holds labels of a single"):
        fit.fit(model, single, {"epochs": 1})
    renamed = build(labels=outputs(price=LABELS["outputs"][0]["labels"]))
    with pytest.raises(ModelError, match="outputs price, cut, but the data has price"):
        fit.fit(model, renamed, {"epochs": 1})
    four = {"kind": "factor", "values": np.arange(ROWS) % 4 + 1, "levels": list("abcd")}
    wide = build(labels=outputs(price=LABELS["outputs"][0]["labels"], cut=four))
    with pytest.raises(DataError, match=r"`y\$cut` has labels from 0 to 3"):
        fit.fit(model, wide, {"epochs": 1})
    matrix = {"kind": "matrix", "values": TABLE, "names": []}
    wide = build(labels=outputs(price=matrix, cut=LABELS["outputs"][1]["labels"]))
    with pytest.raises(ModelError, match=r"The output `price` has 1 unit, but `y\$price` has 3"):
        fit.fit(model, wide, {"epochs": 1})


@pytest.mark.tf
def test_a_sequential_model_has_one_input(model):
    with pytest.raises(ModelError, match="sequential"):
        fit.fit(model, build(), {"epochs": 1})
    single = map_dataset.build_dataset(array(RNG.normal(size=(ROWS, 5))), OPTIONS, LABELS)
    with pytest.raises(ModelError, match="sequential"):
        fit.fit(model, single, {"epochs": 1})


@pytest.mark.tf
@pytest.mark.parametrize(
    ("features", "labels"),
    [
        pytest.param(X, LABELS, id="inputs"),
        pytest.param(frame(), LABELS, id="groups", marks=NIGHTLY),
        pytest.param(array(TABLE), LABELS, id="one input", marks=NIGHTLY),
        pytest.param(X, LABELS["outputs"][1]["labels"], id="one output", marks=NIGHTLY),
    ],
)
def test_a_perceptron_fits_them(features, labels):
    data = build(features, labels)
    model = mlp.build_mlp(data, {"units": [6, 4], "dropout": 0.1})
    report = fit.fit(model, data, {"epochs": 1})
    assert np.isfinite(report.history["loss"][0])
    if labels is LABELS:
        assert {"price_mean_absolute_error", "cut_accuracy"} <= set(report.history)


# Prediction --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("style", few(["list", "dict"], "dict"))
def test_predictions_are_those_of_keras(style):
    data = build(validation=0.25)
    model = two_heads(SHAPES, style)
    fit.fit(model, data, {"epochs": 1})
    x = keras_data()[0]
    wanted = model.predict(x, verbose=0)
    price, cut = (wanted["price"], wanted["cut"]) if style == "dict" else wanted
    for found in (predict.predict(model, X), predict.predict(model, data=data)):
        records = {record["name"]: record for record in found["outputs"]}
        assert list(records) == ["price", "cut"]
        np.testing.assert_allclose(records["price"]["values"], price[:, 0], rtol=1e-5)
        np.testing.assert_allclose(records["cut"]["values"], cut, rtol=1e-5)
        assert records["cut"]["names"] == ["a", "b", "c"]
    classes = predict.predict(model, X, type="class")["outputs"][1]
    np.testing.assert_array_equal(classes["values"], cut.argmax(axis=1) + 1)
    with pytest.raises(DataError, match="must have the inputs image, table, as in training"):
        predict.predict(model, inputs(image=array(IMAGE)))
    with pytest.raises(DataError, match="`newdata` must be a named list of inputs"):
        predict.predict(model, array(TABLE))
    result = evaluate.evaluate(model, data, "validation")
    assert {"loss", "price_loss", "cut_loss", "cut_accuracy"} <= set(result["metrics"])


@pytest.mark.tf
def test_a_dataset_with_the_inputs_in_another_order_has_the_same_predictions():
    parts = {"one": array(TABLE[:, :1]), "two": array(TABLE[:, 1:2])}
    label = {"kind": "numeric", "values": TABLE[:, 0] - 3 * TABLE[:, 1], "levels": []}
    data = build(inputs(**parts), label)
    model = mlp.build_mlp(data, {"units": [], "learning_rate": 0.1})
    fit.fit(model, data, {"epochs": 2})
    turned = build(inputs(two=parts["two"], one=parts["one"]), label)
    expected = predict.predict(model, data=data)["values"]
    np.testing.assert_allclose(predict.predict(model, data=turned)["values"], expected, rtol=1e-5)
    found, known = (summarise_model(model, each) for each in (turned, data))
    assert found.deviance == pytest.approx(known.deviance, rel=1e-5)
    assert {one.term: one.estimate for one in found.terms} == pytest.approx(
        {one.term: one.estimate for one in known.terms}, rel=1e-5
    )
    baseline = inputs(one=array(np.ones((1, 1))), two=array(np.zeros((1, 1))))
    found, known = (
        attribute(model, data=each, baseline=baseline, steps=2) for each in (turned, data)
    )
    assert found.columns == ("two$1", "one$1")
    np.testing.assert_allclose(found.values[:, ::-1], known.values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.baselines, known.baselines, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.tf
def test_rows_that_training_would_leave_out_keep_their_place():
    data = build(na="drop")
    model = two_heads(SHAPES)
    fit.fit(model, data, {"epochs": 1})
    table = TABLE.copy()
    table[[1, 4], 0] = np.nan
    found = predict.predict(model, inputs(table=array(table), image=array(IMAGE)))["outputs"]
    for record in found:
        assert record["missing"].tolist() == [2, 5]
        assert len(record["values"]) == ROWS


@pytest.mark.tf
def test_a_model_of_others_predicts_lists_of_arrays():
    found = predict.predict(two_heads(SHAPES), X)["outputs"]
    assert [record["name"] for record in found] == ["price", "cut"]


# Storage -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.tf
def test_saved_rows_are_the_same_several_inputs(tmp_path):
    data = build(validation=0.25)
    save_dataset(data, str(tmp_path / "saved"))
    again = builder.assemble({"kind": "saved", "path": str(tmp_path / "saved")}, {"seed": None})
    assert again.recipe == data.recipe
    for one, other in zip(again.arrays, data.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    models_ = [two_heads(SHAPES), two_heads(SHAPES)]
    for model, rows in zip(models_, (data, again), strict=True):
        fit.fit(model, rows, {"epochs": 1, "engine": "keras"}, batch_size=8)
    recipe = recipe_json.recipes_from(recipe_json.carry_recipe(models_[1])["portable"])
    assert same_encoding(recipe, data.recipe)
