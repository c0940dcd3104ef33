"""Traces a model to list the layers it calls, their shapes, and the operations of each.

The model is traced into graphs (on JAX, into jaxprs: `jax_graph`), not run: nothing is computed, no
weight changes, and only the graphs take memory. This works for every model that Keras can train:
nested, shared, wrapped and custom layers alike.

The batch size of the trace is a large prime. A tensor whose size it divides grows with the batch,
and every count for the whole trace is a multiple of the count for a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of, find_reason
from gpukeras.core.options import check_counts
from gpukeras.profiler.cost import jax_graph
from gpukeras.profiler.cost.watcher import Seen, Traced, Watcher

PRIME = 1009  # rows of the trace, unless the model fixes them


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
    flat = runtime.tree().flatten(specs)
    tracers = {"tensorflow": _trace_graph, "jax": jax_graph.trace_jaxpr}
    try:
        return tracers[runtime.backend()](model, specs, gradients)
    except Exception as error:  # the model's own code may raise anything
        raise ModelError(
            f"`model` cannot be called on inputs of shape {_shape_text(flat)}: "
            f"{find_reason(error)}.",
            hint="Give the shape of a row as `input_shape`.",
            arg="model",
        ) from error
    finally:
        keras_private.forget_losses(model)  # tensors of a graph that no longer exists


def _trace_graph(model: Model, specs: Any, gradients: bool) -> Traced:
    tf = runtime.tensorflow()
    watcher = _GraphWatcher(model)
    traced: dict[str, Any] = {}

    def step(*inputs: Any) -> list[Any]:
        watcher.graph = tf.compat.v1.get_default_graph()
        packed = tf.nest.pack_sequence_as(specs, inputs)
        with tf.GradientTape() as tape:
            traced["outputs"] = tf.nest.flatten(model(packed, training=gradients))
            sums = [
                tf.reduce_sum(output) for output in traced["outputs"] if output.dtype.is_floating
            ]
        traced["forward"] = len(watcher.graph.get_operations())
        weights = [weight.value for weight in model.trainable_variables]
        made = tape.gradient(sums, weights) if gradients and weights and sums else []
        return [operation for operation in made if operation is not None]

    flat = tf.nest.flatten(specs)
    with watcher.watching():
        graph = tf.function(step, autograph=False).get_concrete_function(*flat).graph
    rows = flat[0].shape[0]
    return Traced(
        watcher.found(),
        rows,
        watcher.owners,
        graph.get_operations(),
        traced["forward"],
        flat,
        traced["outputs"],
    )


class _GraphWatcher(Watcher):
    """Records the operations that each call adds to the graph."""

    graph: Any = None

    @contextmanager
    def mark(self, seen: Seen) -> Iterator[None]:
        """Gives a call the operations that it adds and that no inner call has taken."""
        graph = runtime.tensorflow().compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        yield
        seen.hidden |= graph is not self.graph
        if graph is self.graph:
            own = [op for op in graph.get_operations()[begin:] if op.name not in self.owners]
            self.owners.update((op.name, seen) for op in own)
            seen.ops.extend(own)


# Inputs ------------------------------------------------------------------------------------------


def input_specs(model: Model, input_shape: Any = None) -> Any:
    """Returns a model's inputs as the backend's specs in its own structure; builds the model.

    Args:
        model: A Keras model. If it has no weights yet it is built, as by its first batch.
        input_shape: Shape of a row, for models that do not define it or leave dimensions open; a
            list of shapes or a mapping by name for several inputs.

    Raises:
        SpecError: if `input_shape` does not fit the model.
        ModelError: if the model has no shape, and none is given.
    """
    nest = runtime.tree()
    if not getattr(model, "inputs", None):
        _build(model, input_shape)
    if getattr(model, "inputs", None):
        structure = (keras_private.functional_of(model) or model).input
        tensors = nest.flatten(structure)
        shapes = _choose_shapes(tensors, input_shape)
        pairs = zip(shapes, tensors, strict=True)
        made = [tensor_ops.make_spec(shape, tensor.dtype) for shape, tensor in pairs]
        return nest.pack_sequence_as(structure, made)
    shape = _known_shape(model, input_shape)
    return tensor_ops.make_spec((PRIME, *shape), runtime.keras().config.floatx())


def _choose_shapes(tensors: Sequence[Any], input_shape: Any) -> list[tuple[Any, ...]]:
    """Returns the shapes of the model's inputs, with open dimensions from `input_shape`."""
    rows = next((tensor.shape[0] for tensor in tensors if tensor.shape[0]), PRIME)
    own = [tuple(tensor.shape[1:]) for tensor in tensors]
    asked = _split_shapes(input_shape, [tensor.name for tensor in tensors]) or own
    if len(asked) != len(own):
        shapes = count_of(len(asked), "shape")
        raise SpecError(
            f"`input_shape` has {shapes}, and the model has {count_of(len(own), 'input')}.",
            arg="input_shape",
        )
    for shape, known in zip(asked, own, strict=True):
        pairs = zip(shape, known, strict=False)
        if len(shape) != len(known) or any(k is not None and s != k for s, k in pairs):
            raise SpecError(
                f"`input_shape` is {_sizes(shape)}, and the model takes {_sizes(known)}.",
                arg="input_shape",
            )
    return [(rows, *shape) for shape in asked]


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
        isinstance(shape, (list, tuple)) for shape in input_shape
    )
    shapes = input_shape if several else [input_shape]
    return [check_counts("input_shape", shape) for shape in shapes]


def _known_shape(model: Model, input_shape: Any) -> tuple[int, ...]:
    """Returns the shape of a row of a subclassed model, from the argument or from its build."""
    shapes = _split_shapes(input_shape, ["inputs"])
    if len(shapes) == 1:
        return shapes[0]
    built = keras_private.read_build_shapes(model)
    shape = next(iter(built.values()), None) if len(built) == 1 else None
    if shapes or not isinstance(shape, (list, tuple)) or not all(map(_is_size, shape)):
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
    shape = _known_shape(model, input_shape)
    try:
        if keras_private.is_sequential_like(
            model
        ):  # a Sequential would keep the batch size of its first call
            model.build((None, *shape))
        else:
            tensor_ops.build_by_call(model, (None, *shape), runtime.keras().config.floatx())
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
