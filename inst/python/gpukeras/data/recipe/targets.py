"""Encodes labels as numbers; `decoding` turns a model's output into values of the labels.

Labels are dicts `{kind, values, levels}`: `kind` is "numeric", "integer", "logical", "factor",
"character" (the last two hold R's 1-based codes in `values`, 0 for NA) or "matrix": several numbers
per row, in any shape, such as a mask's height and width; a factor with `ordered` has levels in a
meaningful order, and a matrix with `survival` holds times and status.
They are read in blocks, so that the extra
memory beside labels and encoding does not grow with the number of rows. Labels of the kind "masks"
are image files, see `image.source`.

Labels of several outputs are `{kind: "outputs", outputs: [{name, labels}], listed}`: see
`multi_output`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import (
    Notes,
    column_error,
    column_fault,
    column_name,
    missing_hint,
    moments,
    order_columns,
    row_blocks,
)

# Numbers as text ----------------------------------------------------------------------------------

NUMBER = re.compile(r"\s*[-+]?((0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*")
COMMA = re.compile(
    r"\s*[-+]?(0|[1-9]\d*|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?\s*"
)  # for the decimal point
SIGNS = re.compile(r"[%$\u20ac\u00a3\u00a5]")  # percent and currencies
ABSENT = frozenset(("", "-", "--", ".", "?", "na", "n/a", "nan", "null", "none", "missing"))
LEAST, SHARE = 3, 0.8  # texts that are numbers: at least so many, and this share


def count_numbers(texts: Collection[str]) -> int:
    """Returns how many texts are numbers as R reads them, or with commas between thousands."""
    return sum(NUMBER.fullmatch(text) is not None for text in texts)


def are_numbers(texts: Collection[str]) -> bool:
    """Whether most different texts are numbers, also with other signs; gaps do not count."""
    return bool(explain_conversion(texts, "x"))


def explain_conversion(
    texts: Collection[str], name: str, least: int = LEAST, factor: bool = False
) -> str:
    """Returns a sentence that tells how R makes numbers of texts; "" if most are no numbers.

    Args:
        texts: The different texts.
        name: Name of the column.
        least: The fewest texts that are numbers.
        factor: Whether they are levels of a factor, of which R makes its codes.
    """
    there = [text for text in texts if text.strip().lower() not in ABSENT]
    plain = [SIGNS.sub("", text) for text in there]
    points, commas = count_numbers(plain), sum(COMMA.fullmatch(text) is not None for text in plain)
    if max(points, commas) < max(least, SHARE * len(there)):
        return ""
    call = name if name.isidentifier() else "x"
    call = f"as.character({call})" if factor else call
    signs = sorted(set(SIGNS.findall("".join(there))))
    if len(signs) == 1:
        call = f'sub("{signs[0]}", "", {call}, fixed = TRUE)'
    elif signs:
        call = f'gsub("[{"".join(signs)}]", "", {call})'
    if commas > points:
        call = (
            f'gsub(".", "", {call}, fixed = TRUE)' if any("." in text for text in plain) else call
        )
        call = f'sub(",", ".", {call}, fixed = TRUE)'
    elif any("," in text for text in plain):
        call = f'gsub(",", "", {call})'
    gaps = ' A text such as "-" becomes NA.' if len(there) < len(texts) else ""
    return f"Make numbers of them: as.numeric({call}).{gaps}"


# Labels -------------------------------------------------------------------------------------------

CATEGORIES = ("factor", "character")
MOST = 10_000  # larger whole numbers are amounts rather than classes
MASKS = "masks"  # the kind of labels that are image files
SEVERAL = "outputs"  # the kind of labels and of their rule for several outputs
PAIR = 2  # columns of labels that mean different things: successes and failures, time and status
MOST_TEXTS = 50  # different numbers as text that may be classes
LOGICAL = frozenset(("TRUE", "FALSE", "True", "False", "true", "false", "T", "F"))
GIVEN = {"factor": "a factor", "character": "text", "logical": "TRUE and FALSE"}
GIVEN |= {"numeric": "numbers", "integer": "numbers", "matrix": "several columns"}
NO_WEIGHTS = (0,)  # the shape of a row's weights for an output without any


@dataclass(frozen=True)
class ColumnRange:
    """The range of one column of labels.

    Args:
        minimum: Smallest number seen.
        maximum: Largest number seen.
        whole: Whether all numbers seen are whole.
    """

    minimum: float
    maximum: float
    whole: bool

    def join(self, other: ColumnRange) -> ColumnRange:
        """Returns the range of both columns together."""
        low, high = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        return ColumnRange(low, high, self.whole and other.whole)


class MisfitError(ValueError):
    """The name of a record's field that does not fit the others."""


