"""Texts that stay texts, in rows that have numbers: trained, predicted and evaluated as Keras."""

import numpy as np
import pytest
from frames import frame
from nightly import few

from gpukeras import DataError, ModelError, SpecError
from gpukeras.backend import runtime
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.reader import memory
from gpukeras.data.reader.registry import open_features
from gpukeras.data.saved import writer
from gpukeras.engine.autotune import EngineFacts, choose_candidates, choose_evaluation_candidates
from gpukeras.models import compatibility, mlp
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf

RNG = np.random.default_rng(7)
WORDS = np.array(["good", "bad", "fine", "poor", "film", "plot", "a", "the"])
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(2, 7))) for _ in range(50)]
COLOURS = list(RNG.choice(["red", "green", "blue"], 50))
AGES = RNG.normal(size=50)
LABELS = np.array([float("good" in text) for text in TEXTS])
ROWS = {"epochs": 3}
PLAIN = {"shuffle": False, "batch_size": 8}


def coded(values):
    levels = sorted(set(values))
    return [levels.index(value) + 1 for value in values], levels


def matrix(*columns):
    levels = sorted({text for column in columns for text in column})
    values = np.array([[levels.index(text) + 1 for text in column] for column in columns]).T
    return {"kind": "strings", "values": values, "levels": levels, "names": []}


def column(name, values, kind="character"):
    if kind in ("character", "factor"):
        codes, levels = coded(values)
        return {"name": name, "kind": kind, "values": np.array(codes), "levels": levels}
    return {"name": name, "kind": kind, "values": np.asarray(values), "levels": []}


def labels(values=LABELS):
    return {"name": "y", "kind": "numeric", "values": values, "levels": []}


MIXED = frame(
    column("colour", COLOURS, "factor"), column("age", AGES, "numeric"), column("words", TEXTS)
)


def text_model(shape=(1,)):
    keras = runtime.keras()
    keras.utils.set_random_seed(3)
    layer = keras.layers.TextVectorization(20, output_sequence_length=6)
    layer.adapt(TEXTS)
    inner = [layer, keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D()]
    first = [] if shape is None else [keras.Input(shape, dtype="string")]
    model = keras.Sequential([*first, *inner, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def mixed_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(3)
    words = keras.layers.TextVectorization(20, output_mode="multi_hot")
    words.adapt(TEXTS)
    look = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    inputs = {
        "colour": keras.Input((1,), dtype="string", name="colour"),
        "age": keras.Input((1,), name="age"),
        "words": keras.Input((1,), dtype="string", name="words"),
    }
    counted = keras.layers.Flatten()(words(inputs["words"]))
    parts = [look(inputs["colour"]), inputs["age"], counted]
    output = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, output)
    model.compile("adam", "binary_crossentropy")
    return model


def as_keras(names):
    given = {"colour": COLOURS, "words": TEXTS}
    tf = runtime.tensorflow()
    return {
        name: tf.constant(given[name], shape=(50, 1))
        if name in given
        else np.asarray(AGES, np.float32).reshape(-1, 1)
        for name in names
    }


def same_weights(one, other):
    for mine, theirs in zip(one.weights, other.weights, strict=True):
        if mine.dtype.startswith("float"):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-6)


@pytest.mark.parametrize("engine", few(["auto", "keras", "graph_loop"], "auto"))
def test_a_matrix_of_texts_trains_as_keras_does(engine):
    theirs, mine = text_model(), text_model()
    x = runtime.tensorflow().constant(TEXTS, shape=(50, 1))
    expected = theirs.fit(x, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
    data = build_dataset(matrix(TEXTS), PLAIN, labels())
    report = fit.fit(mine, data, {**ROWS, "engine": engine})
    np.testing.assert_allclose(report.history["loss"], expected.history["loss"], rtol=1e-5)
    np.testing.assert_allclose(report.history["accuracy"], expected.history["accuracy"], rtol=1e-5)
    same_weights(mine, theirs)
    found = evaluate.evaluate(mine, data)["metrics"]
    wanted = theirs.evaluate(x, LABELS, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    predicted = predict.predict(mine, matrix(TEXTS[:9]))["values"]
    np.testing.assert_allclose(predicted, theirs.predict(x, verbose=0)[:9, 0], rtol=1e-5)
    again = predict.predict(mine, data=data)["values"]
    np.testing.assert_allclose(again[:9], predicted, rtol=1e-5)
    if engine == "auto":
        assert report.reasons["engine"].startswith("XLA cannot compile a model that takes text")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), None])
