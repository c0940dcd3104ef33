"""Rows as Keras takes them, handed to the core as R hands them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.data import builder
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.models import compatibility

ARRAYS = "arrays"
PIPELINE = "pipeline"
SEQUENCE = "sequence"
OTHER = "other"


@dataclass(frozen=True)
class CallRows:
    """The rows of a call, as Keras takes them.

    Args:
        x: Arrays, a tf.data dataset, a PyDataset, or an iterator.
        y: Labels of arrays.
        weights: One a row of arrays.
        steps: Batches an epoch, or None.
    """

    x: Any
    y: Any = None
    weights: Any = None
    steps: int | None = None

    @property
    def kind(self) -> str:
        """How the rows come: "arrays", "pipeline" (tf.data), "sequence" (of batches) or "other"."""
        if self.is_pipeline:
            return PIPELINE
        if self.is_sequence:
            return SEQUENCE
        return ARRAYS if self.count is not None else OTHER

    @property
    def is_pipeline(self) -> bool:
        """Whether `x` is a tf.data dataset."""
        tensorflow = sys.modules.get("tensorflow")  # JAX may be without it
        return tensorflow is not None and isinstance(self.x, tensorflow.data.Dataset)

    @property
    def is_sequence(self) -> bool:
        """Whether `x` makes batches in Python."""
        own = isinstance(self.x, runtime.keras().utils.PyDataset)
        return own or isinstance(self.x, Iterator)

    @property
    def parts(self) -> list[Any]:
        """All arrays, of `x`, `y` and `weights`."""
        arrays = (self.x, self.y, self.weights)
        return [part for part in runtime.tree().flatten(arrays) if part is not None]

    @property
    def count(self) -> int | None:
        """Number of rows of arrays; None where `x` is not arrays with as many rows each."""
        shapes = [getattr(part, "shape", None) for part in self.parts]
        counts = {shape[0] if shape else None for shape in shapes}
        (count, *others) = counts or {None}
        return None if others or not isinstance(count, int) else count

    def count_batches(self, size: int) -> int | None:
        """Returns the batches of an epoch, as Keras counts them; None if they are unknown."""
        if self.steps is not None:
            return int(self.steps)
        if self.is_pipeline:
            count = int(self.x.cardinality())
            return count if count >= 0 else None
        if self.is_sequence:
            known = getattr(self.x, "num_batches", None)  # of a PyDataset
            return None if known is None else int(known)
        return None if self.count is None else math.ceil(self.count / size)

    def for_keras(
        self, size: Any, shuffle: Any = False, class_weight: Any = None
    ) -> dict[str, Any]:
        """Returns the rows as arguments of Keras' own iterator, which the others are too."""
        return {
            "x": self.x,
            "y": self.y,
            "sample_weight": self.weights,
            "batch_size": size,
            "steps_per_epoch": self.steps,
            "shuffle": shuffle,
            "class_weight": class_weight,
        }


def features_of(x: Any, model: Model | None) -> dict[str, Any]:
    """Arrays as `reader` takes them; the inputs of a list by the model's names, if it has any."""
    if isinstance(x, Mapping):
        parts = [{"name": name, "features": features_of(value, None)} for name, value in x.items()]
        return {"kind": "inputs", "inputs": parts}
    if isinstance(x, (list, tuple)):
        names = _names(model, "inputs")
        return _by_name(x, names, "input", lambda named: features_of(named, model))
    for kind, dense in SPARSE.items():
        if type(x).__name__ == kind:
            return sparse_features(np.asarray(dense(x)))
    return {"kind": "array", "values": np.asarray(x), "names": []}


def _names(model: Model | None, which: str) -> list[str]:
    return [] if model is None else compatibility.read_parts(model)[which]


# Matrices of TensorFlow, SciPy and JAX that leave zeros out, by the names of their classes.
SPARSE: dict[str, Callable[[Any], Any]] = {
    "SparseTensor": lambda x: runtime.reader().sparse.to_dense(x),
    "coo_matrix": lambda x: x.toarray(),
    "BCOO": lambda x: x.todense(),
}


def sparse_features(dense: np.ndarray) -> dict[str, Any]:
    """A matrix as one of R's package Matrix: by columns."""
    columns, rows = np.nonzero(dense.T)
    starts = np.concatenate([[0], np.bincount(columns, minlength=dense.shape[1]).cumsum()])
    parts = {"p": starts.astype(np.int32), "i": rows.astype(np.int32)}
    values = dense.T[columns, rows].astype(np.float64)
    return {"kind": "sparse", "dim": list(dense.shape), **parts, "x": values, "names": []}


def _by_name(
    parts: Sequence[Any], known: Sequence[str], what: str, cross: Callable[[Any], Any]
) -> dict[str, Any]:
    """A list as it crosses: with the model's names, or else with places in their stead."""
    unnamed = len(known) != len(parts)
    names = places(what, len(parts)) if unnamed else known
    return {**cross(dict(zip(names, parts, strict=True))), "listed": unnamed}


