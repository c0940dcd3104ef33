"""Labels and weights of a shape that a model or an option cannot take are refused by name."""

import numpy as np
import pytest
from lazy_modules import keras
from shaped import (
    BATCH,
    CASES,
    CODES,
    HOT,
    IMAGES,
    LEVELS,
    MASKS,
    ROW_WEIGHTS,
    SERIES,
    SEVERAL_LABELS,
    STEP_WEIGHTS,
    STEPS,
    dataset,
    labels,
    network,
    network_of,
    outputs_of,
)
from streamed import array, stream

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.data.loader import loader
from gpukeras.models.compatibility import check_fit
from gpukeras.training import fit

pytestmark = pytest.mark.tf


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
        fit.fit(network_of(name)(), dataset(x, y), {"epochs": 1})


TIMES = {"kind": "matrix", "values": np.array([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])}
FACTOR = {"kind": "factor", "values": np.array([1, 2, 3]), "levels": ["a", "b", "c"]}
MEANINGS = [
    ({**TIMES, "survival": True}, 2, "mean_squared_error", "survival times"),
    ({**TIMES, "survival": True}, 2, "own", ""),
    (TIMES, 2, "mean_squared_error", ""),
    (FACTOR, 1, "mean_absolute_error", "has 3 classes without numbers"),
    (FACTOR, 1, "poisson", "has 3 classes without numbers"),
    ({**FACTOR, "kind": "character"}, 1, "huber", "has 3 classes without numbers"),
    (FACTOR, 3, "sparse_categorical_crossentropy", ""),
    (FACTOR, 1, "own", ""),
    ({**FACTOR, "levels": ["a", "b"], "values": np.array([1, 2, 1])}, 1, "mse", ""),
]


@pytest.mark.parametrize(("y", "units", "loss", "message"), MEANINGS)
def test_a_loss_of_numbers_takes_no_other_labels(y, units, loss, message):
    def own(truth, found):
        return keras.ops.sum(found, axis=-1) + 0 * keras.ops.sum(keras.ops.cast(truth, "float32"))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units, "softmax")])
    model.compile("sgd", own if loss == "own" else loss)
    features = {"kind": "array", "values": np.zeros((3, 2))}
    data = data_dataset.build_dataset(features, {"batch_size": 3}, y)
    if not message:
        check_fit(model, data.recipe)
        return
    with pytest.raises(DataError, match=message) as told:
        check_fit(model, data.recipe)
    assert told.value.details["arg"] == "y"


def test_masks_of_0_and_255_are_no_probabilities():
    model = network(IMAGES, 1, "sigmoid", "binary_crossentropy")
    with pytest.raises(DataError, match="`y` has labels from 0 to 255, but binary_crossentropy"):
        fit.fit(model, dataset(IMAGES, 255 * (MASKS[..., None] > 0)), {"epochs": 1})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (ROW_WEIGHTS[:, 0], "`weights` has 1 a row, but a row has 6 losses"),
        (STEP_WEIGHTS[:, :5], "has 5 a row, but"),
    ],
)
def test_weights_that_keras_could_not_apply_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        fit.fit(network_of("a class each step")(), dataset(SERIES, STEPS, weights), {"epochs": 1})


def test_a_weight_each_step_of_a_row_with_one_loss_is_refused():
    model = network(SERIES[:, 0], 1, None, "mse")
    data = dataset(SERIES[:, 0], LEVELS[:, 0], STEP_WEIGHTS)
    with pytest.raises(DataError, match="`weights` has 6 a row") as error:
        fit.fit(model, data, {"epochs": 1})
    assert error.value.hint == "Give one weight a row."


def test_batches_of_a_function_have_weights_of_one_shape():
    given = iter([STEP_WEIGHTS[:8], ROW_WEIGHTS[:8], STEP_WEIGHTS[:8]])

    def call(epoch, batch):
        weights = next(given)
        return {"features": array(SERIES[:8]), "labels": labels(STEPS[:8]), "weights": weights}

    data = stream(call, steps=3, batch_size=8)
    message = r"Batch 2 of epoch 1: `weights` has the shape \(1,\) a row, in the first batch"
    with pytest.raises(DataError, match=message):
        list(loader.open_loader(data, data.plan("CPU:0")).epoch(0))


def test_new_labels_have_the_shape_of_those_in_training():
    data = dataset(IMAGES, MASKS)
    with pytest.raises(DataError, match=r"row of `y` must have shape \(4, 5\), as in training"):
        data_dataset.build_dataset(array(IMAGES), {}, labels(HOT), recipe=data.recipe)


@pytest.mark.parametrize("given", [labels(MASKS), outputs_of(SEVERAL_LABELS)])
@pytest.mark.parametrize("augment", [{"flip": "both"}, {"crop": [3, 3]}, {"rotation": 0.1}])
def test_pixels_are_not_moved_away_from_labels_that_are_images(given, augment):
    with pytest.raises(SpecError, match="moves the pixels of `x`, but not those of `y`"):
        builder.assemble(array(IMAGES), {}, given, augment=augment)


def test_what_moves_no_pixels_varies_images_with_masks():
    varied = {"brightness": 0.1, "value_range": [0, 1]}
    data = builder.assemble(array(IMAGES), {"batch_size": BATCH}, labels(MASKS), augment=varied)
    report = fit.fit(network_of("sparse masks")(), data, {"epochs": 1})
    assert report.stopped == "completed"


def test_codes_of_classes_are_not_mixed_up():
    mixed = {"mixup": 0.2}
    data = builder.assemble(array(IMAGES), {"batch_size": BATCH}, labels(MASKS), augment=mixed)
    with pytest.raises(ModelError, match="Training mixes classes by `mixup`"):
        fit.fit(network_of("sparse masks")(), data, {"epochs": 1})
