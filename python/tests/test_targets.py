"""Labels of any shape train as Keras' own `fit()` does, and predictions have the model's shape.

Masks of images, images, one-hot sequences, a label each time step: from arrays, functions,
tf.data pipelines, saved datasets and `.npy` files, with several outputs, with weights.
"""

import functools

import numpy as np
import pytest
from streamed import array, stream, tfdata
from test_equivalence import assert_equivalent, assert_same_losses, fit_ours, fit_plain

from gpukeras import (
    DataError,
    ModelError,
    SpecError,
    assembly,
    feeding,
    inference,
    models,
    pipeline,
    runtime,
    targets,
    training,
)
from gpukeras.labels import SEVERAL
from gpukeras.storage import opening, saving

pytestmark = pytest.mark.tf

ROWS, BATCH = 44, 8
RNG = np.random.default_rng(5)
IMAGES = RNG.uniform(size=(ROWS, 4, 5, 2)).astype(np.float32)
MASKS = RNG.integers(0, 3, (ROWS, 4, 5)).astype(np.int32)
HOT = np.eye(3, dtype=np.float32)[MASKS]
SERIES = RNG.normal(size=(ROWS, 6, 2)).astype(np.float32)
STEPS = RNG.integers(0, 3, (ROWS, 6)).astype(np.int32)
HOT_STEPS = np.eye(3, dtype=np.float32)[STEPS]
LEVELS = RNG.normal(size=(ROWS, 6, 1)).astype(np.float32)
STEP_WEIGHTS = RNG.uniform(0.2, 2, (ROWS, 6)).astype(np.float32)
ROW_WEIGHTS = RNG.uniform(0.2, 2, (ROWS, 1)).astype(np.float32)
CODES = RNG.integers(0, 3, ROWS).astype(np.int32)


def keras():
    return runtime.keras()


def labels(values, name="y"):
    several = values.size > len(values)
    return {"name": name, "kind": "matrix" if several else "numeric", "values": values, "names": []}


def dataset(x, y, weights=None, **options):
    options = {"batch_size": BATCH, "seed": 3, "shuffle": False, **options}
    return pipeline.build_dataset(array(x), options, labels(y), weights=weights)


def network(x, units, activation, loss, **compiling):
    """A layer on each pixel or time step."""
    layers = keras().layers
    model = keras().Sequential(
        [keras().Input(x.shape[1:]), layers.Dense(4, "tanh"), layers.Dense(units, activation)]
    )
    model.compile("sgd", loss, **compiling)
    return model


SPARSE = ("softmax", "sparse_categorical_crossentropy")
DENSE = ("softmax", "categorical_crossentropy")
ACCURACY = {"metrics": ["accuracy"]}
CASES = {
    "sparse masks": (IMAGES, MASKS, 3, *SPARSE, ACCURACY),
    "sparse masks with a channel": (IMAGES, MASKS[..., None], 3, *SPARSE, ACCURACY),
    "one-hot masks": (IMAGES, HOT, 3, *DENSE, ACCURACY),
    "images themselves": (IMAGES, IMAGES, 2, "sigmoid", "mse", {"metrics": ["mae"]}),
    "one-hot sequences": (SERIES, HOT_STEPS, 3, *DENSE, ACCURACY),
    "a class each step": (SERIES, STEPS, 3, *SPARSE, ACCURACY),
    "a number each step": (SERIES, LEVELS, 1, None, "mse", {}),
    "a number each step, flat": (SERIES, LEVELS[..., 0], 1, None, "mse", {}),
}
ENGINES = ("superstep", "compiled")
COMPILED = ("sparse masks", "images themselves", "a class each step")  # by XLA, which takes seconds


def network_of(name):
    x, _, units, activation, loss, compiling = CASES[name]
    return functools.partial(network, x, units, activation, loss, **compiling)


