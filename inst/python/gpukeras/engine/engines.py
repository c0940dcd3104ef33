"""Runs batches of a model with one of three engines; the fastest is found by measuring.

The engines run the same Keras step on the same blocks of batches:

- "keras": Keras' own function, called once per batch. Every step has Python's overhead.
- "graph_loop": one call loops over many batches inside a TensorFlow graph.
- "compiled": the same loop as one XLA program.

None is always best (XLA's convolutions on a CPU are 8 times slower than oneDNN's), so in the first
epoch each trains real batches for a short time, and the fastest continues. No work is wasted: these
are updates of the same model. An engine is only tried where it can win and the steps left can pay
for its tracing, which equal models share, see `program_cache`; XLA compiles in a thread, see
`async_compile`, while the fastest so far trains.

The loop's first batch is a run-time value. So is its trip count, and one program serves calls of
any size; but on a GPU XLA has to know the count, see `trip_counts`, and compiles a few programs.
The short last batch of an epoch needs its own function, unless batches are few: then the loop is
traced for batches of any size, which makes each of them slower, and Keras too traces only once.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Hashable, Sequence
from typing import Any

from gpukeras.backend import cpp_log, devices, runtime, tensor_ops
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason
from gpukeras.data.loader.loader import Block
from gpukeras.engine.program_cache import make_key, open_traced, repeatable_names
from gpukeras.engine.programs import (
    Logs,
    Program,
    StaticProgram,
    Step,
    UntraceableError,
    count_rows,
    cut,
    gather,
    make_static,
    read_shapes,
)
from gpukeras.engine.trip_counts import choose_size, knows_trip_counts
from gpukeras.system import host

# Up to this number of batches the short last one shares their program. Where the size of a batch
# is unknown to XLA, a small one takes some 20 us more; tracing once more takes 0.2 to 2 s.
FEW_BATCHES = 3000


class BaseEngines:
    """What the engines of one model have on each backend.

    Args:
        model: A compiled Keras model whose variables exist.
        kind: "train" or "test": which of the model's steps.
        batch_size: Rows per batch.
        device: The model's device; under XLA it decides how dropout draws random numbers.
        static: Whether trip counts are parts of compiled programs; None for what
            `knows_trip_counts()` says of the device.

    Attributes:
        ran: Names of the functions that have run to the end: before that it is unknown whether the
            device's memory suffices.
        started_s: Seconds that the start of the first engine took; 0 before.
        chosen: The engine that was chosen last, or "".
        prepared_s: Seconds from the beginning to the end of the last preparation.
        compiled_s: Seconds that the last run compiled before its first batch; 0 if it compiled
            nothing, or if that cannot be told from the batches.
        batch_s: Seconds of a batch, for which calls are prepared; infinity while they are unknown.
    """

    def __init__(
        self,
        model: Model,
        kind: str,
        batch_size: int,
        device: str,
        static: bool | None = None,
    ) -> None:
        """Has run nothing yet."""
        self.model = model
        self._kind = kind
        self.batch_size = batch_size
        self._device = device
        chosen = knows_trip_counts(device, devices.current().deterministic)
        self._static = chosen if static is None else static
        self.ran: set[str] = set()
        self.chosen = ""
        self.started_s = 0.0
        self.prepared_s = 0.0
        self.compiled_s = 0.0
        self.batch_s = math.inf

    def knows_count(self, engine: str) -> bool:
        """Whether the number of batches is part of an engine's programs."""
        return engine == "compiled" and self._static


