"""Decides where rows live, how large a batch is and how many batches a block has, with reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.messages import count_of, mib
from gpukeras.core.options import DatasetSpec

# With 200 columns and 2 cores, blocks of 2, 4, 9 and 18 MiB took 1.35, 1.05, 1 and 0.92 times as
# long. Two of them and the rows stay within 0.6 of R's matrix (200,000 x 200).
BLOCK_BYTES = 9 * 2**20
# On a GPU a block is a call, so larger ones are fewer calls. This share is 47 MiB of 12 GiB and 320
# of 80: two blocks, whose bytes become floats there, still leave 31 of 32 parts to the model. Not
# measured on a GPU yet. It is a share of all memory: what is free would not repeat.
BLOCK_SHARE = 1 / 256
# A call costs 0.1 to 0.3 ms, and its first batches 1 to 2 ms more. An epoch of 3,125 batches of
# 32 x 20 took 58 ms in one block, 62 in four and 63 in seven (medians, 2 quiet cores). The first
# block of a stream is waited for.
BLOCK_BATCHES, STREAM_BLOCK_BATCHES = 4096, 1024
# For rows that a tf.data pipeline makes during training. Training waits for the first block, so a
# block is a small part of the epoch. A block costs about 1 ms.
AHEAD_BLOCKS, AHEAD_BATCHES = 8, 64  # least blocks per epoch; batches per block if unknown
AS_ASKED = "as asked"  # the reason for a batch size
UPDATES_AN_EPOCH = 100  # the target of batch_size = "auto"
RESIDENT_SHARE = 0.5  # of free device memory; weights, activations and workspace use the rest
EVALUATION_BYTES = 4 * 2**20  # features per batch in evaluation and prediction
EVALUATION_ROWS = 8192  # at most
FEWEST_EVALUATED = 32  # rows


@dataclass(frozen=True)
class PipelineFacts:
    """Facts about rows with numbers, from which their plan is made.

    Args:
        rows: Training rows.
        validation_rows: Validation rows.
        row_bytes: Bytes of one staged row with label and weight; windows share their rows.
        device: The device that trains the model, such as "GPU:0".
        free_bytes: Free memory of that device, or None if unknown.
        memory_bytes: All memory of that device, if it is a GPU; None if unknown.
        varied: Whether what is done to rows depends on their block: its random numbers, or a
            function of the user's that takes it.
        na: The policy for missing values: "error", "impute" or "drop".
        dropped: Rows that were dropped for missing values.
        indicators: Columns with an indicator of missing values.
        streamed: Why rows are read or made anew for each block, or "" if they are in memory.
        resident_bytes: Host memory that streamed rows use nevertheless (labels, sparse values).
        movable: Whether streamed rows are ready to read, so that a device could hold them all.
        skipped: Text on what `on_error = "skip"` left out, or "".
    """

    rows: int
    validation_rows: int
    row_bytes: int
    device: str
    free_bytes: float | None = None
    memory_bytes: float | None = None
    varied: bool = False
    na: str = "error"
    dropped: int = 0
    indicators: tuple[str, ...] = ()
    streamed: str = ""
    resident_bytes: int = 0
    movable: bool = False
    skipped: str = ""


@dataclass(frozen=True)
class StreamFacts:
    """Facts about rows in sequence, from which their plan is made.

    Args:
        what: How the rows are made, in words.
        chunk_rows: Rows of the first chunk, or of a batch of the user's pipeline.
        rows: Rows per epoch, if all chunks are like the first; 0 if the end is unknown.
        row_bytes: Bytes of one row with label and weight.
        na: The policy for missing values: "error", "impute" or "drop".
        learned: Which rows the statistics were learned from, in words, or "".
        ahead: Blocks that are made while the device works on another one.
        device: The device that trains the model, such as "GPU:0".
    """

    what: str
    chunk_rows: int
    rows: int
    row_bytes: int
    na: str = "error"
    learned: str = ""
    ahead: int = 0
    device: str = "CPU:0"


@dataclass(frozen=True)
class PipelinePlan:
    """How batches reach the device, with reasons.

    Args:
        mode: "resident" (rows live in the device's memory), "staged" (in host memory, sent in
            blocks) or "streamed" (each block is made anew, from a file or sparse values).
        device: The device that trains the model.
        rows: Training rows; 0 if the end of rows in sequence is unknown.
        validation_rows: Validation rows.
        batch_size: Rows per step.
        steps_per_epoch: Steps per epoch, including a short last batch; 0 if `rows` is unknown.
        last_batch: Rows of the last batch; 0 if `rows` is unknown.
        shuffle: "rows" (a full shuffle each epoch), "buffer" (a shuffle buffer for rows in
            sequence), "as given" (the order of the user's code) or "none".
        shuffle_reason: The reason for `shuffle`.
        staged_bytes: Memory of the staged copy, or what streamed rows use nevertheless.
        reason: The reason for `mode`.
        batch_reason: The reason for `batch_size`.
        na: The policy for missing values.
        dropped_rows: Rows that were dropped for missing values.
        na_reason: The effect of `na` on these rows.
        block_bytes: Bytes of a block of batches, unless a batch is larger.
        even_blocks: Whether all blocks of an epoch have equally many batches, where they can.
        ahead: Blocks that are made while the device works on another one.
        drop_last: Whether a short last batch is left out.
        shard: This worker's number, from 1, and the number of workers.
        skipped: Text on what `on_error = "skip"` left out, or "".
        share: Which part of the files this worker has read, or "" for all.
    """

    mode: str
    device: str
    rows: int
    validation_rows: int
    batch_size: int
    steps_per_epoch: int
    last_batch: int
    shuffle: str
    shuffle_reason: str
    staged_bytes: float
    reason: str
    batch_reason: str
    na: str
    dropped_rows: int
    na_reason: str
    block_bytes: int
    even_blocks: bool
    ahead: int = 0
    drop_last: bool = False
    shard: tuple[int, int] = (1, 1)
    skipped: str = ""
    share: str = ""


def plan_pipeline(facts: PipelineFacts, spec: DatasetSpec) -> PipelinePlan:
    """Decides where rows live and how they are batched."""
    batch_size, batch_reason = choose_batch_size(facts.rows, spec.batch_size)
    whole = (facts.rows + facts.validation_rows) * facts.row_bytes
    mode, reason = _choose_mode(whole, facts, spec.cache)
    staged = facts.resident_bytes if mode == "streamed" else whole
    return PipelinePlan(
        mode=mode,
        device=facts.device,
        validation_rows=facts.validation_rows,
        batch_size=batch_size,
        **_count_steps(facts.rows, batch_size, spec.drop_last),
        shuffle="rows" if spec.shuffle else "none",
        shuffle_reason="all rows, anew each epoch" if spec.shuffle else "in the order given",
        staged_bytes=float(staged),
        reason=reason,
        batch_reason=batch_reason,
        na=facts.na,
        dropped_rows=facts.dropped,
        na_reason=explain_missing(facts),
        block_bytes=choose_block_bytes(facts, mode),
        even_blocks=not (facts.device.startswith("CPU") or facts.varied),
        ahead=0 if mode == "resident" else 1,
        drop_last=spec.drop_last and facts.rows % batch_size > 0,
        shard=spec.shard,
        skipped=facts.skipped,
    )


def plan_stream(facts: StreamFacts, spec: DatasetSpec) -> PipelinePlan:
    """Decides how rows in sequence are batched; they are always streamed."""
    batch_size, batch_reason = facts.chunk_rows, "as they come"
    if spec.batch_size != "auto":
        batch_size, batch_reason = int(spec.batch_size), AS_ASKED
    shuffle, shuffle_reason = _choose_sequence(spec)
    return PipelinePlan(
        mode="streamed",
        device=facts.device,
        validation_rows=0,
        batch_size=batch_size,
        **_count_steps(facts.rows, batch_size, spec.drop_last),
        shuffle=shuffle,
        shuffle_reason=shuffle_reason,
        staged_bytes=0.0,
        reason="; ".join(part for part in (facts.what, facts.learned) if part),
        batch_reason=batch_reason,
        na=facts.na,
        dropped_rows=0,
        na_reason=_explain_sequence(facts.na),
        block_bytes=BLOCK_BYTES,
        even_blocks=False,
        ahead=facts.ahead,
        drop_last=spec.drop_last,
    )


def _count_steps(rows: int, batch_size: int, drop_last: bool) -> dict[str, Any]:
    if rows == 0:
        return {"rows": 0, "steps_per_epoch": 0, "last_batch": 0}
    short = rows % batch_size
    if drop_last and rows > batch_size:
        steps, short = rows // batch_size, 0
    else:
        steps = math.ceil(rows / batch_size)
    return {"rows": rows, "steps_per_epoch": steps, "last_batch": short or batch_size}


def _choose_sequence(spec: DatasetSpec) -> tuple[str, str]:
    if not spec.shuffle:
        return "none", "in the order given"
    if spec.buffer == "auto":
        return "as given", "in the order given; `buffer` or `cache = TRUE` would shuffle"
    return "buffer", f"a buffer of {int(spec.buffer):,} rows, anew each epoch"


def _explain_sequence(na: str) -> str:
    return {
        "error": 'refused: na = "error"',
        "drop": "rows with missing values are dropped, batch by batch",
    }.get(na, "imputed by the recipe")


def explain_missing(facts: PipelineFacts) -> str:
    """Describes the effect of the policy for missing values."""
    if facts.na == "error":
        return 'refused: na = "error"'
    if facts.na == "drop":
        rows = facts.rows + facts.validation_rows + facts.dropped
        return explain_dropped(facts.dropped, rows)
    names = ", ".join([*facts.indicators[:5], *(["..."] if len(facts.indicators) > 5 else [])])
    return (
        "imputed: median or most frequent value of the training rows, "
        f"indicators for {names or 'no column, as none lacked values'}"
    )


def explain_dropped(dropped: int, rows: int) -> str:
    """Says how many of the rows were dropped."""
    return f"dropped: {dropped:,} of {count_of(rows, 'row')} with missing values"


def choose_batch_size(rows: int, requested: int | str) -> tuple[int, str]:
    """Returns the batch size and its reason; "auto" is a power of two, about 100 updates an epoch.

    It lies within 32 and 1024, and is at most `rows`.
    """
    if requested == "auto":
        size = min(max(32, rows / UPDATES_AN_EPOCH), 1024)
        size = min(2 ** round(math.log2(size)), rows)
        return size, f"about {UPDATES_AN_EPOCH} updates an epoch, within 32 and 1024"
    if int(requested) > rows:
        return rows, f"all rows, which are fewer than the {int(requested):,} asked for"
    return int(requested), AS_ASKED


def choose_block_bytes(facts: PipelineFacts, mode: str) -> int:
    """Returns the bytes of a block: what the device's memory allows, if it is a GPU.

    Rows that are made anew stay in small blocks, as training waits for the first one, and so do
    those that are varied, so that they are the same on every device.

    Args:
        facts: The facts.
        mode: Where the rows live.
    """
    unknown = facts.device.startswith("CPU") or facts.memory_bytes is None
    if unknown or facts.varied or mode == "streamed":
        return BLOCK_BYTES
    size = BLOCK_SHARE * (facts.memory_bytes or 0.0)
    if mode == "staged":  # two of them are in host memory, beside the rows
        size = min(size, facts.rows * facts.row_bytes / AHEAD_BLOCKS)
    return max(BLOCK_BYTES, int(size))


def choose_capacity(
    batch_bytes: int,
    steps: int,
    block_bytes: int,
    even: bool = False,
    most: int = BLOCK_BATCHES,
) -> int:
    """Returns the batches per block: as many as fit, about equally many in each block.

    Equal blocks waste little, as the last one is padded to the same size. On a GPU a last block
    with fewer batches needs a program of its own, and seconds or a minute of compiling. So there
    blocks may be smaller, down to half, if the epoch's last one is then as long as the others.

    Args:
        batch_bytes: Bytes of one batch.
        steps: Batches per epoch.
        block_bytes: Bytes of a block at most, unless a batch is larger.
        even: Whether the last block should have as many as the others.
        most: The most batches per block.
    """
    if not steps:
        return 1
    most = max(1, min(steps, most, block_bytes // max(1, batch_bytes)))
    blocks = -(-steps // most)
    if even:
        blocks = next((more for more in range(blocks, 2 * blocks) if steps % more == 0), blocks)
    return -(-steps // blocks)


def choose_ahead(capacity: int, steps: int | None) -> int:
    """Returns the batches per block for rows that are made during training.

    Args:
        capacity: The most batches that a block may have.
        steps: Batches per epoch, or None if unknown.
    """
    return min(capacity, -(-steps // AHEAD_BLOCKS) if steps else AHEAD_BATCHES)


def balanced_weights(counts: np.ndarray) -> np.ndarray:
    """Returns class weights rows / (classes * count), as in scikit-learn (King & Zeng 2001)."""
    return counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))


def _choose_mode(whole: int, facts: PipelineFacts, cache: str) -> tuple[str, str]:
    size = mib(whole, 1)
    on_cpu = facts.device.startswith("CPU")
    if facts.streamed and (on_cpu or not facts.movable or cache in ("disk", "host")):
        return "streamed", facts.streamed
    if cache == "host":
        return "staged", f'{size} stay in host memory: cache = "host"'
    if on_cpu:
        return "resident", f"{size} in host memory, which is the CPU's own"
    if cache == "device":
        return "resident", f'{size} on {facts.device}: cache = "device"'
    mode, why = ("streamed", f"{facts.streamed}: ") if facts.streamed else ("staged", "")
    if facts.free_bytes is None:
        return mode, f"{why}{size} stay off the device: free memory of {facts.device} is unknown"
    free = f"{mib(facts.free_bytes)} free on {facts.device}"
    if whole <= RESIDENT_SHARE * facts.free_bytes:
        return "resident", f"{size} fit in half of {free}"
    return mode, f"{why}{size} do not fit in half of {free}"


def choose_evaluation_rows(row_bytes: int, rows: int) -> int:
    """Returns the rows per batch in evaluation and prediction: a large power of two, for few calls.

    Args:
        row_bytes: Bytes of one row.
        rows: The number of rows, which the batch size does not exceed.
    """
    large = min(EVALUATION_ROWS, EVALUATION_BYTES // max(1, row_bytes))
    return min(rows, max(FEWEST_EVALUATED, 2 ** int(math.log2(max(1, large)))))
