"""Labels and weights of rows, for one output or several.

    {price: numbers, cut: classes} --encode_labels()--> [price | cut] --split_labels()--> each

Several outputs are one float32 matrix, with a class as its code, so that loaders, scratch files and
saved datasets handle a single array.

Weights are an array, rows first, or `{outputs: [{name, values}]}`: an array for each of several
outputs, which are packed side by side like the labels, see `multi_output`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_copy, aligned_empty
from gpukeras.core.messages import list_some
from gpukeras.core.options import check_number
from gpukeras.data.arrays import Notes, check_lengths, check_some, moments, row_blocks, side_by_side
from gpukeras.data.plan import balanced_weights
from gpukeras.data.recipe.columns import take_rows
from gpukeras.data.recipe.targets import (
    NO_WEIGHTS,
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

# Labels of several outputs ------------------------------------------------------------------------


def check_counts(
    rows: int,
    labels: Mapping[str, Any] | None,
    weights: Weights | None,
    arg: str,
    *,
    vector: bool = False,
) -> None:
    """Checks that there are rows, and a label and a weight for each of them, if any.

    Args:
        rows: The number of rows.
        labels: The labels as they come from R, or None.
        weights: The user's weights, or None.
        arg: The user's name for the features, for messages.
        vector: Whether the features are a vector, which may have been one row.

    Raises:
        DataError: if there are not; or for weights without labels.
    """
    check_some(rows, arg)
    if labels is not None:
        for own, part in each_label(labels):
            check_lengths(rows, len(part["values"]), own, arg, vector)
    elif weights is not None:
        raise DataError("`weights` needs labels to weigh.", hint="Give `y`.", arg="weights")
    check_weights(weights, rows, arg)


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
    rule: LabelRule | None, labels: Mapping[str, Any], notes: Notes | None = None
) -> np.ndarray:
    """Encodes labels into aligned memory; several outputs side by side, as float32.

    Args:
        rule: The labels' rule, or None if training had none.
        labels: The labels as they come from R; several outputs in any order.
        notes: Collects whole numbers that lose digits, or None.

    Raises:
        DataError: for other outputs than in training, or as `targets.encode_label()`.
    """
    if rule is None:
        raise DataError("`y` was given, but training had no labels.", arg="y")
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
    places = side_by_side(output.rule.columns for output in rule.outputs)
    return zip(rule.outputs, places, strict=True)


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
    return replace(rule, center=float(center[0]), scale=float(scale[0]) or 1.0)


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
    if not len(encoded):
        return rule
    before, measured = rule, measure_range(rule, encoded)
    if not isinstance(measured, (NumberLabel, MatrixLabel)):
        return rule
    wide = replace(
        measured,
        minimum=min(before.minimum, measured.minimum),
        maximum=max(before.maximum, measured.maximum),
        whole=before.whole and measured.whole,
    )
    if not isinstance(wide, MatrixLabel):
        return wide
    return replace(wide, ranges=tuple(map(ColumnRange.join, before.ranges, measured.ranges)))


# Weights of rows ----------------------------------------------------------------------------------

ONE_HOT = 1e-4  # how far the sum of a row of classes may be from 1
Weights = np.ndarray | Mapping[str, Any]


def each_weights(weights: Weights) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields the name of each output, "" for all together, the user's name for it and its weights.

    Raises:
        DataError: for outputs without unique names.
    """
    if not isinstance(weights, Mapping):
        yield "", "weights", np.atleast_1d(weights)
        return
    check_part_names([part["name"] for part in weights["outputs"]], "weights")
    for part in weights["outputs"]:
        yield part["name"], f"weights${part['name']}", np.atleast_1d(part["values"])


def check_weights(weights: Weights | None, rows: int, of: str = "x") -> None:
    """Checks the number and the values of weights.

    Args:
        weights: The user's weights, or None.
        rows: The number of rows.
        of: The user's name for the features, for messages.

    Raises:
        DataError: if a weight is negative or not finite, or their number differs from `rows`.
    """
    for _, arg, values in [] if weights is None else each_weights(weights):
        check_lengths(rows, len(values), arg, of)
        if len(values) and not (np.isfinite(values).all() and values.min() >= 0):
            raise DataError(
                f"`{arg}` must be finite and at least 0.",
                hint="Remove rows with missing or negative weights.",
                arg=arg,
            )


