"""Thunks of a program that JAX 0.10.2 compiled for a V100 (support/xla_dump).

def inner(s, x):
    s = lax.fori_loop(0, 5, lambda i, s: jnp.tanh(s @ x), s)
    s = s / (1 + jnp.abs(s).max())
    return lax.cond(s.sum() > 0, lambda s: s @ s, lambda s: jnp.tanh(s), s)

lax.fori_loop(0, 64, lambda i, s: inner(s, x[i]) + jnp.sort(s, 0) @ s, s)
"""

import shutil
from pathlib import Path

import pytest

from gpukeras.profiler.aot.thunks import find_loops, parse_thunks, read_thunks

DUMP = Path(__file__).parents[2] / "support" / "xla_dump"
COUNTS = {"while.24": 5, "while.26": 64}


def test_groups_and_their_parts_are_parsed():
    thunks = read_thunks(DUMP)
    assert [one.kind for one in thunks] == ["kCopy", "kWhile"]
    loop = thunks[1]
    assert [one.number for one in loop.part_of("condition")] == [3]
    assert [one.number for one in loop.part_of("body")] == [4, 5, 6, 7, 8, 0]
    inner = loop.part_of("body")[4]
    assert (inner.name, [one.number for one in inner.part_of("body")]) == ("while.24", [10, 11, 12])
    branch = next(one for one in loop.walk() if one.kind == "kConditional")
    assert [one.part for one in branch.inside] == ["false_branch", "true_branch"]


def test_a_step_is_counted_with_its_inner_loop():
    (loop,) = find_loops(read_thunks(DUMP), COUNTS)
    assert (loop.name, loop.trip_count) == ("while.26", 64)
    # 4 copies and kernels, 5 iterations of 3 kernels, and 10 kernels of the command buffer.
    assert loop.kernels == 4 + 5 * 3 + 10
    assert loop.launches == 4 + 5 * 3 + 1
    assert (loop.graphs, loop.in_graph, loop.is_graph) == (1, False, False)
    assert loop.outside == {"kCopy": 2, "kCustomKernel": 2, "kWhile": 1}


def test_what_depends_on_an_unknown_trip_count_is_unknown():
    (loop,) = find_loops(read_thunks(DUMP), {"while.24": None, "while.26": None})
    assert (loop.trip_count, loop.kernels, loop.launches) == (None, None, None)


LOOP_IN_GRAPH = """
001: kCommandBuffer
  002: kWhile
condition:
    003: kCustomKernel
    body:
      004: kCustomKernel
      005: kCopy
"""
GRAPH_IN_LOOP = """
001: kWhile
condition:
    002: kCustomKernel
  body:
    003: kCommandBuffer
        004: kCustomKernel
        005: kCustomKernel
"""
NO_LOOP = "001: kCustomKernel\n002: kCopy\n"


@pytest.mark.parametrize(
    ("text", "trips", "launches", "in_graph", "is_graph"),
    [
        (LOOP_IN_GRAPH, 8, 1, True, True),
        (GRAPH_IN_LOOP, 8, 1, False, True),
        (NO_LOOP, 1, 2, False, False),  # as one iteration
    ],
    ids=["a loop in a command buffer", "a command buffer in a loop", "no loop"],
)
def test_kernels_and_launches_of_an_iteration(text, trips, launches, in_graph, is_graph):
    (loop,) = find_loops(parse_thunks(text), {"": 8})
    assert (loop.trip_count, loop.kernels, loop.launches) == (trips, 2, launches)
    assert (loop.in_graph, loop.is_graph) == (in_graph, is_graph)


def test_a_dump_without_passes_is_read_and_one_without_thunks_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no thunks"):
        read_thunks(tmp_path)
    (whole,) = DUMP.glob("*after_thunk_passes.txt")
    shutil.copy(whole, tmp_path / "module_0001.jit_f.thunk_sequence.txt")
    assert len(read_thunks(tmp_path)) == 2
