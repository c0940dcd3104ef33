"""What must hold for the program of a loop over batches, compiled for a card."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpukeras.profiler.aot.compile import CompiledProgram

# cuBLAS' own, once in a program; no plan counts it, as plans leave half of the memory.
WORKSPACE_BYTES = 4.1 * 2**20


def find_failures(
    program: CompiledProgram,
    state_bytes: int,
    block_bytes: float,
    most_kernels: float = math.inf,
    planned_bytes: float = math.inf,
    open_loops: int = 0,
) -> Iterator[str]:
    """Yields what does not hold, in words.

    Args:
        program: The program.
        state_bytes: Bytes of the old state, whose memory the new one takes; 0 if it keeps its own.
        block_bytes: Bytes of the block's largest array; infinite where there is no block.
        most_kernels: Kernels that a step may have.
        planned_bytes: What gpukeras reckons with for its state and temporary memory.
        open_loops: Loops whose trip count may be unknown.
    """
    unknown = [name for name, count in program.trip_counts.items() if count is None]
    if len(unknown) > open_loops:
        yield f"XLA does not know how often {len(unknown)} loops run"
    if program.host_transfers:
        yield f"{len(program.host_transfers)} exchanges with the host"
    if program.conditionals:
        yield f"{program.conditionals} conditionals"
    yield from _find_memory_failures(program, state_bytes, block_bytes, planned_bytes)
    kernels = program.loop.kernels
    if kernels is None:
        yield "the kernels of a step are unknown"
    elif kernels > most_kernels:
        yield f"{kernels} kernels a step, where {most_kernels} are allowed"


def _find_memory_failures(
    program: CompiledProgram, state_bytes: int, block_bytes: float, planned_bytes: float
) -> Iterator[str]:
    memory, largest = program.memory, program.largest
    if memory.aliased < state_bytes:
        yield f"{memory.aliased:,} of {state_bytes:,} bytes of the state stay in place"
    if largest is not None and largest.bytes >= block_bytes:
        yield f"{largest.name} is as large as the block"
    taken = state_bytes + memory.temporary
    if taken > planned_bytes + WORKSPACE_BYTES:
        yield f"{taken:,} bytes of memory, where the plan has {planned_bytes:,.0f}"
