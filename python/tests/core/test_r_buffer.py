"""A NumPy array in R's order stands for R's matrix: reticulate hands out the same, read-only."""

import gc

import numpy as np
import pytest

from gpukeras.core import r_buffer
from gpukeras.core.r_buffer import OutputBuffer, write_through

ROWS = r_buffer.SMALLEST


class R:
    """Makes matrices as R does, and keeps them."""

    def __init__(self):
        self.made = []

    def __call__(self, rows, columns, names):
        self.names = names
        self.made.append(np.zeros((rows, columns), order="F"))
        self.made[-1].flags.writeable = False
        return self.made[-1]


def test_what_is_written_is_in_the_matrix():
    r = R()
    room = OutputBuffer(r)
    values = np.arange(2.0 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    room.make((ROWS, 2), np.float32)[:] = values
    np.testing.assert_array_equal(r.made[0], values)


@pytest.mark.parametrize(("names", "asked"), [(["a", "b"], ["a", "b"]), (["a"], []), ([], [])])
def test_r_is_asked_for_the_columns_names_if_there_is_one_for_each(names, asked):
    r = R()
    OutputBuffer(r, lambda shape: names).make((ROWS, 2), np.float32)
    assert r.names == asked


@pytest.mark.parametrize("rows", [0, 1, 1023, 1024, 1025, 3000])
def test_rows_are_copied_in_tiles(rows):
    part = np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32)
    whole = np.full((rows, 3), np.nan, order="F")
    r_buffer.write_rows(whole, part)
    np.testing.assert_array_equal(whole, part)


@pytest.mark.costly
def test_a_matrix_stays_as_long_as_it_may_be_written():
    view = np.zeros((3, 2), order="F")
    written = write_through(view)
    del view
    gc.collect()
    written[2, 1] = 7
    assert written.tolist() == [[0, 0], [0, 0], [0, 7]]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((9, 2), np.float32),
        ((ROWS,), np.float32),
        ((ROWS, 2, 2), np.float32),
        ((ROWS, 2), np.int32),
    ],
    ids=["small", "vector", "array", "whole numbers"],
)
def test_r_is_not_asked_for_what_is_small_or_no_matrix_of_numbers(shape, dtype):
    r = R()
    assert OutputBuffer(r).make(shape, dtype) is None
    assert r.made == []


@pytest.mark.parametrize(
    "found",
    [
        [0.0] * ROWS,
        np.zeros((ROWS, 1), np.float32),
        np.zeros((ROWS, 3)),
        np.zeros((ROWS, 2), order="C"),
    ],
    ids=["list", "float32", "shape", "order"],
)
def test_what_is_no_matrix_of_r_is_not_written(found):
    assert OutputBuffer(lambda rows, columns, names: found).make((ROWS, 2), np.float32) is None


def test_there_is_room_for_one_array():
    room = OutputBuffer(R())
    assert room.make((ROWS, 1), np.float32) is not None
    assert room.make((ROWS, 1), np.float32) is None


def test_a_room_knows_what_it_holds():
    room = OutputBuffer(R())
    assert not room.holds(np.zeros((ROWS, 2)))
    given = room.make((ROWS, 2), np.float32)
    assert room.holds(given)
    assert room.holds(given[:, 0])
    assert not room.holds(given.copy())
