"""Traces a model to list the layers it calls, their shapes, and the operations of each.

The model is traced into graphs, not run: nothing is computed, no weight changes, and only the
graphs take memory. This works for every model that Keras can train: nested, shared, wrapped and
custom layers alike.

The batch size of the trace is a large prime. A tensor whose size it divides grows with the batch,
and every count for the whole trace is a multiple of the count for a row.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of, find_reason
from gpukeras.core.options import check_counts
from gpukeras.profiler.cost.layer_flops import Call, has_formula
from gpukeras.profiler.cost.op_flops import tensor_shape

PRIME = 1009  # rows of the trace, unless the model fixes them


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
    """

    seen: list[Seen]
    rows: int
    owners: dict[str, Seen]
    ops: list[Any]
    forward: int
    inputs: list[Any]
    outputs: list[Any]


def trace_model(model: Model, specs: Any, *, gradients: bool = False) -> Traced:
    """Traces one call of a built model.

    Args:
        model: A built Keras model; it is not changed.
        specs: Its inputs, from `input_specs()`.
        gradients: Whether to call it as in training and to trace the gradients of its weights too.
            They are gradients of the outputs' sum: the kept activations do not depend on the loss.

    Raises:
        ModelError: if the model cannot be called on such inputs.
    """
    tf = runtime.tensorflow()
    watcher = _Watcher(model)
    found: dict[str, Any] = {}

    def step(*inputs: Any) -> list[Any]:
        watcher.graph = tf.compat.v1.get_default_graph()
        packed = tf.nest.pack_sequence_as(specs, inputs)
        with tf.GradientTape() as tape:
            found["outputs"] = tf.nest.flatten(model(packed, training=gradients))
            sums = [tf.reduce_sum(one) for one in found["outputs"] if one.dtype.is_floating]
        found["forward"] = len(watcher.graph.get_operations())
        weights = [weight.value for weight in model.trainable_variables]
        made = tape.gradient(sums, weights) if gradients and weights and sums else []
        return [one for one in made if one is not None]

    flat = tf.nest.flatten(specs)
    try:
        with watcher.watching():
            graph = tf.function(step, autograph=False).get_concrete_function(*flat).graph
    except Exception as error:  # the model's own code may raise anything
        raise ModelError(
            f"`model` cannot be called on inputs of shape {_shape_text(flat)}: "
            f"{find_reason(error)}.",
            hint="Give the shape of a row as `input_shape`.",
            arg="model",
        ) from error
    finally:
        keras_private.forget_losses(model)  # tensors of a graph that no longer exists
    rows = flat[0].shape[0]
    return Traced(
        watcher.found(),
        rows,
        watcher.owners,
        graph.get_operations(),
        found["forward"],
        flat,
        found["outputs"],
    )


class _Watcher:
    """Records each call of a layer while a model is traced."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._seen: dict[int, Seen] = {}
        self._stack: list[Any] = []
        self._leaf = False  # inside a layer with a formula: its inner layers are not recorded
        self.graph: Any = None
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
        graph = runtime.tensorflow().compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        seen = self._enter(layer)
        self._leaf = has_formula(layer)
        try:
            output = original(*args, **kwargs)
        finally:
            self._leaf = False
            self._stack.pop()
        seen.calls.append(Call(layer, _shapes(original, args, kwargs), _first_shape(output)))
        seen.hidden |= graph is not self.graph
        if graph is self.graph:
            self._claim(graph.get_operations()[begin:], seen)
        return output

    def _enter(self, layer: Any) -> Seen:
        self._stack.append(layer)
        below = [one.name for one in self._stack[1:]]
        name = "/".join(below) or layer.name
        return self._seen.setdefault(id(layer), Seen(layer, name))

    def _claim(self, ops: Sequence[Any], seen: Seen) -> None:
        own = [op for op in ops if op.name not in self.owners]
        self.owners.update((op.name, seen) for op in own)
        seen.ops.extend(own)


def find_layers(model: Model) -> list[Any]:
    """Returns all layers of a model at any depth, itself included, and its Keras operations."""
    layers = keras_private.list_layers(model)
    graphs = [keras_private.functional_of(layer) or layer for layer in layers]
    operations = [one for graph in graphs for one in keras_private.list_operations(graph)]
    return list({id(one): one for one in [*layers, *operations]}.values())


def _shapes(original: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the shapes of the tensors among the arguments, by the arguments' names."""
    try:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # an unknown signature
        given = {str(place): value for place, value in enumerate(args)}
    found = {name: _shape_of(value) for name, value in given.items()}
    return {name: shape for name, shape in found.items() if shape is not None}


def _shape_of(value: Any) -> Any:
    if isinstance(value, (list, tuple, Mapping)):
        items = list(value.values() if isinstance(value, Mapping) else value)
        shapes = [_shape_of(item) for item in items]
        return shapes if shapes and None not in shapes else None
    return tensor_shape(value) if hasattr(value, "op") or hasattr(value, "dtype") else None


