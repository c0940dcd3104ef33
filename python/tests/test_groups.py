"""Several inputs and outputs: packed into one row, learned, taken apart, fitted as Keras does."""

import functools
import json

import numpy as np
import pytest

from gpukeras import (
    DataError,
    ModelError,
    SpecError,
    assembly,
    carried,
    costs,
    inference,
    models,
    pipeline,
    portable,
    training,
)
from gpukeras.feeding import open_feed, sample_rows
from gpukeras.groups import group_columns, input_parts
from gpukeras.labels import SEVERAL
from gpukeras.recipes import Recipe, same_encoding
from gpukeras.storage.saving import save_dataset

ROWS = 48
RNG = np.random.default_rng(1)
IMAGE = RNG.normal(size=(ROWS, 4, 4, 2))
TABLE = RNG.normal(size=(ROWS, 3))
PRICE = TABLE[:, 0] + 0.1 * RNG.normal(size=ROWS)
CODES = np.arange(ROWS) % 3 + 1
FRAME = [
    {"name": "carat", "kind": "numeric", "values": TABLE[:, 0], "levels": []},
    {"name": "cut", "kind": "factor", "values": CODES, "levels": ["a", "b", "c"]},
    {"name": "depth", "kind": "numeric", "values": 10 * TABLE[:, 1], "levels": []},
]
GROUPS = [{"name": "numbers", "columns": ["carat", "depth"]}, {"name": "kind", "columns": ["cut"]}]


def array(values):
    return {"kind": "array", "values": values, "names": []}


def inputs(**parts):
    given = [{"name": name, "features": features} for name, features in parts.items()]
    return {"kind": "inputs", "inputs": given}


def outputs(**parts):
    given = [{"name": name, "labels": labels} for name, labels in parts.items()]
    return {"kind": SEVERAL, "outputs": given}


LABELS = outputs(
    price={"kind": "numeric", "values": PRICE, "levels": []},
    cut={"kind": "factor", "values": CODES, "levels": ["a", "b", "c"]},
)
X = inputs(image=array(IMAGE), table=array(TABLE))
OPTIONS = {"batch_size": 8, "shuffle": False, "seed": 1}


def build(features=X, labels=LABELS, **options):
    return pipeline.build_dataset(features, {**OPTIONS, **options}, labels)


METRICS = {"price": ["mean_absolute_error"], "cut": ["accuracy"]}


def two_heads(shapes, style="list", loss=None, metrics=METRICS):
    """Two inputs, two outputs, as lists or as dicts."""
    import keras

    keras.utils.set_random_seed(3)
    first, second = (keras.Input(shape, name=name) for name, shape in shapes.items())
    hidden = keras.layers.Concatenate()(
        [keras.layers.Dense(5, "relu")(keras.layers.Flatten()(first)), second]
    )
    price = keras.layers.Dense(1, name="price")(hidden)
    cut = keras.layers.Dense(3, "softmax", name="cut")(hidden)
    if style == "list":
        model = keras.Model([first, second], [price, cut])
    else:
        names = list(shapes)
        model = keras.Model({names[0]: first, names[1]: second}, {"price": price, "cut": cut})
    loss = loss or {"price": "mean_squared_error", "cut": "sparse_categorical_crossentropy"}
    model.compile("adam", loss, metrics=metrics)
    return model


SHAPES = {"image": (4, 4, 2), "table": (3,)}


def same_weights(one, other):
    for mine, keras_own in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, keras_own)


# Packing -----------------------------------------------------------------------------------------


def test_inputs_lie_side_by_side_in_one_row():
    data = build()
    assert data.recipe.kind == "inputs"
    assert data.recipe.shape == (35,)
    rows = data.arrays[0]
    np.testing.assert_array_equal(rows[:, :32], IMAGE.reshape(ROWS, -1).astype(np.float32))
    np.testing.assert_array_equal(rows[:, 32:], TABLE.astype(np.float32))
    assert [(part.name, part.shape) for part in input_parts(data.recipe)] == [*SHAPES.items()]


