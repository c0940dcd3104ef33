"""Integrated gradients: how much each input adds to a prediction.

Sundararajan, Taly and Yan (2017), Axiomatic attribution for deep networks, ICML: the gradient of
the output is integrated along the straight line from a baseline to the row, and multiplied by their
difference. The sum over the inputs is the difference of the outputs (completeness). The integral is
computed by Gauss-Legendre quadrature, whose error falls faster with the steps than a sum's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import list_some
from gpukeras.core.options import check_count
from gpukeras.core.progress import CallProgress, OnEvent, heard_by
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.loader.transforms import open_device_transform
from gpukeras.data.reader.rows import MemoryRows, RowSource
from gpukeras.data.recipe.recipe import ArrayEncoding, ImageEncoding, Recipe
from gpukeras.engine.batch_rows import count_row_bytes, has_state, model_device
from gpukeras.engine.predict import AfterBatch, explain_rows, pad_rows, predict_rows
from gpukeras.explain.columns import find_features
from gpukeras.explain.effects import drop_stratum, name_output, read_output
from gpukeras.models import compatibility, model_checks
from gpukeras.models.calibration import CLASSES, calibration_of
from gpukeras.models.families.build import LOOKED, offset_of
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.targets import reads_logits
from gpukeras.training.keras_functions import jit_policy
from gpukeras.training.predict import open_rows

COMPLETE = 0.01  # gap of the sums, as a share of the largest difference, that is worth a note
BEFORE_CALIBRATION = (
    "The outputs are those of the model itself, without its calibration, which has no gradient."
)
MOST_STEPS = 1000  # the quadrature's points take a matrix of steps by steps


@dataclass(frozen=True)
class Attributions:
    """What the inputs of rows add to predictions.

    Args:
        values: float32: rows and columns of the user's data, or rows of the input's shape.
        columns: Names of the columns; none for images and other arrays.
        outputs: The explained output of each row (float64).
        baselines: The same output for the baseline (float64).
        classes: Name of the explained class or output of each row.
        missing: Numbers from 1 of rows that training would leave out; their values are 0.
        gap: The largest difference between the sum of a row's attributions and
            `outputs - baselines`.
        notes: Sentences that the user may not expect.
    """

    values: np.ndarray
    columns: tuple[str, ...]
    outputs: np.ndarray
    baselines: np.ndarray
    classes: tuple[str, ...]
    missing: np.ndarray
    gap: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The output that is explained.

    Args:
        weights: Factors of the outputs (float32; rows, numbers of the output).
        constant: Added to the weighted sum: 1 for the first of two classes, whose probability is 1
            less the output; 0 if the output is a logit.
        names: Name of the output of each row.
    """

    weights: np.ndarray
    constant: float
    names: tuple[str, ...]

    def take(self, outputs: np.ndarray) -> np.ndarray:
        """Returns the explained number of each row's outputs (float64)."""
        values: np.ndarray = (outputs.astype(np.float64) * self.weights).sum(axis=1) + self.constant
        return values


def attribute(
    model: Model,
    features: Mapping[str, Any] | None = None,
    *,
    data: Dataset | None = None,
    baseline: Mapping[str, Any] | None = None,
    steps: float = 50,
    output: str | None = None,
    on_event: OnEvent | None = None,
) -> Attributions:
    """Attributes predictions to the inputs of their rows, by integrated gradients.

    Args:
        model: A Keras model; need not be compiled.
        features: New rows, encoded by the recipe tied to the model if there is one.
        data: Alternatively a dataset.
        baseline: A single row as `features`; None is a row of encoded zeros: the training rows'
            mean for standardised numbers, no level for a factor, black for images; and of an
            offset the training rows' mean.
        steps: Points of the path at which gradients are computed.
        output: The class or output to explain; None is the most probable class of each row.
        on_event: Called with the rows that are done, see `CallProgress`.

    Raises:
        SpecError: for an unknown output, or a bad option.
        DataError: for rows that come in sequence, texts, or more than one baseline.
        ModelError: if the model does not fit the rows, has several outputs, or gives a row what
            depends on others.
    """
    count = check_count("steps", steps, high=MOST_STEPS)
    with heard_by(on_event):
        recipe, rows, complete = open_rows(model, features, data)
    if not isinstance(rows, RowSource) or (data is not None and not isinstance(data, MapDataset)):
        raise DataError(
            "`newdata` comes in sequence: attributions need rows with numbers.",
            hint="Give a data frame, a matrix, an array or files.",
            arg="newdata",
        )
    if recipe.features.has_texts:
        raise DataError("`newdata` has texts, which have no gradient.", arg="newdata")
    compatibility.check_input(model, recipe)
    model_checks.check_call(model, "predict")
    base = _open_baseline(model, baseline, rows, recipe)
    function = None if data is None else data.map
    why = (
        "its recurrent layers keep a state from one batch to the next"
        if has_state(model)
        else explain_rows(model, rows, recipe, function)
    )
    if why:
        raise ModelError(
            f"A row has no attributions of its own, because {why}.",
            hint="Use gpu_importance() or gpu_effects(), which predict in Keras' batches.",
            arg="model",
        )
    with jit_policy(model):
        whole = read_output(predict_rows(model, rows, recipe, function))
        start = read_output(predict_rows(model, base, recipe, function))
    outputs, start = drop_stratum(recipe, whole), drop_stratum(recipe, start)
    logits = reads_logits(compatibility.losses_by_name(model, [""])[""])
    names = name_output(model, recipe, outputs)
    target = choose_target(recipe, outputs, names, output, logits=logits)
    prepare = partial(_prepare, model, recipe, function)
    weights = np.pad(target.weights, ((0, 0), (0, whole.shape[1] - outputs.shape[1])))
    progress = CallProgress(on_event, len(rows))
    values = integrate(model, (rows, base), prepare, weights, count, after_batch=progress.reach)
    ends, begins = target.take(outputs), target.take(np.repeat(start, len(outputs), axis=0))
    gaps = np.abs(values.reshape(len(values), -1).sum(1, dtype=np.float64) - (ends - begins))
    columns, values = sum_columns(recipe, values)
    found = _place(complete, columns, values, ends, begins, target.names, gaps)
    calibration = calibration_of(model)
    if calibration is None or calibration.kind != CLASSES:
        return found
    return replace(found, notes=(*found.notes, BEFORE_CALIBRATION))