def test_texts_of_any_form_of_input_train(shape):
    data = build_dataset(matrix(TEXTS), PLAIN, labels())
    report = fit.fit(text_model(shape), data, ROWS)
    assert report.epochs == 3


@pytest.mark.slow
def test_columns_are_inputs_by_their_names_and_train_as_keras_does():
    theirs, mine = mixed_model(), mixed_model()
    x = as_keras(("colour", "age", "words"))
    expected = theirs.fit(x, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
    data = build_dataset(MIXED, {**PLAIN, "encode": "none"}, labels())
    report = fit.fit(mine, data, ROWS)
    np.testing.assert_allclose(report.history["loss"], expected.history["loss"], rtol=1e-5)
    same_weights(mine, theirs)
    new = frame(*reversed(MIXED["columns"]), column("other", AGES, "numeric"))
    predicted = predict.predict(mine, new)["values"]
    np.testing.assert_allclose(predicted, theirs.predict(x, verbose=0)[:, 0], rtol=1e-5)


def pictured_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(3)
    lookup = keras.layers.TextVectorization(20, output_sequence_length=6)
    lookup.adapt(TEXTS)
    image = keras.Input((4, 4, 3), name="image")
    words = keras.Input((1,), dtype="string", name="words")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(20, 4)(lookup(words)))
    parts = [keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image)), embedded]
    output = keras.layers.Dense(1)(keras.layers.Concatenate()(parts))
    model = keras.Model({"image": image, "words": words}, output)
    model.compile("sgd", "mse")
    return model


