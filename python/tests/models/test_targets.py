"""Labels of any shape train as Keras' own `fit()` does, and predictions have the model's shape.

Masks of images, images, one-hot sequences, a label each time step: from arrays, functions,
tf.data pipelines, saved datasets and `.npy` files, with several outputs, with weights.
"""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from keras_fits import assert_equivalent, assert_same_losses, fit_ours, fit_plain
from lazy_modules import tf
from nightly import few
from rules import label_rule
from shaped import (
    BATCH,
    CASES,
    DENSE,
    HOT,
    HOT_STEPS,
    IMAGES,
    LEVELS,
    MASKS,
    ROW_WEIGHTS,
    SERIES,
    SEVERAL_LABELS,
    SPARSE,
    STEP_WEIGHTS,
    STEPS,
    dataset,
    keras,
    labels,
    network,
    network_of,
    outputs_of,
    two_headed,
)
from streamed import array, stream, tfdata

from gpukeras import ModelError, SpecError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.recipe import decoding
from gpukeras.data.saved import reader, writer
from gpukeras.models import mlp, targets
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf

ENGINES = ("graph_loop", "compiled")
COMPILED = ("sparse masks", "images themselves", "a class each step")  # by XLA, which takes seconds

IN_SEQUENCE = ("sparse masks", "one-hot sequences", "a number each step")


@pytest.mark.varies
@pytest.mark.parametrize(
    "name",
    few(CASES, "a class each step", "a number each step, flat"),
)
def test_labels_of_any_shape_train_as_in_keras(name):
    x, y, *_ = CASES[name]
    engines = ENGINES if name in COMPILED else ENGINES[:1]
    assert_equivalent(network_of(name), lambda: dataset(x, y), (x, y), engines)


