"""Runs batches of a model on JAX: `Engines` for the backend whose steps are functions of a state.

A step maps (state, batch) to (logs, state); the state holds the values of the model's, optimizer's
and metrics' variables, and of the monitor's. Between two calls the values lie in the variables, as
on TensorFlow, so that snapshots, callbacks and checkpoints need not know of JAX.

- "keras": one compiled step per batch.
- "compiled": one program loops over many batches. The old state's memory is given to it.

XLA compiles both, so "compiled" is never slower, and is compiled first. On a GPU lengths that come
again get programs that know them, see `trip_counts`; until then, and for what comes once, there is
one of any length.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.backend.jax_backend import find_device, memory_faults
from gpukeras.backend.jax_module import jax
from gpukeras.backend.jax_state import State, find_variables
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason
from gpukeras.data.loader.loader import Block
from gpukeras.engine.engines import BaseEngines
from gpukeras.engine.optimizer import find_rates
from gpukeras.engine.programs import Logs, Shapes, UntraceableError, count_rows, cut, read_shapes
from gpukeras.engine.train_step import TrainingStep
from gpukeras.engine.trip_counts import ProgramSizes

_NONE: Logs = {}
ANY = 0  # the length of a program whose number of batches a call brings


# Engines -----------------------------------------------------------------------------------------


class JaxEngines(BaseEngines):
    """The engines of one model on JAX; arguments as of `Engines`."""

    def __init__(
        self,
        model: Model,
        kind: str,
        batch_size: int,
        device: str,
        step: TrainingStep | None = None,
        *,
        static: bool | None = None,
    ) -> None:
        """Finds the variables; traces nothing."""
        super().__init__(model, kind, batch_size, device, static)
        self._step, more = step, () if step is None else step.variables
        self._variables = find_variables(model, kind, more, find_device(device))
        self._rates = find_rates(model) if kind == "train" else None
        # By the shapes of blocks: lengths whose programs are compiled, ANY for that of any length.
        self._compiled: dict[Shapes, set[int]] = defaultdict(set)
        self._sizes: dict[Shapes, ProgramSizes] = defaultdict(ProgramSizes)
        # Evaluation keeps the weights: where memory runs out, it goes on in smaller batches.
        self._given = 0 if kind == "train" else ()
        self._program = jax().jit(self._loop, donate_argnums=self._given)
        self._known = jax().jit(self._loop, donate_argnums=self._given, static_argnums=4)
        self._single: Any = None

    @property
    def variables(self) -> Sequence[Any]:
        """The variables that the step changes besides the model's own."""
        return self._variables.groups[-1]

    def expect(self, batches: int, short: bool, variable_batch_size: bool = False) -> None:
        """Does nothing: a short last batch has its own program."""

    def takes(self, engine: str, block: Block) -> bool:
        """Whether an engine has a program for blocks of this shape."""
        return engine == "keras" or bool(self._compiled[read_shapes(block)])

    def prepare(self, engine: str, block: Block) -> bool:
        """Returns True: the first call compiles."""
        return True

    def is_settled(self, engine: str, block: Block, count: int) -> bool:
        """Returns True: what a call compiles is told apart, see `compiled_s`."""
        return True

    def warm(self, block: Block, engine: str, count: int) -> None:
        """Compiles the program of calls of so many batches, by training: later ones can be timed.

        Args:
            block: A block.
            engine: The engine.
            count: The number of batches.
        """
        sizes = self._sizes[read_shapes(block)]
        if self.knows_count(engine) and count not in sizes.made:
            sizes.add(count)
            self._run_loop(block, 0, count)

    def run(self, engine: str, block: Block, first: int, count: int) -> Logs:
        """Runs batches of a block; returns the metrics after them.

        Args:
            engine: The name of the engine.
            block: The block.
            first: The first batch.
            count: The number of batches.
        """
        self.compiled_s = 0.0
        if engine == "compiled":
            return self._run_loop(block, first, count)
        size, logs = self.batch_size, _NONE
        for start in range(first * size, (first + count) * size, size):
            rows = slice(start, start + size)
            batch = runtime.tree().map_structure(lambda a, rows=rows: a[rows], block.arrays)
            logs = self._call(self._single_step(), batch)
        return logs

    def list_call(self, arrays: Any, first: int, count: int) -> tuple[Any, tuple[Any, ...]]:
        """Returns the program of "compiled" with the arguments of a call, which it does not make.

        Args:
            arrays: A block's arrays, or what has their shapes and dtypes.
            first: The first batch.
            count: The number of batches.
        """
        program = self._known if self._static else self._program
        return program, (self._variables.read(), self._read_rates(), arrays, first, count)

    def run_tail(self, engine: str, block: Block) -> Logs:
        """Runs the short last batch of an epoch."""
        return self._call(self._single_step(), block.arrays)

    def _call(self, program: Any, *arguments: Any) -> Logs:
        state, rates = self._variables.read(), self._read_rates()
        with memory_faults():
            with refused_as_untraceable():
                logs, state = program(state, rates, *arguments)
            if self._kind != "train":
                jax().block_until_ready(logs)  # a call may fail later; then nothing is written
        self._variables.write(state)
        return dict(logs)

    def _read_rates(self) -> tuple[Any, ...]:
        """Returns what a step reads, and does not change: the rates of a schedule."""
        return (
            ()
            if self._rates is None
            else tuple(variable.value for variable in self._rates.variables)
        )

    def _single_step(self) -> Any:
        if self._single is None:
            eager = self.model.run_eagerly or not self.model.jit_compile
            self._single = self._one if eager else jax().jit(self._one, donate_argnums=self._given)
        return self._single

    def _run_loop(self, block: Block, first: int, count: int) -> Logs:
        shapes = read_shapes(block)
        known = self._static and self._gets_program(block, shapes, count)
        program = self._known if known else self._program
        length = count if known else ANY
        if length not in self._compiled[shapes]:
            self.compiled_s = self._compile(program, block.arrays, first, count)
        logs = self._call(program, block.arrays, first, count)
        self._compiled[shapes].add(length)
        return logs

    def _compile(self, program: Any, *arguments: Any) -> float:
        """Compiles what a call will run, so that its own time is known; returns the seconds.

        `jax.jit()` keeps what it was lowered and compiled to: the call compiles nothing again.
        """
        began = time.perf_counter()
        with memory_faults(), refused_as_untraceable():
            program.lower(self._variables.read(), self._read_rates(), *arguments).compile()
        return time.perf_counter() - began

    def _gets_program(self, block: Block, shapes: Shapes, count: int) -> bool:
        """Whether a call of so many batches runs by a program that knows their number.

        The first call of blocks of a shape compiles in any case: if the batches' time is known, it
        takes as many as later ones.
        """
        if count == 1 < block.batches:  # the first calls of a training, whose time is not known
            return False
        sizes = self._sizes[shapes]
        if sizes.wants(count) or (not self._compiled[shapes] and self.batch_s < math.inf):
            sizes.add(count)
        return count in sizes.made

    def _loop(
        self, state: State, rates: Any, arrays: Any, first: Any, count: Any
    ) -> tuple[Logs, State]:
        """Traced: steps over `count` batches from `first` on; a number is a known trip count."""
        lax, size = jax().lax, self.batch_size

        def batch(index: Any) -> Any:
            return cut(arrays, index * size, size)

        def body(index: Any, carried: Any) -> Any:
            return self._one(carried[1], rates, batch(first + index))

        shapes = jax().eval_shape(self._one, state, rates, batch(0))[0]
        blank = jax().tree.map(lambda like: jax().numpy.zeros(like.shape, like.dtype), shapes)
        logs, state = lax.fori_loop(0, count, body, (blank, state))
        return logs, state

    def _one(self, state: State, rates: Any, data: Any) -> tuple[Logs, State]:
        """Traced: one step of the model, then of the monitor and the averages."""
        with nullcontext() if self._rates is None else self._rates.bound_to(rates):
            logs, trained = self._update(state[:-1], data)
        more = state[-1] if self._step is None else self._watch(trained, state[-1], logs)
        after = (*map(list, trained), list(more))
        return dict(logs), keep_dtypes(after, state)

    def _update(self, state: State, data: Any) -> tuple[Logs, Any]:
        size = None if self._step is None else self._step.microbatch_size
        if size is not None and size < count_rows(data):
            return train_in_parts(self.model, state, data, size)
        logs, after = getattr(self.model, f"{self._kind}_step")(state, data)
        return logs, after

    def _watch(self, trained: State, more: Sequence[Any], logs: Mapping[str, Any]) -> list[Any]:
        assert self._step is not None
        weights = zip(self._variables.groups[0], trained[0], strict=True)
        pairs = [*weights, *zip(self.variables, more, strict=True)]
        with runtime.keras().StatelessScope(state_mapping=pairs) as scope:
            self._step.look(logs)
        return [scope.get_current_value(variable) for variable in self.variables]


