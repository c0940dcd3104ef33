"""Runs batches of a model with one of three engines; the fastest is found by measuring.

The engines run the same Keras step on the same blocks of batches:

- "keras": Keras' own function, called once per batch. Every step has Python's overhead.
- "superstep": one call loops over many batches inside a TensorFlow graph.
- "compiled": the same loop as one XLA program.

None is always best (XLA's convolutions on a CPU are 8 times slower than oneDNN's), so in the first
epoch each trains real batches for a short time, and the fastest continues. No work is wasted: these
are updates of the same model. An engine is only tried where it can win and the steps left can pay
for its tracing; XLA compiles in a thread, see `async_compile`, while the fastest so far trains.

The loop's trip count and first batch are run-time values, so one program serves calls of any size.
The short last batch of an epoch needs its own function, unless batches are few: then the loop is
traced for batches of any size, which makes each of them slower, and Keras too traces only once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.data.loading.block import Block
from gpukeras.engine.async_compile import Compilation, begin_compiling
from gpukeras.engine.programs import (
    CompiledProgram,
    Logs,
    Step,
    UntraceableError,
    count_rows,
    cut,
    gather,
    make_like,
    read_shapes,
)
from gpukeras.system import host

# Up to this number of batches the short last one shares their program. Where the size of a batch
# is unknown to XLA, a small one takes some 20 us more; tracing once more takes 0.2 to 2 s.
FEW_BATCHES = 3000


@contextlib.contextmanager
def _step_of(model: Model, kind: str, step: Step | None) -> Iterator[None]:
    """Makes Keras build its own function from this step."""
    if step is not None:
        setattr(model, f"{kind}_step", step)
    try:
        yield
    finally:
        if step is not None:
            delattr(model, f"{kind}_step")


class Engines:
    """The three engines of one model, each made when it is first run.

    Args:
        model: A compiled Keras model whose variables exist.
        kind: "train" or "test": which of the model's steps.
        batch_size: Rows per batch.
        device: The model's device; under XLA it decides how dropout draws random numbers.
        step: The step itself, see `train_step`; by default the model's own. If it has a method
            `going`, the loop continues only while that returns true.

    Attributes:
        ran: Names of the functions that have run to the end: before that it is unknown whether the
            device's memory suffices.
        started_s: Seconds that the start of the first engine took; 0 before.
        chosen: The engine that was chosen last, or "".
        prepared_s: Seconds from the beginning to the end of the last preparation.
    """

    def __init__(
        self, model: Model, kind: str, batch_size: int, device: str, step: Step | None = None
    ) -> None:
        """Takes Keras' own function before gpukeras replaces it."""
        self.model, self._kind, self.batch_size = model, kind, batch_size
        self._device = device
        self._step = getattr(model, f"{kind}_step") if step is None else step
        self._keras_function = self._take_function(step)
        self._made: dict[str, CompiledProgram] = {}
        self._compiling: Compilation | None = None
        self._single: Step | None = None
        self.ran: set[str] = set()
        self.chosen = ""
        self.started_s = self.prepared_s = 0.0
        self._any_size, self._size = False, batch_size  # `_size` may be a tensor in tracing
        self._began = 0.0  # start of the current preparation

    def _take_function(self, step: Step | None) -> Any:
        """Returns Keras' own function of the step; the model's attribute stays unchanged."""
        model, name = self.model, f"{self._kind}_function"
        before = getattr(model, name)  # set by gpukeras, if memory ran out during a training
        with _step_of(model, self._kind, step):
            getattr(model, f"make_{name}")(force=True)
        function = getattr(model, name)
        setattr(model, name, before)
        return function

    @property
    def variables(self) -> Sequence[Any]:
        """The variables that the step changes besides the model's own."""
        return getattr(self._step, "variables", ())

    def expect(self, batches: int, short: bool) -> None:
        """Announces the batches to be run."""
        self._any_size = short and batches <= FEW_BATCHES
        made = self._made.get("superstep")
        if made is not None and not made.rows and batches > FEW_BATCHES:
            del self._made["superstep"]

    def run(self, engine: str, block: Block, first: int, count: int) -> Logs:
        """Runs batches of a block; returns the metrics after them.

        Args:
            engine: The name of the engine.
            block: The block.
            first: The first batch.
            count: The number of batches.
        """
        if engine == "keras":
            return self._run_keras(block, first, count)
        rows, made = count_rows(block.arrays), self._made.get(engine)
        if made is not None and made.rows and not made.takes(block):
            smaller = made.rows < rows and made.shapes == read_shapes(block, made.rows)
            if smaller:
                return self._run_parts(made, block, first, count)
        if not self.takes(engine, block):
            self._make(engine, block, rows)
        return self._made[engine].run(block.arrays, first, count)

    def takes(self, engine: str, block: Block) -> bool:
        """Whether an engine has a program for blocks of this shape."""
        made = self._made.get(engine)
        return engine == "keras" or (made is not None and made.takes(block))

    def prepare(self, engine: str, block: Block, batches: int = 0) -> bool:
        """Prepares an engine for blocks of this shape; returns whether it can run.

        The first call traces it; then XLA compiles in a thread, where that is possible.

        Args:
            engine: Its name.
            block: A block.
            batches: Number of batches of its later blocks; 0 for as many as this one.

        Raises:
            UntraceableError, or one of `runtime.refusals()`: if it cannot run this model.
        """
        rows = batches * self.batch_size or count_rows(block.arrays)
        made = self._made.get(engine)
        if made is None or made.shapes != read_shapes(block, rows):
            tf = runtime.tensorflow()
            self._began = time.perf_counter()
            concrete = self._make(engine, block, rows)
            nothing = [*make_like(block, rows), tf.constant(0), tf.constant(0)]
            self._compiling = begin_compiling(concrete, nothing)
        if self._compiling is not None and not self._compiling.is_done():
            return False
        if self._began:
            self.prepared_s, self._began = time.perf_counter() - self._began, 0.0
            host.trim_memory()
        return True

    def run_tail(self, engine: str, block: Block) -> Logs:
        """Runs the short last batch of an epoch."""
        if engine == "keras":
            return self._keras_function(iter([block.arrays]))
        made = self._made.get("superstep")
        if made is not None and not made.rows and made.takes(block):
            return made.run(block.arrays, 0, 1, count_rows(block.arrays))
        if self._single is None:
            single = runtime.tensorflow().function(reduce_retracing=True, autograph=False)
            self._single = single(self._step)
        return self._single(block.arrays)

    def _run_keras(self, block: Block, first: int, count: int) -> Logs:
        size, nest = self.batch_size, runtime.tensorflow().nest
        for start in range(first * size, (first + count) * size, size):
            rows = slice(start, start + size)
            batch = nest.map_structure(lambda array, rows=rows: array[rows], block.arrays)
            logs = self._keras_function(iter([batch]))
        return logs

    def _run_parts(self, made: CompiledProgram, block: Block, first: int, count: int) -> Logs:
        """Runs batches of a block through a program for smaller blocks."""
        room, last = made.rows // self.batch_size, count_rows(block.arrays) // self.batch_size
        end = first + count
        while first < end:
            start = min(first, last - room)
            done = min(end, start + room) - first
            part = cut(block.arrays, start * self.batch_size, made.rows)
            logs = made.run(part, first - start, done)
            first += done
        return logs

    def _make(self, engine: str, block: Block, rows: int) -> Any:
        """Traces an engine's program for blocks of `rows` rows; returns the concrete function."""
        tf = runtime.tensorflow()
        compiled, any_size = engine == "compiled", self._any_size and engine == "superstep"
        first_dimension = None if any_size else rows
        specs = tf.nest.map_structure(
            lambda array: tf.TensorSpec([first_dimension, *array.shape[1:]], array.dtype),
            block.arrays,
        )
        on_cpu = compiled and self._device.startswith("CPU")
        traced = self._program_of_any_size if any_size else self._program
        program = tf.function(traced, autograph=False, jit_compile=compiled)
        scalars = [tf.TensorSpec([], tf.int32)] * (3 if any_size else 2)
        with runtime.threefry_dropout() if on_cpu else contextlib.nullcontext():
            try:
                concrete = program.get_concrete_function(specs, *scalars)
            except (ValueError, TypeError, NotImplementedError, AttributeError) as error:
                raise UntraceableError(find_reason(error)) from error
        self._made[engine] = self._make_runnable(concrete, block, 0 if any_size else rows)
        return concrete

    def _make_runnable(self, concrete: Any, block: Block, rows: int) -> CompiledProgram:
        constant = runtime.tensorflow().constant

        def run(arrays: Any, first: int, count: int, size: int = self.batch_size) -> Logs:
            sizes = [] if rows else [constant(size)]
            return concrete(arrays, constant(first), constant(count), *sizes)

        return CompiledProgram(read_shapes(block, rows), rows, run)

    def _program_of_any_size(self, arrays: Any, first: Any, count: Any, size: Any) -> Logs:
        """Traced: as `_program()`, with batches of `size` rows."""
        self._size = size
        try:
            return self._program(arrays, first, count)
        finally:
            self._size = self.batch_size

    def _program(self, arrays: tuple[Any, ...], first: Any, count: Any) -> Logs:
        """Traced: steps over batches `first` to `first + count`.

        A user's own step may log more than the metrics, so its last call stands after the loop.
        """
        end = first + count
        if not runtime.overrides(self.model, f"{self._kind}_step"):
            self._loop(arrays, first, end)
            return self.model.get_metrics_result()
        self._loop(arrays, first, end - 1)
        return self._step(gather(arrays, (end - 1) * self._size, self._size))

    def _loop(self, arrays: tuple[Any, ...], first: Any, end: Any) -> None:
        """Traced: steps over batches `first` to `end`, until the step's `going()` is false."""
        tf = runtime.tensorflow()
        going = getattr(self._step, "going", lambda: True)

        def body(index: Any) -> tuple[Any]:
            self._step(self._batch(arrays, index))
            return (index + 1,)

        tf.while_loop(lambda index: tf.logical_and(index < end, going()), body, (first,))

    def _batch(self, arrays: tuple[Any, ...], index: Any) -> tuple[Any, ...]:
        return cut(arrays, index * self._size, self._size)
