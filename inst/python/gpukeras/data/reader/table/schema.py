"""Arrow types: which a column may have, the common type of several files, and R's columns of them.

A column becomes what R passes for the same values: numbers "numeric" or "integer"; TRUE and FALSE
"logical"; dictionaries "factor" with all levels in order; strings "character" with levels sorted as
bytes; dates, times (with zone and UTC offsets), durations and times of day (in seconds).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.arrow import pa, pc
from gpukeras.data.files.files import AnyFile, Skipped, file_error
from gpukeras.data.recipe.datetimes import utc_offsets
from gpukeras.data.recipe.recipe import TableEncoding, check_columns

# Types --------------------------------------------------------------------------------------------

_IS = pa.types
Facts = TypeVar("Facts")
_UNITS = ("s", "ms", "us", "ns")
_FAMILIES = {
    "number": lambda of: _IS.is_integer(of) or _IS.is_floating(of) or _IS.is_decimal(of),
    "logical": _IS.is_boolean,
    "text": lambda of: _IS.is_string(of) or _IS.is_large_string(of) or _IS.is_string_view(of),
    "factor": _IS.is_dictionary,
    "date": _IS.is_date,
    "time": _IS.is_timestamp,
    "time of day": _IS.is_time,
    "duration": _IS.is_duration,
    "missing": _IS.is_null,
}
WORDS = {"number": "a number", "logical": "TRUE or FALSE", "date": "a date as 2024-12-31"} | {
    "time": "a time as 2024-12-31 23:59:59",
    "time of day": "a time of day as 23:59:59",
    "text": "text in UTF-8",
}


def family_of(type: pa.DataType) -> str | None:
    """Returns the family of a type, or None if no column may have it."""
    return next((name for name, holds in _FAMILIES.items() if holds(type)), None)


def unify(first: pa.DataType, later: pa.DataType) -> pa.DataType | None:
    """Returns the type that holds both, or None if none preserves the meaning."""
    families = family_of(first), family_of(later)
    if first.equals(later) or families[1] == "missing":
        return first
    if families[0] == "missing":
        return later
    if set(families) == {"text", "factor"}:
        return pa.string()
    return _unify_family(families[0] or "", first, later) if families[0] == families[1] else None


def _unify_family(family: str, first: pa.DataType, later: pa.DataType) -> pa.DataType | None:
    if family == "time":
        unit = max(first.unit, later.unit, key=_UNITS.index)
        return pa.timestamp(unit, first.tz) if bool(first.tz) == bool(later.tz) else None
    if family == "factor":
        return pa.dictionary(pa.int32(), pa.string())
    both_whole = _IS.is_integer(first) and _IS.is_integer(later)
    if family == "number":
        return pa.int64() if both_whole and pa.uint64() not in (first, later) else pa.float64()
    return {
        "text": pa.large_string(),
        "date": pa.date32(),
        "time of day": pa.time64("ns"),
        "duration": pa.duration(max(first, later, key=lambda of: _UNITS.index(of.unit)).unit)
        if family == "duration"
        else None,
    }.get(family)


@dataclass(frozen=True)
class Wanted:
    """The columns of a table that are read: features, and those beside them.

    Args:
        columns: Names of the features, in that order, or None for all that are not beside them.
        beside: Names of the labels and the weights.
        encoding: The learned encoding, whose columns alone are features; or None.
    """

    columns: Sequence[str] | None = None
    beside: Sequence[str] = ()
    encoding: TableEncoding | None = None

    @property
    def all(self) -> bool:
        """Whether all columns of a file are read."""
        return self.columns is None and self.encoding is None

    def choose(self, names: Sequence[str], arg: str) -> tuple[str, ...]:
        """Returns the features among the names, then the columns beside them.

        Args:
            names: Names of all columns.
            arg: Name of the user's argument, for error messages.

        Raises:
            DataError: if a column does not exist, is named twice, or no feature is left.
        """
        for name in [*self.beside, *(self.columns or ())]:
            if name not in names:
                near = ", ".join(get_close_matches(name, names, 3, 0.0))
                raise DataError(
                    f"`{arg}` has no column `{name}`.",
                    hint=f"It has {count_of(len(names), 'column')}, called like {near}.",
                    arg=arg,
                    column=name,
                )
        asked = names if self.columns is None else self.columns
        if len(set(asked)) < len(asked):
            raise DataError("`columns` must name each column once.", arg="columns")
        chosen = [name for name in asked if name not in self.beside]
        if self.encoding is not None:
            check_columns(self.encoding, chosen, arg)
            known = self.encoding.known
            chosen = [name for name in chosen if name in known]
        if not chosen:
            raise DataError(
                f"`{arg}` has no feature columns.",
                hint=f"It has {'only ' if self.beside else ''}the columns {', '.join(names)}.",
                arg=arg,
            )
        return (*chosen, *self.beside)


def check_different(names: Sequence[str], arg: str, path: AnyFile | None) -> None:
    """Checks that no two columns share a name.

    Args:
        names: Names of the columns.
        arg: Name of the user's argument, for error messages.
        path: The file, or None for a stream.

    Raises:
        DataError: if two do.
    """
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        problem = f"has several columns named `{name}`."
        raise file_error(path, arg, problem, "Rename them.", column=name, row=1)


class Opening:
    """How the files of one table are opened: their columns, and what may be left out.

    Args:
        arg: Name of the user's argument, for error messages.
        wanted: The columns to read.
        skipped: Counts what is left out, or None if the first fault is an error.

    Attributes:
        names: Column names of the first file that could be opened; () before that.
        columns: The columns to read.
    """

    def __init__(self, arg: str, wanted: Wanted, skipped: Skipped | None) -> None:
        """Opens nothing."""
        self.arg = arg
        self.skipped = skipped
        self._wanted = wanted
        self.names: tuple[str, ...] = ()
        self.columns: tuple[str, ...] = ()

    def choose(self, names: Sequence[str], path: AnyFile) -> tuple[str, ...]:
        """Returns the columns to read of a file, which a later file must have, in any order.

        Raises:
            DataError: for the first column that is missing, unexpected or duplicated; names it.
        """
        check_different(names, self.arg, path)
        if not self.names:
            return self._wanted.choose(names, self.arg)
        found, known = set(names), set(self.names)
        odd = [name for name in names if self._wanted.all and name not in known]
        counts = f"it has {count_of(len(names), 'column')}, files before it have {len(self.names)}"
        for name in self.columns:
            if name not in found:
                hint = "Rename it, or write the file again."
                problem = f"has no column `{name}`: {counts}."
                raise file_error(path, self.arg, problem, hint, column=name, row=1)
        for name in odd:
            hint = "Name the columns to read, by `columns`, or remove it."
            problem = f"has a column `{name}` that files before it do not have: {counts}."
            raise file_error(path, self.arg, problem, hint, column=name, row=1)
        return self.columns

    def read_each(self, paths: Sequence[AnyFile], read: Callable[[AnyFile], Facts]) -> list[Facts]:
        """Calls `read` on each file, and returns the results.

        Raises:
            DataError: for the first file that cannot be read, or if none can.
        """
        results = []
        for path in paths:
            try:
                results.append(read(path))
            except DataError as error:
                if self.skipped is None:
                    raise
                self.skipped.add(error.message, files=1)
        if not results:
            first = "" if self.skipped is None else self.skipped.first
            message = f"`{self.arg}`: none of {count_of(len(paths), 'file')} can be read."
            raise DataError(message, hint=f"The first: {first}", arg=self.arg)
        return results


def check_types(schema: pa.Schema, arg: str, path: AnyFile | None) -> None:
    """Checks that all columns can be features or labels.

    Args:
        schema: Schema of the columns.
        arg: Name of the user's argument, for error messages.
        path: The file, or None for a stream.

    Raises:
        DataError: for the first column that cannot; names it.
    """
    for field in schema:
        inner = field.type.value_type if _IS.is_dictionary(field.type) else field.type
        if family_of(inner) is None:
            nested = "a nested column" if _IS.is_nested(inner) else "a column"
            raise file_error(
                path,
                arg,
                f"has {nested} `{field.name}` of type {_short(field.type)}: it cannot be read.",
                "Name the columns to read without it, by `columns`, or convert it first.",
                column=field.name,
            )


def unify_schema(first: pa.Schema, later: pa.Schema, arg: str, path: AnyFile) -> pa.Schema:
    """Returns the schema that holds the columns of both files.

    Args:
        first: Common schema of the files so far.
        later: Schema of the next file, with the same names.
        arg: Name of the user's argument, for error messages.
        path: The next file.

    Raises:
        DataError: for a column with incompatible types; names it.
    """
    fields = []
    for field in first:
        other = later.field(field.name).type
        common = unify(field.type, other)
        if common is None:
            raise file_error(
                path,
                arg,
                f"has {_short(other)} in the column `{field.name}` where files before it have "
                f"{_short(field.type)}.",
                "Write the files with the same types.",
                column=field.name,
            )
        fields.append(pa.field(field.name, common))
    return pa.schema(fields)


def _short(type: pa.DataType) -> str:
    """Returns a type's name, without the names of nested fields."""
    return str(type).split("<")[0]


# Columns ------------------------------------------------------------------------------------------

EXACT = 2.0**53  # float64 represents all integers up to here
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


def reaches(values: pa.Array, limit: float) -> bool:
    """Whether any absolute value exceeds a limit."""
    if values.null_count or pa.types.is_integer(values.type):
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return low is not None and (high > limit or low < -limit)
    numbers = values.to_numpy()
    high, low = np.fmax.reduce(numbers, initial=0.0), np.fmin.reduce(numbers, initial=0.0)
    return bool(high > limit or low < -limit)


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
    texts = array.dictionary.cast(pa.string()).to_pylist()
    levels = list(dict.fromkeys(level for level in texts if level is not None))
    values = _codes(array.indices)
    if len(levels) < len(texts):  # a level is missing or repeated
        place = {level: code for code, level in enumerate(levels, start=1)}
        values = np.array([0, *(place.get(level, 0) for level in texts)], np.int32)[values]
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
