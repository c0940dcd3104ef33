"""Turns a column's values out of JSON into a column as R passes it, checked by type.

JSON knows numbers, texts, true, false and null. null is a missing value; a date is the text
"2026-11-24", a time one with its offset from UTC, such as "2026-11-24T12:00:00Z". Messages count
values and never show one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import column_error, column_fault
from gpukeras.data.preprocessing.columns import ColumnRule

Column = dict[str, Any]
EPOCH = date(1970, 1, 1)
EXPECTED = {
    "number": "numbers",
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
    read = _read_day if rule.kind == "date" else _read_number
    kind = {"date": "date", "duration": "duration"}.get(rule.kind, "numeric")
    numbers = np.array(_read_all(rule, values, read, arg), np.float64)
    infinite = int(np.isinf(numbers).sum())
    if infinite:
        raise column_error(rule.name, arg, infinite=infinite)
    return {"name": rule.name, "kind": kind, "values": numbers, "units": rule.units}


def _to_codes(rule: ColumnRule, values: Sequence[Any], arg: str) -> Column:
    texts = _read_all(rule, values, _read_text, arg)
    closed = rule.kind == "category" and not rule.bins and not rule.new_levels
    levels = rule.levels if closed else tuple(dict.fromkeys(t for t in texts if t is not None))
    codes: dict[str | None, int] = {level: code for code, level in enumerate(levels, 1)}
    codes[None] = 0
    found = [codes.get(text, -1) for text in texts]
    new = found.count(-1)
    if new:
        problem = f"has {count_of(new, 'value')} that training did not see."
        hint = "GET /model lists the levels of the training rows."
        raise column_fault(rule.name, arg, problem, hint)
    kind = "character" if rule.kind == "text" else "factor"
    return {
        "name": rule.name,
        "kind": kind,
        "values": np.array(found, np.int32),
        "levels": list(levels),
    }


def _to_times(rule: ColumnRule, values: Sequence[Any], arg: str) -> Column:
    times = _read_all(rule, values, _read_time, arg)
    zone = find_zone(rule.zone)
    seconds = [np.nan if time is None else time.timestamp() for time in times]
    offsets = [0.0 if time is None else _offset(time, zone) for time in times]
    return {
        "name": rule.name,
        "kind": "time",
        "values": np.array(seconds, np.float64),
        "offsets": np.array(offsets, np.float64),
        "zone": rule.zone,
    }


def find_zone(name: str) -> ZoneInfo | timezone:
    """Returns the time zone in which training read weekdays and hours; "" is UTC.

    Raises:
        DataError: if this computer does not know it.
    """
    if name in ("", "UTC"):
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise DataError(
            f"This computer does not know the time zone {name[:40]!r} of the training rows.",
            hint="Install tzdata, as a package of the system or of Python.",
            arg="model",
        ) from error


def _offset(time: datetime, zone: ZoneInfo | timezone) -> float:
    shift = time.astimezone(zone).utcoffset()
    return 0.0 if shift is None else shift.total_seconds()


# Single values ------------------------------------------------------------------------------------


def _read_all(
    rule: ColumnRule, values: Sequence[Any], read: Callable[[Any], Any], arg: str
) -> list[Any]:
    found, wrong = [], 0
    for value in values:
        try:
            found.append(read(value))
        except (TypeError, ValueError, OverflowError):
            wrong += 1
    if wrong:
        problem = f"must hold {EXPECTED[rule.kind]}, but {wrong:,} of {len(values):,} are not."
        raise column_fault(rule.name, arg, problem)
    return found


def _read_number(value: Any) -> float:
    """Returns a number; true and false are 1 and 0, as in R."""
    if value is None:
        return np.nan
    if not isinstance(value, (int, float)):
        raise TypeError
    return float(value)


def _read_text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def _read_day(value: Any) -> float:
    return np.nan if value is None else float((date.fromisoformat(value) - EPOCH).days)


def _read_time(value: Any) -> datetime | None:
    if value is None:
        return None
    # Python before 3.11 does not read the Z.
    text = value[:-1] + "+00:00" if isinstance(value, str) and value[-1:] in "Zz" else value
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError
    return time