def _open_baseline(
    model: Model, baseline: Mapping[str, Any] | None, rows: RowSource, recipe: Recipe
) -> RowSource:
    """Returns a source of one row: the baseline as given, or zeros and the mean offset.

    An offset of 0 would be that of nobody, as log(exposure) is far from 0. A model without a family
    does not know the mean of its training rows: it is that of these rows.

    Raises:
        DataError: if it is not one row.
    """
    if baseline is None:
        zeros = np.zeros((1, *rows.shape[1:]), rows.dtype)
        family, offset = family_of(model), offset_of(recipe)
        if offset is not None:
            some = rows.gather(slice(LOOKED))[:, offset.columns]
            zeros[:, offset.columns] = some.mean() if family is None else family.shift
        return MemoryRows(zeros)
    _, opened, complete = open_rows(model, baseline, None, recipe)
    assert isinstance(opened, RowSource)  # only a dataset comes in sequence
    count = len(opened) if complete is None else len(complete)
    if count != 1:
        raise DataError(f"`baseline` must be a single row, not {count}.", arg="baseline")
    if complete is not None:
        raise DataError(
            "`baseline` has a missing value, and training left out such rows.", arg="baseline"
        )
    return opened


def choose_target(
    recipe: Recipe,
    outputs: np.ndarray,
    names: tuple[str, ...],
    wanted: str | None,
    *,
    logits: bool = False,
) -> Target:
    """Returns the output to explain.

    Args:
        recipe: The rows' encoding, whose label names the classes.
        outputs: The model's outputs (rows, numbers).
        names: Their names, see `name_output()`.
        wanted: Name of a class or an output; None is the most probable class of each row, or the
            only output.
        logits: Whether the outputs are logits of classes.

    Raises:
        SpecError: if there is no output of that name, or several and none is named.
    """
    rows, width = outputs.shape
    label = recipe.label
    two = width == 1 and label is not None and len(label.levels) == 2
    if two and label is not None:
        names = label.levels
        place = 1 if wanted is None else _find(names, wanted)
        weights = np.full((rows, 1), 1.0 if place else -1.0, np.float32)
        return Target(weights, 0.0 if place or logits else 1.0, (names[place],) * rows)
    if wanted is None and width > 1 and (label is None or label.kind != "class"):
        raise SpecError(
            f"`model` gives {width} numbers a row, and `class` does not say which is explained.",
            hint=f"They are {list_some(names)}.",
            arg="class",
        )
    places = outputs.argmax(1) if wanted is None else np.full(rows, _find(names, wanted))
    weights = np.zeros((rows, width), np.float32)
    weights[np.arange(rows), places] = 1
    return Target(weights, 0.0, tuple(names[place] for place in places))


def _find(names: Sequence[str], wanted: str) -> int:
    if str(wanted) not in names:
        raise SpecError(
            f"`class` names `{wanted}`, which is no output of `model`.",
            hint=f"They are {list_some(list(names))}.",
            arg="class",
        )
    return list(names).index(str(wanted))


# The integral ------------------------------------------------------------------------------------


def _prepare(
    model: Model, recipe: Recipe, function: Callable[[Any], Any] | None, rows: np.ndarray
) -> Any:
    """Returns encoded rows as the model takes them, in host memory."""
    with tensor_ops.device_scope(model_device(model)):
        encoded = open_device_transform(recipe, len(rows), function)(rows)
    to_array = runtime.keras().ops.convert_to_numpy
    return runtime.tree().map_structure(lambda array: to_array(array).astype(np.float32), encoded)