class BaseLabel:
    """What the rules of all labels have; the properties of one that has none of it.

    A rule is the learned encoding of labels, which also decodes predictions.

    Attributes:
        kind: The kind of labels.
        shape: Shape of one row of the labels as given.
        minimum: Smallest number seen.
        maximum: Largest number seen.
        whole: Whether all numbers seen are whole.
    """

    kind: str
    shape: tuple[int, ...] = ()
    minimum: float = 0.0
    maximum: float = 0.0
    whole: bool = True
    measured = False  # whether the rule holds the range of the labels
    levels: tuple[str, ...] = ()
    ordered: bool = False
    text: bool = False
    logical: bool = False
    center: float = 0.0
    scale: float = 1.0
    pixels: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    ranges: tuple[ColumnRange, ...] = ()
    survival: bool = False
    outputs: tuple[Output, ...] = ()
    listed: bool = False
    absent: tuple[str, ...] = ()

    @property
    def units(self) -> int:
        """Matching number of output units: 1, the number of levels, or the numbers per row."""
        return 1

    @property
    def columns(self) -> int:
        """Numbers per row of the encoded labels."""
        return 1

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row as the model takes it; empty for a class or a number."""
        return self.shape

    @property
    def weighed(self) -> bool:
        """Whether one of several outputs has weights of its own."""
        return any(math.prod(output.weight_shape) for output in self.outputs)

    @property
    def counts(self) -> bool:
        """Whether the numbers may be classes for a sparse loss: whole, from 0, below 10,000."""
        return self.kind == "number" and self.whole and 0 <= self.minimum <= self.maximum < MOST


@dataclass(frozen=True)
class ClassLabel(BaseLabel):
    """The rule of a factor or of text.

    Args:
        levels: The levels, in order.
        ordered: Whether the order of the levels has a meaning, as in R's ordered().
        text: Whether the labels were text, whose levels are in alphabetical order.
        absent: Levels without a training row, as far as they are known. They are classes of the
            model, and as `nnet::multinom()` has it not among the coefficients.
    """

    kind: str = field(default="class", init=False)
    levels: tuple[str, ...]
    ordered: bool = False
    text: bool = False
    absent: tuple[str, ...] = field(default=(), compare=False)

    @property
    def units(self) -> int:
        """The number of levels."""
        return len(self.levels)


@dataclass(frozen=True)
class BinaryLabel(BaseLabel):
    """The rule of 0 and 1, or of TRUE and FALSE.

    Args:
        logical: Whether the labels were R's logical.
        shape: Shape of one row as given.
        pixels: The value of a mask's pixels for each class, for labels that are image files.
    """

    kind: str = field(default="binary", init=False)
    logical: bool = False
    shape: tuple[int, ...] = ()
    pixels: tuple[int, ...] = ()
    maximum = 1.0


@dataclass(frozen=True)
class NumberLabel(BaseLabel):
    """The rule of one number per row, or of masks with more than two classes.

    Args:
        center: Mean of the training rows' numbers.
        scale: Standard deviation of the training rows' numbers.
        shape: Shape of one row as given.
        pixels: The value of a mask's pixels for each class, for labels that are image files.
        minimum: Smallest number seen.
        maximum: Largest number seen.
        whole: Whether all numbers seen are whole.
    """

    kind: str = field(default="number", init=False)
    center: float = 0.0
    scale: float = 1.0
    shape: tuple[int, ...] = ()
    pixels: tuple[int, ...] = ()
    minimum: float = 0.0
    maximum: float = 0.0
    whole: bool = True
    measured = True


@dataclass(frozen=True)
class MatrixLabel(BaseLabel):
    """The rule of several numbers per row.

    Args:
        shape: Shape of one row as given.
        names: Names of the columns, or none.
        minimum: Smallest number seen.
        maximum: Largest number seen.
        whole: Whether all numbers seen are whole.
        ranges: The range of each column, of two columns only.
        survival: Whether the labels were R's Surv(): a time and a status.
    """

    kind: str = field(default="matrix", init=False)
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    minimum: float = 0.0
    maximum: float = 0.0
    whole: bool = True
    ranges: tuple[ColumnRange, ...] = ()
    survival: bool = False
    measured = True

    def __post_init__(self) -> None:
        """Checks that a row has numbers."""
        if min(self.shape, default=0) < 1:
            raise MisfitError("shape")

    @property
    def units(self) -> int:
        """The numbers per row."""
        return math.prod(self.shape)

    @property
    def columns(self) -> int:
        """The numbers per row."""
        return self.units


@dataclass(frozen=True)
class OutputsLabel(BaseLabel):
    """The rules of several outputs.

    Args:
        outputs: The outputs, in the order of their columns.
        listed: Whether they were given without names: the model gets a list of labels.
    """

    kind: str = field(default=SEVERAL, init=False)
    outputs: tuple[Output, ...]
    listed: bool = False

    @property
    def units(self) -> int:
        """The numbers per row of all outputs."""
        return sum(output.rule.columns for output in self.outputs)

    @property
    def columns(self) -> int:
        """The numbers per row of all outputs."""
        return self.units


LabelRule = ClassLabel | BinaryLabel | NumberLabel | MatrixLabel | OutputsLabel


@dataclass(frozen=True)
class Output:
    """One of several outputs.

    Args:
        name: The model's name for the output.
        rule: The rule of its labels.
        weight_shape: Shape of a row's own weights; no weights if a dimension is 0.
    """

    name: str
    rule: LabelRule
    weight_shape: tuple[int, ...] = NO_WEIGHTS

    def __post_init__(self) -> None:
        """Checks the shape of the weights."""
        if min(self.weight_shape, default=0) < 0:
            raise MisfitError("weight_shape")


def each_label(y: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the labels of each output with the user's name for them; columns keep theirs."""
    if y["kind"] != SEVERAL:
        yield y.get("arg") or "y", y
        return
    for output in y["outputs"]:
        yield output["labels"].get("arg") or f"y${output['name']}", output["labels"]