def weigh_outputs(label: LabelRule, weights: Weights | None) -> LabelRule:
    """Returns the rule with the shape of each output's weights, if these are given by output.

    Raises:
        DataError: for weights of outputs that have no labels.
    """
    listed = each_weights(weights) if isinstance(weights, Mapping) else ()
    shapes = {name: values.shape[1:] for name, _, values in listed}
    known = [output.name for output in label.outputs]
    odd = [name for name in shapes if name not in known]
    if odd:
        found = f"labels for {', '.join(known)}" if known else "labels of a single output"
        raise DataError(
            f"`weights` has weights for `{odd[0]}`, but `y` has {found}.",
            hint="" if known else "Give one number a row, or an array.",
            arg="weights",
        )
    if label.listed and 0 < len(shapes) < len(known):
        raise DataError(
            f"`weights` has no names and {len(shapes)} elements, but `y` has {len(known)}.",
            hint="Give one for each output.",
            arg="weights",
        )
    outputs = (
        replace(output, weight_shape=shapes.get(output.name, NO_WEIGHTS))
        for output in label.outputs
    )
    return replace(label, outputs=tuple(outputs)) if isinstance(label, OutputsLabel) else label


def each_weight_place(label: LabelRule) -> Iterator[tuple[Output, slice]]:
    """Yields each output that has weights of its own with their columns in the packed ones."""
    places = side_by_side(math.prod(output.weight_shape) for output in label.outputs)
    pairs = zip(label.outputs, places, strict=True)
    return (pair for pair in pairs if math.prod(pair[0].weight_shape))


def pack_weights(
    label: LabelRule, weights: Weights, complete: np.ndarray | None = None
) -> np.ndarray:
    """Returns the weights of rows as float32, those of several outputs side by side.

    Args:
        label: The labels' rule, see `weigh_outputs()`.
        weights: The user's weights.
        complete: Mask of the rows to take, or None for all.
    """
    by_name = {name: values for name, _, values in each_weights(weights)}
    rows = slice(None) if complete is None else complete
    if not label.weighed:
        return aligned_copy(by_name[""][rows])
    places = list(each_weight_place(label))
    out = aligned_empty((len(by_name[places[0][0].name][rows]), places[-1][1].stop))
    for output, columns in places:
        out[:, columns] = by_name[output.name][rows].reshape(len(out), -1)
    return out


@dataclass(frozen=True)
class ClassWeights:
    """The weights of a dataset's rows before those of their classes.

    Args:
        requested: "balanced", or a weight for each class.
        weights: The packed weights of all rows, or None.
    """

    requested: str | Mapping[str, float]
    weights: np.ndarray | None


def gather_weights(data: Any, rows: Any) -> np.ndarray:
    """Returns one weight for each of the rows of a dataset, (n,) float64; 1 if it has none.

    Of weights of several numbers a row the first ones are taken.

    Args:
        data: A dataset whose rows have numbers.
        rows: Their numbers, or a slice.
    """
    labels, *weights = data.sources[1:]
    if not weights:
        return np.ones(len(labels))[rows]
    gathered = np.asarray(weights[0].gather(rows), np.float64)
    return gathered.reshape(len(gathered), -1)[:, 0]


def own_weights(data: Any, rows: np.ndarray) -> np.ndarray | None:
    """Returns the weight that the user gave each of the rows (n,), without those of classes.

    Of weights of several numbers a row the first ones are taken; None without weights.

    Args:
        data: A dataset whose rows have numbers.
        rows: Their numbers.
    """
    if len(data.sources) < 3:
        return None
    if data.class_weights is None:
        return gather_weights(data, rows)
    own = data.class_weights.weights
    return None if own is None else np.asarray(own[rows], np.float64).reshape(len(rows), -1)[:, 0]