def test_texts_beside_images_stay_texts(tmp_path):
    tf = runtime.tensorflow()
    pixels = RNG.integers(256, size=(50, 4, 4, 3), dtype=np.uint8)
    paths = [str(tmp_path / f"{number}.png") for number in range(50)]
    for path, image in zip(paths, pixels, strict=True):
        tf.io.write_file(path, tf.io.encode_png(image))
    images = {"kind": "images", "paths": paths, "column": "image", "image_size": [4, 4]}
    inputs = [{"name": "image", "features": images}, {"name": "words", "features": matrix(TEXTS)}]
    rows = {"kind": "inputs", "inputs": inputs}
    data = build_dataset(rows, PLAIN, labels())
    theirs, mine = pictured_model(), pictured_model()
    x = {"image": pixels.astype(np.float32), "words": tf.constant(TEXTS, shape=(50, 1))}
    theirs.fit(x, LABELS, batch_size=8, shuffle=False, verbose=0)
    fit.fit(mine, data, {"epochs": 1})
    same_weights(mine, theirs)
    found = predict.predict(mine, rows)["values"]
    np.testing.assert_allclose(found, theirs.predict(x, verbose=0)[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.nightly  # columns of texts and others, and a matrix, in each run
def test_columns_of_texts_alone_are_one_input():
    data = build_dataset(frame(column("words", TEXTS)), {**PLAIN, "encode": "none"}, labels())
    assert (data.recipe.features.kind, data.recipe.shape, data.recipe.features.names) == (
        "strings",
        (1,),
        ("words",),
    )
    mine, theirs = text_model(), text_model()
    fit.fit(mine, data, ROWS)
    fit.fit(theirs, build_dataset(matrix(TEXTS), PLAIN, labels()), ROWS)
    same_weights(mine, theirs)
    new = frame(column("other", AGES, "numeric"), column("words", TEXTS[:5], "factor"))
    assert predict.predict(mine, new)["values"].shape == (5,)
    assert predict.predict(mine, frame(column("words", [])))["values"].shape[0] == 0
    with pytest.raises(DataError, match="lacks the column `words` that the model was trained on"):
        predict.predict(mine, frame(column("other", AGES, "numeric")))


@pytest.mark.slow
def test_validation_rows_and_a_shuffle_keep_texts_with_their_labels():
    data = build_dataset(matrix(TEXTS), {"validation": 0.2, "batch_size": 8, "seed": 1}, labels())
    model = text_model()
    report = fit.fit(model, data, ROWS)
    rows = data.validation_rows
    x = runtime.tensorflow().constant([TEXTS[row] for row in rows], shape=(len(rows), 1))
    wanted = model.evaluate(x, LABELS[rows], verbose=0, return_dict=True)
    np.testing.assert_allclose(report.history["val_loss"][-1], wanted["loss"], rtol=1e-5)


# Engines -----------------------------------------------------------------------------------------


def test_xla_is_no_candidate_for_texts():
    why = "XLA cannot compile a model that takes text"
    table = [
        (EngineFacts(text=True), (("graph_loop", "keras"), why)),
        (EngineFacts(text=True, requested="compiled"), (("graph_loop",), f"{why}, as was asked")),
        (EngineFacts(text=True, jit=True), (("graph_loop",), f"{why}, as was asked")),
        (EngineFacts(text=True, requested="keras", jit=True), (("keras",), "as asked")),
    ]
    for facts, expected in table:
        assert choose_candidates(facts) == expected
    assert choose_evaluation_candidates(EngineFacts(text=True)) == ("graph_loop",)


# Refusals ----------------------------------------------------------------------------------------


def test_texts_and_numbers_are_not_mixed_up():
    numbers = build_dataset(
        {"kind": "array", "values": AGES.reshape(-1, 1), "names": []}, PLAIN, labels()
    )
    texts = build_dataset(matrix(TEXTS), PLAIN, labels())
    keras = runtime.keras()
    plain = keras.Sequential([keras.Input((1,), name="age"), keras.layers.Dense(1)])
    with pytest.raises(ModelError, match="takes text, but the data has numbers") as caught:
        compatibility.check_input(text_model(), numbers.recipe)
    assert 'encode = "none"' in caught.value.hint
    with pytest.raises(ModelError, match="`age` of `model` takes numbers, but the data has text"):
        compatibility.check_input(plain, texts.recipe)
    with pytest.raises(SpecError, match="gpu_mlp"):
        mlp.build_mlp(texts, {})
    with pytest.raises(SpecError, match="`data` gives texts: only rows of numbers can be saved"):
        writer.open_rows(texts)


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({**matrix(TEXTS), "values": np.array([[1], [0]])}, "`x` has missing texts in 1 row"),
        ({**matrix(TEXTS), "values": np.zeros((0, 1))}, "`x` has no rows"),
        (
            frame(column("words", TEXTS), column("day", AGES, "date")),
            "Column `day` of `x` must hold numbers or texts, not date",
        ),
    ],
)
def test_rows_that_are_no_texts_are_refused(features, said):
    with pytest.raises(DataError, match=said):
        build_dataset(features, {"encode": "none"}, None)


def test_missing_texts_are_not_left_out_or_filled_in():
    with pytest.raises(SpecError, match='`na` = "drop" needs rows in memory: `x` is text'):
        build_dataset(matrix(TEXTS), {**PLAIN, "na": "drop"}, labels())


def test_missing_texts_of_one_column_among_several_are_refused():
    codes, levels = coded(TEXTS)
    words = {"name": "words", "kind": "character", "values": np.array(codes), "levels": levels}
    words["values"][[3, 7]] = 0
    features = frame(column("age", AGES, "numeric"), words)
    with pytest.raises(DataError, match=r"`x\$words` has missing texts in 2 rows"):
        build_dataset(features, {**PLAIN, "encode": "none"}, labels())


def test_other_columns_than_in_training_are_refused():
    given = open_features(frame(column("words", TEXTS)), "newdata", encoding=None)
    assert not isinstance(given, memory.StringFeatures)
    data = build_dataset(frame(column("words", TEXTS)), {**PLAIN, "encode": "none"}, labels())
    given = frame(column("words", AGES, "numeric"))
    with pytest.raises(DataError, match="`words` of `newdata` must hold texts, as in training"):
        open_features(given, "newdata", encoding=data.recipe.features)


def test_more_texts_than_float32_can_count_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "EXACT_FLOAT32", 10)
    with pytest.raises(DataError, match=r"`x` has \d+ different texts, more than 10"):
        build_dataset(matrix(TEXTS), PLAIN, labels())