def outputs_by_name(rule: LabelRule | None, names: Sequence[str]) -> dict[str, Output]:
    """Returns several outputs by the model's names for them, in the order of the labels.

    Args:
        rule: The labels' rule, or None for a model without a recipe.
        names: The names of the model's outputs, in its order, which is that of labels without
            names.
    """
    outputs = () if rule is None else rule.outputs
    if rule is not None and rule.listed and len(names) == len(outputs):
        return dict(zip(names, outputs, strict=True))
    return {output.name: output for output in outputs}


def name_label(formula: str, output: str = "") -> str:
    """Returns the user's name for the labels of a formula; `y` without a formula."""
    left, tilde, _ = formula.partition(" ~ ")
    if output:
        return output if tilde else f"y${output}"
    return left.strip("`") if tilde else "y"


def name_classes(rule: LabelRule) -> tuple[str, ...]:
    """Returns the names of the classes by code; none for labels that are no classes."""
    if rule.kind == "binary":
        return ("FALSE", "TRUE") if rule.logical else ("0", "1")
    return rule.levels


def learn_label(y: Mapping[str, Any], keep: np.ndarray, arg: str = "y") -> LabelRule:
    """Learns the rule of one output's labels.

    Args:
        y: The labels as they come from R.
        keep: Mask of the training rows, from which statistics come.
        arg: The user's name for the labels, for messages.

    Raises:
        DataError: for fewer than two levels, or values that are missing or infinite.
    """
    if y["kind"] == MASKS:
        return _mask_rule(y)
    if y["kind"] in CATEGORIES:
        levels = tuple(y["levels"])
        _refuse_numbers_as_text(y, arg)
        if len(levels) < 2:
            raise DataError(f"`{arg}` needs at least two levels, not {len(levels)}.", arg=arg)
        ordered, text = bool(y.get("ordered")), y["kind"] == "character"
        return ClassLabel(levels, ordered=ordered, text=text, absent=find_absent(y, keep))
    values = _label_numbers(y, arg)
    shape = tuple(values.shape[1:])
    if y["kind"] == "matrix":
        names = tuple(y.get("names") or ()) if len(shape) == 1 else ()
        return MatrixLabel(shape, names, survival=bool(y.get("survival")))
    if y["kind"] == "logical" or _zero_one(values):
        return BinaryLabel(logical=y["kind"] == "logical", shape=shape)
    center, deviation = moments(values.reshape(-1, 1), keep)
    return NumberLabel(float(center[0]), float(deviation[0]) or 1.0, shape)


