"""Learns how to encode a column of a data frame as feature columns, and applies it.

Columns are dicts `{name, kind, values, levels}`: `kind` is "numeric", "integer", "logical",
"factor" or "character" (these two hold R's 1-based codes in `values`, 0 for NA, and their
`levels`), "date", "time" (with `zone` and the UTC `offsets` of its rows) or "duration" (with
`units`), see `datetimes`. A numeric column with `offset` is neither standardised nor imputed; one
with `strata`, their number, holds numbers of strata from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec, check_choice, describe
from gpukeras.data.arrays import (
    FLOAT32_MAX,
    BadValues,
    Notes,
    RunningStats,
    check_lengths,
    column_fault,
    divisors,
    find_other,
    missing_hint,
    row_blocks,
)
from gpukeras.data.recipe import imputation
from gpukeras.data.recipe.datetimes import CYCLES, check_days, encode_cycles, read_number
from gpukeras.data.recipe.targets import (
    CATEGORIES,
    LOGICAL,
    are_numbers,
    count_codes,
    explain_conversion,
    find_absent,
    recode,
    spread_codes,
)
from gpukeras.data.recipe.text_vectorization import TextRule, TextSpec, encode_text, learn_text

# Hashing ------------------------------------------------------------------------------------------

HASH_BYTES = 8


def choose_bins(levels: Iterable[str], bins: int) -> np.ndarray:
    """Returns the bin of each level, from 0 (int32); a bin does not tell its levels apart.

    Args:
        levels: Texts; the bin of a text does not depend on the other texts or their order.
        bins: The number of bins.
    """
    return np.array([choose_bin(level, bins) for level in levels], dtype=np.int32)


def choose_bin(level: str, bins: int) -> int:
    """Returns the bin of one level, from 0."""
    # Text that is not valid Unicode also has bytes.
    digest = blake2b(level.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
    return int.from_bytes(digest, "little") % bins


# Rules --------------------------------------------------------------------------------------------

MAX_ONEHOT = 1000  # levels; more one-hot columns are usually a mistake
MAX_IDENTIFIERS = 50  # different texts that a column may have even if no text repeats
ENCODINGS = ("onehot", "codes", "hash")
MAKERS = {"date": "as.Date()", "time": "as.POSIXct()", "duration": "as.difftime()"}
KINDS = {kind: kind for kind in MAKERS} | dict.fromkeys(CATEGORIES, "category")


class BaseRule(ABC):
    """What the rules of all columns have; the properties of one that has none of it.

    Attributes:
        name: The column's name.
        kind: The kind of its values.
        fill: Replaces a missing value: a number (days for dates and times), a level or a text; None
            if values are not imputed.
        indicator: Whether a 0/1 column marks missing values.
    """

    name: str
    kind: str
    fill: float | str | None
    indicator: bool
    center: float = 0.0
    scale: float = 1.0
    constant: float | None = None
    logical: bool = False
    offset: bool = False
    strata: int = 0
    units: str = ""
    zone: str = ""
    levels: tuple[str, ...] = ()
    onehot: bool = False
    bins: int = 0
    new_levels: bool = False
    absent: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns that the rule makes."""
        return (*self._name_parts(), f"{self.name}=NA") if self.indicator else self._name_parts()

    @abstractmethod
    def _name_parts(self) -> tuple[str, ...]:
        """Returns the names of the feature columns of values, without that of missing ones."""


@dataclass(frozen=True)
class ScaledRule(BaseRule):
    """The rule of a column whose values become numbers.

    Args:
        name: The column's name.
        center: Subtracted from a number.
        scale: Divides a number after centring, see `arrays.divisors()`; 0 for a constant.
        fill: Replaces a missing value, or None.
        indicator: Whether a 0/1 column marks missing values.
        constant: The number that all training rows have, as far as it is known, or None. Such a
            column teaches a model nothing; where it is not scaled, it makes no other encoding.
    """

    name: str
    center: float = 0.0
    scale: float = 1.0
    fill: float | None = None
    indicator: bool = False
    constant: float | None = field(default=None, compare=False)

    def _name_parts(self) -> tuple[str, ...]:
        cycles = (f"{self.name}:{part}" for part in CYCLES.get(self.kind, ()))
        return (self.name, *cycles)