WEIGHTED = {
    "steps, classes": (SERIES, STEPS, 3, *SPARSE, STEP_WEIGHTS),
    "steps, one-hot": (SERIES, HOT_STEPS, 3, *DENSE, STEP_WEIGHTS),
    "rows, classes": (SERIES, STEPS, 3, *SPARSE, ROW_WEIGHTS),
    "pixels": (IMAGES, MASKS, 3, *SPARSE, ROW_WEIGHTS[..., None] * np.ones((4, 5))),
    "images": (IMAGES, HOT, 3, *DENSE, ROW_WEIGHTS[..., None]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", few(WEIGHTED, "steps, classes"))
def test_weights_of_steps_and_rows_count_as_in_keras(name):
    x, y, units, activation, loss, weights = WEIGHTED[name]
    build = functools.partial(network, x, units, activation, loss, weighted_metrics=["accuracy"])
    history, expected = fit_plain(build, (x, y), sample_weight=weights)
    _, ours = fit_ours(build, lambda: dataset(x, y, weights), "keras")
    np.testing.assert_array_equal(ours, expected)
    for engine in ENGINES if name == "steps, classes" else ENGINES[:1]:
        found, _ = fit_ours(build, lambda: dataset(x, y, weights), engine)
        assert_same_losses(found, history)


def make_several(**options):
    options = {"batch_size": BATCH, "shuffle": False, "seed": 3, **options}
    return data_dataset.build_dataset(array(IMAGES), options, outputs_of(SEVERAL_LABELS))


def in_chunks(x, y, weights=None, sizes=(7, 20, 8, 9)):
    """A user's function whose batches have other sizes than those of training."""
    at = [0]

    def call(epoch, batch):
        start = sum(sizes[: at[0]])
        if start == len(x):
            at[0] = 0
            return None
        rows = slice(start, start + sizes[at[0]])
        at[0] += 1
        own = (
            outputs_of({k: v[rows] for k, v in y.items()})
            if isinstance(y, dict)
            else labels(y[rows])
        )
        part = None if weights is None else weights[rows]
        return {"features": array(x[rows]), "labels": own, "weights": part}

    return call


def as_function(x, y, weights=None, **options):
    call = in_chunks(x, y, weights)
    return stream(call, **{"batch_size": BATCH, "shuffle": False, **options})


def as_pipeline(x, y, weights=None, **options):
    parts = (x, y) if weights is None else (x, y, weights)
    given = tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)
    return tfdata(given, **{"batch_size": BATCH, "shuffle": False, **options})


@functools.cache
def fit_several():
    return fit_plain(two_headed, (IMAGES, SEVERAL_LABELS))


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(ENGINES, ENGINES[0]))
def test_each_engine_trains_several_outputs_of_different_ranks(engine):
    found, _ = fit_ours(two_headed, make_several, engine)
    assert_same_losses({"loss": found["loss"]}, {"loss": fit_several()[0]["loss"]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "cache", "name"),
    few(
        itertools.product((as_function, as_pipeline), ("auto", True), IN_SEQUENCE),
        (as_function, True, "a number each step"),
        (as_pipeline, "auto", "one-hot sequences"),
    ),
)
def test_rows_in_sequence_with_labels_of_any_shape(make, cache, name):
    x, y, *_ = CASES[name]
    _, expected = fit_plain(network_of(name), (x, y))
    _, ours = fit_ours(network_of(name), lambda: make(x, y, cache=cache), "keras")
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "cache"),
    few(
        itertools.product((as_function, as_pipeline), ("auto", True)),
        (as_pipeline, True),
    ),
)
def test_weights_of_steps_come_in_sequence_too(make, cache):
    build = network_of("a class each step")
    _, expected = fit_plain(build, (SERIES, STEPS), sample_weight=STEP_WEIGHTS)
    _, ours = fit_ours(build, lambda: make(SERIES, STEPS, STEP_WEIGHTS, cache=cache), "keras")
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
def test_a_saved_dataset_keeps_the_shape_of_labels_and_weights(tmp_path):
    data = dataset(SERIES, STEPS, STEP_WEIGHTS, validation=0.25)
    path = writer.save_dataset(data, str(tmp_path / "saved"))["path"]
    again = reader.build_saved({"kind": "saved", "path": path}, Request({"batch_size": BATCH}))
    for mine, theirs in zip(again.arrays, data.arrays, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert again.recipe.label.row_shape == (6,)
    fit_ours(network_of("a class each step"), again, "graph_loop")


@pytest.mark.slow
def test_labels_in_a_npy_file_may_have_any_shape(tmp_path):
    np.save(tmp_path / "masks.npy", MASKS)
    given = {"kind": "npy", "path": str(tmp_path / "masks.npy")}
    data = data_dataset.build_dataset(array(IMAGES), {"batch_size": BATCH, "shuffle": False}, given)
    np.testing.assert_array_equal(data.arrays[1], MASKS)
    _, expected = fit_plain(network_of("sparse masks"), (IMAGES, MASKS))
    _, ours = fit_ours(network_of("sparse masks"), data, "keras")
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
def test_validation_rows_and_evaluation_give_what_keras_gives():
    data = dataset(SERIES, STEPS, STEP_WEIGHTS, validation=0.25)
    keras().utils.set_random_seed(7)
    model = network_of("a class each step")()
    report = fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
    rows = data.validation_rows
    given = {"sample_weight": STEP_WEIGHTS[rows], "verbose": 0, "return_dict": True}
    expected = model.evaluate(SERIES[rows], STEPS[rows], **given)
    assert report.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    found = evaluate.evaluate(model, data, "validation")["metrics"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_predictions_have_the_shape_of_the_output():
    model = network_of("sparse masks")()
    data = dataset(IMAGES, MASKS)
    fit.fit(model, data, {"epochs": 1})
    expected = model.predict(IMAGES, verbose=0)
    for given in ({"features": array(IMAGES)}, {"data": data}):
        values = predict.predict(model, **given)["values"]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    several = two_headed()
    fit.fit(several, make_several(), {"epochs": 1})
    found = predict.predict(several, features=array(IMAGES))["outputs"]
    assert [(one["name"], one["values"].shape[1:]) for one in found] == [
        ("same", (4, 5, 2)),
        ("kind", (3,)),
        ("mask", (4, 5, 3)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "engine"),
    few(
        itertools.product((dataset, as_function, as_pipeline), ("keras", "graph_loop")),
        (dataset, "graph_loop"),
        (as_pipeline, "keras"),
    ),
)
def test_one_column_of_labels_stays_a_column_for_a_step_of_the_users_own(make, engine):
    """As in Keras: of a vector, `y - y_pred` would be every row against every other."""
    base = keras().Sequential

    class Own(base):
        def train_step(self, data):
            x, y = data
            assert y.shape[1:] == (1,)
            return super().train_step(data)

    def build():
        model = Own([keras().Input((6, 2)), keras().layers.Flatten(), keras().layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    fit_ours(build, make(SERIES, LEVELS[:, 0]), engine)


def test_a_first_network_takes_labels_of_any_shape():
    data = dataset(IMAGES, IMAGES)
    model = mlp.build_mlp(data, {})
    assert model.output_shape == (None, 4, 5, 2)
    fit.fit(model, data, {"epochs": 1})
    several = mlp.build_mlp(make_several(), {})
    assert several.output_names == ["same", "kind", "mask"]


@pytest.mark.slow
def test_a_class_that_the_loss_ignores_lies_outside_of_the_output():
    loss = keras().losses.SparseCategoricalCrossentropy(ignore_class=255)
    y = np.where(MASKS == 2, 255, MASKS)
    build = functools.partial(network, IMAGES, 3, "softmax", loss)
    assert_equivalent(build, lambda: dataset(IMAGES, y), (IMAGES, y), ())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((), (), True),
        ((3,), (3,), True),
        ((3,), (None,), True),
        ((), (1,), True),
        ((4, 5), (4, 5, 1), True),
        ((4, 5, 1), (4, 5), True),
        ((4, 1), (4, 5), True),
        ((), (3,), False),
        ((), (4, 1), False),
        ((5,), (4, 5), False),
        ((4, 5), (5, 4), False),
    ],
)
def test_shapes_agree_as_keras_has_it(one, other, same):
    assert targets.agree(one, other) == same


# Classes -----------------------------------------------------------------------------------------

ROW_CLASSES = STEPS[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("make", few([dataset, as_function, as_pipeline], dataset, as_function))
def test_classes_of_a_sparse_loss_come_back_as_integers(make):
    """Of each time step too: what Keras' users take `argmax` for."""
    model = network_of("a class each step")()
    fit.fit(model, make(SERIES, STEPS), {"epochs": 1, "engine": "keras"})
    expected = model.predict(SERIES, verbose=0).argmax(-1)
    for given in ({"features": array(SERIES)}, {"data": make(SERIES, STEPS)}):
        np.testing.assert_array_equal(
            predict.predict(model, type="class", **given)["values"], expected
        )


@pytest.mark.slow
def test_classes_of_several_outputs_are_those_with_classes():
    model = two_headed()
    fit.fit(model, make_several(), {"epochs": 1, "engine": "keras"})
    expected = model.predict(IMAGES, verbose=0)
    records = predict.predict(model, features=array(IMAGES), type="class")["outputs"]
    found = {record["name"]: record["values"] for record in records}
    np.testing.assert_array_equal(found["mask"], expected["mask"].argmax(-1))
    np.testing.assert_array_equal(found["kind"], expected["kind"].argmax(-1))
    np.testing.assert_allclose(found["same"], expected["same"], rtol=1e-4, atol=1e-6)


def test_the_loss_says_how_classes_are_read():
    losses = keras().losses
    logits = losses.BinaryCrossentropy(from_logits=True)
    ignoring = losses.SparseCategoricalCrossentropy(ignore_class=255)
    counted, pixels = label_rule("number", maximum=2.0), label_rule("matrix", units=4, maximum=1.0)
    two, none = label_rule("class", units=2, levels=("a", "b")), None
    cases = [
        (counted, "sparse_categorical_crossentropy", 3, decoding.HIGHEST),
        (none, ["sparse_categorical_crossentropy"], 3, decoding.HIGHEST),
        (pixels, ignoring, 3, decoding.HIGHEST),
        (pixels, "binary_crossentropy", 1, decoding.HALF),
        (pixels, {"mask": logits}, 1, decoding.ZERO),
        (none, losses.binary_focal_crossentropy, 1, decoding.HALF),
        (two, logits, 1, decoding.ZERO),
        (two, losses.BinaryCrossentropy(from_logits=True, name="own"), 1, decoding.ZERO),
        (two, functools.partial(losses.binary_crossentropy, from_logits=True), 1, decoding.ZERO),
        (two, "squared_hinge", 1, decoding.ZERO),
        (two, lambda y, p: 0.0, 1, decoding.HALF),
        (two, None, 2, decoding.HIGHEST),
        (counted, lambda y, p: 0.0, 3, decoding.HIGHEST),
        (counted, lambda y, p: 0.0, 1, ""),
        (counted, "mse", 1, ""),
        (replace(pixels, whole=False), "bce", 1, ""),  # an image, not a mask
        (replace(pixels, maximum=255.0), "bce", 1, ""),
        (pixels, "mse", 2, ""),
        (none, None, 3, ""),
    ]
    for label, loss, units, expected in cases:
        assert targets.choose_reading(label, loss, units) == expected, (label, loss)


def test_only_losses_of_keras_have_its_names():
    losses = keras().losses

    def binary_crossentropy(labels, predicted):
        return 0.0

    class Own(losses.BinaryCrossentropy):
        def call(self, labels, predicted):
            return 0.0

    class Renamed(losses.BinaryCrossentropy):
        pass

    known = "bce", losses.binary_crossentropy, Renamed(name="own"), {"": "BinaryCrossentropy"}
    assert {targets.keras_name(loss) for loss in known} == {"binarycrossentropy"}
    others = binary_crossentropy, Own(), functools.partial(binary_crossentropy), None
    assert [targets.keras_name(loss) for loss in others] == [""] * 4


@pytest.mark.parametrize("values", [[0.2, 1.4], [-0.1, 0.3]])
def test_numbers_that_may_be_logits_are_no_classes(values):
    for reading, loss in ((decoding.HALF, "mse"), (decoding.ZERO, None), (decoding.HALF, "bce")):
        targets.check_probabilities(reading, loss, np.array(values))
    targets.check_probabilities(decoding.HALF, None, np.array([0.0, 1.0001]))
    with pytest.raises(ModelError, match="does not say whether they are logits"):
        targets.check_probabilities(decoding.HALF, lambda y, p: 0.0, np.array(values))


@pytest.mark.parametrize("y", [ROW_CLASSES, ROW_CLASSES[:, None]], ids=["vector", "column"])
def test_class_weights_of_a_sparse_loss_count_as_in_keras(y):
    x, weigh = SERIES[:, 0], {"0": 3.0, "2": 0.5}
    build = functools.partial(network, x, 3, *SPARSE)
    _, expected = fit_plain(build, (x, y), class_weight={0: 3.0, 2: 0.5})
    options = {"batch_size": BATCH, "shuffle": False}
    data = data_dataset.build_dataset(array(x), options, labels(y), class_weight=weigh)
    _, ours = fit_ours(build, data, "keras")
    np.testing.assert_array_equal(ours, expected)


HOT_LABELS = np.eye(3)[ROW_CLASSES]


@pytest.mark.varies
@pytest.mark.parametrize("y", [HOT_LABELS, 0.9 * HOT_LABELS + 0.1 / 3], ids=["one-hot", "smoothed"])
def test_class_weights_of_a_categorical_loss_count_as_in_keras(y):
    x = SERIES[:, 0]
    build = functools.partial(network, x, 3, "softmax", "categorical_crossentropy")
    _, expected = fit_plain(build, (x, y), class_weight={0: 3.0, 2: 0.5})
    options = {"batch_size": BATCH, "shuffle": False}
    given = {"kind": "matrix", "values": y}
    weigh = {"0": 3.0, "2": 0.5}
    data = data_dataset.build_dataset(array(x), options, given, class_weight=weigh)
    _, ours = fit_ours(build, data, "keras")
    np.testing.assert_array_equal(ours, expected)
    named = {**given, "names": ["a", "b", "c"]}
    by_name = {"a": 3.0, "b": 1.0, "c": 0.5}
    again = data_dataset.build_dataset(array(x), options, named, class_weight=by_name)
    np.testing.assert_array_equal(again.arrays[2], data.arrays[2])
    balanced = data_dataset.build_dataset(array(x), options, given, class_weight="balanced")
    sums = [balanced.arrays[2][one == ROW_CLASSES].sum() for one in range(3)]
    np.testing.assert_allclose(sums, len(x) / 3, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "weigh", "message"),
    [
        ("two", {"0": 3.0}, "labels that are classes: one column, or"),
        ("none", {"0": 3.0}, "labels that are classes: one column, or"),
        ("negative", {"0": 3.0}, "labels that are classes: one column, or"),
        ("", {"3": 3.0}, "names the class 3, but there are the classes 0 to 2"),
        ("", {"a": 3.0}, "numbers named after classes"),
    ],
)
def test_class_weights_of_other_columns_are_refused(change, weigh, message):
    y = HOT_LABELS.copy()
    row = {"two": [1, 1, 0], "none": [0, 0, 0], "negative": [-1, 1, 1]}.get(change)
    y[3] = y[3] if row is None else row
    given = {"kind": "matrix", "values": y}
    with pytest.raises(SpecError, match=message) as told:
        data_dataset.build_dataset(array(SERIES[:, 0]), {}, given, class_weight=weigh)
    assert told.value.details["arg"] == "class_weight"
