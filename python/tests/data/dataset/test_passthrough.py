"""Batches of text, of varying shape and ragged ones train, evaluate and predict as Keras does."""

import numpy as np
import pytest
from nightly import few

from gpukeras import DataError, SpecError, api
from gpukeras.backend import runtime
from gpukeras.core.errors import EndedEarlyWarning
from gpukeras.data import builder
from gpukeras.data.dataset import streams as sequences
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.passthrough import AsIsDataset
from gpukeras.data.loader import loader, profile
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.data.saved import writer
from gpukeras.training import evaluate, fit, predict
from gpukeras.tuner import batch_size

pytestmark = pytest.mark.tf

RNG = np.random.default_rng(7)
WORDS = np.array(["good", "bad", "fine", "poor", "film", "plot", "a", "the"])
TEXTS = np.array([" ".join(RNG.choice(WORDS, RNG.integers(2, 7))) for _ in range(50)])
LABELS = np.array([float("good" in text) for text in TEXTS], np.float32)
LENGTHS = [5, 5, 9, 3, 12, 9]
SEQUENCES = [RNG.normal(size=(8, length, 4)).astype(np.float32) for length in LENGTHS]
TARGETS = [RNG.normal(size=(8, 1)).astype(np.float32) for _ in LENGTHS]


def data_of(dataset, steps=None, batched=None, **options):
    features = {"kind": "tfdata", "dataset": dataset, "steps": steps, "batched": batched}
    return sequences.build_stream(features, Request(options))


def text_batches(size=8):
    tf = runtime.tensorflow()
    return tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(size)