@dataclass(frozen=True)
class NumberRule(ScaledRule):
    """The rule of numbers and logicals.

    Args:
        logical: Whether the number is a logical, TRUE being 1.
        offset: Whether the number is taken as it is: an offset, or the number of a stratum.
        strata: How many strata there are, of which it is the number from 0; 0 for other columns.
    """

    kind: str = field(default="number", init=False)
    logical: bool = False
    offset: bool = False
    strata: int = 0


@dataclass(frozen=True)
class DurationRule(ScaledRule):
    """The rule of durations, as numbers in R's `units`."""

    kind: str = field(default="duration", init=False)
    units: str = ""


@dataclass(frozen=True)
class DateRule(ScaledRule):
    """The rule of dates: days, and the cycles of week and year."""

    kind: str = field(default="date", init=False)


@dataclass(frozen=True)
class TimeRule(ScaledRule):
    """The rule of times: days, and cycles in a time zone."""

    kind: str = field(default="time", init=False)
    zone: str = ""


@dataclass(frozen=True)
class CategoryRule(BaseRule):
    """The rule of a factor or of texts that are categories.

    Args:
        name: The column's name.
        levels: The levels, in order; none if they are hashed.
        onehot: Whether there is one 0/1 column per level, otherwise one column of codes from 0.
        fill: Replaces a missing value, or None.
        indicator: Whether a 0/1 column marks missing values.
        bins: If not 0, there is one 0/1 column per bin of a level's hash.
        new_levels: Whether levels that training did not see are encoded, see `targets.recode()`.
        absent: Levels without a training row, as far as they are known. They have columns, which
            teach a model nothing, and make no other encoding.
    """

    kind: str = field(default="category", init=False)
    name: str
    levels: tuple[str, ...] = ()
    onehot: bool = True
    fill: str | None = None
    indicator: bool = False
    bins: int = 0
    new_levels: bool = False
    absent: tuple[str, ...] = field(default=(), compare=False)

    def _name_parts(self) -> tuple[str, ...]:
        if self.bins:
            return tuple(f"{self.name}#{place}" for place in range(1, self.bins + 1))
        return (
            tuple(f"{self.name}={level}" for level in self.levels) if self.onehot else (self.name,)
        )


@dataclass(frozen=True)
class VectorizedRule(BaseRule):
    """The rule of texts that are split into tokens."""

    kind: str = field(default="text", init=False)
    name: str
    text: TextRule
    fill: str | None = None
    indicator: bool = False

    def _name_parts(self) -> tuple[str, ...]:
        return self.text.features(self.name)


NumericRule = NumberRule | DurationRule | DateRule | TimeRule
ColumnRule = NumericRule | CategoryRule | VectorizedRule


def make_scaled(column: Mapping[str, Any], **learned: Any) -> NumericRule:
    """Returns the rule of a column of numbers, durations, dates or times.

    Args:
        column: The column, of which only the kind of values is read.
        **learned: Other fields of `ScaledRule`.
    """
    name, kind = column["name"], kind_of(column)
    if kind == "duration":
        return DurationRule(name, units=column.get("units") or "", **learned)
    if kind == "time":
        return TimeRule(name, zone=column.get("zone") or "", **learned)
    if kind == "date":
        return DateRule(name, **learned)
    return NumberRule(name, logical=column["kind"] == "logical", **learned)


