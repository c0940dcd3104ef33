"""Compares the identity of a training with that of a checkpoint and names the differences.

A checkpoint holds the description of its training (see `fingerprint`). A training that resumes
with other rows, or in another order, does not end where an uninterrupted training ends: it is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

# What must agree, in the order in which it is compared.
WORDS = {
    "layers": "layer {} of the model",
    "variables": "variable {} of the model",
    "precision": "the model's precision",
    "model": "an option of the model's layers",
    "loss": "the loss",
    "loss_options": "an option of the loss",
    "metrics": "metric {}",
    "optimizer": "the optimizer",
    "optimizer_options": "an option of the optimizer",
    "source": "the kind of data",
    "rows": "the number of training rows",
    "validation_rows": "the number of validation rows",
    "row_shape": "the shape of a row",
    "batch_size": "the batch size",
    "seed": "the dataset's seed",
    "shuffle": "`shuffle`",
    "buffer": "`buffer`",
    "drop_last": "`drop_last`",
    "steps_per_epoch": "`steps_per_epoch`",
    "shard": "`shard`",
    "shards": "the number of rows of a worker's shard",
    "augment": "`augment`",
    "encoding": "the encoding of the rows (columns, levels, means)",
    "features": "the content of the rows",
    "labels": "the content of the labels or weights",
    "schedule": "the schedule",
    "epochs": "the number of epochs, which this schedule spans,",
    "clip_norm": "`clip_norm`",
    "clip_value": "`clip_value`",
    "clip_global_norm": "`clip_global_norm`",
    "ema": "`ema`",
}
CHANGE = "{what} was {there} and is {here}"
DIGESTS = ("model", "loss_options", "optimizer_options", "encoding", "features", "labels")


def find_mismatch(here: Mapping[str, Any], there: Mapping[str, Any], change: str = CHANGE) -> str:
    """Returns the first difference between a training and a checkpoint, as part of a sentence.

    Args:
        here: The training to be run.
        there: The training of the checkpoint; entries that its version of gpukeras did not write
            are skipped.
        change: Format of a difference, with the fields `what`, `here` and `there`.

    Returns:
        For example "the batch size was 32 and is 64"; "" if nothing differs.
    """
    for name, words in WORDS.items():
        if name in here and name in there and here[name] != there[name]:
            if name in DIGESTS:
                return f"{words} is not the same"
            what, was, now = _find_change(words, there[name], here[name])
            return change.format(what=what, there=_show(was), here=_show(now))
    return ""


def find_changes(
    here: Mapping[str, Any], there: Mapping[str, Any], what: str = "checkpoint"
) -> tuple[str, ...]:
    """Returns sentences about permitted differences, which may change results' last digits.

    Args:
        here: What is to be run.
        there: What is on disk.
        what: The noun for that.
    """
    sentences = []
    mine, theirs = here.get("versions") or {}, there.get("versions") or {}
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name] != theirs[name]:
            sentences.append(f"The {what} was made by {name} {theirs[name]}, not {mine[name]}.")
    was, now = there.get("learning_rate"), here.get("learning_rate")
    if was is not None and now is not None and not math.isclose(was, now, rel_tol=1e-6):
        sentences.append(
            f"The learning rate was {was:g} when the training began, and is {now:g} now: "
            "the checkpoint's own goes on."
        )
    return tuple(sentences)


def _find_change(words: str, was: Any, now: Any) -> tuple[str, Any, Any]:
    """Returns the description and both values of a difference; of a nested value the first one."""
    if isinstance(was, list) and isinstance(now, list) and "{}" in words:
        for place, (before, other) in enumerate(zip_longest(was, now), 1):
            if before != other:
                return words.format(place), before, other
    if isinstance(was, dict) and isinstance(now, dict) and was.get("kind") == now.get("kind"):
        name = next(n for n in {**was, **now} if was.get(n) != now.get(n))
        return f"{name} of {words}", was.get(name), now.get(name)
    return words, was, now


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return str(value.get("kind", "given"))
    if isinstance(value, list):
        return f"({', '.join(_show(item) for item in value)})"
    return str(value).upper() if isinstance(value, bool) else str(value)