def integrate(
    model: Model,
    sources: tuple[RowSource, RowSource],
    prepare: Callable[[np.ndarray], Any],
    weights: np.ndarray,
    steps: int,
    *,
    after_batch: AfterBatch = lambda rows: None,
) -> np.ndarray:
    """Returns the integrated gradients (float32) in the shape of an encoded row, rows first.

    Several rows with all of their steps share a call, as many as memory allows.

    Args:
        model: A built model.
        sources: The rows, and the baseline as a single row.
        prepare: Maps encoded rows to the model's inputs.
        weights: Factors of the outputs (float32; rows, numbers of the output).
        steps: Points of the path.
        after_batch: Called after each batch with the number of rows that are done.
    """
    rows, base = sources
    nest, program = runtime.tree(), tensor_ops.input_gradients(model)
    start = prepare(base.gather(slice(1)))
    # A gradient keeps every layer's output, and computes as many numbers again.
    row_bytes = rows.row_bytes + 2 * (count_row_bytes(model) or 8 * rows.row_bytes)
    fast = tensor_ops.batch_bytes(model_device(model)) // (max(1, row_bytes) * steps)
    size = min(len(rows), max(1, fast))
    parts = []
    for first in range(0, len(rows), size):
        here = slice(first, first + size)
        gathered = rows.gather(here)
        inputs = prepare(pad_rows(gathered, size))
        means = _mean_gradients(program, inputs, start, pad_rows(weights[here], size), steps, model)
        products = nest.map_structure(
            lambda array, zero, mean: (array - zero) * mean, inputs, start, means
        )
        parts.append(_join(products)[: len(gathered)])
        after_batch(first + len(gathered))
    return np.concatenate(parts)


def _mean_gradients(
    program: Callable[[Any, Any], Any],
    inputs: Any,
    start: Any,
    weights: np.ndarray,
    steps: int,
    model: Model,
) -> Any:
    """Returns the mean gradient of each row between the baseline and the row."""
    nest, keras = runtime.tree(), runtime.keras()
    points, shares = np.polynomial.legendre.leggauss(steps)
    places = ((points + 1) / 2).astype(np.float32)

    def spread(row: np.ndarray, zero: np.ndarray) -> Any:
        along = places.reshape(-1, *[1] * row.ndim)
        path = zero + along * (row - zero)[None]
        return keras.ops.convert_to_tensor(path.reshape(-1, *row.shape[1:]))

    def average(gradients: Any, row: np.ndarray) -> np.ndarray:
        each = keras.ops.convert_to_numpy(gradients).reshape(steps, *row.shape)
        mean: np.ndarray = np.tensordot(shares / 2, each.astype(np.float64), 1)
        return mean

    with tensor_ops.device_scope(model_device(model)):
        path = nest.map_structure(spread, inputs, start)
        gradients = program(path, keras.ops.convert_to_tensor(np.tile(weights, (steps, 1))))
    return nest.map_structure(average, gradients, inputs)


def _join(products: Any) -> np.ndarray:
    """Returns several inputs side by side, as they lie in an encoded row; one as it is."""
    if isinstance(products, np.ndarray):
        return products.astype(np.float32)
    parts = products.values() if isinstance(products, Mapping) else products
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1).astype(
        np.float32
    )


def sum_columns(recipe: Recipe, values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the columns' names, and the sums over each column's encoded numbers.

    Rows of images and of arrays with several axes stay as they are, without names.
    """
    whole = isinstance(recipe.features, ArrayEncoding) and values.ndim > 2
    if whole or isinstance(recipe.features, ImageEncoding):
        return (), values
    try:
        features = find_features(recipe)
    except DataError:
        return (), values
    flat = values.reshape(len(values), -1, values.shape[-1]).sum(axis=1)
    sums = [flat[:, feature.places].sum(axis=1) for feature in features.values()]
    return tuple(features), np.stack(sums, axis=1)


def _place(
    complete: np.ndarray | None,
    columns: tuple[str, ...],
    values: np.ndarray,
    outputs: np.ndarray,
    baselines: np.ndarray,
    classes: tuple[str, ...],
    gaps: np.ndarray,
) -> Attributions:
    """Returns the result with rows in the user's places, and a note if sums are incomplete."""
    gap = float(gaps.max(initial=0))
    largest = float(np.abs(outputs - baselines).max(initial=0))
    notes = () if gap <= COMPLETE * largest or gap < 1e-5 else (_explain_gap(gap, largest),)
    missing = np.zeros(0, np.int32)
    if complete is not None:
        keep, missing = np.flatnonzero(complete), np.flatnonzero(~complete).astype(np.int32) + 1
        values, outputs, baselines = (
            _spread(array[: len(keep)], keep, len(complete))
            for array in (values, outputs, baselines)
        )
        named = dict(zip(keep.tolist(), classes, strict=False))
        classes = tuple(named.get(row, "") for row in range(len(complete)))
    return Attributions(values, columns, outputs, baselines, classes, missing, gap, notes)


def _spread(values: np.ndarray, keep: np.ndarray, rows: int) -> np.ndarray:
    whole = np.zeros((rows, *values.shape[1:]), values.dtype)
    whole[keep] = values
    return whole


def _explain_gap(gap: float, largest: float) -> str:
    return (
        f"The sums of attributions miss the differences of outputs by up to {gap:.2g}, where the "
        f"largest difference is {largest:.2g}. Try more `steps`; inputs that are looked up, as by "
        "an embedding, have no gradient."
    )
