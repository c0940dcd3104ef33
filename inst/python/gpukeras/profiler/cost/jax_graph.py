"""Traces a model on JAX; see `graph`.

Each call of a layer runs in a named scope of its own, which JAX notes in every operation made in
it, in those of the gradients too. Operations that are calls, such as `jit`, count with those inside
them; a loop or condition cannot be counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import runtime
from gpukeras.backend.jax_module import jax
from gpukeras.core.keras_types import Model
from gpukeras.profiler.cost.jaxpr_flops import count_equation, inner_jaxpr, loop_jaxprs
from gpukeras.profiler.cost.op_flops import CountedOp
from gpukeras.profiler.cost.watcher import Seen, Traced, Watcher

SCOPE = "gpukeras-call-"
TAG = re.compile(SCOPE + r"(\d+)")
BACKWARD = "transpose("
VIEWS = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "stop_gradient", "copy"}


class _ScopeWatcher(Watcher):
    """Numbers the layers, and runs each call in the scope of its number."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.numbered: list[Seen] = []

    @contextmanager
    def mark(self, seen: Seen) -> Iterator[None]:
        if seen not in self.numbered:
            self.numbered.append(seen)
        with jax().named_scope(f"{SCOPE}{self.numbered.index(seen)}"):
            yield

    def owner(self, stack: str) -> Seen | None:
        """Returns the layer whose call made an operation."""
        tags = TAG.findall(stack)
        return self.numbered[int(tags[-1])] if tags else None


def trace_jaxpr(model: Model, specs: Any, gradients: bool) -> Traced:
    """Traces one call of a built model on JAX; for arguments see `graph.trace_model()`.

    Raises:
        ValueError: for an input with an open dimension.
    """
    nest, numpy = runtime.tree(), jax().numpy
    flat = nest.flatten(specs)
    if any(size is None for spec in flat for size in spec.shape):
        raise ValueError("a dimension is open")
    watcher = _ScopeWatcher(model)
    traced: dict[str, Any] = {}

    def call(trained: Any, others: Any, inputs: Any) -> Any:
        packed = nest.pack_sequence_as(specs, inputs)
        outputs, _ = model.stateless_call(trained, others, packed, training=gradients)
        traced["outputs"] = [
            jax().ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in nest.flatten(outputs)
        ]
        floats = [
            tensor
            for tensor in nest.flatten(outputs)
            if numpy.issubdtype(tensor.dtype, numpy.floating)
        ]
        return sum((numpy.sum(tensor.astype("float32")) for tensor in floats), numpy.float32(0))

    trained = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    function = jax().grad(call) if gradients and trained else call
    with watcher.watching():
        jaxpr = jax().make_jaxpr(function)(trained, others, flat).jaxpr
    if not gradients:
        _claim(jaxpr, watcher, "")
    kept = list(_kept(jaxpr, watcher)) if gradients else None
    seen = watcher.found()
    return Traced(seen, flat[0].shape[0], {}, [], 0, flat, traced["outputs"], kept)


def _claim(jaxpr: Any, watcher: _ScopeWatcher, above: str) -> None:
    """Gives each operation to the layer that made it."""
    for equation in jaxpr.eqns:
        stack = f"{above}/{equation.source_info.name_stack}"
        inner = inner_jaxpr(equation)
        if inner is not None:
            _claim(inner, watcher, stack)
            continue
        seen = watcher.owner(stack)
        if seen is not None:
            seen.ops.append(CountedOp(equation.primitive.name, count_equation(equation)))
        for loop in loop_jaxprs(equation):
            _hide(loop, watcher)


def _hide(jaxpr: Any, watcher: _ScopeWatcher) -> None:
    """Marks the layers that are called in a loop or condition."""
    for equation in jaxpr.eqns:
        seen = watcher.owner(str(equation.source_info.name_stack))
        if seen is not None:
            seen.hidden = True
        inner = inner_jaxpr(equation)
        for part in [*loop_jaxprs(equation), *([] if inner is None else [inner])]:
            _hide(part, watcher)


def _kept(jaxpr: Any, watcher: _ScopeWatcher) -> Iterator[tuple[Any, Seen | None]]:
    """Yields what the backward pass reads of the forward pass, once, with the layer."""
    made: dict[Any, Any] = {}
    done = set[Any]()
    for equation in jaxpr.eqns:
        stack = str(equation.source_info.name_stack)
        if BACKWARD not in stack:
            made.update((output, equation) for output in equation.outvars)
            continue
        for operand in equation.invars:
            maker = None if _is_literal(operand) else made.get(operand)
            while maker is not None and maker.primitive.name in VIEWS:
                operand = maker.invars[0]
                maker = None if _is_literal(operand) else made.get(operand)
            if maker is not None and operand not in done:
                done.add(operand)
                yield operand.aval, watcher.owner(str(maker.source_info.name_stack))


def _is_literal(operand: Any) -> bool:
    """Whether an operation's input is a number of the program; variables of JAX have no value."""
    return hasattr(operand, "val")