@dataclass(frozen=True)
class Learning:
    """The rows and options from which an encoding is learned.

    Args:
        keep: Mask of the training rows among those that are taken.
        spec: The dataset's options.
        complete: Mask of the rows to take, or None for all; see `imputation`.
        arg: Name of the user's argument, for error messages.
        text: Which columns are text, and how they are encoded; or None.
        whole: Whether no other rows will train, as where these are the first chunk.
    """

    keep: np.ndarray
    spec: DatasetSpec = field(default_factory=DatasetSpec)
    complete: np.ndarray | None = None
    arg: str = "x"
    text: TextSpec | None = None
    whole: bool = True

    @property
    def impute(self) -> bool:
        """Whether missing values are replaced."""
        return self.spec.na == "impute"

    def among(self) -> np.ndarray:
        """Returns the mask of the training rows among all rows."""
        if self.complete is None:
            return self.keep
        among = np.zeros(len(self.complete), dtype=bool)
        among[self.complete] = self.keep
        return among

    def scales(self, deviations: Iterable[float]) -> tuple[float, ...]:
        """Returns the divisors of numbers; 1 for a deviation of 0 if other rows train too."""
        least = 0.0 if self.whole else 1.0
        return tuple(float(deviation) or least for deviation in deviations)

    def encoding(self, name: str) -> str:
        """Returns the encoding of a category."""
        encode = self.spec.encode
        return encode if isinstance(encode, str) else encode.get(name, "onehot")

    def check(self, columns: Sequence[Mapping[str, Any]]) -> None:
        """Checks that the options fit the columns.

        Raises:
            SpecError: if `encode` or `text` does not fit; names the column.
        """
        texts = () if self.text is None else self.text.columns
        if isinstance(self.spec.encode, str):
            check_choice("encode", self.spec.encode, ENCODINGS)
        else:
            for name, way in self.spec.encode.items():
                if way not in ENCODINGS:
                    problem = f"can be one of {', '.join(ENCODINGS)}, not {describe(way)}"
                    raise _option_error("encode", name, problem)
            self._check_named("encode", self.spec.encode, columns)
            both = [name for name in texts if name in self.spec.encode]
            if both:
                raise _option_error("encode", both[0], "is one of the columns of `text`")
        if self.text is not None and not texts:
            raise SpecError("`text` names no column.", hint="Give `columns`.", arg="text")
        self._check_named("text", texts, columns)

    def _check_named(
        self, option: str, names: Iterable[str], columns: Sequence[Mapping[str, Any]]
    ) -> None:
        kinds = {column["name"]: kind_of(column) for column in columns}
        for name in names:
            if name not in kinds:
                raise _option_error(option, name, f"is no feature column of `{self.arg}`")
            if kinds[name] != "category":
                raise _option_error(option, name, f"is a {kinds[name]}, not a factor or text")


def _option_error(option: str, name: str, problem: str) -> SpecError:
    return SpecError(f"`{option}` names `{name}`, which {problem}.", arg=option, column=name)


def kind_of(column: Mapping[str, Any]) -> str:
    """Returns the kind of rule that a column needs."""
    return KINDS.get(column["kind"], "number")


def take_rows(column: Mapping[str, Any], complete: np.ndarray | None) -> Mapping[str, Any]:
    """Returns the column with the rows where `complete` is true; None takes all."""
    if complete is None:
        return column
    parts = [part for part in ("values", "offsets") if column.get(part) is not None]
    return {**column, **{part: column[part][complete] for part in parts}}


# Learning ----------------------------------------------------------------------------------------


def learn_column(column: Mapping[str, Any], how: Learning) -> ColumnRule:
    """Learns the rule of one column, with statistics of the training rows' non-missing values.

    Levels come from all rows, as they are the column's type rather than a statistic.

    Raises:
        DataError: for a column that cannot be a feature; names the column.
    """
    name, rows = column["name"], how.keep if how.complete is None else how.complete
    check_lengths(len(rows), len(column["values"]), f"{how.arg}${name}", how.arg)
    if how.text is not None and name in how.text.columns:
        return _learn_text(column, how, how.text)
    if kind_of(column) == "category":
        return _learn_category(column, how)
    return _learn_number(column, how)


def note_numbers(rules: Iterable[ColumnRule], texts: Collection[str], arg: str) -> tuple[str, ...]:
    """Returns sentences about columns of text that hold mostly numbers."""
    notes = []
    for rule in rules:
        if rule.name in texts and rule.onehot and are_numbers(rule.levels):
            notes.append(
                f"Column `{rule.name}` of `{arg}` holds numbers as text: it became "
                f"{len(rule.levels)} columns, one for each text. "
                "Use as.numeric() first, or factor() if they are codes."
            )
    return tuple(notes)


def _learn_category(column: Mapping[str, Any], how: Learning) -> ColumnRule:
    encoding = how.encoding(column["name"])
    hashed = encoding == "hash"
    levels = () if hashed else _check_levels(column, encoding == "onehot", how.arg)
    column = take_rows(column, how.complete)
    return CategoryRule(
        column["name"],
        levels,
        encoding == "onehot",
        fill=imputation.learn_fill_level(column, how.keep, how.arg) if how.impute else None,
        indicator=_needs_indicator(column, how),
        bins=how.spec.hash_bins if hashed else 0,
        absent=find_absent(column, how.keep) if levels and how.whole else (),
    )


