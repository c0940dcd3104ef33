"""Labels into numbers, and a model's output back into the labels' own terms.

Labels come as dicts `{kind, values, levels}`: `kind` is "numeric", "integer", "logical", "factor",
"character" (the last two hold R's 1-based codes in `values`, 0 for NA) or "matrix": several numbers
a row, in any shape, such as a mask's height and width. They are read in blocks, so that what is
needed beside them and their encoding does not grow with their number.

Labels of several outputs come as `{kind: "outputs", outputs: [{name, labels}], listed}`: see
`multi_output`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import (
    Notes,
    aligned_empty,
    column_error,
    column_name,
    missing_hint,
    moments,
    row_blocks,
)
from gpukeras.data.preprocessing.column_order import order_columns

CATEGORIES = ("factor", "character")
MOST = 10_000  # whole numbers beyond are amounts rather than classes
SEVERAL = "outputs"  # the kind of labels, and of their rule, where there are several outputs


@dataclass(frozen=True)
class LabelRule:
    """How labels become numbers, and predictions become values again.

    Args:
        kind: "number", "binary" (0/1 or logical), "class" (levels), "matrix": several numbers a
            row, or "outputs".
        units: Output units that fit: 1, the number of levels, or the numbers a row; of "outputs",
            those of all of them.
        levels: Levels of a "class".
        names: Column names of a "matrix".
        logical: Whether a "binary" was R's logical.
        center: Mean of the training rows' numbers.
        scale: Their standard deviation.
        minimum: Smallest number seen.
        maximum: Largest number seen.
        whole: Whether all numbers seen are whole.
        outputs: The rules of several outputs, in the order of their columns.
        shape: Of one row of the labels as they were given: `(units,)` where that is left out.
        listed: Whether several outputs were given without names: the model gets a list of labels.
    """

    kind: str
    units: int = 1
    levels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    logical: bool = False
    center: float = 0.0
    scale: float = 1.0
    minimum: float = 0.0
    maximum: float = 0.0
    whole: bool = True
    outputs: tuple[Output, ...] = ()
    shape: tuple[int, ...] = ()
    listed: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row as the model takes it; that of a class or of a number is empty."""
        return self.shape or ((self.units,) if self.kind == "matrix" else ())

    @property
    def measured(self) -> bool:
        """Whether it has the range of the labels."""
        return self.kind in ("number", "matrix")

    @property
    def columns(self) -> int:
        """Numbers a row of the encoded labels."""
        return self.units if self.kind in ("matrix", SEVERAL) else 1

    @property
    def counts(self) -> bool:
        """Whether the numbers may be classes: whole and from 0, as a sparse loss takes them."""
        return self.kind == "number" and self.whole and 0 <= self.minimum <= self.maximum < MOST


@dataclass(frozen=True)
class Output:
    """One of several outputs.

    Args:
        name: The model's name for it.
        rule: Of its labels.
    """

    name: str
    rule: LabelRule