@pytest.mark.parametrize("name", CASES)
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


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_steps_and_rows_count_as_in_keras(name):
    x, y, units, activation, loss, weights = WEIGHTED[name]
    build = functools.partial(network, x, units, activation, loss, weighted_metrics=["accuracy"])
    history, expected = fit_plain(build, (x, y), sample_weight=weights)
    _, ours = fit_ours(build, lambda: dataset(x, y, weights), "keras")
    np.testing.assert_array_equal(ours, expected)
    for engine in ENGINES if name == "steps, classes" else ENGINES[:1]:
        found, _ = fit_ours(build, lambda: dataset(x, y, weights), engine)
        assert_same_losses(found, history)


def two_headed():
    layers, given = keras().layers, keras().Input((4, 5, 2), name="image")
    hidden = layers.Dense(4, "tanh")(given)
    mask = layers.Dense(3, "softmax", name="mask")(hidden)
    kind = layers.Dense(3, "softmax", name="kind")(layers.GlobalAveragePooling2D()(hidden))
    same = layers.Dense(2, name="same")(hidden)
    model = keras().Model(given, {"mask": mask, "kind": kind, "same": same})
    sparse = "sparse_categorical_crossentropy"
    model.compile("sgd", {"mask": sparse, "kind": sparse, "same": "mse"})
    return model


SEVERAL_LABELS = {"same": IMAGES, "kind": CODES, "mask": MASKS}


def outputs_of(values):
    parts = [{"name": name, "labels": labels(values[name])} for name in values]
    return {"kind": SEVERAL, "outputs": parts}


def make_several(**options):
    options = {"batch_size": BATCH, "shuffle": False, "seed": 3, **options}
    return pipeline.build_dataset(array(IMAGES), options, outputs_of(SEVERAL_LABELS))


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
    given = runtime.tensorflow().data.Dataset.from_tensor_slices(parts).batch(BATCH)
    return tfdata(given, **{"batch_size": BATCH, "shuffle": False, **options})


def test_several_outputs_of_different_ranks_train_as_in_keras():
    history, expected = fit_plain(two_headed, (IMAGES, SEVERAL_LABELS))
    makers = (
        make_several,
        lambda: as_function(IMAGES, SEVERAL_LABELS),
        lambda: as_function(IMAGES, SEVERAL_LABELS, cache=True),
        lambda: as_pipeline(IMAGES, SEVERAL_LABELS),
        lambda: as_pipeline(IMAGES, SEVERAL_LABELS, cache=True),
    )
    for make in makers:
        _, ours = fit_ours(two_headed, make, "keras")
        np.testing.assert_array_equal(ours, expected)
    for engine in ENGINES:
        found, _ = fit_ours(two_headed, make_several, engine)
        assert_same_losses({"loss": found["loss"]}, {"loss": history["loss"]})


