"""Reads what a training would be on a card: its rows, and its program if that is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.data.plan import STREAM_BLOCK_BATCHES, PipelinePlan, choose_capacity, plan_pipeline
from gpukeras.profiler.aot.child import (
    CallShape,
    CompilingError,
    TrainingProgram,
    compile_training,
)
from gpukeras.profiler.aot.training_loop import describe_rows
from gpukeras.profiler.cost.card_cost import CardCost, CardFacts, judge_card
from gpukeras.profiler.cost.memory import MemoryNeed
from gpukeras.profiler.placement import read_card, read_policy
from gpukeras.system.cards import Card, choose_card, find_card

GPU = "GPU:0"


@dataclass(frozen=True)
class CardRequest:
    """What is asked for.

    Args:
        card: The card.
        data: The rows, or None.
        compiler: An interpreter that can compile for a card, or "".
    """

    card: Card
    data: Dataset | None
    compiler: str


def find_asked_card(asked: str | None, device: str) -> tuple[Card | None, str]:
    """Returns the card that is asked for, or that is here; or None, and a note for the user.

    Args:
        asked: The user's name for a card; None for the model's.
        device: The model's device, such as "GPU:0".

    Raises:
        SpecError: for a card that is not listed.
    """
    if asked is not None:
        return choose_card(asked), ""
    here = read_card(device)
    card = find_card(here)
    missing = bool(here) and card is None
    return card, f"{here} is not in the table of cards: `card` names one." if missing else ""


def read_card_cost(
    model: Model, request: CardRequest, need: MemoryNeed, row_flops: float | None
) -> CardCost:
    """Returns what a training would be on a card.

    Args:
        model: A built model.
        request: What is asked for.
        need: The estimate of the training's memory.
        row_flops: FLOPs of a training step for a row; None if unknown.
    """
    data, card = request.data, request.card
    share = runtime.usable_share()
    plan = None if data is None else plan_rows(data, card, need.batch_size, share)
    block = 0 if plan is None or data is None else count_block(plan, data)
    program, why = None, "Without `data`, rows are not counted, and no program is compiled."
    if data is not None:
        program, why = _try_compiling(model, request, need.batch_size, block)
    temporary = None
    if need.row_bytes is not None:
        temporary = need.gradients_bytes + need.copies_bytes + need.batch_size * need.row_bytes
    held = None if need.optimizer_bytes is None else need.weights_bytes + need.optimizer_bytes
    resident = plan is not None and plan.mode == "resident"
    facts = CardFacts(
        card=card,
        policy=read_policy(model),
        tf32=runtime.tensor_float_32(),
        rows=None if plan is None else plan.rows,
        batch_size=need.batch_size,
        row_flops=row_flops,
        rows_bytes=None if plan is None else plan.staged_bytes if resident else 0.0,
        block_bytes=0.0 if data is None else float(data.row_bytes * need.batch_size * block),
        blocks=1 if resident else 2,  # the host sends one while the card works on another
        state_bytes=held,
        temporary_bytes=temporary,
        program=program,
        share=share,
    )
    install = data is not None and not request.compiler
    return judge_card(facts, (why,) if why else (), install=install)


def plan_rows(data: Dataset, card: Card, batch_size: int, share: float) -> PipelinePlan:
    """Returns the plan of rows for a card of whose memory a share is free."""
    plan = data.plan("CPU:0", batch_size)
    if not isinstance(data, MapDataset):
        return plan
    memory = share * card.memory_bytes
    facts = data.read_facts(GPU, memory, memory)
    return plan_pipeline(facts, data.spec_of(batch_size))


def count_block(plan: PipelinePlan, data: Dataset) -> int:
    """Returns the batches of a block; of rows without a known end, the most."""
    steps = plan.steps_per_epoch or STREAM_BLOCK_BATCHES
    batch_bytes = plan.batch_size * data.row_bytes
    return choose_capacity(batch_bytes, steps, plan.block_bytes, plan.even_blocks)


def _try_compiling(
    model: Model, request: CardRequest, batch_size: int, block: int
) -> tuple[TrainingProgram | None, str]:
    """Returns the program, or None and a sentence that says why there is none."""
    data = request.data
    assert data is not None  # without rows nothing is compiled
    if not request.compiler:
        return None, "No program was compiled: the packages for that are not installed."
    reason = data.obstacle
    if not model.compiled:
        reason = "the model has no loss and no optimizer: see compile()"
    elif model.run_eagerly:
        reason = "the model trains eagerly"
    if reason:
        return None, f"No program was compiled: {reason}."
    shape = CallShape(
        rows=describe_rows(sample_rows(data, 1)),
        batch_size=batch_size,
        batches=block,
        wrapped=data.wrapped,
    )
    try:
        return compile_training(request.compiler, model, request.card.name, shape), ""
    except CompilingError as error:
        return None, f"No program was compiled: {error}."
