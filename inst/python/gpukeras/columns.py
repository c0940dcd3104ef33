"""One column of a data frame into feature columns: what is learned of it, and applied again.

Columns come as dicts `{name, kind, values, levels}`: `kind` is "numeric", "integer", "logical",
"factor" or "character" (these two hold R's 1-based codes in `values`, 0 for NA, and their
`levels`), "date", "time" (with `zone` and the UTC `offsets` of its rows) or "duration" (with
`units`), see `times`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import check_lengths, column_error, moments, row_blocks
from .errors import DataError
from .labels import CATEGORIES, recode
from .missing import is_missing, learn_fill, learn_fill_level, observed
from .times import CYCLES, check_days, encode_cycles, read_number

MAX_ONEHOT = 1000  # levels; beyond this, one-hot columns are a mistake more often than a wish
MAX_IDENTIFIERS = 50  # a text column may have this many different values even if all differ
KINDS = {"date": "date", "time": "time", "duration": "duration"} | dict.fromkeys(
    CATEGORIES, "category"
)
MAKERS = {"date": "as.Date()", "time": "as.POSIXct()", "duration": "as.difftime()"}


@dataclass(frozen=True)
class ColumnRule:
    """How one column of a data frame becomes numbers.

    Args:
        name: The column's name.
        kind: "number", "category", "date", "time" or "duration".
        levels: Levels of a category, in order.
        onehot: A category becomes one 0/1 column a level, otherwise one column of codes from 0.
        center: Subtracted from a number.
        scale: Divides a number after centring.
        fill: What replaces a missing value: a number (days for dates and times) or a level; None
            where values are not imputed.
        indicator: Whether a 0/1 column tells where values were missing.
        zone: Time zone in which a time has its weekday and hour.
        units: R's units of a duration.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    onehot: bool = True
    center: float = 0.0
    scale: float = 1.0
    fill: float | str | None = None
    indicator: bool = False
    zone: str = ""
    units: str = ""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns it makes."""
        if self.kind == "category" and self.onehot:
            names = tuple(f"{self.name}={level}" for level in self.levels)
        else:
            names = (self.name, *(f"{self.name}:{part}" for part in CYCLES.get(self.kind, ())))
        return (*names, f"{self.name}=NA") if self.indicator else names


@dataclass(frozen=True)
class Learning:
    """How columns are learned from.

    Args:
        keep: Which rows are training rows, of those taken.
        scale: Standardise numbers.
        onehot: One 0/1 column a level.
        impute: Learn what replaces missing values.
        complete: Which rows are taken, or None for all.
        arg: The user's name for the data, for messages.
    """

    keep: np.ndarray
    scale: bool
    onehot: bool
    impute: bool = False
    complete: np.ndarray | None = None
    arg: str = "x"


def kind_of(column: Mapping[str, Any]) -> str:
    """A rule's kind for a column."""
    return KINDS.get(column["kind"], "number")


def take_rows(column: Mapping[str, Any], complete: np.ndarray | None) -> Mapping[str, Any]:
    """A column's rows where `complete` is true."""
    if complete is None:
        return column
    parts = [part for part in ("values", "offsets") if column.get(part) is not None]
    return {**column, **{part: column[part][complete] for part in parts}}


# Learning ----------------------------------------------------------------------------------------


def learn_column(column: Mapping[str, Any], how: Learning) -> ColumnRule:
    """The rule of one column; statistics from the training rows' values that are there.

    Levels are taken from all rows: they are the column's type, not a statistic.

    Raises:
        DataError: for a column that cannot be a feature; the error names it.
    """
    name, rows = column["name"], how.keep if how.complete is None else how.complete
    check_lengths(len(rows), len(column["values"]), f"{how.arg}${name}", how.arg)
    if kind_of(column) == "category":
        return _learn_category(column, how)
    return _learn_number(column, how)


def _learn_category(column: Mapping[str, Any], how: Learning) -> ColumnRule:
    levels = _check_levels(column, how.onehot, how.arg)
    column = take_rows(column, how.complete)
    return ColumnRule(
        column["name"],
        "category",
        levels,
        how.onehot,
        fill=learn_fill_level(column, how.keep, how.arg) if how.impute else None,
        indicator=_needs_indicator(column, how),
    )