def test_each_input_learns_by_itself():
    frame = {"kind": "columns", "columns": FRAME}
    features = inputs(image=array(IMAGE), frame=frame)
    features["inputs"][1]["scale"] = True
    data = build(features, encode={"cut": "codes"}, na="impute")
    image, table = (part.recipe for part in data.recipe.inputs)
    assert image.center is None
    assert [rule.name for rule in table.columns] == ["carat", "cut", "depth"]
    assert data.recipe.known == {"frame$carat", "frame$cut", "frame$depth"}
    assert data.arrays[0].shape == (ROWS, 32 + 3)
    assert abs(float(data.arrays[0][:, 32].mean())) < 1e-6
    with pytest.raises(SpecError, match="`encode` names `cup`"):
        build(features, encode={"cup": "codes"})


def test_rows_that_lack_a_value_in_any_input_or_output_are_dropped():
    table = TABLE.copy()
    table[3, 1] = np.nan
    price = PRICE.copy()
    price[5] = np.nan
    labels = outputs(price={"kind": "numeric", "values": price, "levels": []})
    data = build(inputs(image=array(IMAGE), table=array(table)), labels, na="drop")
    assert data.dropped == 2
    assert len(data) == ROWS - 2
    with pytest.raises(DataError, match=r"Column `2` of `x\$table` has 1 missing value"):
        build(inputs(image=array(IMAGE), table=array(table)))
    none = inputs(image=array(IMAGE), table=array(np.full((ROWS, 1), np.nan)))
    with pytest.raises(DataError, match="leaves no row") as error:
        build(none, na="drop")
    assert error.value.hint == "`x$table` lacks the most: 48."


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (inputs(a=array(IMAGE), b=array(TABLE[:5])), r"`x\$b` has 5 rows where `x\$a` has 48"),
        (inputs(**{"": array(IMAGE)}), "needs a name of its own: one has none"),
        ({"kind": "inputs", "inputs": []}, "it is empty"),
        (inputs(a={"kind": "images", "paths": ["x.png"]}), "cannot be one of several inputs"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(features, message):
    with pytest.raises(DataError, match=message):
        build(features, None)


def test_what_needs_one_input_is_refused():
    with pytest.raises(SpecError, match="`map` takes the features of a single input"):
        assembly.assemble(X, OPTIONS, LABELS, map=lambda rows: rows)
    with pytest.raises(SpecError, match="`class_weight` cannot tell whose classes"):
        pipeline.build_dataset(X, OPTIONS, LABELS, class_weight="balanced")
    with pytest.raises(SpecError, match="`mixup` mixes the labels of a single output"):
        assembly.assemble(array(IMAGE), OPTIONS, LABELS, augment={"mixup": 0.2})
    with pytest.raises(SpecError, match="`augment` needs image files or an array of 4"):
        assembly.assemble(X, OPTIONS, LABELS, augment={"flip": "both"})
    with pytest.raises(SpecError, match="`text` names columns"):
        assembly.assemble(X, OPTIONS, LABELS, text={"columns": ["a"]})


# Groups ------------------------------------------------------------------------------------------


def frame(columns=FRAME, groups=GROUPS):
    return {"kind": "columns", "columns": columns, "groups": groups}


def test_columns_are_put_in_the_order_of_their_groups():
    data = build(frame(), scale=True)
    assert [rule.name for rule in data.recipe.columns] == ["carat", "depth", "cut"]
    assert [(part.name, part.shape) for part in input_parts(data.recipe)] == [
        ("numbers", (2,)),
        ("kind", (3,)),
    ]
    again = pipeline.build_dataset(frame(), OPTIONS, LABELS, recipe=data.recipe)
    np.testing.assert_array_equal(again.arrays[0], data.arrays[0])
    with pytest.raises(SpecError, match="`inputs` is not what the `recipe` has"):
        pipeline.build_dataset(frame(groups=GROUPS[::-1]), OPTIONS, LABELS, recipe=data.recipe)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (GROUPS[:1], "The feature `cut` of `x` is in no group"),
        ([*GROUPS, {"name": "more", "columns": "cut"}], "names the column `cut` more than once"),
        ([*GROUPS, {"name": "more", "columns": ["cup"]}], "names the column `cup`, which is no"),
        ([*GROUPS, {"name": "more", "columns": []}], "has no columns for `more`"),
    ],
)
def test_each_column_is_in_one_group(groups, message):
    with pytest.raises(SpecError, match=message):
        build(frame(groups=groups))


def test_groups_need_columns():
    with pytest.raises(SpecError, match="`inputs` groups columns"):
        group_columns(Recipe("array", (3,)), GROUPS, "x")


