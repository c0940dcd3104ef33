"""Where rows live, how large a batch is, how many make a block: pure decisions with a reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .errors import SpecError
from .specs import DatasetSpec

BLOCK_BYTES = 8 * 2**20  # 2 and 4 MiB trained slower, 16 not faster (200 columns, 2 cores)
BLOCK_BATCHES = 512  # at batch 32 some 25 ms of training; a call costs about 0.3 ms
UPDATES_AN_EPOCH = 100  # what batch_size = "auto" aims at
RESIDENT_SHARE = 0.5  # of free device memory; the rest is for weights, activations, workspace
EVALUATION_BYTES = 4 * 2**20  # input of a batch when nothing is learned
EVALUATION_ROWS = 8192


@dataclass(frozen=True)
class PipelineFacts:
    """What the plan is made from.

    Args:
        rows: Training rows.
        validation_rows: Validation rows.
        row_bytes: Bytes of one staged row with label and weight.
        device: Where the model trains, such as "GPU:0".
        free_bytes: Free memory of that device, or None if unknown.
        na: What happens to missing values: "error", "impute" or "drop".
        dropped: Rows that were left out for missing values.
        indicators: Columns with an indicator of missing values.
        streamed: Why rows are made anew for each block, or "" if they lie in memory.
        resident_bytes: Host memory that streamed rows hold all the same (labels, sparse values).
    """

    rows: int
    validation_rows: int
    row_bytes: int
    device: str
    free_bytes: float | None = None
    na: str = "error"
    dropped: int = 0
    indicators: tuple[str, ...] = ()
    streamed: str = ""
    resident_bytes: int = 0


@dataclass(frozen=True)
class PipelinePlan:
    """How batches will reach the device, and why.

    Args:
        mode: "resident" (rows live in the device's memory), "staged" (in host memory, sent in
            blocks) or "streamed" (each block is made anew, from a file or a sparse form).
        device: Where the model trains.
        rows: Training rows.
        validation_rows: Validation rows.
        batch_size: Rows a step.
        steps_per_epoch: Steps an epoch, the short last batch included.
        last_batch: Rows of the last batch.
        shuffle: "rows" (a true shuffle each epoch) or "none".
        staged_bytes: Memory of the staged copy, or what streamed rows hold all the same.
        reason: Why this mode.
        batch_reason: Why this batch size.
        na: What happens to missing values.
        dropped_rows: Rows that were left out for missing values.
        na_reason: What that did here.
    """

    mode: str
    device: str
    rows: int
    validation_rows: int
    batch_size: int
    steps_per_epoch: int
    last_batch: int
    shuffle: str
    staged_bytes: float
    reason: str
    batch_reason: str
    na: str
    dropped_rows: int
    na_reason: str


def plan_pipeline(facts: PipelineFacts, spec: DatasetSpec) -> PipelinePlan:
    """Decides where rows live and how they are batched.

    Raises:
        SpecError: if the batch size is larger than the training rows.
    """
    batch_size, batch_reason = choose_batch_size(facts.rows, spec.batch_size)
    staged = (facts.rows + facts.validation_rows) * facts.row_bytes
    staged = facts.resident_bytes if facts.streamed else staged
    mode, reason = _choose_mode(staged, facts, spec.cache)
    return PipelinePlan(
        mode=mode,
        device=facts.device,
        rows=facts.rows,
        validation_rows=facts.validation_rows,
        batch_size=batch_size,
        steps_per_epoch=math.ceil(facts.rows / batch_size),
        last_batch=facts.rows % batch_size or batch_size,
        shuffle="rows" if spec.shuffle else "none",
        staged_bytes=float(staged),
        reason=reason,
        batch_reason=batch_reason,
        na=facts.na,
        dropped_rows=facts.dropped,
        na_reason=explain_missing(facts),
    )


def explain_missing(facts: PipelineFacts) -> str:
    """What the policy for missing values did."""
    if facts.na == "error":
        return 'refused: na = "error"'
    if facts.na == "drop":
        rows = facts.rows + facts.validation_rows + facts.dropped
        return f"dropped: {facts.dropped:,} of {rows:,} rows with missing values"
    names = ", ".join([*facts.indicators[:5], *(["..."] if len(facts.indicators) > 5 else [])])
    return (
        "imputed: median or most frequent value of the training rows, "
        f"indicators for {names or 'no column, as none lacked values'}"
    )


def choose_batch_size(rows: int, wanted: int | str) -> tuple[int, str]:
    """The batch size and why: a power of two that gives about 100 updates an epoch."""
    if wanted == "auto":
        size = 2 ** round(math.log2(max(1.0, rows / UPDATES_AN_EPOCH)))
        size = min(max(32, min(1024, size)), rows)
        return size, f"about {UPDATES_AN_EPOCH} updates an epoch, within 32 and 1024"
    if int(wanted) > rows:
        raise SpecError(
            f"`batch_size` is {wanted}, more than the {rows} training rows.",
            hint=f"Use at most {rows}.",
            arg="batch_size",
        )
    return int(wanted), "as asked"


def choose_capacity(batch_bytes: int, steps: int) -> int:
    """Batches a block."""
    return max(1, min(steps, BLOCK_BATCHES, BLOCK_BYTES // max(1, batch_bytes)))


def balanced_weights(counts: np.ndarray) -> np.ndarray:
    """Class weights rows / (classes * count), as scikit-learn's (King & Zeng 2001)."""
    return counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))


def _choose_mode(staged: int, facts: PipelineFacts, cache: str) -> tuple[str, str]:
    if facts.streamed:
        return "streamed", facts.streamed
    size = f"{staged / 2**20:,.1f} MiB"
    if cache == "host":
        return "staged", f'{size} stay in host memory: cache = "host"'
    if facts.device.startswith("CPU"):
        return "resident", f"{size} in host memory, which is the CPU's own"
    if cache == "device":
        return "resident", f'{size} on {facts.device}: cache = "device"'
    if facts.free_bytes is None:
        return "staged", f"{size} stay in host memory: free memory of {facts.device} is unknown"
    free = f"{facts.free_bytes / 2**20:,.0f} MiB free on {facts.device}"
    if staged <= RESIDENT_SHARE * facts.free_bytes:
        return "resident", f"{size} fit in half of {free}"
    return "staged", f"{size} do not fit in half of {free}"


def choose_evaluation_rows(row_bytes: int, rows: int) -> int:
    """Rows a batch when nothing is learned: a power of two, large to save calls."""
    large = min(EVALUATION_ROWS, EVALUATION_BYTES // max(1, row_bytes))
    return min(rows, max(32, 2 ** int(math.log2(max(1, large)))))