def _learn_number(column: Mapping[str, Any], how: Learning) -> ColumnRule:
    name, kind = column["name"], kind_of(column)
    zone, units = column.get("zone") or "", column.get("units") or ""
    # Days since 1970 are too large for a network as they are.
    scale = (how.scale and column["kind"] != "logical") or kind in CYCLES
    if not scale and not how.impute:
        return ColumnRule(name, kind, zone=zone, units=units)
    column = take_rows(column, how.complete)
    values = _finite(column, read_number(column, units), how.arg, missing=how.impute)
    _check_size(values, name, how.arg)
    there = observed(values, how.keep, name, how.arg)
    center, deviation = moments(there.reshape(-1, 1), np.ones(len(there), dtype=bool))
    return ColumnRule(
        name,
        kind,
        center=float(center[0]) if scale else 0.0,
        scale=float(deviation[0]) if scale else 1.0,
        fill=learn_fill(column, there) if how.impute else None,
        indicator=_needs_indicator(column, how),
        zone=zone,
        units=units,
    )


def _needs_indicator(column: Mapping[str, Any], how: Learning) -> bool:
    return how.impute and bool(is_missing(column)[how.keep].any())


def _check_levels(column: Mapping[str, Any], onehot: bool, arg: str) -> tuple[str, ...]:
    name, levels, rows = column["name"], tuple(column["levels"]), len(column["values"])
    identifiers = column["kind"] == "character" and len(levels) > max(MAX_IDENTIFIERS, rows / 2)
    if not levels or identifiers:
        found = "no levels" if not levels else f"{len(levels)} different texts in {rows} rows"
        raise DataError(
            f"Column `{name}` of `{arg}` has {found}: it cannot be a category.",
            hint="Drop the column, or make it a factor with the levels you mean.",
            arg=arg,
            column=name,
        )
    if onehot and len(levels) > MAX_ONEHOT:
        raise DataError(
            f"Column `{name}` of `{arg}` has {len(levels)} levels, too many for one-hot columns.",
            hint='Use `encode = "codes"`, or merge rare levels.',
            arg=arg,
            column=name,
        )
    return levels


# Applying ----------------------------------------------------------------------------------------


def bake_column(rule: ColumnRule, column: Mapping[str, Any], out: np.ndarray, arg: str) -> None:
    """Writes a column's features into `out`, one row a value.

    Raises:
        DataError: for a changed type, a new level, values that cannot be trained on; names it.
    """
    _check_kind(rule, column, arg)
    if rule.indicator:
        out[:, -1] = is_missing(column)
        out = out[:, :-1]
    if rule.kind == "category":
        _bake_category(rule, column, out, arg)
    else:
        _bake_number(rule, column, out, arg)


def _bake_category(rule: ColumnRule, column: Mapping[str, Any], out: np.ndarray, arg: str) -> None:
    codes = recode(column, rule.levels, arg, None if rule.fill is None else str(rule.fill))
    if not rule.onehot:
        out[:, 0] = codes
        return
    for rows in row_blocks(len(out), out.itemsize * out.shape[1]):
        out[rows] = codes[rows, None] == np.arange(out.shape[1])


def _bake_number(rule: ColumnRule, column: Mapping[str, Any], out: np.ndarray, arg: str) -> None:
    values = read_number(column, rule.units)
    values = _finite(column, values, arg, missing=rule.fill is not None)
    if rule.fill is not None:
        values = np.where(np.isnan(values), rule.fill, values)
    with np.errstate(over="ignore"):
        values = (values - rule.center) / rule.scale
    out[:, 0] = _check_size(values, rule.name, arg)
    if rule.kind in CYCLES:
        check_days(read_number(column), rule.name, arg)
        encode_cycles(column, out[:, 1:])


def _check_kind(rule: ColumnRule, column: Mapping[str, Any], arg: str) -> None:
    found = kind_of(column)
    if found != rule.kind:
        maker = MAKERS.get(rule.kind)
        raise DataError(
            f"Column `{rule.name}` of `{arg}` is a {found} where training had a {rule.kind}.",
            hint=f"Convert it by {maker} first." if maker else "",
            arg=arg,
            column=rule.name,
        )


def _finite(column: Mapping[str, Any], values: np.ndarray, arg: str, missing: bool) -> np.ndarray:
    """Values, refused if some are infinite, or missing where that is not allowed."""
    absent, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    absent = 0 if missing else absent
    if absent or infinite:
        raise column_error(column["name"], arg, missing=absent, infinite=infinite)
    return values


def _check_size(values: np.ndarray, name: str, arg: str) -> np.ndarray:
    large = int((np.abs(values) > np.finfo(np.float32).max).sum())
    if large:
        raise column_error(name, arg, large=large)
    return values
