"""Writes large results into memory that R allocated.

R matrices are float64 in column-major order; model outputs are float32 in row-major order.
reticulate takes 0.13 s for a million rows of ten outputs: it converts them, then copies number by
number (measured, reticulate 1.28). Instead, R allocates the matrix and the core writes into it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

TILE_ROWS = 1024  # rows per tile: source and target tile fit into a core's cache
SMALLEST = 100_000  # numbers; below, a call to R costs more than it saves


class OutputBuffer:
    """A matrix that R allocates once its shape is known.

    Args:
        ask: R function of the number of rows, of columns and the column names; returns a new matrix
            without other references. Setting the names later would copy it.
        name: Returns the column names for a shape.

    Attributes:
        given: A writable view of R's matrix, or None before it is allocated.
    """

    def __init__(
        self,
        ask: Callable[[int, int, list[str]], Any],
        name: Callable[[tuple[int, ...]], list[str]] = lambda shape: [],
    ) -> None:
        """Stores both functions; allocates nothing."""
        self._ask, self._name = ask, name
        self.given: np.ndarray | None = None

    def make(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
        """Returns R's memory for an array, or None if the caller must allocate it.

        A buffer holds one floating-point array of two dimensions and at least `SMALLEST` numbers.
        Several outputs of a model are small, or use a buffer each.
        """
        number = np.issubdtype(dtype, np.floating)
        if self.given is not None or len(shape) != 2 or not number or np.prod(shape) < SMALLEST:
            return None
        names = self._name(shape)
        matrix = self._ask(*shape, names if len(names) == shape[1] else [])
        if not _is_r_matrix(matrix, shape):
            return None
        self.given = write_through(matrix)
        return self.given

    def holds(self, values: np.ndarray) -> bool:
        """Whether an array shares memory with this buffer, as the values or their only column."""
        return self.given is not None and np.may_share_memory(values, self.given)


def _is_r_matrix(value: Any, shape: tuple[int, ...]) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.float64
        and value.shape == shape
        and bool(value.flags.f_contiguous)
    )


def write_rows(whole: np.ndarray, part: np.ndarray) -> None:
    """Copies rows tile by tile: changing the memory order took 0.014 s instead of 0.026 s.

    Measured on a million rows of ten columns, from row-major float32 to column-major float64.
    """
    for start in range(0, len(part), TILE_ROWS):
        tile = slice(start, start + TILE_ROWS)
        whole[tile] = part[tile]


def write_through(view: np.ndarray) -> np.ndarray:
    """Returns a writable array on the memory of a column-major view.

    reticulate passes R arrays as read-only, because an R value must not change once it has a name;
    the matrix written here must not have a name yet.
    """
    memory = (ctypes.c_char * view.nbytes).from_address(view.ctypes.data)
    # Keeps R's matrix alive while the array exists; ctypes objects accept attributes.
    memory.owner = view  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(memory), view.dtype).reshape(view.shape, order="F")
