"""Each invariant of a program for a card fails where it should."""

from dataclasses import replace

import pytest
from invariants import WORKSPACE_BYTES, find_failures

from gpukeras.profiler.aot.compile import CompiledProgram, ProgramMemory
from gpukeras.profiler.aot.hlo import Instruction
from gpukeras.profiler.aot.thunks import Loop

STATE, BLOCK, MOST = 1_000, 50_000, 35
LOOP = Loop("while", 64, 29, 1, 1, in_graph=False, outside={})
SOUND = CompiledProgram(
    card="RTX 3060",
    memory=ProgramMemory(60_000, 1_100, STATE, 2_000),
    loops=(LOOP,),
    trip_counts={"while": 64},
    host_transfers=(),
    conditionals=0,
    entry=(Instruction("fusion.1", "fusion", 400, ""),),
    seconds=1.0,
    text="",
)
COPY = Instruction("transpose.1", "fusion", BLOCK, "")


def fail(**changes):
    return list(find_failures(replace(SOUND, **changes), STATE, BLOCK, MOST))


def test_a_sound_program_fails_nowhere():
    assert fail() == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trip_counts": {"while": 64, "inner": None}}, "how often 1 loops run"),
        ({"host_transfers": ("outfeed.1",)}, "1 exchanges with the host"),
        ({"conditionals": 2}, "2 conditionals"),
        ({"memory": replace(SOUND.memory, aliased=STATE - 1)}, "999 of 1,000 bytes of the state"),
        ({"entry": (*SOUND.entry, COPY)}, "transpose.1 is as large as the block"),
        ({"loops": (replace(LOOP, kernels=None),)}, "kernels of a step are unknown"),
        ({"loops": (replace(LOOP, kernels=36),)}, "36 kernels a step, where 35 are allowed"),
    ],
)
def test_an_invariant_that_is_broken_is_named(changes, why):
    (found,) = fail(**changes)
    assert why in found


def test_more_memory_than_planned_is_named():
    planned = STATE + SOUND.memory.temporary
    assert list(find_failures(SOUND, STATE, BLOCK, MOST, planned)) == []
    more = replace(SOUND, memory=replace(SOUND.memory, temporary=planned + int(WORKSPACE_BYTES)))
    (found,) = find_failures(more, STATE, BLOCK, MOST, planned)
    assert found.endswith("bytes of memory, where the plan has 3,000")


def test_without_a_bare_loop_kernels_are_not_compared():
    many = replace(SOUND, loops=(replace(LOOP, kernels=10**6),))
    assert list(find_failures(many, STATE, BLOCK)) == []


def test_a_run_time_trip_count_is_allowed_where_the_program_is_of_any_length():
    counts = {"while": None, "inner": 32}
    assert list(find_failures(replace(SOUND, trip_counts=counts), STATE, BLOCK, open_loops=1)) == []
    more = replace(SOUND, trip_counts={**counts, "inner": None})
    (found,) = find_failures(more, STATE, BLOCK, open_loops=1)
    assert "how often 2 loops run" in found