# Recipes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [X, frame()], ids=["inputs", "groups"])
def test_recipes_leave_the_session_and_come_back(features):
    recipe = build(features).recipe
    text = json.dumps(portable.to_portable(recipe))
    again = portable.from_portable(json.loads(text))
    assert again == recipe
    assert same_encoding(again, recipe)
    assert not same_encoding(recipe, build(features, LABELS["outputs"][0]["labels"]).recipe)


@pytest.mark.parametrize("part", ["inputs", "label"])
def test_a_recipe_that_lost_a_part_is_refused(part):
    plain = portable.to_portable(build().recipe)
    if part == "inputs":
        plain["recipe"]["inputs"].pop()
    else:
        plain["recipe"]["label"]["outputs"].pop()
    with pytest.raises(DataError, match="is damaged"):
        portable.from_portable(plain)


# Training ----------------------------------------------------------------------------------------


@pytest.mark.tf
def test_a_block_is_taken_apart_on_the_device():
    data = build()
    block = next(iter(open_feed(data, data.plan("CPU:0")).epoch(0)))
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
    return model, training.fit(model, data, {"epochs": 2, "engine": "keras"}).history


@pytest.mark.tf
@pytest.mark.parametrize("style", ["list", "dict"])
@pytest.mark.parametrize("cache", ["auto", "disk"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_ends_with_the_weights_of_keras_own(style, cache, weighted):
    weights = np.linspace(0.5, 2, ROWS) if weighted else None
    data = pipeline.build_dataset(X, {**OPTIONS, "cache": cache}, LABELS, weights)
    mine, (other, history) = two_heads(SHAPES, style), fit_by_keras(style, weighted)
    report = training.fit(mine, data, {"epochs": 2, "engine": "keras"})
    same_weights(mine, other)
    assert set(report.history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-5)


@pytest.mark.tf
@pytest.mark.parametrize("engine", ["superstep", "compiled"])
def test_the_other_engines_learn_the_same(engine):
    model, data = two_heads(SHAPES), build(validation=1 / 3)
    found = training.fit(model, data, {"epochs": 2, "engine": engine}).history
    _, expected = fit_whole_rows(1 / 3)
    for name in ("loss", "price_loss", "cut_accuracy", "val_loss", "val_price_loss"):
        np.testing.assert_allclose(expected[name], found[name], rtol=1e-3)


@pytest.mark.tf
def test_a_fit_of_grouped_columns_is_keras_own():
    shapes = {"numbers": (2,), "kind": (3,)}
    data = build(frame(), scale=True)
    mine, other = two_heads(shapes), two_heads(shapes)
    training.fit(mine, data, {"epochs": 2, "engine": "keras"})
    rows = data.arrays[0]
    x = {"numbers": rows[:, :2], "kind": rows[:, 2:]}
    other.fit(x, keras_data()[1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    same_weights(mine, other)


@pytest.mark.tf
@pytest.mark.parametrize("cache", ["auto", True])
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
    stream = assembly.assemble(features, {**OPTIONS, "cache": cache})
    mine, (other, _) = two_heads(SHAPES), fit_whole_rows()
    training.fit(mine, stream, {"epochs": 2, "engine": "keras"})
    same_weights(mine, other)


@pytest.mark.tf
def test_what_taking_rows_apart_costs_is_measured(monkeypatch):
    monkeypatch.setattr(costs, "MOST_S", 0.0)
    assert {"gather", "unpack"} <= {stage.stage for stage in costs.measure_costs(build())}


@pytest.mark.tf
def test_images_with_several_outputs_are_augmented():
    options = {**OPTIONS, "batch_size": ROWS}
    data = assembly.assemble(array(IMAGE), options, LABELS, augment={"flip": "horizontal"})
    features, labels = next(iter(open_feed(data, data.plan("CPU:0")).epoch(0))).arrays
    assert features.shape == (ROWS, 4, 4, 2)
    assert not np.array_equal(features, IMAGE.astype(np.float32))
    np.testing.assert_array_equal(labels["cut"], CODES - 1)


@pytest.mark.tf
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("cache", ["auto", True])
def test_dicts_of_a_tf_data_dataset_are_inputs_and_outputs(cache, batched):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices(keras_data())
    rows = rows.batch(12) if batched else rows
    features = {"kind": "tfdata", "dataset": rows, "steps": None, "batched": None}
    data = assembly.assemble(features, {**OPTIONS, "cache": cache})
    mine, (other, _) = two_heads(SHAPES), fit_by_keras("list", False)
    training.fit(mine, data, {"epochs": 2, "engine": "keras"})
    same_weights(mine, other)
    found = inference.predict(mine, data=data)["outputs"]
    wanted = other.predict(keras_data()[0], verbose=0)
    for record, values in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.squeeze(record["values"]), np.squeeze(values), rtol=1e-4, atol=1e-6
        )
    again = assembly.assemble(features, OPTIONS, recipe=data.recipe)
    assert same_encoding(again.recipe, data.recipe)


@pytest.mark.tf
def test_dicts_of_a_tf_data_dataset_that_cannot_be_taken_are_refused():
    import tensorflow as tf

    def assemble(x, y=None, **options):
        parts = x if y is None else (x, y)
        rows = tf.data.Dataset.from_tensor_slices(parts)
        features = {"kind": "tfdata", "dataset": rows, "batched": False}
        recipe = options.pop("recipe", None)
        return assembly.assemble(features, {**OPTIONS, **options}, recipe=recipe)

    x, y = keras_data()
    with pytest.raises(DataError, match=r"`x\$name` of the tf.data dataset must be numeric"):
        assemble({"name": np.array(["a", "b"])})
    with pytest.raises(DataError, match="single output"):
        assemble(x, {"price": y["price"]})
    with pytest.raises(SpecError, match="taken as they are, not scaled"):
        assemble(x, y, scale=True)
    with pytest.raises(DataError, match="must have image, table, as in training, not image, more"):
        assemble({"image": x["image"], "more": x["table"]}, y, recipe=assemble(x, y).recipe)


@pytest.mark.tf
def test_custom_losses_and_a_loss_on_one_output_only():
    import keras

    def own(y, prediction):
        return keras.ops.mean(keras.ops.square(y - prediction), axis=-1)

    losses = {"price": own, "cut": keras.losses.SparseCategoricalCrossentropy()}
    report = training.fit(two_heads(SHAPES, loss=losses), build(), {"epochs": 1})
    assert np.isfinite(report.history["price_loss"][0])
    model = two_heads(SHAPES, "dict", {"price": "mean_squared_error"}, metrics=None)
    only = outputs(price=LABELS["outputs"][0]["labels"])
    with pytest.warns(UserWarning, match="Gradients do not exist"):  # of the other head
        report = training.fit(model, build(labels=only), {"epochs": 1, "engine": "keras"})
    assert report.epochs == 1


# Models that do not fit --------------------------------------------------------------------------


@pytest.mark.tf
def test_a_model_that_does_not_fit_is_refused_by_name():
    model = two_heads(SHAPES)
    one = pipeline.build_dataset(array(TABLE), OPTIONS, LABELS)
    with pytest.raises(ModelError, match="takes the inputs image, table, but the data has a sing"):
        training.fit(model, one, {"epochs": 1})
    other = build(inputs(picture=array(IMAGE), table=array(TABLE)))
    with pytest.raises(ModelError, match="inputs image, table, but the data has picture, table"):
        training.fit(model, other, {"epochs": 1})
    narrow = build(inputs(image=array(IMAGE), table=array(TABLE[:, :2])))
    with pytest.raises(ModelError, match=r"The input `table` of `model` takes rows of shape \(3,"):
        training.fit(model, narrow, {"epochs": 1})
    single = build(labels=LABELS["outputs"][0]["labels"])
    with pytest.raises(ModelError, match="outputs price, cut, but `y` holds labels of a single"):
        training.fit(model, single, {"epochs": 1})
    renamed = build(labels=outputs(price=LABELS["outputs"][0]["labels"]))
    with pytest.raises(ModelError, match="outputs price, cut, but the data has price"):
        training.fit(model, renamed, {"epochs": 1})
    four = {"kind": "factor", "values": np.arange(ROWS) % 4 + 1, "levels": list("abcd")}
    wide = build(labels=outputs(price=LABELS["outputs"][0]["labels"], cut=four))
    with pytest.raises(DataError, match=r"`y\$cut` has labels from 0 to 3"):
        training.fit(model, wide, {"epochs": 1})
    matrix = {"kind": "matrix", "values": TABLE, "names": []}
    wide = build(labels=outputs(price=matrix, cut=LABELS["outputs"][1]["labels"]))
    with pytest.raises(ModelError, match=r"The output `price` has 1 units, but `y\$price` has 3"):
        training.fit(model, wide, {"epochs": 1})


@pytest.mark.tf
def test_a_sequential_model_has_one_input(model):
    with pytest.raises(ModelError, match="sequential"):
        training.fit(model, build(), {"epochs": 1})
    single = pipeline.build_dataset(array(RNG.normal(size=(ROWS, 5))), OPTIONS, LABELS)
    with pytest.raises(ModelError, match="sequential"):
        training.fit(model, single, {"epochs": 1})


@pytest.mark.tf
@pytest.mark.parametrize(
    ("features", "labels"),
    [(X, LABELS), (frame(), LABELS), (array(TABLE), LABELS), (X, LABELS["outputs"][1]["labels"])],
    ids=["inputs", "groups", "one input", "one output"],
)
def test_a_perceptron_fits_them(features, labels):
    data = build(features, labels)
    model = models.build_mlp(data, {"units": [6, 4], "dropout": 0.1})
    report = training.fit(model, data, {"epochs": 1})
    assert np.isfinite(report.history["loss"][0])
    if labels is LABELS:
        assert {"price_mean_absolute_error", "cut_accuracy"} <= set(report.history)


# Prediction --------------------------------------------------------------------------------------


@pytest.mark.tf
@pytest.mark.parametrize("style", ["list", "dict"])
def test_predictions_are_those_of_keras(style):
    data = build(validation=0.25)
    model = two_heads(SHAPES, style)
    training.fit(model, data, {"epochs": 1})
    x = keras_data()[0]
    wanted = model.predict(x, verbose=0)
    price, cut = (wanted["price"], wanted["cut"]) if style == "dict" else wanted
    for found in (inference.predict(model, X), inference.predict(model, data=data)):
        records = {record["name"]: record for record in found["outputs"]}
        assert list(records) == ["price", "cut"]
        np.testing.assert_allclose(records["price"]["values"], price[:, 0], rtol=1e-5)
        np.testing.assert_allclose(records["cut"]["values"], cut, rtol=1e-5)
        assert records["cut"]["names"] == ["a", "b", "c"]
    classes = inference.predict(model, X, type="class")["outputs"][1]
    np.testing.assert_array_equal(classes["values"], cut.argmax(axis=1) + 1)
    with pytest.raises(DataError, match="must have the inputs image, table, as in training"):
        inference.predict(model, inputs(image=array(IMAGE)))
    with pytest.raises(DataError, match="`newdata` must be a named list of inputs"):
        inference.predict(model, array(TABLE))
    result = inference.evaluate(model, data, "validation")
    assert {"loss", "price_loss", "cut_loss", "cut_accuracy"} <= set(result["metrics"])


@pytest.mark.tf
def test_rows_that_training_would_leave_out_keep_their_place():
    data = build(na="drop")
    model = two_heads(SHAPES)
    training.fit(model, data, {"epochs": 1})
    table = TABLE.copy()
    table[[1, 4], 0] = np.nan
    found = inference.predict(model, inputs(table=array(table), image=array(IMAGE)))["outputs"]
    for record in found:
        assert record["missing"].tolist() == [2, 5]
        assert len(record["values"]) == ROWS


@pytest.mark.tf
def test_a_model_of_others_predicts_lists_of_arrays():
    found = inference.predict(two_heads(SHAPES), X)["outputs"]
    assert [record["name"] for record in found] == ["price", "cut"]


# Storage -----------------------------------------------------------------------------------------


@pytest.mark.tf
@pytest.mark.parametrize("format_", ["parquet", "tfrecord"])
def test_saved_rows_are_the_same_several_inputs(tmp_path, format_):
    data = build(validation=0.25)
    save_dataset(data, str(tmp_path / "saved"), format_)
    again = assembly.assemble({"kind": "saved", "path": str(tmp_path / "saved")}, {"seed": None})
    assert again.recipe == data.recipe
    for one, other in zip(again.arrays, data.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    models_ = [two_heads(SHAPES), two_heads(SHAPES)]
    for model, rows in zip(models_, (data, again), strict=True):
        training.fit(model, rows, {"epochs": 1, "engine": "keras"}, batch_size=8)
    recipe = carried.recipes_from(carried.carry_recipe(models_[1])["portable"])
    assert same_encoding(recipe, data.recipe)