def _learn_text(column: Mapping[str, Any], how: Learning, spec: TextSpec) -> ColumnRule:
    column = take_rows(column, how.complete)
    return VectorizedRule(
        column["name"],
        learn_text(column, how.keep, spec, how.arg),
        fill="" if how.impute else None,
        indicator=_needs_indicator(column, how),
    )


def _learn_number(column: Mapping[str, Any], how: Learning) -> NumericRule:
    if column.get("offset"):
        return NumberRule(column["name"], offset=True, strata=int(column.get("strata") or 0))
    summary = NumberSummary(column, how)
    column = take_rows(column, how.complete)
    if not summary.needed:
        constant = find_constant(summary.take(column, how.keep)) if how.whole else None
        return make_scaled(column, constant=constant)
    summary.add(column, how.keep)
    if summary.needs_median:
        summary.median = float(np.median(summary.take(column, how.keep)))
    return summary.rule()


class NumberSummary:
    """Statistics of a column of numbers, dates, times or durations, from one block or several.

    Args:
        column: A block of the column, or an empty one: its name, kind, zone and units.
        how: Options for learning columns; its masks of rows are unused.

    Attributes:
        count: Number of the training rows' values that are not missing.
        median: Their median, where it is needed and known.
    """

    def __init__(self, column: Mapping[str, Any], how: Learning) -> None:
        """Starts without values."""
        self.name, self.how = column["name"], how
        self.median: float | None = None
        self._column = {key: column.get(key) or "" for key in ("name", "kind", "zone", "units")}
        self._moments = RunningStats()
        self._bad = BadValues(how.impute)
        self._gaps = 0  # missing values in training rows

    @property
    def scaled(self) -> bool:
        """Whether the column is standardised; days since 1970 are too large for a network."""
        kind = self._column["kind"]
        return (self.how.spec.scale and kind != "logical") or kind in CYCLES

    @property
    def needed(self) -> bool:
        """Whether the column needs any statistics."""
        return self.scaled or self.how.impute

    @property
    def needs_median(self) -> bool:
        """Whether the median is needed; a logical column's mode follows from its mean."""
        return self.how.impute and self._column["kind"] != "logical" and self.count > 0

    @property
    def count(self) -> int:
        """Number of the training rows' values that are not missing."""
        return self._moments.count

    def take(self, column: Mapping[str, Any], keep: np.ndarray | None) -> np.ndarray:
        """Returns the values of a block's training rows, without missing ones.

        Args:
            column: The block.
            keep: Mask of the training rows, None for all.
        """
        values = read_number(column, self._column["units"])
        kept = values if keep is None else values[keep]
        return kept[~np.isnan(kept)]

    def add(self, column: Mapping[str, Any], keep: np.ndarray | None) -> None:
        """Adds a block of rows; for the arguments see `take()`."""
        values = read_number(column, self._column["units"])
        kept = values if keep is None else values[keep]
        if self._bad.add(values):
            there = kept[~np.isnan(kept)]
            self._gaps += len(kept) - len(there)
            kept = there
        for rows in row_blocks(len(kept), kept.itemsize):
            self._moments.add(kept[rows])

    def rule(self) -> NumericRule:
        """Returns the learned rule.

        Raises:
            DataError: if values are missing, infinite or too large; names the column, with counts.
        """
        if not self.needed:
            return make_scaled(self._column)
        if error := self._bad.find_error(self.name, self.how.arg):
            raise error
        if not self.count:
            raise imputation.nothing_observed(self.name, self.how.arg)
        mean, fill = float(self._moments.mean), None
        (deviation,) = self.how.scales((self._moments.deviation,))
        if self.how.impute:
            fill = float(mean > 0.5) if self.median is None else self.median
        return make_scaled(
            self._column,
            center=mean if self.scaled else 0.0,
            scale=deviation if self.scaled else 1.0,
            fill=fill,
            indicator=self.how.impute and self._gaps > 0,
            constant=self._moments.constant if self.how.whole else None,
        )


def find_constant(values: np.ndarray) -> float | None:
    """Returns the finite number that all values are but for missing ones, or None."""
    values = values[~np.isnan(values)]
    same = len(values) > 0 and np.isfinite(values[0]) and bool((values == values[0]).all())
    return float(values[0]) if same else None


