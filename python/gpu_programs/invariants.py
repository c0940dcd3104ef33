"""What must hold for the program of a loop over batches, compiled for a card."""

from __future__ import annotations

from collections.abc import Iterator

from gpukeras.profiler.aot.compile import CompiledProgram

# A step checks the loss and counts itself, which a bare loop does not.
MORE_KERNELS = 2


def find_failures(
    program: CompiledProgram, state_bytes: int, block_bytes: float, bare_kernels: int | None
) -> Iterator[str]:
    """Yields what does not hold, in words.

    Args:
        program: The program.
        state_bytes: Bytes of the old state, whose memory the new one takes; 0 if it keeps its own.
        block_bytes: Bytes of the block's largest array; infinite where there is no block.
        bare_kernels: Kernels a step of Keras' own step in a bare loop; None for no comparison.
    """
    unknown = [name for name, count in program.trip_counts.items() if count is None]
    if unknown:
        yield f"XLA does not know how often {len(unknown)} loops run"
    if program.host_transfers:
        yield f"{len(program.host_transfers)} exchanges with the host"
    if program.conditionals:
        yield f"{program.conditionals} conditionals"
    if program.memory.aliased < state_bytes:
        yield f"{program.memory.aliased:,} of {state_bytes:,} bytes of the state stay in place"
    largest = program.largest
    if largest is not None and largest.bytes >= block_bytes:
        yield f"{largest.name} is as large as the block"
    kernels = program.loop.kernels
    if kernels is None:
        yield "the kernels of a step are unknown"
    elif bare_kernels is not None and kernels > bare_kernels + MORE_KERNELS:
        yield f"{kernels} kernels a step, {kernels - bare_kernels} more than a bare loop"
