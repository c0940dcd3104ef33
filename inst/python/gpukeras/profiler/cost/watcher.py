"""Watches which layers a model calls while it is traced, with their shapes."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model
from gpukeras.profiler.cost.layer_flops import Call, has_formula
from gpukeras.profiler.cost.op_flops import tensor_shape


@dataclass
class Seen:
    """A layer, or Keras operation, in a trace.

    Args:
        layer: The Keras object.
        name: Names from below the model down to it, joined by "/"; for the model, its own name.
        calls: Each call in the trace.
        ops: Its own operations, not those of inner layers (without a formula).
        hidden: Whether it was called in a loop or a condition, so that the number of calls is
            unknown.
    """

    layer: Any
    name: str
    calls: list[Call] = field(default_factory=list)
    ops: list[Any] = field(default_factory=list)
    hidden: bool = False


@dataclass(frozen=True)
class Traced:
    """The result of a trace.

    Args:
        seen: Layers in the order of their first call, the model itself last.
        rows: Rows of the batch.
        owners: The object in `seen` by the name of an operation.
        ops: All operations of the graph, in the order of their creation.
        forward: Number of operations of the forward pass; the others are gradients.
        inputs: Shapes and dtypes of the model's input tensors.
        outputs: The output tensors.
        kept: On JAX, what the gradients read of the forward pass, with the layer that made it.
    """

    seen: list[Seen]
    rows: int
    owners: dict[str, Seen]
    ops: list[Any]
    forward: int
    inputs: list[Any]
    outputs: list[Any]
    kept: list[tuple[Any, Seen | None]] | None = None


class Watcher:
    """Records each call of a layer while a model is traced.

    Args:
        model: The model.
    """

    def __init__(self, model: Model) -> None:
        """Stores the model."""
        self._model = model
        self._seen: dict[int, Seen] = {}
        self._stack: list[Any] = []
        self._leaf = False  # inside a layer with a formula: its inner layers are not recorded
        self.owners: dict[str, Seen] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wraps each layer's `call` in a recorder and restores it on exit."""
        before = []
        try:
            for layer in find_layers(self._model):
                for name in ("call", "quantized_call"):
                    if hasattr(layer, name):
                        before.append((layer, name, vars(layer).get(name)))
                        # Not by setattr(): Keras would track it.
                        vars(layer)[name] = self._listen(layer, getattr(layer, name))
            yield
        finally:
            for layer, name, own in before:
                vars(layer).pop(name, None)
                vars(layer).update({} if own is None else {name: own})

    def found(self) -> list[Seen]:
        """Returns the called layers, the model itself (with its own operations) last."""
        own = self._seen.pop(id(self._model), None)
        return [*self._seen.values(), *([own] if own else [])]

    def _listen(self, layer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def listening(*args: Any, **kwargs: Any) -> Any:
            if self._leaf or layer in self._stack:  # a class that calls its own base's call()
                return original(*args, **kwargs)
            return self._note(layer, original, args, kwargs)

        return listening

    def _note(self, layer: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        seen = self._enter(layer)
        self._leaf = has_formula(layer)
        try:
            with self.mark(seen):
                output = original(*args, **kwargs)
        finally:
            self._leaf = False
            self._stack.pop()
        seen.calls.append(Call(layer, _shapes(original, args, kwargs), _first_shape(output)))
        return output

    @contextmanager
    def mark(self, seen: Seen) -> Iterator[None]:
        """Notes which operations a call makes; the backend's own."""
        yield

    def _enter(self, layer: Any) -> Seen:
        self._stack.append(layer)
        below = [layer.name for layer in self._stack[1:]]
        name = "/".join(below) or layer.name
        return self._seen.setdefault(id(layer), Seen(layer, name))


def find_layers(model: Model) -> list[Any]:
    """Returns all layers of a model at any depth, itself included, and its Keras operations."""
    layers = keras_private.list_layers(model)
    graphs = [keras_private.functional_of(layer) or layer for layer in layers]
    operations = [
        operation for graph in graphs for operation in keras_private.list_operations(graph)
    ]
    return list({id(part): part for part in [*layers, *operations]}.values())


def _shapes(original: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the shapes of the tensors among the arguments, by the arguments' names."""
    try:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # an unknown signature
        arguments = {str(place): value for place, value in enumerate(args)}
    shapes = {name: _shape_of(value) for name, value in arguments.items()}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _shape_of(value: Any) -> Any:
    if isinstance(value, (list, tuple, Mapping)):
        items = list(value.values() if isinstance(value, Mapping) else value)
        shapes = [_shape_of(item) for item in items]
        return shapes if shapes and None not in shapes else None
    return tensor_shape(value) if hasattr(value, "op") or hasattr(value, "dtype") else None


def _first_shape(output: Any) -> tuple[float, ...]:
    flat = runtime.tree().flatten(output)
    return tensor_shape(flat[0]) if flat and hasattr(flat[0], "shape") else (math.nan,)