def _needs_indicator(column: Mapping[str, Any], how: Learning) -> bool:
    return how.impute and bool(imputation.is_missing(column)[how.keep].any())


def _check_levels(column: Mapping[str, Any], onehot: bool, arg: str) -> tuple[str, ...]:
    name = column["name"]
    levels = tuple(column["levels"])
    rows = len(column["values"])
    identifiers = column["kind"] == "character" and len(levels) > max(MAX_IDENTIFIERS, rows / 2)
    if not levels or identifiers:
        found, ways = "no levels", ""
        if levels:
            found = f"{len(levels)} different texts in {count_of(rows, 'row')}"
            ways = ', or use `encode = "hash"` or `text`'
        hint = f"Drop the column, or make it a factor with the levels you mean{ways}."
        how = explain_conversion(levels, name) if identifiers else ""
        if how:
            found, hint = f"{found}, most of which are numbers", how
        raise column_fault(name, arg, f"has {found}: it cannot be a category.", hint)
    if onehot and len(levels) > MAX_ONEHOT:
        problem = f"has {len(levels)} levels, too many for one-hot columns."
        hint = 'Use `encode = "codes"` or `encode = "hash"`, or merge rare levels.'
        raise column_fault(name, arg, problem, hint)
    return levels


# Applying ----------------------------------------------------------------------------------------


def transform_column(
    rule: ColumnRule,
    column: Mapping[str, Any],
    out: np.ndarray,
    arg: str,
    notes: Notes | None = None,
) -> None:
    """Writes a column's features into `out`, one row per value.

    Args:
        rule: The column's rule.
        column: The values.
        out: Rows first, one column per feature.
        arg: The user's name for the data, for messages.
        notes: Collects whole numbers that lose digits, or None.

    Raises:
        DataError: for a changed type, a new level, or values that cannot be trained on; names the
            column.
    """
    column = as_kind(column, rule.kind, rule.zone, rule.units)
    _check_kind(rule, column, arg)
    if rule.indicator:
        out[:, -1] = imputation.is_missing(column)
        out = out[:, :-1]
    if isinstance(rule, VectorizedRule):
        encode_text(rule.text, column, out, arg, imputed=rule.fill is not None)
    elif isinstance(rule, CategoryRule):
        _transform_category(rule, column, out, arg, notes)
    else:
        _transform_number(rule, column, out, arg, notes)


def as_kind(column: Mapping[str, Any], kind: str, zone: str, units: str) -> Mapping[str, Any]:
    """Returns a column without any value as one of a rule's kind: R's `NA` alone is a logical."""
    kind = {"number": "numeric", "category": "character", "text": "character"}.get(kind, kind)
    same = column["kind"] == kind or {column["kind"], kind} <= set(CATEGORIES)
    if same or not (missing := imputation.is_missing(column)).all():
        return column
    if kind in CATEGORIES:
        return {**column, "kind": kind, "values": np.zeros(len(missing), np.int32), "levels": ()}
    values = {"values": np.full(len(missing), np.nan), "offsets": np.zeros(len(missing))}
    return {**column, **values, "kind": kind, "zone": zone, "units": units}


def _transform_category(
    rule: CategoryRule, column: Mapping[str, Any], out: np.ndarray, arg: str, notes: Notes | None
) -> None:
    if rule.bins:
        codes = _hash_category(rule.bins, column, arg, rule.fill)
    else:
        codes = recode(column, rule.levels, arg, rule.fill, new_levels=rule.new_levels)
    if notes is not None and rule.absent:
        absent = [place for place, level in enumerate(rule.levels) if level in rule.absent]
        if np.isin(codes, absent).any():
            notes.add_unlearned("level", (rule.name,), arg)
    if not rule.onehot and not rule.bins:
        out[:, 0] = codes
        return
    for rows in row_blocks(len(out), out.itemsize * out.shape[1]):
        out[rows] = codes[rows, None] == np.arange(out.shape[1])


def _hash_category(bins: int, column: Mapping[str, Any], arg: str, fill: str | None) -> np.ndarray:
    """Returns each row's bin; hashes each level that occurs once."""
    levels = column["levels"]
    used = np.flatnonzero(count_codes(column, arg, imputed=fill is not None))
    mapping = np.zeros(len(levels) + 1, dtype=np.int32)
    # R's codes count from 1: code 0, a missing value, indexes the last entry.
    names = (levels[code - 1] if code else fill or "" for code in used)
    mapping[used - 1] = choose_bins(names, bins)
    return spread_codes(column, mapping)