def each_label(y: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The labels of each output, with the user's name for them: those of columns, theirs."""
    if y["kind"] != SEVERAL:
        yield y.get("arg") or "y", y
        return
    for output in y["outputs"]:
        yield output["labels"].get("arg") or f"y${output['name']}", output["labels"]


def name_label(formula: str, output: str = "") -> str:
    """The user's name for the labels that a formula names; `y` without one."""
    left, tilde, _ = formula.partition(" ~ ")
    if output:
        return output if tilde else f"y${output}"
    return left.strip("`") if tilde else "y"


def learn_label(y: Mapping[str, Any], keep: np.ndarray, arg: str = "y") -> LabelRule:
    """The rule of one output's labels.

    Args:
        y: As they come from R.
        keep: Which rows are kept for training: statistics come from them.
        arg: The user's name for them, for messages.
    """
    if y["kind"] in CATEGORIES:
        levels = tuple(y["levels"])
        if len(levels) < 2:
            raise DataError(f"`{arg}` needs at least two levels, not {len(levels)}.", arg=arg)
        return LabelRule("class", units=len(levels), levels=levels)
    values = _label_numbers(y, arg)
    shape = tuple(values.shape[1:])
    if y["kind"] == "matrix":
        names = tuple(y.get("names") or ()) if len(shape) == 1 else ()
        return LabelRule("matrix", units=math.prod(shape), names=names, shape=shape)
    if y["kind"] == "logical" or _zero_one(values):
        return LabelRule("binary", logical=y["kind"] == "logical", maximum=1.0, shape=shape)
    center, deviation = moments(values.reshape(-1, 1), keep)
    return LabelRule(
        "number",
        center=float(center[0]),
        scale=float(deviation[0]),
        shape=shape,
    )


def measure_range(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    """The rule with the range of these labels: what a loss can take is checked against it."""
    if not rule.measured:
        return rule
    whole = all(bool((encoded[rows] % 1 == 0).all()) for rows in _blocks(encoded))
    return replace(rule, minimum=float(encoded.min()), maximum=float(encoded.max()), whole=whole)


def encode_label(
    rule: LabelRule, y: Mapping[str, Any], notes: Notes | None = None, arg: str = "y"
) -> np.ndarray:
    """Labels as aligned memory: int32 codes for a class, else float32.

    Args:
        rule: What was learned.
        y: The labels.
        notes: Where whole numbers that lose digits are noted, or None.
        arg: The user's name for them, for messages.

    Raises:
        DataError: for another kind or width than in training, new levels, or values that are
            missing, infinite, or too large for float32.
    """
    if (rule.kind == "class") != (y["kind"] in CATEGORIES):
        raise DataError(f"`{arg}` is {y['kind']} where training had {rule.kind} labels.", arg=arg)
    if rule.kind == "class":
        return recode({**y, "name": arg}, rule.levels, arg)
    y = order_columns(y, rule.names, arg) if y["kind"] == "matrix" else y
    values = _check_row(rule, _label_numbers(y, arg), arg)
    out, names = aligned_empty(values.shape), _names(y, arg)
    with np.errstate(over="ignore"):
        for rows in _blocks(values):
            out[rows] = values[rows]
            if notes is not None:
                notes.look(_columns(values[rows]), names, arg, scaled=False)
    if not np.isfinite([out.max(initial=0), out.min(initial=0)]).all():
        _refuse_numbers(values, names, float(np.finfo(np.float32).max), arg)
    return out


def _check_row(rule: LabelRule, values: np.ndarray, arg: str) -> np.ndarray:
    """The values in the shape that training had; one number a row is so in any shape."""
    requested, found = rule.row_shape, tuple(values.shape[1:])
    if found == requested or math.prod(found) == math.prod(requested) == 1:
        return values.reshape(-1, *requested)
    if len(requested) == len(found) == 1:
        raise DataError(f"`{arg}` must have {count_of(rule.units, 'column')}.", arg=arg)
    raise DataError(
        f"Each row of `{arg}` must have shape {requested}, as in training, not {found}.", arg=arg
    )


def _blocks(values: np.ndarray) -> Iterator[slice]:
    return row_blocks(len(values), 8 * int(np.prod(values.shape[1:], dtype=np.int64)))


def _names(y: Mapping[str, Any], arg: str) -> tuple[str, ...]:
    """Names of the columns of a matrix; an array of more dimensions is one column."""
    several = y["kind"] == "matrix" and np.ndim(y["values"]) == 2
    return tuple(y.get("names") or ()) if several else (arg,)


def _columns(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else values.reshape(-1, 1)


def _label_numbers(y: Mapping[str, Any], arg: str) -> np.ndarray:
    """The numbers as they are given, refused if some are missing or infinite."""
    values = np.asarray(y["values"])
    values = values if values.dtype.kind in "fiub" else values.astype(np.float64)
    if values.dtype.kind == "f":
        _refuse_numbers(values, _names(y, arg), np.inf, arg)
    return values


def _refuse_numbers(values: np.ndarray, names: Sequence[str], largest: float, arg: str) -> None:
    """Names the first column with values missing, infinite, or larger than `largest`."""
    counts = np.zeros((3, _columns(values[:1]).shape[1]), dtype=np.int64)
    for rows in _blocks(values):
        block = _columns(values[rows])
        if not np.isfinite(block).all():
            counts[0] += np.isnan(block).sum(axis=0)
            counts[1] += np.isinf(block).sum(axis=0)
        counts[2] += 0 if largest == np.inf else (np.abs(block) > largest).sum(axis=0)
    for column in np.flatnonzero(counts.any(axis=0)):
        missing, infinite, large = (int(count) for count in counts[:, column])
        name = column_name(names, int(column))
        hint = "" if infinite or large else missing_hint(label=True)
        raise column_error(name, arg, hint, missing=missing, infinite=infinite, large=large)


def _zero_one(values: np.ndarray) -> bool:
    """Whether the numbers are 0 and 1, and both occur."""
    ones = 0
    for rows in _blocks(values):
        one = values[rows] == 1
        if not (one | (values[rows] == 0)).all():
            return False
        ones += int(one.sum())
    return 0 < ones < len(values)


def decode(rule: LabelRule | None, output: np.ndarray, as_class: bool) -> dict[str, Any]:
    """A model's output in the labels' own terms.

    Args:
        rule: The labels' rule, or None for a model without a recipe.
        output: Float array, rows first.
        as_class: The most probable class instead of probabilities.

    Returns:
        `{values, levels, names, logical}`: `values` are 1-based codes of `levels` for a class.

    Raises:
        DataError: if classes are asked of labels that have none.
    """
    levels = [] if rule is None else list(rule.levels)
    logical = rule is not None and rule.logical
    single = output.ndim == 2 and output.shape[1] == 1
    if as_class:
        if rule is None or not (rule.kind in ("class", "binary") or (rule.counts and not single)):
            raise DataError('`type = "class"` needs a model trained on classes.', arg="type")
        codes = (output[:, 0] > 0.5).astype(np.int32) if single else output.argmax(axis=-1)
        values = codes.astype(np.int32) + (1 if rule.kind == "class" else 0)
        return {"values": values, "levels": levels, "names": [], "logical": logical}
    values = output[:, 0] if single else output
    names = name_columns(rule, output.shape)
    return {"values": values, "levels": [], "names": names, "logical": False}


def name_columns(rule: LabelRule | None, shape: Sequence[int]) -> list[str]:
    """Names for the columns of a model's output: its classes, or the labels' own columns."""
    if rule is None:
        return []
    single = len(shape) == 2 and shape[1] == 1
    return list(rule.levels if not single and len(rule.levels) == shape[-1] else rule.names)


def recode(
    column: Mapping[str, Any], levels: Sequence[str], arg: str, fill: str | None = None
) -> np.ndarray:
    """0-based codes (int32, aligned) in the order of `levels`, from R's in the column's own order.

    A code of 0 is a missing value: it becomes the level `fill`, or is an error without one.
    """
    own = list(column["levels"])
    position = {level: code for code, level in enumerate(levels)}
    # A missing value's -1 is the last entry.
    mapping = np.array([position.get(level, -1) for level in [*own, fill]], dtype=np.int32)
    counts = count_codes(column, arg, imputed=fill is not None)
    unknown = (counts > 0) & (np.roll(mapping, 1) < 0)
    new = sorted({own[code - 1] for code in np.flatnonzero(unknown)})
    if new:
        where = f"`{arg}`" if column["name"] == arg else f"Column `{column['name']}` of `{arg}`"
        raise DataError(
            f"{where} has levels that training did not see: "
            f"{', '.join(new[:5])}{', ...' if len(new) > 5 else ''}.",
            hint="Drop those rows, or train with data that has them.",
            arg=arg,
            column=column["name"],
            levels=new,
        )
    return spread_codes(column, mapping)


def count_codes(column: Mapping[str, Any], arg: str, *, imputed: bool) -> np.ndarray:
    """How often each of R's codes occurs: missing values first, then the levels.

    Args:
        column: A category.
        arg: The user's name for the data.
        imputed: Whether values may be missing.

    Raises:
        DataError: for codes without a level, or values that are missing; names the column.
    """
    name, values = column["name"], np.asarray(column["values"]).reshape(-1)
    counts = np.zeros(len(column["levels"]) + 1, dtype=np.int64)
    for rows in _blocks(values):
        codes = values[rows].astype(np.int64)
        if not 0 <= codes.min() <= codes.max() < len(counts):
            raise DataError(
                f"Column `{name}` of `{arg}` has codes outside its "
                f"{count_of(len(counts) - 1, 'level')}.",
                arg=arg,
                column=name,
            )
        counts += np.bincount(codes, minlength=len(counts))
    if counts[0] and not imputed:
        raise column_error(name, arg, missing=int(counts[0]))
    return counts


def spread_codes(column: Mapping[str, Any], mapping: np.ndarray) -> np.ndarray:
    """Each row's entry of `mapping` (int32): one a level, then one for missing values."""
    values = np.asarray(column["values"]).reshape(-1)
    out = aligned_empty(values.shape, np.int32)
    for rows in _blocks(values):
        out[rows] = mapping[values[rows].astype(np.int64) - 1]
    return out