def _first_shape(output: Any) -> tuple[float, ...]:
    flat = runtime.tensorflow().nest.flatten(output)
    return tensor_shape(flat[0]) if flat and hasattr(flat[0], "shape") else (math.nan,)


# Inputs ------------------------------------------------------------------------------------------


def input_specs(model: Model, input_shape: Any = None) -> Any:
    """Returns a model's inputs as TensorFlow's specs in its own structure; builds the model.

    Args:
        model: A Keras model. If it has no weights yet it is built, as by its first batch.
        input_shape: Shape of a row, for models that do not define it or leave dimensions open; a
            list of shapes or a mapping by name for several inputs.

    Raises:
        SpecError: if `input_shape` does not fit the model.
        ModelError: if the model has no shape, and none is given.
    """
    tf = runtime.tensorflow()
    if not getattr(model, "inputs", None):
        _build(model, input_shape)
    if getattr(model, "inputs", None):
        structure = (keras_private.functional_of(model) or model).input
        tensors = tf.nest.flatten(structure)
        shapes = _choose_shapes(tensors, input_shape)
        pairs = zip(shapes, tensors, strict=True)
        made = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in pairs]
        return tf.nest.pack_sequence_as(structure, made)
    shape = _known_shape(model, input_shape)
    return tf.TensorSpec((PRIME, *shape), runtime.keras().config.floatx())


def _choose_shapes(tensors: Sequence[Any], input_shape: Any) -> list[tuple[Any, ...]]:
    """Returns the shapes of the model's inputs, with open dimensions from `input_shape`."""
    rows = next((tensor.shape[0] for tensor in tensors if tensor.shape[0]), PRIME)
    own = [tuple(tensor.shape[1:]) for tensor in tensors]
    given = _split_shapes(input_shape, [tensor.name for tensor in tensors]) or own
    if len(given) != len(own):
        shapes = count_of(len(given), "shape")
        raise SpecError(
            f"`input_shape` has {shapes}, and the model has {count_of(len(own), 'input')}.",
            arg="input_shape",
        )
    for shape, known in zip(given, own, strict=True):
        pairs = zip(shape, known, strict=False)
        if len(shape) != len(known) or any(k is not None and s != k for s, k in pairs):
            raise SpecError(
                f"`input_shape` is {_sizes(shape)}, and the model takes {_sizes(known)}.",
                arg="input_shape",
            )
    return [(rows, *shape) for shape in given]


def _split_shapes(input_shape: Any, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns one shape per input; an empty list if none is given."""
    if input_shape is None:
        return []
    if isinstance(input_shape, Mapping):
        missing = [name for name in names if name not in input_shape]
        if missing:
            raise SpecError(
                f"`input_shape` has no shape for the model's input `{missing[0]}`.",
                arg="input_shape",
            )
        return [check_counts("input_shape", input_shape[name]) for name in names]
    several = isinstance(input_shape, (list, tuple)) and any(
        isinstance(one, (list, tuple)) for one in input_shape
    )
    shapes = input_shape if several else [input_shape]
    return [check_counts("input_shape", shape) for shape in shapes]


def _known_shape(model: Model, input_shape: Any) -> tuple[int, ...]:
    """Returns the shape of a row of a subclassed model, from the argument or from its build."""
    given = _split_shapes(input_shape, ["inputs"])
    if len(given) == 1:
        return given[0]
    built = keras_private.read_build_shapes(model)
    shape = next(iter(built.values()), None) if len(built) == 1 else None
    if given or not isinstance(shape, (list, tuple)) or not all(map(_is_size, shape)):
        raise ModelError(
            "`model` does not tell the shape of its input.",
            hint="Give the shape of a row as `input_shape`, or train the model first.",
            arg="model",
        )
    return tuple(shape[1:])


def _is_size(value: Any) -> bool:
    return value is None or isinstance(value, int)


def _build(model: Model, input_shape: Any) -> None:
    """Builds a model's weights, as its first batch would."""
    if model.built and all(layer.built for layer in keras_private.list_layers(model)):
        return
    tf, shape = runtime.tensorflow(), _known_shape(model, input_shape)
    spec = tf.TensorSpec((None, *shape), runtime.keras().config.floatx())
    try:
        if keras_private.is_sequential_like(
            model
        ):  # a Sequential would keep the batch size of its first call
            model.build((None, *shape))
        else:
            tf.function(lambda batch: model(batch), autograph=False).get_concrete_function(spec)
    except Exception as error:  # the model's own code may raise anything
        raise ModelError(
            f"`model` cannot be built for rows of {_sizes(shape)}: {find_reason(error)}.",
            hint="Check `input_shape`, or call the model on a batch first.",
            arg="model",
        ) from error


def _sizes(shape: Sequence[Any]) -> str:
    return " x ".join("?" if size is None else f"{size:g}" for size in shape) or "single numbers"


def _shape_text(specs: Sequence[Any]) -> str:
    return ", ".join(_sizes(spec.shape[1:]) for spec in specs)
