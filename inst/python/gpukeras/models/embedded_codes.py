"""Checks the codes that a model's embeddings look up, where rows meet the model.

JAX and GPUs look up another row, or none, for a code outside of an embedding, and say nothing. What
an embedding looks up is found in the graph of a functional model: a model's input, or a column of
it, on which only operations stand that keep its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import RefusedRowsError
from gpukeras.core.keras_types import Model

# Keras' operations and layers whose results have all values of their inputs, and no others.
KEEPS = frozenset(
    {
        "Cast",
        "Concatenate",
        "Copy",
        "ExpandDims",
        "Flatten",
        "Identity",
        "Permute",
        "Ravel",
        "RepeatVector",
        "Reshape",
        "Squeeze",
        "Stack",
        "Transpose",
    }
)


# The inputs of inner models by identity: models that have one, and its number there.
Inner = Mapping[int, list[tuple[Any, int]]]
Source = tuple[Any, int | slice | None]


@dataclass(frozen=True)
class Lookup:
    """What an embedding looks up.

    Args:
        layer: The embedding.
        input: The number of the model's input.
        name: The input's name.
        columns: Which numbers of the input's last axis; None for all.
    """

    layer: Any
    input: int
    name: str
    columns: int | slice | None = None

    @property
    def asks(self) -> tuple[Any, ...]:
        """What rows are asked: lookups that are equal in it pass together."""
        return self.input, self.name, str(self.columns), self.layer.input_dim


def find_lookups(model: Model) -> list[Lookup]:
    """Returns what a functional model's embeddings look up, as far as its graph says it.

    On a CPU TensorFlow's kernels check codes themselves, wherever they come from: then nothing.
    """
    checked = runtime.backend() == "tensorflow" and not runtime.physical_devices("GPU")
    if checked and not getattr(model, "jit_compile", False):
        return []
    graph = keras_private.functional_of(model) or model
    inputs = getattr(graph, "inputs", None)
    if not isinstance(inputs, list):
        return []
    layers = keras_private.list_layers(graph, include_self=False)
    inner: dict[int, list[tuple[Any, int]]] = {}
    for layer in layers:
        for place, tensor in enumerate(getattr(layer, "inputs", None) or ()):
            inner.setdefault(id(tensor), []).append((layer, place))
    outer = {id(tensor): place for place, tensor in enumerate(inputs)}
    embedding = runtime.keras().layers.Embedding
    return [
        Lookup(layer, outer[id(source)], keras_private.origin_of(source)[0].name, columns)
        for layer in layers
        if isinstance(layer, embedding)
        for called in keras_private.calls_of(layer)
        for source, columns in _follow(called[0], outer, inner)
    ]


def refuse_codes(lookups: Sequence[Lookup], features: Any, arg: str = "data") -> None:
    """Refuses codes that an embedding has no row for.

    Negative codes count from an embedding's end, as in Keras.

    Args:
        lookups: See `find_lookups()`.
        features: Rows as the model takes them: an array, a list, or a mapping by input.
        arg: The user's name for the rows.

    Raises:
        RefusedRowsError: if one has not.
    """
    for lookup in lookups:
        taken = _take(lookup, features)
        if taken is not None:
            _refuse(lookup, tensor_ops.measure_extremes(taken), arg)


class CodeCheck:
    """Checks the codes of rows that come in sequence, block by block.

    What a block's codes are is asked when the next one comes: a GPU goes on with its work.

    Args:
        lookups: See `find_lookups()`.
        arg: The user's name for the rows.
    """

    def __init__(self, lookups: Sequence[Lookup], arg: str) -> None:
        """Waits for the first block."""
        self.lookups = lookups
        self._arg = arg
        self._measured: list[tuple[Lookup, tuple[Any, Any] | None]] = []

    def add(self, features: Any) -> None:
        """Measures a block's codes, and checks those of the block before.

        Raises:
            RefusedRowsError: for a code that an embedding has no row for.
        """
        self.finish()
        taken = [(lookup, _take(lookup, features)) for lookup in self.lookups]
        self._measured = [
            (lookup, tensor_ops.measure_extremes(codes))
            for lookup, codes in taken
            if codes is not None
        ]

    def finish(self) -> None:
        """Checks the codes of the last block, as `add()` does."""
        measured = self._measured
        self._measured = []
        for lookup, extremes in measured:
            _refuse(lookup, extremes, self._arg)


def open_code_check(model: Model, arg: str) -> CodeCheck | None:
    """Returns the check of rows in sequence for a model; None where nothing is to check."""
    lookups = find_lookups(model)
    return CodeCheck(lookups, arg) if lookups else None


def _follow(tensor: Any, outer: Mapping[int, int], inner: Inner) -> Iterator[Source]:
    """Yields the inputs, and their columns, whose values a symbolic tensor has, and no others."""
    if id(tensor) in outer:
        yield tensor, None
        return
    operation, args = keras_private.origin_of(tensor)
    own = type(operation).__module__.startswith("keras.")
    kind = type(operation).__name__ if own else ""
    if kind == "GetItem" and id(args[0]) in outer and _takes_columns(*args):
        yield args[0], args[1][-1]
        return
    for argument in _list_equal(tensor, kind, args, inner):
        yield from _follow(argument, outer, inner)


def _list_equal(tensor: Any, kind: str, args: tuple[Any, ...], inner: Inner) -> list[Any]:
    """Returns the tensors that a tensor has its values from, and all values of."""
    if id(tensor) in inner:  # the input of a model, which is called on others
        return [
            called[place]
            for model, place in inner[id(tensor)]
            for called in keras_private.calls_of(model)
        ]
    tensors = runtime.tree().flatten(args) if kind in KEEPS else []
    return [each for each in tensors if runtime.keras().backend.is_keras_tensor(each)]


def _takes_columns(tensor: Any, key: Any) -> bool:
    """Whether a key names numbers of the last axis, such as `x[:, 3]`."""
    if not isinstance(key, tuple) or len(key) != len(tensor.shape):
        return False
    return all(each == slice(None) for each in key[:-1]) and isinstance(key[-1], int | slice)


def _take(lookup: Lookup, features: Any) -> Any:
    """Returns the numbers of rows that are looked up, or None where the rows lack the input."""
    if isinstance(features, Mapping):
        rows = features.get(lookup.name)
    else:
        flat = runtime.tree().flatten(features)
        rows = flat[lookup.input] if lookup.input < len(flat) else None
    return rows if rows is None or lookup.columns is None else rows[..., lookup.columns]


def _refuse(lookup: Lookup, extremes: tuple[Any, Any] | None, arg: str) -> None:
    """Refuses codes by the least and largest ones, which are None for text."""
    if extremes is None:
        return
    low = float(np.min(tensor_ops.as_float64(extremes[0])))
    high = float(np.max(tensor_ops.as_float64(extremes[1])))
    if not -lookup.layer.input_dim - 1 < low <= high < lookup.layer.input_dim:
        found_codes = [int(each) if np.isfinite(each) else each for each in (low, high)]
        raise outside(lookup.layer, found_codes, arg=arg)


def outside(
    layer: Any,
    codes: Sequence[float],
    reason: str = "",
    origin: BaseException | None = None,
    arg: str = "data",
) -> RefusedRowsError:
    """Returns the error of codes that an embedding has no rows for.

    Args:
        layer: The embedding.
        codes: The code, or the smallest and largest ones; NaN where one is missing.
        reason: TensorFlow's sentence, or "".
        origin: TensorFlow's error, or None.
        arg: The user's name for the rows.
    """
    last = int(layer.input_dim) - 1
    listed = " to ".join(dict.fromkeys(str(code) for code in codes))
    says = f" TensorFlow says: {reason}." if reason else ""
    return RefusedRowsError(
        f"The layer `{layer.name}` takes the codes 0 to {last}, but the rows have {listed}.{says}",
        hint=f"R counts from 1: subtract 1, or give the layer `input_dim = {max(codes) + 1}`."
        if max(codes) > last
        else "Give codes that count from 0.",
        arg=arg,
        layer=layer.name,
        found=codes[-1],
        reason=reason,
        origin=origin,
    )