def row_weights(
    weights: np.ndarray | None,
    class_weight: str | Mapping[str, float] | None,
    label: LabelRule,
    codes: np.ndarray,
    keep: np.ndarray,
) -> np.ndarray | None:
    """Returns one weight, or an array of weights, per row; None if all rows weigh the same.

    Args:
        weights: The packed weights, which are changed, or None.
        class_weight: "balanced" or a weight for each level, for training rows only; or None.
        label: The labels' rule.
        codes: The encoded labels.
        keep: Mask of the training rows.

    Raises:
        SpecError: if `class_weight` does not fit the labels.
    """
    if class_weight is None:
        return weights
    out = weights
    if out is None:
        out = aligned_empty((len(codes),))
        out[...] = 1.0
    codes = _read_classes(label, codes)
    by_class = _class_weights(class_weight, label, codes[keep])
    own = by_class[codes[keep].astype(np.int64)]
    out[keep] *= own.reshape(-1, *[1] * (out.ndim - 1))
    return out


def _read_classes(label: LabelRule, codes: np.ndarray) -> np.ndarray:
    """Returns the class of each row: of one-hot labels the column of the largest, as in Keras.

    Raises:
        SpecError: for columns that are no classes, such as several labels of 0 and 1.
    """
    codes = codes.reshape(len(codes), -1)
    if label.kind != "matrix":
        return codes[:, 0]
    if len(label.row_shape) == 1 and not label.survival and _sums_to_one(codes):
        classes: np.ndarray = codes.argmax(axis=1)
        return classes
    raise SpecError(
        "`class_weight` needs labels that are classes: one column, or a column for each class with "
        "a single 1 in a row.",
        hint="Give `weights`, one a row: they also weigh rows with several labels, or numbers.",
        arg="class_weight",
    )


def _sums_to_one(codes: np.ndarray) -> bool:
    """Whether each row holds shares of classes: a single 1, or smoothed ones."""
    return all(
        bool(codes[rows].min() >= 0 and np.abs(codes[rows].sum(axis=1) - 1).max() <= ONE_HOT)
        for rows in row_blocks(len(codes), codes[:1].nbytes)
    )


def _class_weights(
    requested: str | Mapping[str, float], label: LabelRule, codes: np.ndarray
) -> np.ndarray:
    if label.outputs:
        raise SpecError(
            "`class_weight` cannot tell whose classes to weigh: `y` has several outputs.",
            hint="Give `weights`, one a row.",
            arg="class_weight",
        )
    if label.kind not in ("class", "binary", "matrix") and not label.counts:
        raise SpecError(
            "`class_weight` needs labels that are classes, not numbers.",
            arg="class_weight",
        )
    named = label.kind == "matrix" and isinstance(requested, Mapping)
    named = named and set(requested) == set(label.names)
    numbers = not (label.levels or label.logical or named)
    levels = label.levels or label.names or ("FALSE", "TRUE")
    highest = label.units - 1 if label.kind == "matrix" else int(label.maximum)
    if requested == "balanced":
        size = highest + 1 if numbers else len(levels)
        return balanced_weights(np.bincount(codes.astype(np.int64), minlength=size))
    if numbers:
        return _number_weights(requested, highest)
    if not isinstance(requested, Mapping) or set(requested) != set(levels):
        raise SpecError(
            '`class_weight` must be "balanced" or one number named after each level.',
            hint=f"Levels are {', '.join(levels[:10])}.",
            arg="class_weight",
        )
    return np.array([check_number("class_weight", requested[level], 0.0) for level in levels])


def _number_weights(requested: str | Mapping[str, float], highest: int) -> np.ndarray:
    """Returns the weight of each class from 0 to the highest; one that is not named weighs 1."""
    named = requested if isinstance(requested, Mapping) else {"": 0.0}
    if not all(str(name).isdecimal() for name in named):
        raise SpecError(
            '`class_weight` must be "balanced" or numbers named after classes.',
            hint=f"Classes are whole numbers, here from 0 to {highest}.",
            arg="class_weight",
        )
    unknown = [name for name in named if int(name) > highest]
    if unknown:
        raise SpecError(
            f"`class_weight` names the class {unknown[0]}, but there are the classes 0 to "
            f"{highest}.",
            hint="Check its names: classes count from 0.",
            arg="class_weight",
        )
    by_number = {int(name): check_number("class_weight", named[name], 0.0) for name in named}
    return np.array([by_number.get(number, 1.0) for number in range(highest + 1)])
