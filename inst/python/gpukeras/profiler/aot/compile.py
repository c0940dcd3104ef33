"""Compiles a function of JAX for a card that is not here, and reads the program; nothing runs.

    program = compile_for(choose_card("RTX 3060"), jax.jit(step, donate_argnums=0), state, rows)
    program.loop.trip_count, program.loop.kernels, program.memory.temporary

It needs the packages of `requirements.txt`: neither driver nor cuDNN nor cuBLAS. `JAX_PLATFORMS`
must be "cpu", else JAX looks for CUDA's libraries. XLA cannot time kernels without the card, so
autotuning is off: products and convolutions are what XLA takes by default, and the number of
kernels can differ by some from the card's own.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpukeras.backend.jax_module import jax, jax_topologies
from gpukeras.profiler.aot import hlo
from gpukeras.profiler.aot.target import describe_target
from gpukeras.profiler.aot.thunks import Loop, find_loops, read_thunks
from gpukeras.system.cards import Card

_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_dump_hlo_as_text": True}


@dataclass(frozen=True)
class ProgramMemory:
    """Bytes of a program.

    Args:
        arguments: Of its arguments.
        outputs: Of its results.
        aliased: Of the results that take the memory of arguments.
        temporary: Of all else, while it runs.
    """

    arguments: int
    outputs: int
    aliased: int
    temporary: int

    @property
    def total(self) -> int:
        """All bytes while it runs."""
        return self.arguments + self.outputs - self.aliased + self.temporary


@dataclass(frozen=True)
class CompiledProgram:
    """A program, as XLA compiled it for a card.

    Args:
        card: The card's name.
        memory: Its memory.
        loops: Its loops; what has none counts as one iteration.
        trip_counts: How often each loop runs, inner ones too; None where XLA does not know.
        host_transfers: Instructions that exchange data with the host.
        conditionals: Branches that are chosen while it runs.
        entry: Instructions outside of loops that have memory of their own.
        seconds: Of compiling.
        text: Its HLO.
    """

    card: str
    memory: ProgramMemory
    loops: tuple[Loop, ...]
    trip_counts: Mapping[str, int | None]
    host_transfers: tuple[str, ...]
    conditionals: int
    entry: tuple[hlo.Instruction, ...]
    seconds: float
    text: str

    @property
    def loop(self) -> Loop:
        """The loop with the most kernels: the one over batches."""
        return max(self.loops, key=lambda loop: loop.kernels or 0)

    @property
    def largest(self) -> hlo.Instruction | None:
        """The instruction outside of loops with the largest result."""
        return max(self.entry, key=lambda instruction: instruction.bytes, default=None)


def compile_for(
    card: Card,
    jitted: Any,
    *arguments: Any,
    options: Mapping[str, Any] | None = None,
    keep: Path | None = None,
) -> CompiledProgram:
    """Compiles a function for a card.

    Args:
        card: The card.
        jitted: What `jax.jit()` returned; donated and static arguments are heeded.
        arguments: Arrays, or what has `shape` and `dtype`, in any structure; only shapes matter.
            Numbers and static arguments as they are.
        options: XLA's options by name. Those of the form "+WHILE" are read from XLA_FLAGS alone.
        keep: A folder for XLA's dump; None for one that is removed.
    """
    sharding = jax().sharding.SingleDeviceSharding(_open_device_of(describe_target(card)))
    shapes = jax().tree.map(partial(_as_shape, sharding=sharding), arguments)
    lowered = jitted.trace(*shapes).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        settings = {**_OPTIONS, "xla_dump_to": str(folder), **(options or {})}
        compiled = lowered.compile(compiler_options=settings)
        seconds = time.perf_counter() - began
        text = compiled.as_text()
        counts = hlo.read_trip_counts(text)
        return CompiledProgram(
            card=card.name,
            memory=read_memory(compiled),
            loops=find_loops(read_thunks(folder), counts),
            trip_counts=counts,
            host_transfers=hlo.find_host_transfers(text),
            conditionals=hlo.count_conditionals(text),
            entry=hlo.read_entry(text),
            seconds=seconds,
            text=text,
        )


def read_memory(compiled: Any) -> ProgramMemory:
    """Returns the memory of what `jax.jit().lower().compile()` returned, for any device."""
    analysis = compiled.memory_analysis()
    return ProgramMemory(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
        temporary=analysis.temp_size_in_bytes,
    )


@functools.cache
def _open_device_of(target: str) -> Any:
    made = jax_topologies().get_topology_desc("", "cuda", target_config=target, topology="1x1x1")
    return made.devices[0]


def _as_shape(value: Any, sharding: Any) -> Any:
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return value
    weak = bool(getattr(value, "weak_type", False))
    return jax().ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding, weak_type=weak)