def varying(per_step=False):
    tf = runtime.tensorflow()
    targets = [x.sum(-1, keepdims=True) for x in SEQUENCES] if per_step else TARGETS
    shape = (None, None, 1) if per_step else (None, 1)
    return tf.data.Dataset.from_generator(
        lambda: zip(SEQUENCES, targets, strict=True),
        output_signature=(
            tf.TensorSpec((None, None, 4), tf.float32),
            tf.TensorSpec(shape, tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(len(LENGTHS)))


def text_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(3)
    layer = keras.layers.TextVectorization(20, output_sequence_length=6)
    layer.adapt(TEXTS)
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            layer,
            keras.layers.Embedding(20, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def sequence_model(per_step=False):
    keras = runtime.keras()
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((None, 4)),
            keras.layers.Conv1D(6, 3, padding="same"),
            *([] if per_step else [keras.layers.GlobalAveragePooling1D()]),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def ragged_model():
    """A mean over the time steps, of a ragged batch or a padded one."""
    keras, tf = runtime.keras(), runtime.tensorflow()
    keras.utils.set_random_seed(3)

    def average(x):
        x = x.to_tensor() if hasattr(x, "to_tensor") else x
        return tf.ensure_shape(tf.reduce_mean(x, 1), (None, 4))

    model = keras.Sequential([keras.layers.Lambda(average), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


CASES = {
    "text": (text_model, text_batches),
    "varying": (sequence_model, varying),
    "per step": (lambda: sequence_model(True), lambda: varying(True)),
}


@pytest.mark.parametrize("name", few(CASES, "text"))
def test_batches_that_are_taken_as_they_come_train_as_keras_does(name):
    make_model, make_data = CASES[name]
    theirs, mine = make_model(), make_model()
    expected = theirs.fit(
        make_data(), epochs=3, verbose=0, shuffle=False, validation_data=make_data()
    )
    data = data_of(make_data())
    report = fit.fit(mine, data, {"epochs": 3}, validation=data_of(make_data()))
    assert isinstance(data, AsIsDataset)
    for metric, values in expected.history.items():
        np.testing.assert_allclose(report.history[metric], values, rtol=1e-5, err_msg=metric)
    for one, other in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, atol=1e-6)
    assert report.engine.engine == "keras"
    assert "a batch at a time" in report.reasons["engine"]
    assert report.rows == 3 * (50 if name == "text" else 48)
    found = evaluate.evaluate(mine, data)["metrics"]
    wanted = theirs.evaluate(make_data(), verbose=0, return_dict=True)
    for metric, value in wanted.items():
        np.testing.assert_allclose(found[metric], value, rtol=1e-5)


@pytest.mark.slow
def test_the_reason_of_an_asked_engine_says_that_it_could_not_be():
    report = fit.fit(sequence_model(), data_of(varying()), {"epochs": 1, "engine": "graph_loop"})
    assert report.engine.engine == "keras"
    assert report.reasons["engine"] == (
        "the tf.data pipeline gives rows whose shape varies, a batch at a time; "
        '"graph_loop" was asked'
    )


def test_predictions_of_one_shape_are_an_array_and_others_one_for_each_batch():
    model = sequence_model()
    found = api.to_plain(predict.predict(model, data=data_of(varying())))
    expected = model.predict(varying(), verbose=0)
    np.testing.assert_allclose(found["values"], expected[:, 0], rtol=1e-5)
    model = sequence_model(per_step=True)
    batches = predict.predict(model, data=data_of(varying(True)))["batches"]
    assert [batch["values"].shape for batch in batches] == [(8, n, 1) for n in LENGTHS]
    for batch, x in zip(batches, SEQUENCES, strict=True):
        expected = model.predict_on_batch(x)
        np.testing.assert_allclose(batch["values"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_text_is_predicted_from_rows_and_from_batches():
    model = text_model()
    expected = model.predict(text_batches(), verbose=0)[:, 0]
    tf = runtime.tensorflow()
    rows = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    for dataset in (text_batches(), rows, text_batches().map(lambda x, y: x)):
        found = predict.predict(model, data=data_of(dataset))["values"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    levels = sorted(set(TEXTS))
    codes = np.array([[levels.index(text) + 1] for text in TEXTS])
    matrix = {"kind": "strings", "values": codes, "levels": levels, "names": []}
    np.testing.assert_allclose(predict.predict(model, matrix)["values"], expected, rtol=1e-5)


@pytest.mark.slow
def test_steps_go_on_where_the_last_epoch_ended():
    theirs, mine = text_model(), text_model()
    expected = theirs.fit(
        text_batches().repeat(), epochs=4, steps_per_epoch=3, verbose=0, shuffle=False
    )
    report = fit.fit(mine, data_of(text_batches().repeat(), 3), {"epochs": 4})
    np.testing.assert_allclose(report.history["loss"], expected.history["loss"], rtol=1e-5)


@pytest.mark.slow
def test_ragged_batches_train_as_keras_does():
    tf = runtime.tensorflow()
    rows = [RNG.normal(size=(n, 4)).astype(np.float32) for n in (3, 5, 2, 7, 4, 1)]
    dataset = tf.data.Dataset.from_tensor_slices((tf.ragged.stack(rows), np.arange(6.0)))
    dataset = dataset.ragged_batch(2)
    theirs, mine = ragged_model(), ragged_model()
    expected = theirs.fit(dataset, epochs=2, verbose=0, shuffle=False)
    report = fit.fit(mine, data_of(dataset), {"epochs": 2})
    np.testing.assert_allclose(report.history["loss"], expected.history["loss"], rtol=1e-5)


def sequences_in_batches(how):
    tf = runtime.tensorflow()
    parts = [
        tf.data.Dataset.from_tensor_slices(pair) for pair in zip(SEQUENCES, TARGETS, strict=True)
    ]
    shapes = tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((1,), tf.float32)
    rows = tf.data.Dataset.from_generator(
        lambda: (row for part in parts for row in part), output_signature=shapes
    )
    if how == "one length":
        batches = rows.padded_batch(8, padded_shapes=([12, 4], [1]))
    else:
        sizes = [8, 8, 8]
        batches = rows.bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [6, 10], sizes)
    return batches.apply(tf.data.experimental.assert_cardinality(len(LENGTHS)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "engine"),
    few([("one length", "graph_loop"), ("buckets", "keras")], ("one length", "graph_loop")),
)
def test_rows_padded_to_one_length_run_many_batches_a_call(how, engine):
    theirs, mine = sequence_model(), sequence_model()
    expected = theirs.fit(sequences_in_batches(how), epochs=2, verbose=0, shuffle=False)
    report = fit.fit(mine, data_of(sequences_in_batches(how)), {"epochs": 2})
    assert report.engine.engine == engine
    np.testing.assert_allclose(report.history["loss"], expected.history["loss"], rtol=1e-5)


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("batch_size", 4), ("buffer", 10), ("drop_last", True), ("scale", True)],
)
def test_options_that_need_rows_of_one_shape_are_refused_by_name(option, value):
    said = f"`{option}` needs rows of numbers of one shape: the tf.data dataset gives text."
    with pytest.raises(SpecError) as caught:
        data_of(text_batches(), **{option: value})
    assert (caught.value.message, caught.value.details["arg"]) == (said, option)


def test_what_else_needs_rows_of_one_shape_is_refused_by_name():
    data = data_of(text_batches())
    with pytest.raises(SpecError, match="only rows of numbers can be saved"):
        writer.open_rows(data)
    with pytest.raises(SpecError, match="`augment` needs rows of numbers of one shape"):
        builder.assemble(
            {"kind": "tfdata", "dataset": text_batches(), "steps": None, "batched": None},
            {},
            augment={"noise": 0.1},
        )
    with pytest.raises(SpecError, match="Several devices cannot share batches of text"):
        loader.open_loader(data, data.plan("CPU:0"), shares=BatchSharding(2, 0, ("CPU:0", "CPU:0")))
    with pytest.raises(SpecError, match="`data` gives text: rows of numbers of one shape are need"):
        batch_size.find_batch_size(text_model(), data, {})
    with pytest.raises(SpecError, match="`cost` cannot be measured: the tf.data dataset gives tex"):
        profile.measure_costs(data)
    with pytest.raises(SpecError, match="`batch_size` needs rows of numbers"):
        fit.fit(text_model(), data, {"epochs": 1}, batch_size=4)
    with pytest.raises(SpecError, match="The tf.data dataset has no end"):
        data_of(text_batches().repeat())


def test_what_cannot_be_batches_is_refused():
    tf = runtime.tensorflow()
    rows = tf.data.Dataset.from_generator(
        lambda: iter([(np.ones((3, 4), np.float32), 1.0)]),
        output_signature=(tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((), tf.float32)),
    )
    with pytest.raises(DataError, match=r"has the shape \(None, 4\): it must be known") as caught:
        data_of(rows)
    assert "padded_batch()" in caught.value.hint
    ragged = tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1.0], [2.0, 3.0]]), [0, 1]))
    with pytest.raises(DataError, match="Elements of the tf.data dataset are ragged rows"):
        data_of(ragged)
    with pytest.raises(DataError, match="The tf.data dataset has no rows"):
        data_of(text_batches().take(0))
    with pytest.raises(SpecError, match="`steps` is 30, but the tf.data dataset has 7 batches"):
        data_of(text_batches(), 30)
    short = text_batches().filter(lambda x, y: True)  # nobody knows how many there are
    with pytest.warns(EndedEarlyWarning, match="ended before batch 8 of epoch 1"):
        fit.fit(text_model(), data_of(short, 30), {"epochs": 1})