@contextmanager
def refused_as_untraceable() -> Iterator[None]:
    """Raises what JAX and Keras refuse to trace as UntraceableError."""
    try:
        yield
    except REFUSALS as error:
        raise UntraceableError(find_reason(error)) from error


def keep_dtypes(after: State, before: State) -> State:
    """Traced: a state with the dtypes of the one before; otherwise a second call would retrace."""
    convert = jax().lax.convert_element_type
    kept: State = jax().tree.map(lambda new, old: convert(new, old.dtype), after, before)
    return kept


def train_in_parts(model: Model, state: Any, data: Any, size: int) -> tuple[Mapping[str, Any], Any]:
    """Traced: one update of a model from a batch, as `TrainingStep` makes it on TensorFlow.

    Args:
        model: A compiled model with Keras' own step.
        state: The values of the trainable, other, optimizer's and metrics' variables.
        data: The batch.
        size: Rows that go through the model at once.

    Returns:
        The logs and the state after the update.
    """
    trainable, other, optimizer, metrics = state
    rows = int(runtime.tree().flatten(data)[0].shape[0])

    def add(start: Any, count: int, carried: Any) -> Any:
        sums, other, metrics = carried
        part = cut(data, start, count)
        gradients, other, metrics = _gradients(model, (trainable, other, optimizer, metrics), part)
        share = count / rows
        sums = jax().tree.map(lambda total, gradient: total + share * gradient, sums, gradients)
        return sums, other, metrics

    carried = (jax().tree.map(jax().numpy.zeros_like, trainable), other, metrics)
    whole, rest = divmod(rows, size)
    carried = jax().lax.fori_loop(0, whole, lambda i, held: add(i * size, size, held), carried)
    if rest:
        carried = add(whole * size, rest, carried)
    sums, other, metrics = carried
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, sums, trainable)
    with runtime.keras().StatelessScope(list(zip(model.metrics_variables, metrics, strict=True))):
        logs = model.get_metrics_result()
    return logs, (trainable, other, optimizer, metrics)


def _gradients(model: Model, state: Any, data: Any) -> tuple[Any, Any, Any]:
    """Returns a micro-batch's gradients, and the other and the metrics' variables after it."""
    trainable, other, optimizer, metrics = state
    x, y, weights = runtime.keras().utils.unpack_x_y_sample_weight(data)
    compute = jax().value_and_grad(keras_private.loss_and_updates(model), has_aux=True)
    (_, (loss, predicted, other, metrics)), gradients = compute(
        trainable,
        other,
        metrics,
        x,
        y,
        weights,
        training=True,
        optimizer_variables=optimizer,
    )
    _, metrics = keras_private.update_metrics(model, metrics, loss, x, y, predicted, weights)
    return list(gradients), list(other), list(metrics)
