"""Packs the labels of several outputs into one row, and splits them again, with NumPy only.

    {price: numbers, cut: classes} --encode_labels()--> [price | cut] --split_labels()--> each

Several outputs are one float32 matrix, with a class as its code, so that loaders, scratch files and
saved datasets handle a single array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import list_some
from gpukeras.data.arrays import Notes, check_lengths, moments
from gpukeras.data.recipe.columns import take_rows
from gpukeras.data.recipe.targets import (
    SEVERAL,
    ColumnRange,
    LabelRule,
    MatrixLabel,
    NumberLabel,
    Output,
    OutputsLabel,
    each_label,
    encode_label,
    learn_label,
    measure_range,
    name_classes,
    name_label,
)


def check_label_rows(labels: Mapping[str, Any], rows: int, of: str, row: bool = False) -> None:
    """Checks that each output has one label per row.

    Args:
        labels: The labels as they come from R.
        rows: The number of rows.
        of: The user's name for the features, for messages.
        row: Whether the features are a vector, which may have been one row.

    Raises:
        DataError: if one has not; names the output.
    """
    for arg, part in each_label(labels):
        check_lengths(rows, len(part["values"]), arg, of, row)


def take_labels(labels: Mapping[str, Any], complete: np.ndarray | None) -> Mapping[str, Any]:
    """Returns the labels of the rows where `complete` is true; None takes all."""
    if complete is None or labels["kind"] != SEVERAL:
        return take_rows(labels, complete)
    return {
        **labels,
        "outputs": [
            {**output, "labels": take_rows(output["labels"], complete)}
            for output in labels["outputs"]
        ],
    }


def learn_labels(labels: Mapping[str, Any], keep: np.ndarray) -> LabelRule:
    """Learns the rule of labels, of one output or several.

    Args:
        labels: The labels as they come from R.
        keep: Mask of the training rows, from which statistics come.

    Raises:
        DataError: for labels that cannot be trained on, or outputs without unique names.
    """
    if labels["kind"] != SEVERAL:
        return learn_label(labels, keep, next(each_label(labels))[0])
    names = _given_names(labels)
    check_part_names(names, "y")
    rules = [learn_label(part, keep, arg) for arg, part in each_label(labels)]
    outputs = tuple(map(Output, names, rules))
    return OutputsLabel(outputs, listed=bool(labels.get("listed")))


def check_part_names(names: Sequence[Any], arg: str) -> None:
    """Checks that several inputs or outputs have unique names.

    Raises:
        DataError: if they have not.
    """
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if not names or twice or not all(isinstance(name, str) and name for name in names):
        found = f"`{twice[0]}` is there twice" if twice else "one has none"
        found = found if names else "it is empty"
        raise DataError(
            f"Each element of the list `{arg}` needs a name of its own: {found}.",
            hint="They are the names of the model's inputs and outputs.",
            arg=arg,
        )


def _given_names(labels: Mapping[str, Any]) -> list[str]:
    return [output["name"] for output in labels["outputs"]]


def encode_labels(
    rule: LabelRule, labels: Mapping[str, Any], notes: Notes | None = None
) -> np.ndarray:
    """Encodes labels into aligned memory; several outputs side by side, as float32.

    Args:
        rule: The labels' rule.
        labels: The labels as they come from R; several outputs in any order.
        notes: Collects whole numbers that lose digits, or None.

    Raises:
        DataError: for other outputs than in training, or as `targets.encode_label()`.
    """
    if (rule.kind == SEVERAL) != (labels["kind"] == SEVERAL):
        expected = _names(rule) if rule.outputs else "a single output"
        raise DataError(f"`y` must have labels for {expected}, as in training.", arg="y")
    if rule.kind != SEVERAL:
        return encode_label(rule, labels, notes, next(each_label(labels))[0])
    by_name = dict(zip(_given_names(labels), each_label(labels), strict=True))
    if set(by_name) != {output.name for output in rule.outputs}:
        raise DataError(
            f"`y` must have labels for {_names(rule)}, as in training, not {', '.join(by_name)}.",
            arg="y",
        )
    rows = len(next(iter(by_name.values()))[1]["values"])
    out = aligned_empty((rows, rule.units))
    for output, columns in each_place(rule):
        arg, part = by_name[output.name]
        out[:, columns] = encode_label(output.rule, part, notes, arg).reshape(rows, -1)
    return out


def _names(rule: LabelRule) -> str:
    return ", ".join(output.name for output in rule.outputs)


def each_place(rule: LabelRule) -> Iterator[tuple[Output, slice]]:
    """Yields each output with its columns in the encoded labels."""
    start = 0
    for output in rule.outputs:
        stop = start + output.rule.columns
        yield output, slice(start, stop)
        start = stop


def split_labels(rule: LabelRule, encoded: np.ndarray) -> list[tuple[LabelRule, np.ndarray]]:
    """Returns each output's rule with its part of the encoded labels, in its original shape."""
    if rule.kind != SEVERAL:
        return [(rule, encoded)]
    return [
        (output.rule, encoded[:, columns].reshape(-1, *output.rule.row_shape))
        for output, columns in each_place(rule)
    ]


