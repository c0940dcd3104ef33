"""Dates and times: as a number of days and as sine and cosine of their cycles, and their zones.

The number keeps the order of days; the cycles put Sunday beside Monday and December beside January.
R sends a date as days since 1970-01-01, and a time as seconds since then in UTC, with the UTC
offset of its zone for each row, so that Python needs no time zone database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.arrays import column_fault, row_blocks

# Cycles -------------------------------------------------------------------------------------------

DAY_S = 86400.0
MONDAY = 3  # days from the last Monday before 1970-01-01, which was a Thursday
MAX_DAYS = 1e8  # about 270,000 years; far beyond them NumPy's calendar overflows
UNITS_S = {"secs": 1.0, "mins": 60.0, "hours": 3600.0, "days": DAY_S, "weeks": 7 * DAY_S}
_DATE_CYCLES = ("weekday_sin", "weekday_cos", "yearday_sin", "yearday_cos")
CYCLES = {"date": _DATE_CYCLES, "time": (*_DATE_CYCLES, "daytime_sin", "daytime_cos")}


def read_number(column: Mapping[str, Any], units: str = "") -> np.ndarray:
    """Returns a column's values in float64: days for dates and times, `units` for durations."""
    values = np.asarray(column["values"], dtype=np.float64).reshape(-1)
    factor = _factor(column, units)
    with np.errstate(invalid="ignore"):  # R's NA is a signalling NaN
        return values if factor == 1.0 else values * factor


def _factor(column: Mapping[str, Any], units: str) -> float:
    if column["kind"] == "time":
        return UNITS_S["secs"] / DAY_S
    if column["kind"] == "duration":
        return UNITS_S[column["units"]] / UNITS_S[units]
    return 1.0


def check_days(days: np.ndarray, name: str, arg: str) -> None:
    """Refuses dates too far from 1970 for NumPy's calendar.

    Args:
        days: Days since 1970-01-01.
        name: The column's name, for messages.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: if there are any; gives their count and names the column.
    """
    far = int((np.abs(days) > MAX_DAYS).sum())
    if far:
        problem = f"has {far} dates more than {MAX_DAYS:,.0f} days from 1970."
        raise column_fault(name, arg, problem, "Correct those dates first.")


def encode_cycles(column: Mapping[str, Any], out: np.ndarray) -> None:
    """Writes sine and cosine of a date's or time's cycles, in local time.

    The week begins on Monday, the year on 1 January, the day at midnight, where sine is 0 and
    cosine is 1. A missing value gets 0 for both, the centre of the circle.
    """
    for rows in row_blocks(len(out), 8 * out.shape[1]):
        local = _local_days(column, rows)
        missing = np.isnan(local)
        turns = _turns(np.where(missing, 0.0, local), out.shape[1] // 2)
        angles = 2 * np.pi * np.where(missing[:, None], np.nan, turns)
        block = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(local), -1)
        out[rows] = np.where(missing[:, None], 0.0, block)


def _local_days(column: Mapping[str, Any], rows: slice) -> np.ndarray:
    values = np.asarray(column["values"]).reshape(-1)[rows].astype(np.float64)
    if column["kind"] == "date":
        return values
    with np.errstate(invalid="ignore"):
        return (values + np.asarray(column["offsets"]).reshape(-1)[rows]) / DAY_S


def _turns(local: np.ndarray, circles: int) -> np.ndarray:
    """Returns the elapsed shares of the week, the year and the day; one column per cycle."""
    whole = np.floor(local)
    dates = whole.astype(np.int64).astype("datetime64[D]")
    years = dates.astype("datetime64[Y]")
    first = years.astype("datetime64[D]")
    length = ((years + np.timedelta64(1, "Y")).astype("datetime64[D]") - first).astype(np.float64)
    week = (whole + MONDAY) % 7 / 7
    year = (dates - first).astype(np.float64) / length
    return np.stack([week, year, local - whole][:circles], axis=-1)


# Zones --------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_DAY, _LAST_DAY = -719161, 2932895  # Python's calendar, one day inside each end
_FIXED = re.compile(r"([+-])(\d{2}):?(\d{2})")


def utc_offsets(seconds: np.ndarray, zone: str, name: str) -> np.ndarray:
    """Returns the seconds from UTC to local time; NaN for missing instants.

    Args:
        seconds: Seconds since 1970 in UTC, float64, NaN for missing.
        zone: An IANA name, or "+hh:mm".
        name: Name of the column, for error messages.

    Raises:
        DataError: for an unknown zone.
    """
    where = read_zone(zone, name)
    offsets = np.full(len(seconds), np.nan)
    there = np.isfinite(seconds)
    if isinstance(where, timezone):  # a fixed offset
        offsets[there] = _offset(where, 0.0)
        return offsets
    instants = np.floor(seconds[there])
    days, inverse = np.unique(np.floor(instants / DAY_S), return_inverse=True)
    starts = np.array([_offset(where, day * DAY_S) for day in days])
    ends = np.array([_offset(where, (day + 1) * DAY_S - 1) for day in days])
    offsets_here = starts[inverse]
    changing = (starts != ends)[inverse]  # days on which clocks change: one look-up per second
    seconds, places = np.unique(instants[changing], return_inverse=True)
    offsets_here[changing] = np.array([_offset(where, second) for second in seconds])[places]
    offsets[there] = offsets_here
    return offsets


def read_zone(zone: str, name: str) -> tzinfo:
    """Returns the time zone with a name.

    Raises:
        DataError: if the system's time zone database lacks it, or it is a day or more from UTC;
            names the column.
    """
    if zone in ("UTC", "GMT", ""):
        return timezone.utc
    fixed = _FIXED.fullmatch(zone)
    try:
        if fixed:
            minutes = int(fixed[2]) * 60 + int(fixed[3])
            return timezone(timedelta(minutes=minutes if fixed[1] == "+" else -minutes))
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise DataError(
            f"Column `{name}` has the unknown time zone {zone[:40]}.",
            hint="Use an IANA name; Windows needs `pip install tzdata`.",
            column=name,
        ) from error


def _offset(zone: tzinfo, second: float) -> float:
    """Returns the offset at an instant; outside Python's years, that of the nearest instant."""
    second = min(max(second, _FIRST_DAY * DAY_S), _LAST_DAY * DAY_S)
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return offset.total_seconds() if offset is not None else 0.0