def find_absent(column: Mapping[str, Any], keep: np.ndarray) -> tuple[str, ...]:
    """Returns the levels of a category that no training row has; none where these are not known."""
    counts = count_levels(column, keep)
    if not counts.sum() or not column.get("coded", True):
        return ()
    return tuple(str(column["levels"][place]) for place in np.flatnonzero(counts == 0))


def count_levels(column: Mapping[str, Any], keep: np.ndarray) -> np.ndarray:
    """Returns how many training rows have each level."""
    codes = np.asarray(column["values"]).reshape(-1)
    counts = np.zeros(len(column["levels"]), dtype=np.int64)
    for rows in row_blocks(len(codes), 8):
        counts += np.bincount(codes[rows][keep[rows]], minlength=len(counts) + 1)[1:]
    return counts


def _refuse_numbers_as_text(y: Mapping[str, Any], arg: str) -> None:
    """Refuses texts that would be more classes than anyone means, because they are numbers."""
    texts = y["levels"] if y["kind"] == "character" else ()
    how = explain_conversion(texts, arg) if len(texts) > MOST_TEXTS else ""
    if how:
        raise DataError(
            f"`{arg}` has {len(texts)} different texts, most of which are numbers.",
            hint=f"{how} If they are classes, make a factor.",
            arg=arg,
        )


