"""Converts an Arrow column to the column format of `columns`, as R passes the same values.

numbers -> "numeric", "integer"; TRUE/FALSE -> "logical"; dictionaries -> "factor" with all levels
in order; strings -> "character" with levels sorted as bytes; dates, times (with zone and UTC
offsets), durations and times of day (in seconds).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.files.arrow import pa, pc
from gpukeras.data.reader.table.schema import family_of

# Time zones ---------------------------------------------------------------------------------------

DAY_S = 86400
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
    found = starts[inverse]
    changing = (starts != ends)[inverse]  # days on which clocks change: one look-up per second
    seconds, places = np.unique(instants[changing], return_inverse=True)
    found[changing] = np.array([_offset(where, second) for second in seconds])[places]
    offsets[there] = found
    return offsets


def read_zone(zone: str, name: str) -> tzinfo:
    """Returns the time zone with a name.

    Raises:
        DataError: if the system's time zone database lacks it; names the column.
    """
    fixed = _FIXED.fullmatch(zone)
    if fixed:
        minutes = int(fixed[2]) * 60 + int(fixed[3])
        return timezone(timedelta(minutes=minutes if fixed[1] == "+" else -minutes))
    if zone in ("UTC", "GMT", ""):
        return timezone.utc
    try:
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
    found = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return found.total_seconds() if found is not None else 0.0


# Columns ------------------------------------------------------------------------------------------

PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
DAY_MS = 86_400_000.0


def to_column(name: str, array: pa.Array | pa.ChunkedArray) -> dict[str, Any]:
    """Converts one column; numbers without missing values are not copied.

    Args:
        name: The column's name.
        array: The values.

    Returns:
        `{name, kind, values}`, with `levels` for numbers (empty) and categories, `zone` and
        `offsets` for times (UTC if they have no zone), `units` for durations. Missing values
        are NaN, and code 0 in categories. `values` may be read-only.

    Raises:
        DataError: for an unsupported type, or an unknown time zone.
    """
    array = _whole(array)
    make = _MAKERS.get(family_of(array.type) or "")
    if make is None:
        found = str(array.type).split("<")[0]
        raise DataError(f"Column `{name}` has the type {found}: it cannot be read.", column=name)
    return {"name": name, **make(array, name)}


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def _to_numpy(array: pa.Array) -> np.ndarray:
    """Returns numbers; if values are missing, as float64 with NaN."""
    if array.null_count and not pa.types.is_floating(array.type):
        array = array.cast(pa.float64(), safe=False)  # 2^53 and beyond are rounded
    return array.to_numpy(zero_copy_only=False)


def _number(array: pa.Array, _: str) -> dict[str, Any]:
    whole = pa.types.is_integer(array.type)
    if not whole and array.type != pa.float64():
        array = array.cast(pa.float64())
    return {"kind": "integer" if whole else "numeric", "values": _to_numpy(array), "levels": []}


def _logical(array: pa.Array, _: str) -> dict[str, Any]:
    if array.null_count:
        array = array.cast(pa.uint8())
    return {"kind": "logical", "values": _to_numpy(array), "levels": []}


def _missing(array: pa.Array, _: str) -> dict[str, Any]:
    return {"kind": "logical", "values": np.full(len(array), np.nan), "levels": []}


def _factor(array: pa.DictionaryArray, _: str) -> dict[str, Any]:
    found = array.dictionary.cast(pa.string()).to_pylist()
    levels = list(dict.fromkeys(level for level in found if level is not None))
    values = _codes(array.indices)
    if len(levels) < len(found):  # a level is missing or repeated
        place = {level: code for code, level in enumerate(levels, start=1)}
        values = np.array([0, *(place.get(level, 0) for level in found)], np.int32)[values]
    return {"kind": "factor", "values": values, "levels": levels}


def _text(array: pa.Array, _: str) -> dict[str, Any]:
    if not pa.types.is_string(array.type):
        array = array.cast(pa.large_string())
    encoded = array.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.zeros(len(order) + 1, np.int32)
    ranks[order + 1] = np.arange(1, len(order) + 1)
    levels = encoded.dictionary.take(pa.array(order)).to_pylist()
    return {"kind": "character", "values": ranks[_codes(encoded.indices)], "levels": levels}


def _codes(indices: pa.Array) -> np.ndarray:
    """Returns codes from 1; 0 is missing."""
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), -1)
    return (indices.to_numpy(zero_copy_only=False).astype(np.int64) + 1).astype(np.int32)


def _ticks(array: pa.Array) -> np.ndarray:
    """Returns the integers of dates or times, as float64."""
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    return _to_numpy(array.cast(width)).astype(np.float64, copy=False)


def _date(array: pa.Array, _: str) -> dict[str, Any]:
    days = _ticks(array) / (DAY_MS if pa.types.is_date64(array.type) else 1.0)
    return {"kind": "date", "values": days}


def _time(array: pa.Array, name: str) -> dict[str, Any]:
    seconds, zone = _ticks(array) / PER_SECOND[array.type.unit], array.type.tz or "UTC"
    offsets = utc_offsets(seconds, zone, name)
    return {"kind": "time", "values": seconds, "offsets": offsets, "zone": zone}


def _duration(array: pa.Array, _: str) -> dict[str, Any]:
    seconds = _ticks(array) / PER_SECOND[array.type.unit]
    return {"kind": "duration", "values": seconds, "units": "secs"}


_MAKERS = {
    "number": _number,
    "logical": _logical,
    "missing": _missing,
    "factor": _factor,
    "text": _text,
    "date": _date,
    "time": _time,
    "time of day": _duration,
    "duration": _duration,
}
