"""Reckons what a training would be on a card that need not be here: its memory, what bounds it.

Nothing here was measured. A figure is "compiled" (XLA made the program for this card), "computed"
(from the model, the rows and the card's data sheet) or "assumed" (from the source that it names).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpukeras.backend.mixed_precision import Gpu, choose_policy
from gpukeras.core.messages import count_of
from gpukeras.profiler.aot.child import TrainingProgram
from gpukeras.system.cards import Card

COMPILED, COMPUTED, ASSUMED = "compiled", "computed", "assumed"
# TensorFlow leaves 500 MiB (capability 6) to 1,800 MiB of a card to them: MinSystemMemory() in
# gpu_device.cc.
LIBRARY_BYTES = 500 * 2**20
LIBRARIES = "CUDA, cuDNN, cuBLAS: the least that TensorFlow leaves them"
# Kernels of 2.9 us followed one another each 3.8 us where the host launched each, and each 3.4 us
# within a CUDA graph: NVIDIA, "Getting Started with CUDA Graphs", 2019, on a V100
# (developer.nvidia.com/blog/cuda-graphs). A host that is slower than the card needs more.
LAUNCH_S, GRAPH_KERNEL_S = 0.9e-6, 0.5e-6
LAUNCHES = "0.9 us a launch, 0.5 us a kernel in a graph (NVIDIA, V100, 2019)"


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        name: What it is; ends with `_bytes` or `_s` where it has that unit.
        value: Its value; None if unknown.
        basis: "compiled", "computed" or "assumed".
        source: What it is from.
    """

    name: str
    value: float | None
    basis: str
    source: str


@dataclass(frozen=True)
class CardFacts:
    """What the reckoning is from.

    Args:
        card: The card.
        policy: The model's dtype policy.
        tf32: Whether float32 products may be computed as TF32.
        rows: Rows to train on; None without data, 0 if their end is unknown.
        batch_size: Rows per step.
        row_flops: FLOPs of a training step for a row; None if unknown.
        rows_bytes: Of rows that stay on the card, 0 if none do; None without data.
        block_bytes: Of a block of rows, which a call takes.
        blocks: Blocks that are there at once.
        state_bytes: Of weights and optimizer; None if unknown.
        temporary_bytes: Estimate of gradients and activations; None if unknown.
        program: The compiled program, or None.
        share: Of the card's memory, what the framework takes at most.
    """

    card: Card
    policy: str
    tf32: bool
    rows: int | None
    batch_size: int
    row_flops: float | None
    rows_bytes: float | None
    block_bytes: float
    blocks: int
    state_bytes: float | None
    temporary_bytes: float | None
    program: TrainingProgram | None = None
    share: float = 1.0


@dataclass(frozen=True)
class CardCost:
    """What a training would be on a card; nothing of it was measured.

    Args:
        card: The card's name.
        fits: Whether its memory suffices; None if unknown. True leaves out what libraries take
            beyond the assumed least.
        bound: What takes the larger part of the shortest step: "launches", "arithmetic" or
            "memory"; "" if unknown.
        precision: The dtype policy that suits the card.
        precision_reason: Why.
        figures: All figures.
        notes: Sentences on what is not known, and why.
        install: Whether the packages are missing that compile for a card.
    """

    card: str
    fits: bool | None
    bound: str
    precision: str
    precision_reason: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    install: bool = False

    def find(self, name: str) -> float | None:
        """Returns the value of a figure."""
        return next(figure.value for figure in self.figures if figure.name == name)


def judge_card(facts: CardFacts, notes: tuple[str, ...] = (), *, install: bool = False) -> CardCost:
    """Returns what a training would be on a card.

    Args:
        facts: What it is reckoned from.
        notes: See `CardCost`.
        install: See `CardCost`.
    """
    card, memory = facts.card, _list_memory(facts)
    total = _sum([figure.value for figure in memory])
    step = _list_step(facts)
    room = find_room(card, facts.share) + LIBRARY_BYTES
    major, minor = card.capability
    precision = choose_policy("auto", [Gpu(f"{major}.{minor}", card.name)])
    size = Figure("card_bytes", card.memory_bytes, ASSUMED, card.source)
    whole = Figure("total_bytes", total, _weakest(memory), "a lower bound")
    return CardCost(
        card=card.name,
        fits=None if total is None else total <= room,
        bound=_choose_bound(step),
        precision=precision.policy,
        precision_reason=precision.reason,
        figures=(*memory, whole, size, *step),
        notes=(
            *notes,
            *_explain_share(facts, total, room),
            *_explain_waits(facts.program),
            *_explain_knee(facts.rows, step),
        ),
        install=install,
    )


def find_room(card: Card, share: float) -> float:
    """Returns the bytes of a card that a training may take beside libraries.

    Args:
        card: The card.
        share: Of its memory, what the framework takes at most.
    """
    return min(card.memory_bytes - LIBRARY_BYTES, share * card.memory_bytes)