def note_number_labels(y: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns sentences about labels that are numbers as text, and became classes."""
    return tuple(
        f"`{arg}` holds numbers as text, learned as {len(part['levels'])} classes. Use "
        "as.numeric() first, or factor() if they are codes."
        for arg, part in each_label(y)
        if part["kind"] == "character" and are_numbers(part["levels"])
    )


def describe_label(label: LabelRule) -> str:
    """Returns what labels are, for sentences such as "`y` holds 3 columns"."""
    if label.kind == "class":
        kind = "text" if label.text else "a factor"
        return f"{kind} of {label.units} levels"
    if label.kind == "binary":
        return "TRUE and FALSE" if label.logical else "0 and 1"
    if label.kind == "matrix":
        shape = label.row_shape
        several = " x ".join(map(str, shape)) + " numbers a row"
        return f"{label.units} columns" if len(shape) == 1 else several
    return "several outputs" if label.outputs else "numbers"


def _mask_rule(y: Mapping[str, Any]) -> LabelRule:
    shape, highest = tuple(y["values"].shape[1:]), len(y["pixels"]) - 1
    if highest == 1:
        return BinaryLabel(shape=shape, pixels=tuple(y["pixels"]))
    return NumberLabel(maximum=float(highest), shape=shape, pixels=tuple(y["pixels"]))


def measure_range(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    """Returns the rule with the range of these labels, which is checked against the loss."""
    if rule.kind == "binary" and not (rule.pixels or _are_zero_one(encoded)):
        rule = NumberLabel(shape=rule.shape)  # those of training were 0 and 1
    if not isinstance(rule, (NumberLabel, MatrixLabel)):
        return rule
    measured = _range_of(encoded)
    rule = replace(rule, minimum=measured.minimum, maximum=measured.maximum, whole=measured.whole)
    if not isinstance(rule, MatrixLabel):
        return rule
    pairs = rule.shape == encoded.shape[1:] == (PAIR,)  # not of windows, which take a series
    return replace(rule, ranges=tuple(map(_range_of, encoded.T)) if pairs else ())


def _are_zero_one(values: np.ndarray) -> bool:
    return all(bool(np.isin(values[rows], (0, 1)).all()) for rows in _blocks(values))


def _range_of(values: np.ndarray) -> ColumnRange:
    whole = all(bool((values[rows] % 1 == 0).all()) for rows in _blocks(values))
    return ColumnRange(float(values.min()), float(values.max()), whole)


def encode_label(
    rule: LabelRule, y: Mapping[str, Any], notes: Notes | None = None, arg: str = "y"
) -> np.ndarray:
    """Encodes labels into aligned memory: int32 codes for a class, else float32.

    Args:
        rule: The labels' rule.
        y: The labels.
        notes: Collects whole numbers that lose digits, or None.
        arg: The user's name for the labels, for messages.

    Raises:
        DataError: for another kind or width than in training, new levels, or values that are
            missing, infinite, or too large for float32.
    """
    if (rule.kind == "class") != (y["kind"] in CATEGORIES):
        raise _other_kind(rule, y, arg)
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


def _other_kind(rule: LabelRule, y: Mapping[str, Any], arg: str) -> DataError:
    """Returns the error of numbers in place of classes, or of classes in place of numbers."""
    found, levels = GIVEN[y["kind"]], set(y.get("levels") or ())
    hint = "Give the classes by name, as in training." if rule.levels else ""
    if levels and levels <= LOGICAL:
        hint = "as.logical() makes TRUE and FALSE of such text."
    elif levels:
        factor = y["kind"] == "factor"
        hint = explain_conversion(levels, arg, 1, factor)
    message = f"`{arg}` holds {found} where training had {describe_label(rule)}."
    return DataError(message, hint=hint, arg=arg)


def _check_row(rule: LabelRule, values: np.ndarray, arg: str) -> np.ndarray:
    """Returns the values in the row shape of training; any shape of one number per row fits."""
    expected, found = rule.row_shape, tuple(values.shape[1:])
    if found == expected or math.prod(found) == math.prod(expected) == 1:
        return values.reshape(-1, *expected)
    if len(expected) == len(found) == 1:
        raise DataError(f"`{arg}` must have {count_of(rule.units, 'column')}.", arg=arg)
    raise DataError(
        f"Each row of `{arg}` must have shape {expected}, as in training, not {found}.", arg=arg
    )


def _blocks(values: np.ndarray) -> Iterator[slice]:
    return row_blocks(len(values), 8 * int(np.prod(values.shape[1:], dtype=np.int64)))


def _names(y: Mapping[str, Any], arg: str) -> tuple[str, ...]:
    """Returns the column names of a matrix; `arg` for a vector or an array of higher rank."""
    several = y["kind"] == "matrix" and np.ndim(y["values"]) == 2
    return tuple(y.get("names") or ()) if several else (arg,)


def _columns(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else values.reshape(-1, 1)


def _label_numbers(y: Mapping[str, Any], arg: str) -> np.ndarray:
    """Returns the numbers as given; refuses missing or infinite ones."""
    values = np.asarray(y["values"])
    values = values if values.dtype.kind in "fiub" else values.astype(np.float64)
    if values.dtype.kind == "f":
        _refuse_numbers(values, _names(y, arg), np.inf, arg)
    return values


def _refuse_numbers(values: np.ndarray, names: Sequence[str], largest: float, arg: str) -> None:
    """Raises DataError for the first column with missing, infinite or too large values."""
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
    """Whether all numbers are 0 or 1, and both occur."""
    ones = 0
    for rows in _blocks(values):
        is_one = values[rows] == 1
        if not (is_one | (values[rows] == 0)).all():
            return False
        ones += int(is_one.sum())
    return 0 < ones < len(values)


def recode(
    column: Mapping[str, Any],
    levels: Sequence[str],
    arg: str,
    fill: str | None = None,
    *,
    new_levels: bool = False,
) -> np.ndarray:
    """Converts R's codes of a column's levels to 0-based codes of `levels` (int32, aligned).

    Args:
        column: A category with R's codes, 0 for a missing value.
        levels: The levels of training, in order.
        arg: The user's name for the data, for messages.
        fill: The level that replaces missing values, or None to raise an error for them.
        new_levels: Whether levels that are not in `levels` have the code after the last one.

    Raises:
        DataError: for new levels unless `new_levels`, codes without a level, or missing values;
            names the column.
    """
    own = list(column["levels"])
    position = {level: code for code, level in enumerate(levels)}
    # The code of a missing value minus 1 is -1, which indexes the last entry.
    other = len(levels) if new_levels else -1
    mapping = np.array([position.get(level, other) for level in [*own, fill]], dtype=np.int32)
    counts = count_codes(column, arg, imputed=fill is not None)
    unknown = (counts > 0) & (np.roll(mapping, 1) < 0)
    new = sorted({own[code - 1] for code in np.flatnonzero(unknown)})
    if new:
        shown = f"{', '.join(new[:5])}{', ...' if len(new) > 5 else ''}"
        problem = f"has levels that training did not see: {shown}."
        hint = "Drop those rows, or train with data that has them."
        raise column_fault(column["name"], arg, problem, hint, levels=new)
    return spread_codes(column, mapping)


def count_codes(column: Mapping[str, Any], arg: str, *, imputed: bool) -> np.ndarray:
    """Counts each of R's codes: missing values first, then the levels.

    Args:
        column: A category.
        arg: The user's name for the data.
        imputed: Whether values may be missing.

    Raises:
        DataError: for codes without a level, or missing values; names the column.
    """
    name, values = column["name"], np.asarray(column["values"]).reshape(-1)
    counts = np.zeros(len(column["levels"]) + 1, dtype=np.int64)
    for rows in _blocks(values):
        codes = values[rows].astype(np.int64)
        if not 0 <= codes.min() <= codes.max() < len(counts):
            levels = count_of(len(counts) - 1, "level")
            raise column_fault(name, arg, f"has codes outside its {levels}.")
        counts += np.bincount(codes, minlength=len(counts))
    if counts[0] and not imputed:
        error = column_error(name, arg, missing=int(counts[0]))
        error.details["row"] = int((values == 0).argmax()) + 1
        raise error
    return counts


def spread_codes(column: Mapping[str, Any], mapping: np.ndarray) -> np.ndarray:
    """Returns each row's entry of `mapping` (int32): one per level, then one for missing values."""
    values = np.asarray(column["values"]).reshape(-1)
    out = aligned_empty(values.shape, np.int32)
    for rows in _blocks(values):
        out[rows] = mapping[values[rows].astype(np.int64) - 1]
    return out