def _change_each(
    rule: LabelRule, encoded: np.ndarray, change: Callable[[LabelRule, np.ndarray], LabelRule]
) -> LabelRule:
    """Returns the rule with a change to the rule of each output, by its part of encoded labels."""
    parts = [change(*part) for part in split_labels(rule, encoded)]
    if not isinstance(rule, OutputsLabel):
        return parts[0]
    outputs = zip(rule.outputs, parts, strict=True)
    return replace(rule, outputs=tuple(replace(output, rule=part) for output, part in outputs))


def measure_ranges(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    """Returns the rule with the range of these labels, see `targets.measure_range()`."""
    return _change_each(rule, encoded, measure_range)


def relearn_labels(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    """Returns the rule with the means and deviations of these encoded labels."""
    return _change_each(rule, encoded, _relearn)


def _relearn(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    if not isinstance(rule, NumberLabel) or rule.pixels:
        return rule
    numbers = encoded.reshape(-1, 1)
    center, scale = moments(numbers, np.ones(len(numbers), dtype=bool))
    return replace(rule, center=float(center[0]), scale=float(scale[0]))


def note_empty_classes(
    rule: LabelRule, encoded: np.ndarray, keep: np.ndarray, formula: str
) -> tuple[str, ...]:
    """Returns a sentence for each output with classes that have no training row.

    Args:
        rule: The labels' rule.
        encoded: The encoded labels of all rows.
        keep: Mask of the training rows.
        formula: R's formula as text, "" without one.
    """
    names = [output.name for output in rule.outputs] or [""]
    notes = []
    for name, (own, codes) in zip(names, split_labels(rule, encoded), strict=True):
        levels = name_classes(own)
        if not levels or own.shape:
            continue
        counts = np.bincount(codes[keep].reshape(-1).astype(np.int64), minlength=len(levels))
        empty = [f'"{level}"' for level, count in zip(levels, counts, strict=True) if not count]
        if empty:
            arg = name_label(formula, name)
            classes = "The class" if len(empty) == 1 else "The classes"
            verb = "has" if len(empty) == 1 else "have"
            notes.append(f"{classes} {list_some(empty)} of `{arg}` {verb} no training row.")
    return tuple(notes)


def widen_labels(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    """Returns the rule with its range extended to these labels."""
    return _change_each(rule, encoded, _widen)


def _widen(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    if rule.kind == "binary" and not np.isin(encoded, (0, 1)).all():
        rule = NumberLabel(maximum=1.0, shape=rule.shape)  # the first rows were 0 and 1
    if not isinstance(rule, (NumberLabel, MatrixLabel)) or not len(encoded):
        return rule
    before, measured = rule, measure_range(rule, encoded)
    rule = replace(
        rule,
        minimum=min(before.minimum, measured.minimum),
        maximum=max(before.maximum, measured.maximum),
        whole=before.whole and measured.whole,
    )
    if not isinstance(rule, MatrixLabel):
        return rule
    return replace(rule, ranges=tuple(map(ColumnRange.join, before.ranges, measured.ranges)))