def _explain_share(facts: CardFacts, total: float | None, room: float) -> list[str]:
    if total is None or not room < total <= facts.card.memory_bytes:
        return []
    return [
        f"JAX takes {facts.share:.0%} of a card's memory at most, which "
        "XLA_PYTHON_CLIENT_MEM_FRACTION can raise before Python starts; beside it are libraries."
    ]


def _explain_knee(rows: int | None, step: tuple[Figure, ...]) -> list[str]:
    knee = next(figure.value for figure in step if figure.name == "knee")
    if not rows or knee is None or knee <= rows:
        return []
    return [f"The knee is more than the {rows:,} rows: no batch of them keeps this card busy."]


def _explain_waits(program: TrainingProgram | None) -> list[str]:
    """Returns sentences on what of a program makes the card wait for the host."""
    if program is None:
        return []
    waits = {
        "unknown trip count": program.unknown_trips,
        "host transfer": program.host_transfers,
        "conditional": program.conditionals,
    }
    waited = [count_of(count, what) for what, count in waits.items() if count]
    return [f"The card waits for the host: the program has {', '.join(waited)}."] if waited else []


# Memory -------------------------------------------------------------------------------------------


def _list_memory(facts: CardFacts) -> tuple[Figure, ...]:
    program = facts.program
    block, basis = facts.block_bytes, COMPUTED
    if program is not None:
        block, basis = float(program.block_bytes), COMPILED
    rows = (
        Figure("rows_bytes", facts.rows_bytes, COMPUTED, "of the whole training"),
        Figure("block_bytes", facts.blocks * block, basis, "blocks that are there at once"),
    )
    if program is None:
        held = (
            Figure("state_bytes", facts.state_bytes, COMPUTED, "weights and optimizer"),
            Figure("temporary_bytes", facts.temporary_bytes, COMPUTED, "gradients, activations"),
        )
    else:
        state = program.argument_bytes - program.block_bytes
        results = max(0, program.output_bytes - program.aliased_bytes)
        held = (
            Figure("state_bytes", state, COMPILED, "arguments but rows"),
            Figure("temporary_bytes", program.temporary_bytes + results, COMPILED, "all else"),
        )
    libraries = Figure("libraries_bytes", LIBRARY_BYTES, ASSUMED, LIBRARIES)
    return (*(rows if facts.rows_bytes is not None else ()), *held, libraries)


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _weakest(figures: tuple[Figure, ...]) -> str:
    bases = {figure.basis for figure in figures}
    return next(basis for basis in (ASSUMED, COMPUTED, COMPILED) if basis in bases)


# A step -------------------------------------------------------------------------------------------


def _list_step(facts: CardFacts) -> tuple[Figure, ...]:
    card, program = facts.card, facts.program
    kernels = None if program is None else program.kernels
    launches = None if program is None else program.launches
    gaps = None
    if kernels is not None and launches is not None:
        gaps = launches * LAUNCH_S + (kernels - launches) * GRAPH_KERNEL_S
    peak, source = _choose_peak(facts)
    row = None if facts.row_flops is None or peak is None else facts.row_flops / peak
    held = facts.state_bytes if program is None else program.state_bytes
    traffic = None if held is None else 2 * held / (card.bandwidth_gbs * 1e9)
    work = None if row is None else row * facts.batch_size
    return (
        Figure("kernels", kernels, COMPILED, "of a step"),
        Figure("launches", launches, COMPILED, "of a step; a CUDA graph is one"),
        Figure("launches_s", gaps, ASSUMED, LAUNCHES),
        Figure("arithmetic_s", work, COMPUTED, source),
        Figure("memory_s", traffic, COMPUTED, f"state in and out at {card.bandwidth_gbs:g} GB/s"),
        Figure("knee", _find_knee(gaps, traffic, row), ASSUMED, "arithmetic as long as all else"),
    )


def _choose_peak(facts: CardFacts) -> tuple[float | None, str]:
    """Returns FLOP/s of the model's precision on the card, and the source."""
    peak = facts.card.find_peak(facts.policy, facts.tf32)
    if peak is None:
        return None, f"no peak for {facts.policy} in the table"
    return peak.tflops * 1e12, f"{peak.tflops:g} TFLOP/s in {peak.dtype}"


def _find_knee(gaps: float | None, traffic: float | None, row: float | None) -> float | None:
    """Returns the power of two of rows from which arithmetic takes as long as all else."""
    if gaps is None or traffic is None or not row:
        return None
    return 2.0 ** math.ceil(math.log2(max(1.0, (gaps + traffic) / row)))


def _choose_bound(step: tuple[Figure, ...]) -> str:
    names = ("launches_s", "arithmetic_s", "memory_s")
    values: dict[str, Any] = {figure.name: figure.value for figure in step if figure.name in names}
    if None in values.values():
        return ""
    return max(names, key=lambda name: values[name]).removesuffix("_s")