def places(what: str, count: int) -> list[str]:
    """Returns names for parts that have none: "input_1" and so on."""
    return [f"{what}_{place + 1}" for place in range(count)]


def labels_of(y: Any, model: Model | None) -> dict[str, Any] | None:
    """Labels as `labels` and `outputs` take them."""
    if y is None:
        return None
    if isinstance(y, (list, tuple)):
        names = _names(model, "outputs")
        return _by_name(y, names, "output", lambda named: labels_of(named, model))
    if isinstance(y, Mapping):
        outputs = [{"name": name, "labels": labels_of(part, model)} for name, part in y.items()]
        return {"kind": "outputs", "outputs": outputs}
    values = np.asarray(y)
    return {"name": "y", "kind": label_kind(values), "values": values, "levels": [], "names": []}


def weights_of(weights: Any, model: Model | None) -> Any:
    """Weights as `weights` takes them: an array, or one of each output."""
    if isinstance(weights, (list, tuple)) and all(
        part is None or np.ndim(part) for part in weights
    ):
        names = _names(model, "outputs")
        known = names if len(names) == len(weights) else places("output", len(weights))
        weights = dict(zip(known, weights, strict=True))
    if not isinstance(weights, Mapping):
        return None if weights is None else np.asarray(weights, np.float64)
    known_weights = {name: part for name, part in weights.items() if part is not None}
    return {
        "outputs": [
            {"name": name, "values": np.asarray(part, np.float64)}
            for name, part in known_weights.items()
        ]
    }


def label_kind(values: np.ndarray) -> str:
    """What R calls such labels."""
    if values.ndim > 1:
        return "matrix"
    return {"b": "logical", "i": "integer", "u": "integer"}.get(values.dtype.kind, "numeric")


def generator_of(dataset: Any, steps: int | None = None) -> dict[str, Any]:
    """A PyDataset as `reader` takes it; several inputs and outputs are in the model's order."""
    call = chunks_of(CallRows(dataset), None)
    return {"kind": "generator", "call": call, "steps": steps}


def chunks_of(rows: CallRows, model: Model | None) -> Callable[[int, int], dict[str, Any] | None]:
    """Batches made in Python as a function of R's would give them."""
    unpack = runtime.keras().utils.unpack_x_y_sample_weight

    def call(epoch: int, batch: int) -> dict[str, Any] | None:
        if isinstance(rows.x, Iterator):
            item = next(rows.x, None)
        else:
            ended = rows.x.num_batches is not None and batch > rows.x.num_batches
            item = None if ended else rows.x[batch - 1]
            if ended:
                rows.x.on_epoch_end()
        if item is None:
            return None
        x, y, weights = unpack(item)
        return {
            "features": features_of(x, model),
            "labels": labels_of(y, model),
            "weights": weights_of(weights, model),
        }

    return call


def dataset_of(
    rows: CallRows,
    model: Model,
    options: Mapping[str, Any],
    recipe: Recipe | None = None,
    **more: Any,
) -> Dataset:
    """A dataset of the core; `recipe` is the encoding that holds for it, `more` comes with it."""
    if recipe is not None:
        more["recipe"] = recipe
    if rows.is_pipeline or rows.is_sequence:
        options = {"shuffle": False}
    if rows.is_pipeline:
        features = {"kind": "tfdata", "dataset": rows.x, "steps": rows.steps, "batched": None}
    elif rows.is_sequence:
        call = chunks_of(rows, model)
        features = {"kind": "generator", "call": call, "steps": rows.steps}
    else:
        features = features_of(rows.x, model)
        more["labels"] = labels_of(rows.y, model)
        more["weights"] = weights_of(rows.weights, model)
    return builder.assemble(features, options, **more)


def take_last(rows: CallRows, share: float) -> tuple[CallRows, CallRows]:
    """Keras' `validation_split`: the last rows."""
    nest = runtime.tree()
    parts = {"x": rows.x, "y": rows.y, "weights": rows.weights}
    at = int(len(nest.flatten(rows.x)[0]) * (1 - share))

    def cut(part: Any, where: slice) -> Any:
        return None if part is None else nest.map_structure(lambda array: array[where], part)

    ends = slice(at), slice(at, None)
    first, last = ({name: cut(part, end) for name, part in parts.items()} for end in ends)
    return replace(rows, **first), replace(rows, **last, steps=None)


def validation_of(rows: Any, steps: int | None) -> CallRows:
    """Keras' `validation_data`."""
    if not isinstance(rows, (tuple, list)):
        return CallRows(rows, steps=steps)
    x, y, weights = runtime.keras().utils.unpack_x_y_sample_weight(tuple(rows))
    return CallRows(x, y, weights, steps)


def as_callbacks(callbacks: Any) -> Sequence[Any]:
    """Callbacks as a list."""
    held = getattr(callbacks, "callbacks", callbacks)  # those of a CallbackList
    return list(held) if isinstance(held, (list, tuple)) else [held] if held is not None else []
