"""Programs of the engines: what one runs, which blocks it takes, and how these are cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import ModelError
from gpukeras.data.loader.loader import Block
from gpukeras.engine.async_compile import Compilation, begin_compiling
from gpukeras.engine.program_cache import Traced
from gpukeras.engine.trip_counts import ProgramSizes

Logs = Mapping[str, Any]
Step = Callable[[Any], Logs]
Shapes = str


class Program:
    """The program of an engine; its number of batches is a run-time value.

    Args:
        traced: The traced function. It takes arrays, the first batch and the number of batches;
            where rows are any number, the batch size too.
        shapes: Shapes of its array arguments.
        rows: Their number of rows; 0 for any number.
        batch_size: Rows per batch.
    """

    def __init__(self, traced: Traced, shapes: Shapes, rows: int, batch_size: int) -> None:
        """Starts without a compilation in the background."""
        self.shapes = shapes
        self.rows = rows
        self._batch_size = batch_size
        self._traced = traced
        self.guard = traced.guard
        self._compilation: Compilation | None = None

    def takes(self, block: Block) -> bool:
        """Whether it was made for blocks of this shape."""
        return self.shapes == read_shapes(block, None if self.rows else 0)

    def check(self, block: Block) -> None:
        """Checks that the program may run a block.

        Raises:
            UncheckedError: if XLA would drop a check of its rows.
        """
        why = "" if self.guard is None else self.guard.refuse(block)
        if why:
            raise UncheckedError(why)

    def run(self, arrays: Any, first: int, count: int, size: int = 0) -> Logs:
        """Runs batches; returns the metrics after them.

        Args:
            arrays: The arrays of a block.
            first: The first batch.
            count: The number of batches.
            size: Rows per batch, if other than the usual.
        """
        constant = runtime.tensorflow().constant
        sizes = [] if self.rows else [constant(size or self._batch_size)]
        return self._traced(arrays, constant(first), constant(count), *sizes)

    def prepare(self, arrays: Any, batches: int) -> None:
        """Begins to compile in the background.

        Args:
            arrays: Arrays of the right shapes.
            batches: The number of batches of most calls.
        """
        self._begin(arrays, (0,))  # which changes no variable

    def grow(self, block: Block, count: int) -> None:
        """Begins to prepare calls of so many batches; does nothing, where one program runs any.

        Args:
            block: A block that it takes.
            count: The number of batches.
        """

    def is_settled(self, count: int) -> bool:
        """Whether calls of so many batches run as they always will, see `ProgramSizes`."""
        return True

    def is_ready(self) -> bool:
        """Whether it can run without waiting for the compiler.

        Raises:
            One of `tensor_ops.refusals()`: if XLA cannot compile it.
        """
        return self._compilation is None or self._compilation.is_done()

    def wait(self) -> None:
        """Waits for a compilation in the background."""
        if self._compilation is not None:
            self._compilation.wait()

    def _begin(self, arrays: Any, counts: Sequence[int]) -> None:
        constant = runtime.tensorflow().constant
        calls = [(arrays, constant(0), constant(count)) for count in counts]
        self._compilation = begin_compiling(self._traced, calls)


class StaticProgram(Program):
    """A program whose number of batches is compiled in, so that XLA makes one for each size.

    A call runs those that are ready, see `ProgramSizes`. Only that of a single batch is waited for.
    """

    def __init__(self, traced: Traced, shapes: Shapes, rows: int, batch_size: int) -> None:
        """Starts with single batches."""
        super().__init__(traced, shapes, rows, batch_size)
        self._sizes, self._tried = ProgramSizes(), tuple[int, ...]()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of batches that are compiled, largest first."""
        return self._sizes.made

    def run(self, arrays: Any, first: int, count: int, size: int = 0) -> Logs:
        """Runs batches; see `Program.run()`."""
        logs: Logs = {}
        if self.is_ready() and self._sizes.wants(count):
            self._compile(arrays, [count])
        for part in self._sizes.split(count):
            logs = super().run(arrays, first, part, size)
            first += part
        return logs

    def prepare(self, arrays: Any, batches: int) -> None:
        """Begins to compile the programs, largest first; see `Program.prepare()`."""
        self._compile(arrays, sorted({batches, 1}, reverse=True))

    def grow(self, block: Block, count: int) -> None:
        """Begins to compile the program of such calls; see `Program.grow()`."""
        if count not in self.sizes:
            self._compile(block.arrays, [count])

    def is_settled(self, count: int) -> bool:
        """Whether calls of so many batches run as they always will."""
        return self.is_ready() and self._sizes.is_settled(count)

    def is_ready(self) -> bool:
        """Whether no program is being compiled; then those that were are used."""
        if self._compilation is not None:
            if not self._compilation.is_done():
                return False
            if not self._compilation.failed:
                self._sizes.add(*self._tried)
            self._compilation = None
        return True

    def wait(self) -> None:
        """Waits for a compilation in the background, and uses what it has made."""
        super().wait()
        self.is_ready()

    def _compile(self, arrays: Any, sizes: Sequence[int]) -> None:
        self._tried = tuple(sizes)
        self._begin(arrays, sizes)