@pytest.mark.parametrize("name", ["sparse masks", "one-hot sequences", "a number each step"])
@pytest.mark.parametrize("cache", ["auto", True])
@pytest.mark.parametrize("make", [as_function, as_pipeline])
def test_rows_in_sequence_with_labels_of_any_shape(make, cache, name):
    x, y, *_ = CASES[name]
    _, expected = fit_plain(network_of(name), (x, y))
    _, ours = fit_ours(network_of(name), lambda: make(x, y, cache=cache), "keras")
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("cache", ["auto", True])
@pytest.mark.parametrize("make", [as_function, as_pipeline])
def test_weights_of_steps_come_in_sequence_too(make, cache):
    build = network_of("a class each step")
    _, expected = fit_plain(build, (SERIES, STEPS), sample_weight=STEP_WEIGHTS)
    _, ours = fit_ours(build, lambda: make(SERIES, STEPS, STEP_WEIGHTS, cache=cache), "keras")
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("form", ["parquet", "tfrecord"])
def test_a_saved_dataset_keeps_the_shape_of_labels_and_weights(tmp_path, form):
    data = dataset(SERIES, STEPS, STEP_WEIGHTS, validation=0.25)
    path = saving.save_dataset(data, str(tmp_path / "saved"), form)["path"]
    again = opening.build_saved({"kind": "saved", "path": path}, {"batch_size": BATCH})
    for mine, theirs in zip(again.arrays, data.arrays, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert again.recipe.label.row_shape == (6,)
    fit_ours(network_of("a class each step"), again, "superstep")


def test_labels_in_a_npy_file_may_have_any_shape(tmp_path):
    np.save(tmp_path / "masks.npy", MASKS)
    given = {"kind": "npy", "path": str(tmp_path / "masks.npy")}
    data = pipeline.build_dataset(array(IMAGES), {"batch_size": BATCH, "shuffle": False}, given)
    np.testing.assert_array_equal(data.arrays[1], MASKS)
    _, expected = fit_plain(network_of("sparse masks"), (IMAGES, MASKS))
    _, ours = fit_ours(network_of("sparse masks"), data, "keras")
    np.testing.assert_array_equal(ours, expected)


def test_validation_rows_and_evaluation_give_what_keras_gives():
    data = dataset(SERIES, STEPS, STEP_WEIGHTS, validation=0.25)
    keras().utils.set_random_seed(7)
    model = network_of("a class each step")()
    report = training.fit(model, data, {"epochs": 2, "engine": "superstep"})
    rows = data.validation_rows
    given = {"sample_weight": STEP_WEIGHTS[rows], "verbose": 0, "return_dict": True}
    expected = model.evaluate(SERIES[rows], STEPS[rows], **given)
    assert report.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    found = inference.evaluate(model, data, "validation")["metrics"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_predictions_have_the_shape_of_the_output():
    model = network_of("sparse masks")()
    data = dataset(IMAGES, MASKS)
    training.fit(model, data, {"epochs": 1})
    expected = model.predict(IMAGES, verbose=0)
    for given in ({"features": array(IMAGES)}, {"data": data}):
        values = inference.predict(model, **given)["values"]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    several = two_headed()
    training.fit(several, make_several(), {"epochs": 1})
    found = inference.predict(several, features=array(IMAGES))["outputs"]
    assert [(one["name"], one["values"].shape[1:]) for one in found] == [
        ("same", (4, 5, 2)),
        ("kind", (3,)),
        ("mask", (4, 5, 3)),
    ]


def test_one_column_of_labels_stays_a_column_for_a_step_of_the_users_own():
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

    y = LEVELS[:, 0]
    for make in (dataset, as_function, as_pipeline):
        fit_ours(build, make(SERIES, y), "keras")
        fit_ours(build, make(SERIES, y), "superstep")


def test_a_first_network_takes_labels_of_any_shape():
    data = dataset(IMAGES, IMAGES)
    model = models.build_mlp(data, {})
    assert model.output_shape == (None, 4, 5, 2)
    training.fit(model, data, {"epochs": 1})
    several = models.build_mlp(make_several(), {})
    assert several.output_names == ["same", "kind", "mask"]


@pytest.mark.parametrize(
    ("name", "y", "kind", "message"),
    [
        ("sparse masks", MASKS[:, :3], ModelError, "takes 4 x 5 labels, but `y` has 3 x 5"),
        ("sparse masks", CODES, ModelError, "takes 4 x 5 labels, but `y` has 1"),
        ("sparse masks", MASKS + 1, DataError, "`y` has labels from 1 to 3, but an output of 3"),
        ("sparse masks", MASKS + 0.5, DataError, "must hold one class a row"),
        ("one-hot masks", MASKS, ModelError, "takes 4 x 5 x 3 labels, but `y` has 4 x 5"),
        ("a number each step", CODES, ModelError, "takes 6 x 1 labels, but `y` has 1"),
    ],
)
def test_labels_of_another_shape_are_refused(name, y, kind, message):
    x = CASES[name][0]
    with pytest.raises(kind, match=message):
        training.fit(network_of(name)(), dataset(x, y), {"epochs": 1})


def test_masks_of_0_and_255_are_no_probabilities():
    model = network(IMAGES, 1, "sigmoid", "binary_crossentropy")
    with pytest.raises(DataError, match="`y` has labels from 0 to 255, but binary_crossentropy"):
        training.fit(model, dataset(IMAGES, 255 * (MASKS[..., None] > 0)), {"epochs": 1})


def test_a_class_that_the_loss_ignores_lies_outside_of_the_output():
    loss = keras().losses.SparseCategoricalCrossentropy(ignore_class=255)
    y = np.where(MASKS == 2, 255, MASKS)
    build = functools.partial(network, IMAGES, 3, "softmax", loss)
    assert_equivalent(build, lambda: dataset(IMAGES, y), (IMAGES, y), ())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (ROW_WEIGHTS[:, 0], "`weights` has 1 a row, but a row has 6 losses"),
        (STEP_WEIGHTS[:, :5], "has 5 a row, but"),
    ],
)
def test_weights_that_keras_could_not_apply_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        training.fit(
            network_of("a class each step")(), dataset(SERIES, STEPS, weights), {"epochs": 1}
        )