def _transform_number(
    rule: ScaledRule, column: Mapping[str, Any], out: np.ndarray, arg: str, notes: Notes | None
) -> None:
    values, imputed = read_number(column, rule.units), rule.fill is not None
    hint = missing_hint(label=True) if rule.offset and not np.isinf(values).any() else ""
    _refuse_bad(values, rule.name, arg, hint, imputed=imputed, limit=np.inf)
    if is_odd_logical(rule, column):
        _check_logical(rule, column, values, arg)
    if notes is not None:
        _look_at(np.asarray(column["values"]).reshape(-1), values, rule, arg, notes)
    if rule.fill is not None:
        values = np.where(np.isnan(values), rule.fill, values)
    with np.errstate(over="ignore"):
        values = (values - rule.center) / divisors(rule.scale)
    _refuse_bad(values, rule.name, arg, imputed=False, limit=FLOAT32_MAX)
    out[:, 0] = values
    if rule.kind in CYCLES:
        check_days(read_number(column), rule.name, arg)
        encode_cycles(column, out[:, 1:])


def is_odd_logical(rule: BaseRule, column: Mapping[str, Any]) -> bool:
    """Whether a column holds numbers where training had TRUE and FALSE, or the other way round."""
    return rule.logical != (column["kind"] == "logical")


def _check_logical(
    rule: ScaledRule, column: Mapping[str, Any], values: np.ndarray, arg: str
) -> None:
    """Refuses TRUE and FALSE for numbers, and numbers other than 0 and 1 for TRUE and FALSE."""
    if not rule.logical:
        problem = "holds TRUE and FALSE where training had numbers."
        raise column_fault(rule.name, arg, problem, "Convert it by as.integer() if it is a number.")
    odd = int((~np.isin(values, (0.0, 1.0)) & ~np.isnan(values)).sum())
    if odd:
        found = count_of(odd, "number")
        problem = f"has {found} other than 0 and 1 where training had TRUE and FALSE."
        raise column_fault(rule.name, arg, problem, "Convert it by as.logical() first.")


def _look_at(
    column: np.ndarray, values: np.ndarray, rule: ScaledRule, arg: str, notes: Notes
) -> None:
    """Notes numbers that lose digits, integers in the dtype given, and new ones."""
    values = values if column.dtype.kind == "f" else column
    scaled = (rule.center, rule.scale) != (0.0, 1.0)
    expected = rule.center if rule.scale == 0 else rule.constant
    for rows in row_blocks(len(values), values.itemsize):
        block = values[rows]
        notes.look(block, (rule.name,), arg, scaled)
        if expected is not None and find_other(block, expected).any():
            notes.add_unlearned("zero" if rule.scale == 0 else "number", (rule.name,), arg)


def _check_kind(rule: ColumnRule, column: Mapping[str, Any], arg: str) -> None:
    found = kind_of(column)
    if found != ("category" if rule.kind == "text" else rule.kind):
        maker = MAKERS.get(rule.kind)
        hint = f"Convert it by {maker} first." if maker else explain_kind(rule.levels, column)
        problem = f"is a {found} where training had a {rule.kind}."
        raise column_fault(rule.name, arg, problem, hint)


def explain_kind(known: Sequence[str], column: Mapping[str, Any]) -> str:
    """Returns how R converts a category that was a number in training, or the other way round."""
    found = set(column.get("levels") or ())
    if found and found <= LOGICAL:
        return "Convert it by as.logical() first: it holds TRUE and FALSE as text."
    if column["kind"] == "logical" and known and set(known) <= LOGICAL:
        return "Convert it by as.character() first: it was text in training."
    factor = column["kind"] == "factor"
    return explain_conversion(found, str(column["name"]), 1, factor) if found else ""


def _refuse_bad(
    values: np.ndarray, name: str, arg: str, hint: str = "", *, imputed: bool, limit: float
) -> None:
    """Raises DataError for values that are missing, infinite or too large, with the first row."""
    bad = BadValues(imputed, limit)
    bad.add(values)
    if error := bad.find_error(name, arg, hint):
        raise error