class UntraceableError(Exception):
    """A model's step cannot be traced into a loop; Keras' own function may still run it."""


class UncheckedError(UntraceableError):
    """XLA would drop a check of values that a block's rows need."""


def cut(arrays: Any, start: Any, rows: Any) -> Any:
    """Slices `rows` rows of each array of a nested structure, from any start, by one program.

    Rows lie in a matrix until they are cut, and get their shape afterwards. XLA gives what a batch
    is cut from the layout in which a convolution or a recurrent layer reads the batch: without the
    matrix, each call for a GPU would transpose the whole block before its first step.
    """
    ops = runtime.keras().ops

    def one(array: Any) -> Any:
        shape = tuple(array.shape[1:])
        width = math.prod(shape)
        flat = array if len(shape) < 2 else ops.reshape(array, (array.shape[0] or -1, width))
        begin = (start, *[0] * (len(flat.shape) - 1))
        part = ops.slice(flat, begin, (rows, *flat.shape[1:]))
        return part if len(shape) < 2 else ops.reshape(part, (rows, *shape))

    return runtime.tree().map_structure(one, arrays)


def take(arrays: Any, start: int, rows: int) -> Any:
    """Slices as `cut()`, outside of a program, where JAX would copy the block to make a matrix."""
    ops = runtime.keras().ops

    def one(array: Any) -> Any:
        rest = tuple(array.shape[1:])
        return ops.slice(array, (start, *[0] * len(rest)), (rows, *rest))

    return runtime.tree().map_structure(one, arrays)


def gather(arrays: Any, start: Any, rows: Any) -> Any:
    """Slices as `cut()`, outside of a loop: XLA would recompile a slice for each start."""
    tf = runtime.tensorflow()
    taken = start + tf.range(rows)
    return tf.nest.map_structure(lambda array: tf.gather(array, taken), arrays)


def make_static(count: Any) -> Any:
    """Traced: makes XLA compile a number in, as it does with shapes."""
    tf = runtime.tensorflow()
    return tf.shape(tf.zeros([count], tf.bool))[0]


def find_loss(logs: Any) -> Any:
    """Returns the loss that a training step gives.

    Raises:
        ModelError: if a step of the user's own gives none.
    """
    if isinstance(logs, Mapping) and "loss" in logs:
        return logs["loss"]
    raise ModelError(
        "The model's own train_step() gives no `loss`.",
        hint='Let it return a dictionary with "loss".',
        arg="model",
    )


def count_rows(arrays: Any) -> int:
    """Returns the number of rows of the arrays of a nested structure."""
    return int(runtime.tree().flatten(arrays)[0].shape[0])


def read_shapes(block: Block, rows: int | None = None) -> Shapes:
    """Returns the structure of a block's arrays, with each shape and dtype, as text.

    Args:
        block: The block.
        rows: What stands in place of its number of rows.
    """
    name = runtime.keras().backend.standardize_dtype

    def describe(array: Any) -> str:
        shape = len(array) if rows is None else rows, *array.shape[1:]
        return f"{name(array.dtype)}{shape}"

    return str(runtime.tree().map_structure(describe, block.arrays))
