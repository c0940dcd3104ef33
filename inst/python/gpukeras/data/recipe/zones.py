"""Reads time zones, and the UTC offsets of instants in them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.recipe.datetimes import DAY_S

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
