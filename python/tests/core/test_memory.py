"""Memory that is asked for ahead of its use."""

import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gpukeras.core import memory
from gpukeras.core.memory import ALIGNMENT, aligned_empty, populate

KERNEL = (
    tuple(map(int, re.findall(r"\d+", platform.release())[:2])) if sys.platform == "linux" else ()
)
on_linux = pytest.mark.skipif(KERNEL < (5, 14), reason="Linux from 5.14 on populates memory")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * memory.PAGE


def test_arrays_are_aligned():
    assert all(aligned_empty((3, 5), np.uint8).ctypes.data % ALIGNMENT == 0 for _ in range(9))


@pytest.mark.costly
@on_linux
def test_memory_is_there_before_it_is_written():
    array = aligned_empty((2**24, 4))
    before = resident_bytes()
    populate(array).join()
    assert resident_bytes() - before > 0.9 * array.nbytes


@on_linux
def test_what_is_written_stays():
    array = aligned_empty((2**20, 3))
    array[...] = np.arange(3)
    populate(array).join()
    assert (array == np.arange(3)).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_small_arrays_need_no_memory(rows):
    thread = populate(aligned_empty((rows, 3)))
    if thread is not None:
        thread.join()


def test_other_systems_are_not_asked(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert populate(aligned_empty((3, 5))) is None
