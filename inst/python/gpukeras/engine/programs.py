"""Programs of the engines: what one runs, which blocks it takes, and how these are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import runtime
from gpukeras.data.arrays import aligned_empty
from gpukeras.data.loading.block import Block

Logs = Mapping[str, Any]
Step = Callable[[Any], Logs]
Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class CompiledProgram:
    """The program of an engine.

    Args:
        shapes: Shapes of its array arguments.
        rows: Their number of rows; 0 for any number.
        run: Takes arrays, the first batch and the number of batches, and trains on these; where
            rows are any number, it takes the batch size too.
    """

    shapes: Shapes
    rows: int
    run: Callable[..., Logs]

    def takes(self, block: Block) -> bool:
        """Whether it was made for blocks of this shape."""
        return self.shapes == read_shapes(block, None if self.rows else 0)


class UntraceableError(Exception):
    """A model's step cannot be traced into a loop; Keras' own function may still run it."""


def cut(arrays: Any, start: Any, rows: Any) -> Any:
    """Slices `rows` rows of each array of a nested structure."""
    tf = runtime.tensorflow()

    def one(array: Any) -> Any:
        begin = tf.concat([[start], tf.zeros(len(array.shape) - 1, tf.int32)], 0)
        part = tf.slice(array, begin, [rows, *array.shape[1:]])
        if not isinstance(rows, int):
            part.set_shape([None, *array.shape[1:]])
        return part

    return tf.nest.map_structure(one, arrays)


def gather(arrays: Any, start: Any, rows: Any) -> Any:
    """Slices as `cut()`, outside of a loop: XLA would recompile a slice for each start."""
    tf = runtime.tensorflow()
    taken = start + tf.range(rows)
    return tf.nest.map_structure(lambda array: tf.gather(array, taken), arrays)


def count_rows(arrays: Any) -> int:
    """Returns the number of rows of the arrays of a nested structure."""
    return int(runtime.tensorflow().nest.flatten(arrays)[0].shape[0])


def read_shapes(block: Block, rows: int | None = None) -> Shapes:
    """Returns the shape and dtype of each array of a block, with `rows` in place of its rows."""
    arrays = runtime.tensorflow().nest.flatten(block.arrays)
    return tuple(
        ((len(array) if rows is None else rows, *array.shape[1:]), array.dtype.name)
        for array in arrays
    )


def make_like(block: Block, rows: int) -> list[Any]:
    """Returns tensors like a block's arrays, with `rows` rows; unread, they use no memory."""
    tf = runtime.tensorflow()
    arrays = tf.nest.flatten(block.arrays)
    if rows == count_rows(block.arrays):
        return arrays
    with tf.device(arrays[0].device):
        return [
            tf.identity(
                runtime.adopt_array(
                    aligned_empty((rows, *array.shape[1:]), array.dtype.as_numpy_dtype)
                )
            )
            for array in arrays
        ]