def test_a_model_of_encoded_rows_does_not_take_batches_as_they_come():
    scaled = Recipe(ArrayEncoding((4,), center=(0.0,) * 4, scale=(1.0,) * 4))
    features = {"kind": "tfdata", "dataset": varying(), "steps": None, "batched": None}
    with pytest.raises(DataError, match="gives rows whose shape varies, but `model` was trained"):
        sequences.build_stream(features, Request({}, recipe=scaled))
    assert (
        sequences.build_stream(
            features, Request({}, recipe=Recipe(ArrayEncoding((None, 4))))
        ).recipe.features.kind
        == "batches"
    )


# Functions ---------------------------------------------------------------------------------------


def function_of(parts, targets):
    """A function of the user's that gives one batch a call, and starts again after its end."""
    waiting = []

    def call(epoch, batch):
        if batch == 1:
            waiting[:] = zip(parts, targets, strict=True)
        if not waiting:
            return None
        x, y = waiting.pop(0)
        features = {"kind": "array", "values": np.asfortranarray(x, np.float64), "names": []}
        labels = {"name": "y", "kind": "numeric", "values": y[:, 0], "levels": []}
        return {"features": features, "labels": labels, "weights": None}

    return call


def stream(parts=SEQUENCES, **options):
    call = function_of(parts, TARGETS)
    return sequences.build_stream(
        {"kind": "generator", "call": call, "steps": None}, Request(options)
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["auto", "graph_loop"], "auto"))
def test_a_function_whose_batches_vary_in_shape_trains_as_keras_does(engine):
    theirs, mine = sequence_model(), sequence_model()
    expected = theirs.fit(varying(), epochs=3, verbose=0, shuffle=False)
    data = stream(shuffle=False)
    report = fit.fit(mine, data, {"epochs": 3, "engine": engine}, validation=stream())
    np.testing.assert_allclose(report.history["loss"], expected.history["loss"], rtol=1e-5)
    for one, other in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    wanted = theirs.evaluate(varying(), verbose=0, return_dict=True)
    np.testing.assert_allclose(report.history["val_loss"][-1], wanted["loss"], rtol=1e-5)
    assert (report.engine.engine, report.rows) == ("keras", 3 * 48)
    assert report.reasons["engine"].startswith("rows vary in shape")
    assert report.reasons["engine"].endswith("was asked") == (engine == "graph_loop")
    found = predict.predict(mine, data=data)["values"]
    np.testing.assert_allclose(found, theirs.predict(varying(), verbose=0)[:, 0], rtol=1e-4)


@pytest.mark.slow
def test_rows_of_another_length_are_predicted_where_the_model_leaves_it_open():
    model = sequence_model()
    fit.fit(model, stream(shuffle=False), {"epochs": 1})
    for x in SEQUENCES:
        features = {"kind": "array", "values": np.asfortranarray(x, np.float64), "names": []}
        found = predict.predict(model, features)["values"]
        np.testing.assert_allclose(found, model.predict(x, verbose=0)[:, 0], rtol=1e-4)
    wrong = {"kind": "array", "values": np.zeros((3, 5, 2)), "names": []}
    with pytest.raises(DataError, match=r"Each row of `newdata` must have shape \(5, 4\)"):
        predict.predict(model, wrong)


def test_rows_that_vary_are_refused_where_batches_are_made_anew_or_the_model_is_fixed():
    keras = runtime.keras()
    fixed = keras.Sequential([keras.Input((5, 4)), keras.layers.Flatten(), keras.layers.Dense(1)])
    fixed.compile("sgd", "mse")
    with pytest.raises(DataError, match=r"Batch 3 of epoch 1: Each row of `x` must have shape"):
        fit.fit(fixed, stream(), {"epochs": 1})
    for options in ({"batch_size": 16}, {"buffer": 20}):
        (name,) = options
        with pytest.raises(SpecError, match=f"`{name}` needs rows of one shape: those of the func"):
            fit.fit(sequence_model(), stream(**options), {"epochs": 1})