class Engines(BaseEngines):
    """The three engines of one model, each made when it is first run.

    Args:
        model: See `BaseEngines`.
        kind: See `BaseEngines`.
        batch_size: See `BaseEngines`.
        device: See `BaseEngines`.
        step: The step itself, see `train_step`; by default the model's own. If it has a method
            `going`, the loop continues only while that returns true, unless its trip count is part
            of the program: then all steps run, and what they recorded is read afterwards.
        static: See `BaseEngines`.
    """

    def __init__(
        self,
        model: Model,
        kind: str,
        batch_size: int,
        device: str,
        step: Step | None = None,
        *,
        static: bool | None = None,
    ) -> None:
        """Takes Keras' own function."""
        super().__init__(model, kind, batch_size, device, static)
        self._step = getattr(model, f"{kind}_step") if step is None else step
        self._keras_function = self._take_function(step)
        self._made: dict[str, Program] = {}
        self._tail: Program | None = None
        self._any_size = False
        self._variable_batch_size = False
        self._began = 0.0  # start of the current preparation

    def _take_function(self, step: Step | None) -> Any:
        """Returns Keras' own function of the step; the model's attributes stay unchanged."""
        model, kind = self.model, self._kind
        before, steps = getattr(model, f"{kind}_function"), model.steps_per_execution
        model.steps_per_execution = 1
        if step is not None:
            setattr(model, f"{kind}_step", step)
        try:
            getattr(model, f"make_{kind}_function")(force=True)
            return getattr(model, f"{kind}_function")
        finally:
            if step is not None:
                delattr(model, f"{kind}_step")
            setattr(model, f"{kind}_function", before)
            model.steps_per_execution = steps

    @property
    def identity(self) -> Hashable | None:
        """What engines of equal models share; None if that is unknown."""
        return make_key(self.model, self._step, (self._kind, self.batch_size, self._device))

    @property
    def variables(self) -> Sequence[Any]:
        """The variables that the step changes besides the model's own."""
        return getattr(self._step, "variables", ())

    def expect(self, batches: int, short: bool, variable_batch_size: bool = False) -> None:
        """Announces the batches to be run.

        Args:
            batches: Their number.
            short: Whether some may be shorter.
            variable_batch_size: Whether the step must not know their size, whatever it costs.
        """
        self._variable_batch_size = variable_batch_size
        self._any_size = variable_batch_size or (short and batches <= FEW_BATCHES)
        made = self._made.get("graph_loop")
        if made is not None and not made.rows and not self._any_size and batches > FEW_BATCHES:
            del self._made["graph_loop"]

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
                made.check(block)
                return self._run_parts(made, block, first, count)
        known = self.takes(engine, block)
        if not known:
            self._make(engine, block, rows)
        made = self._made[engine]
        made.check(block)
        with contextlib.nullcontext() if known else cpp_log.muted_cpp_log():
            return made.run(block.arrays, first, count)

    def takes(self, engine: str, block: Block) -> bool:
        """Whether an engine has a program for blocks of this shape."""
        made = self._made.get(engine)
        return engine == "keras" or (made is not None and made.takes(block))

    def prepare(self, engine: str, block: Block) -> bool:
        """Prepares an engine for blocks of this shape; returns whether it can run.

        The first call traces it; then XLA compiles in a thread, where that is possible.

        Args:
            engine: Its name.
            block: A block.

        Raises:
            UntraceableError, or one of `tensor_ops.refusals()`: if it cannot run this model.
        """
        rows, made = count_rows(block.arrays), self._made.get(engine)
        if made is None or made.shapes != read_shapes(block, rows):
            self._began = time.perf_counter()
            made = self._make(engine, block, rows)
            made.check(block)
            made.prepare(block.arrays, choose_size(rows // self.batch_size, self.batch_s))
        if not made.is_ready():
            return False
        if self._began:
            self.prepared_s, self._began = time.perf_counter() - self._began, 0.0
            host.trim_memory()
        return True

    def is_settled(self, engine: str, block: Block, count: int) -> bool:
        """Whether a call of so many batches runs as later ones will, so that its time tells."""
        made = self._made.get(engine)
        return made is None or made.is_settled(count)

    def warm(self, block: Block, engine: str, count: int) -> None:
        """Compiles what calls of so many batches need, and waits: later ones can be timed.

        Args:
            block: A block.
            engine: The engine; it has run a batch of the block.
            count: The number of batches.
        """
        made = self._made.get(engine)
        if made is not None:
            made.wait()
            made.grow(block, count)
            made.wait()

    def run_tail(self, engine: str, block: Block) -> Logs:
        """Runs the short last batch of an epoch."""
        if engine == "keras":
            return self._keras_function(iter([block.arrays]))
        made, rows = self._made.get("graph_loop"), count_rows(block.arrays)
        if made is None or made.rows or not made.takes(block):
            if self._tail is None or not self._tail.takes(block):
                try:
                    self._tail = self._open("graph_loop", block, 0)
                except UntraceableError:  # for a step that needs to know its number of rows
                    return self._keras_function(iter([block.arrays]))
            made = self._tail
        return made.run(block.arrays, 0, 1, rows)

    def _run_keras(self, block: Block, first: int, count: int) -> Logs:
        size, nest = self.batch_size, runtime.tensorflow().nest
        for start in range(first * size, (first + count) * size, size):
            rows = slice(start, start + size)
            batch = nest.map_structure(lambda array, rows=rows: array[rows], block.arrays)
            logs = self._keras_function(iter([batch]))
        return logs

    def _run_parts(self, made: Program, block: Block, first: int, count: int) -> Logs:
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

    def _make(self, engine: str, block: Block, rows: int) -> Program:
        """Opens an engine's program for blocks of `rows` rows, which it will use from now on."""
        any_size = self._any_size and engine == "graph_loop"
        self._made[engine] = self._open(engine, block, 0 if any_size else rows)
        return self._made[engine]

    def _open(self, engine: str, block: Block, rows: int) -> Program:
        """Opens a program, an equal model's or a new one, for blocks of `rows` rows; 0 for any."""
        tf = runtime.tensorflow()
        specs = tf.nest.map_structure(
            lambda array: tf.TensorSpec([rows or None, *array.shape[1:]], array.dtype),
            block.arrays,
        )
        compiled, on_cpu = engine == "compiled", self._device.startswith("CPU")
        static = compiled and self._static
        known = bool(static and rows)

        def loop(arrays: Any, first: Any, count: Any, *size: Any) -> Logs:
            number = make_static(count) if known else count
            return self._program(arrays, first, number, *size, asks=not known)

        loop.__name__ = "_program_of_known_count" if known else "_program"  # as XLA calls it
        program = tf.function(loop, autograph=False, jit_compile=compiled)
        scalars = [tf.TensorSpec([], tf.int32)] * (2 if rows else 3)
        variable_batch_size = self._variable_batch_size
        terms = (
            self._kind,
            engine,
            static,
            self.batch_size,
            self._device,
            variable_batch_size,
            specs,
        )
        dropout = tensor_ops.threefry_dropout if compiled and on_cpu else contextlib.nullcontext

        def trace() -> Any:
            with dropout(), repeatable_names(self.model, str(terms)):
                return program.get_concrete_function(specs, *scalars)

        try:
            traced = open_traced(self.model, self._step, terms, trace, guarded=compiled)
        except REFUSALS as error:
            raise UntraceableError(find_reason(error)) from error
        self.started_s = self.started_s or traced.saved_s
        kind = StaticProgram if static else Program
        return kind(traced, read_shapes(block, rows), rows, self.batch_size)

    def _program(
        self, arrays: Any, first: Any, count: Any, size: Any = None, *, asks: bool = True
    ) -> Logs:
        """Traced: steps over batches `first` to `first + count`.

        A user's own step may log more than the metrics, so its last call stands after the loop.

        Args:
            arrays: The arrays of a block.
            first: The first batch.
            count: The number of batches.
            size: Rows per batch, a tensor; None for the usual number.
            asks: Whether the loop asks the step's `going()`.
        """
        size = self.batch_size if size is None else size
        if not tensor_ops.overrides(self.model, f"{self._kind}_step"):
            self._loop(arrays, first, count, size, asks)
            return self.model.get_metrics_result()
        self._loop(arrays, first, count - 1, size, asks)
        return self._step(gather(arrays, (first + count - 1) * size, size))

    def _loop(self, arrays: Any, first: Any, count: Any, size: Any, asks: bool) -> None:
        """Traced: `count` steps from batch `first` on, until the step's `going()` is false."""
        tf = runtime.tensorflow()
        going = getattr(self._step, "going", None) if asks else None

        def is_left(done: Any, _: Any) -> Any:
            return done < count if going is None else tf.logical_and(done < count, going())

        def body(done: Any, index: Any) -> tuple[Any, Any]:
            self._step(self._batch(arrays, index, size))
            return done + 1, index + 1

        # `index` is carried, as XLA would compile again for each value of an unchanged `first`.
        tf.while_loop(is_left, body, (tf.constant(0), first))

    def _batch(self, arrays: Any, index: Any, size: Any) -> Any:
        return cut(arrays, index * size, size)
