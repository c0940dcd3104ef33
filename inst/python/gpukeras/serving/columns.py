"""Turns a column's values out of JSON into a column as R passes it, checked by type.

JSON knows numbers, texts, true, false and null. null is a missing value; a date is the text
"2026-11-24", a time one with its offset from UTC, such as "2026-11-24T12:00:00Z", as in RFC 3339.
Which other texts `fromisoformat()` reads depends on Python's version, so these are matched first.
Messages count values and never show one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import MAXYEAR, MINYEAR, date, datetime, tzinfo
from typing import Any

import numpy as np

from gpukeras.core.messages import count_of
from gpukeras.data.arrays import column_error, column_fault
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.datetimes import read_zone

Column = dict[str, Any]
EPOCH = date(1970, 1, 1)
DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2}T[0-2]\d:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:[0-5]\d)", re.ASCII
)
EXPECTED = {
    "number": "numbers",
    "logical": "true or false",
    "duration": "numbers",
    "category": "texts",
    "text": "texts",
    "date": 'dates such as "2026-11-24"',
    "time": 'times with an offset from UTC, such as "2026-11-24T12:00:00Z"',
}


def to_column(rule: ColumnRule, values: Sequence[Any], arg: str) -> Column:
    """Returns a column as `preprocessing.columns` describes it.

    Args:
        rule: The column's rule.
        values: Values out of JSON, one a row; None for a missing one.
        arg: The user's name for the rows, for messages.

    Raises:
        DataError: for values of another type, new levels and infinite numbers; names the column.
    """
    if rule.kind in ("category", "text"):
        return _to_codes(rule, values, arg)
    if rule.kind == "time":
        return _to_times(rule, values, arg)
    read = {"date": _read_day, "logical": _read_logical}.get(json_kind(rule), _read_number)
    kind = {"number": "numeric"}.get(json_kind(rule), json_kind(rule))
    numbers = np.array(_read_all(rule, values, read, arg), np.float64)
    infinite = int(np.isinf(numbers).sum())
    if infinite:
        raise column_error(rule.name, arg, infinite=infinite)
    return {"name": rule.name, "kind": kind, "values": numbers, "units": rule.units}


def json_kind(rule: ColumnRule) -> str:
    """Returns the kind of a column's values, a key of `EXPECTED`."""
    return "logical" if rule.logical else rule.kind


def _to_codes(rule: ColumnRule, values: Sequence[Any], arg: str) -> Column:
    texts = _read_all(rule, values, _read_text, arg, missing=None)
    closed = rule.kind == "category" and not rule.bins and not rule.new_levels
    levels = rule.levels if closed else tuple(dict.fromkeys(t for t in texts if t is not None))
    codes: dict[str | None, int] = {level: code for code, level in enumerate(levels, 1)}
    codes[None] = 0
    places = [codes.get(text, -1) for text in texts]
    new = places.count(-1)
    if new:
        problem = f"has {count_of(new, 'value')} that training did not see."
        hint = "GET /model lists the levels of the training rows."
        raise column_fault(rule.name, arg, problem, hint)
    kind = "character" if rule.kind == "text" else "factor"
    return {
        "name": rule.name,
        "kind": kind,
        "values": np.array(places, np.int32),
        "levels": list(levels),
    }


def _to_times(rule: ColumnRule, values: Sequence[Any], arg: str) -> Column:
    times = _read_all(rule, values, _read_time, arg, missing=None)
    zone = read_zone(rule.zone, rule.name)
    seconds = [np.nan if time is None else time.timestamp() for time in times]
    offsets = [0.0 if time is None else _offset(time, zone) for time in times]
    return {
        "name": rule.name,
        "kind": "time",
        "values": np.array(seconds, np.float64),
        "offsets": np.array(offsets, np.float64),
        "zone": rule.zone,
    }


def _offset(time: datetime, zone: tzinfo) -> float:
    shift = time.astimezone(zone).utcoffset()
    return 0.0 if shift is None else shift.total_seconds()


# Single values ------------------------------------------------------------------------------------


def _read_all(
    rule: ColumnRule,
    values: Sequence[Any],
    read: Callable[[Any], Any],
    arg: str,
    missing: Any = np.nan,
) -> list[Any]:
    values_read, wrong = [], 0
    for value in values:
        try:
            values_read.append(missing if value is None else read(value))
        except (TypeError, ValueError, OverflowError):
            wrong += 1
    if wrong:
        expected = EXPECTED[json_kind(rule)]
        problem = f"must hold {expected}, but {wrong:,} of {len(values):,} are not."
        raise column_fault(rule.name, arg, problem)
    return values_read


def _read_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return float(value)


def _read_logical(value: Any) -> float:
    if not isinstance(value, bool):
        raise TypeError
    return float(value)


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _read_day(value: Any) -> float:
    if not DAY.fullmatch(value):
        raise ValueError
    return float((date.fromisoformat(value) - EPOCH).days)


def _read_time(value: Any) -> datetime:
    matched = TIME.fullmatch(value)
    if matched is None:
        raise ValueError
    seconds, fraction, offset = matched.groups(default="")
    # Python before 3.11 reads neither the Z nor any number of decimals.
    text = f"{seconds}.{fraction[:6]:0<6}{'+00:00' if offset == 'Z' else offset}"
    time = datetime.fromisoformat(text)
    if time.year in (MINYEAR, MAXYEAR):  # its day in another zone may have no date
        raise ValueError
    return time
