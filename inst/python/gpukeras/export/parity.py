"""Chooses rows to test an exported model on, and compares the predictions of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import SpecError
from gpukeras.core.half_precision import widen_half
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.loader import sample_rows
from gpukeras.models import compatibility

ROWS = 16
OPEN_SIZE = 32  # of a dimension that the model leaves open, such as the length of a text
SEED = 20170711
HALF = ("float16", "bfloat16", "float8")
# Both run the same formula in another order: differences of 1e-6 to 1e-5 of the largest value were
# seen in float32. A GPU multiplies with 10 bits (TF32), half precision keeps 8 to 11.
TOLERANCE, COARSE = 1e-4, 2e-2


@dataclass(frozen=True)
class Agreement:
    """The difference between the predictions of two models.

    Args:
        difference: The largest absolute difference; infinite if one prediction is not a number.
        largest: The largest absolute prediction.
        allowed: The largest difference that is allowed: the tolerance, times `largest` if that is
            more than 1.
    """

    difference: float
    largest: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the difference is allowed."""
        return self.difference <= self.allowed


def choose_tolerance(precisions: Sequence[str], device: str) -> tuple[float, str]:
    """Returns the difference that is allowed, and why.

    Args:
        precisions: The layers' compute dtypes.
        device: The model's device, such as "GPU:0".
    """
    half = sorted({precision for precision in precisions if precision.startswith(HALF)})
    if half:
        return COARSE, f"the model computes in {half[0]}"
    if device.startswith("GPU"):
        return COARSE, "the model is on a GPU, the exported one ran on the processor"
    return TOLERANCE, "float32, computed in another order"


def compare_outputs(
    expected: Sequence[np.ndarray], outputs: Sequence[np.ndarray], tolerance: float
) -> Agreement:
    """Compares predictions output by output.

    Args:
        expected: The model's predictions, an array for each output.
        outputs: The exported model's predictions.
        tolerance: See `Agreement`.
    """
    largest = max((_largest(values) for values in expected), default=0.0)
    allowed = tolerance * max(1.0, largest)
    if [values.shape for values in expected] != [values.shape for values in outputs]:
        return Agreement(float("inf"), largest, allowed)
    pairs = zip(expected, outputs, strict=True)
    return Agreement(max((_distance(*pair) for pair in pairs), default=0.0), largest, allowed)


def _largest(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(finite.max(initial=0.0))


def _distance(values: np.ndarray, other: np.ndarray) -> float:
    values, other = values.astype(np.float64), other.astype(np.float64)
    same = (values == other) | (np.isnan(values) & np.isnan(other))
    apart = np.abs(np.where(same, 0.0, values) - np.where(same, 0.0, other))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0.0))


# Rows --------------------------------------------------------------------------------------------


def read_samples(model: Model, data: Any = None) -> Any:
    """Returns rows to test a model on: an array, or arrays in the model's input structure.

    Args:
        model: A Keras model.
        data: A dataset whose first rows are taken, or None for random ones.

    Raises:
        SpecError: if random rows cannot be drawn.
        ModelError: if the dataset does not fit the model.
    """
    nest = runtime.tree()
    if data is not None:
        compatibility.check_input(model, data.recipe)
        return nest.map_structure(np.asarray, sample_rows(data, ROWS)[0])
    inputs = read_inputs(model)
    if inputs is None:
        raise SpecError(
            "`model` does not tell the shape of its input, so no rows can be drawn.",
            hint="Give a gpu_dataset as `data`.",
            arg="data",
        )
    rng = np.random.default_rng(SEED)
    return nest.map_structure(lambda spec: draw_rows(rng, spec.shape, spec.dtype), inputs)


def read_inputs(model: Model) -> Any:
    """Returns a model's input tensors in its structure; None if the model does not define them."""
    if not getattr(model, "inputs", None):
        return None
    compatibility.name_inputs(model)
    functional = hasattr(model, "output_names")  # others, such as Sequential, have one input
    return model.input if functional else model.inputs[0]


def draw_rows(rng: np.random.Generator, shape: Sequence[int | None], dtype: str) -> np.ndarray:
    """Draws random rows for an input: normal numbers, or 0 and 1, valid for any embedding.

    Args:
        rng: The random generator.
        shape: Shape of a row; None for an open dimension.
        dtype: The input's dtype.

    Raises:
        SpecError: for text.
    """
    sizes = [ROWS, *(OPEN_SIZE if size is None else int(size) for size in shape[1:])]
    if dtype == "string":
        raise SpecError(
            "`model` takes text, which cannot be drawn.",
            hint="Give a gpu_dataset as `data`.",
            arg="data",
        )
    if "float" in dtype:
        return rng.standard_normal(sizes).astype("float32" if dtype == "bfloat16" else dtype)
    return rng.integers(0, 2, sizes).astype(dtype)


def name_rows(model: Model, rows: Any) -> dict[str, np.ndarray]:
    """Returns rows by the names of the model's inputs, in the order of Keras' `tree.flatten()`."""
    flat = [np.asarray(values) for values in runtime.tree().flatten(rows)]
    if isinstance(rows, Mapping):
        return dict(zip(sorted(rows), flat, strict=True))
    inputs = getattr(model, "inputs", None) or []
    names = [str(tensor.name) for tensor in inputs]
    if len(names) != len(flat):
        names = [f"input_{place}" for place in range(len(flat))]
    return dict(zip(names, flat, strict=True))


def predict_samples(model: Model, rows: Any) -> list[np.ndarray]:
    """Returns a model's predictions for rows, an array for each output."""
    nest, convert = runtime.tree(), runtime.keras().ops.convert_to_tensor
    outputs = model(nest.map_structure(convert, rows), training=False)
    return [widen_half(np.asarray(values)) for values in nest.flatten(outputs)]
