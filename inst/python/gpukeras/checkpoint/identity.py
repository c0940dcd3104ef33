"""Whether two trainings are the same one, and if not, in what they differ: told in words.

A checkpoint holds the description of its training (see `fingerprint`). Weights that go on with
other rows, or in another order, would end where no undisturbed training ends: that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

# What must be the same, in the order in which it is told.
WORDS = {
    "layers": "layer {} of the model",
    "variables": "variable {} of the model",
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
    "shard": "`shard`",
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
    """The first thing in which a training differs from that of a checkpoint, as part of a sentence.

    Args:
        here: What is to be trained.
        there: What the checkpoint holds; what its version of gpukeras did not tell is passed over.
        change: How a difference is told: of `what`, as it is `here` and `there`.

    Returns:
        Such as "the batch size was 32 and is 64"; "" if nothing differs.
    """
    for name, words in WORDS.items():
        if name in here and name in there and here[name] != there[name]:
            if name in DIGESTS:
                return f"{words} is not the same"
            what, was, now = _find_change(words, there[name], here[name])
            return change.format(what=what, there=_show(was), here=_show(now))
    return ""


def find_changes(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences about what may differ, though results may then differ in their last digits."""
    sentences = []
    mine, theirs = here.get("versions") or {}, there.get("versions") or {}
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name] != theirs[name]:
            sentences.append(f"The checkpoint was made by {name} {theirs[name]}, not {mine[name]}.")
    was, now = there.get("learning_rate"), here.get("learning_rate")
    if was is not None and now is not None and not math.isclose(was, now, rel_tol=1e-6):
        sentences.append(
            f"The learning rate was {was:g} when the training began, and is {now:g} now: "
            "the checkpoint's own goes on."
        )
    return tuple(sentences)


def _find_change(words: str, was: Any, now: Any) -> tuple[str, Any, Any]:
    """What differs, in words, and how: of a list or record its first part that does."""
    if isinstance(was, list) and isinstance(now, list) and "{}" in words:
        for place, (one, other) in enumerate(zip_longest(was, now), 1):
            if one != other:
                return words.format(place), one, other
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
