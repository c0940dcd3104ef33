"""Arrow types: which types a column may have, and the common type of several files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.errors import file_error
from gpukeras.data.files.remote_file import AnyFile

_IS = pa.types
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
# Columns to read: their names, a function that chooses them of a file's names, or None for all.
Asked = Sequence[str] | str | Callable[[Sequence[str]], Sequence[str]] | None
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


def choose_columns(
    names: Sequence[str], asked: Asked, arg: str, path: AnyFile | None
) -> tuple[str, ...]:
    """Returns the columns to read, in the order requested; all by default.

    Args:
        names: Names of the file's columns.
        asked: Columns requested, a function that chooses them of the names, or None for all.
        arg: Name of the user's argument, for error messages.
        path: The file, or None for a stream.

    Raises:
        DataError: if two columns of the file share a name, or a requested column does not exist.
    """
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        problem = f"has several columns named `{name}`."
        raise file_error(path, arg, problem, "Rename them.", column=name, row=1)
    if asked is None:
        return tuple(names)
    asked = asked(names) if callable(asked) else asked
    requested = (asked,) if isinstance(asked, str) else tuple(asked)
    known = set(names)
    for name in requested:
        if name not in known:
            raise missing_column(name, names, arg, path)
    if not requested or len(set(requested)) < len(requested):
        raise DataError("`columns` must name at least one column, each once.", arg="columns")
    return requested


def missing_column(name: str, names: Sequence[str], arg: str, path: AnyFile | None) -> DataError:
    """Returns the error for a column that a file lacks; the hint lists similar names.

    Args:
        name: The column.
        names: Names of the file's columns.
        arg: Name of the user's argument, for error messages.
        path: The file, or None for a stream.
    """
    lower = {known.lower(): known for known in reversed(names)}
    near = [lower[close] for close in get_close_matches(str(name).lower(), lower, 3, 0.6)]
    shown = near or list(names[:5])
    more = ", ..." if not near and len(names) > 5 else ""
    hint = f"{'Near are' if near else 'It has'} {', '.join(f'`{one}`' for one in shown)}{more}."
    return file_error(path, arg, f"has no column `{name}`.", hint, column=name)


def check_same_names(
    names: Sequence[str],
    before: Sequence[str],
    requested: Sequence[str],
    asked: Asked,
    *,
    arg: str,
    path: AnyFile,
) -> None:
    """Checks that a later file has the columns to read, in any order.

    Args:
        names: Column names of the later file.
        before: Column names of the first file.
        requested: Columns to read.
        asked: What they were chosen by; unless columns are named, others are an error.
        arg: Name of the user's argument, for error messages.
        path: The later file.

    Raises:
        DataError: for the first column that is missing, unexpected or duplicated; names it.
    """
    choose_columns(names, None, arg, path)
    found, known = set(names), set(before)
    all_requested = asked is None or (callable(asked) and set(requested) == known)
    counts = f"it has {count_of(len(names), 'column')}, files before it have {len(before)}"
    for name in requested:
        if name not in found:
            hint = "Rename it, or write the file again."
            problem = f"has no column `{name}`: {counts}."
            raise file_error(path, arg, problem, hint, column=name, row=1)
    for name in names:
        if all_requested and name not in known:
            hint = "Name the columns to read, by `columns`, or remove it."
            problem = f"has a column `{name}` that files before it do not have: {counts}."
            raise file_error(path, arg, problem, hint, column=name, row=1)


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
        found = later.field(field.name).type
        common = unify(field.type, found)
        if common is None:
            raise file_error(
                path,
                arg,
                f"has {_short(found)} in the column `{field.name}` where files before it have "
                f"{_short(field.type)}.",
                "Write the files with the same types.",
                column=field.name,
            )
        fields.append(pa.field(field.name, common))
    return pa.schema(fields)


def _short(type: pa.DataType) -> str:
    """Returns a type's name, without the names of nested fields."""
    return str(type).split("<")[0]