def test_a_weight_each_step_of_a_row_with_one_loss_is_refused():
    model = network(SERIES[:, 0], 1, None, "mse")
    data = dataset(SERIES[:, 0], LEVELS[:, 0], STEP_WEIGHTS)
    with pytest.raises(DataError, match="`weights` has 6 a row") as error:
        training.fit(model, data, {"epochs": 1})
    assert error.value.hint == "Give one weight a row."


def test_batches_of_a_function_have_weights_of_one_shape():
    given = iter([STEP_WEIGHTS[:8], ROW_WEIGHTS[:8], STEP_WEIGHTS[:8]])

    def call(epoch, batch):
        weights = next(given)
        return {"features": array(SERIES[:8]), "labels": labels(STEPS[:8]), "weights": weights}

    data = stream(call, steps=3, batch_size=8)
    message = r"Batch 2 of epoch 1: `weights` has the shape \(1,\) a row, in the first batch"
    with pytest.raises(DataError, match=message):
        list(feeding.open_feed(data, data.plan("CPU:0")).epoch(0))


def test_new_labels_have_the_shape_of_those_in_training():
    data = dataset(IMAGES, MASKS)
    with pytest.raises(DataError, match=r"row of `y` must have shape \(4, 5\), as in training"):
        pipeline.build_dataset(array(IMAGES), {}, labels(HOT), recipe=data.recipe)


@pytest.mark.parametrize("given", [labels(MASKS), outputs_of(SEVERAL_LABELS)])
@pytest.mark.parametrize("augment", [{"flip": "both"}, {"crop": [3, 3]}, {"rotation": 0.1}])
def test_pixels_are_not_moved_away_from_labels_that_are_images(given, augment):
    with pytest.raises(SpecError, match="moves the pixels of `x`, but not those of `y`"):
        assembly.assemble(array(IMAGES), {}, given, augment=augment)


def test_what_moves_no_pixels_varies_images_with_masks():
    varied = {"brightness": 0.1, "value_range": [0, 1]}
    data = assembly.assemble(array(IMAGES), {"batch_size": BATCH}, labels(MASKS), augment=varied)
    report = training.fit(network_of("sparse masks")(), data, {"epochs": 1})
    assert report.stopped == "completed"


def test_codes_of_classes_are_not_mixed_up():
    mixed = {"mixup": 0.2}
    data = assembly.assemble(array(IMAGES), {"batch_size": BATCH}, labels(MASKS), augment=mixed)
    with pytest.raises(ModelError, match="Training mixes classes by `mixup`"):
        training.fit(network_of("sparse masks")(), data, {"epochs": 1})


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
