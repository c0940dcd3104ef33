"""Infers the types of a CSV file's columns from its first rows, by R's rules.

The types then apply to all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpukeras.data.files.arrow import pa, pacsv

MISSING = ("NA", "NaN", "", " ", " NA", "NA ")  # in columns of numbers, dates and logicals
TRUE = ("TRUE", "True", "true", "T")
FALSE = ("FALSE", "False", "false", "F")


@dataclass(frozen=True)
class Dialect:
    """Separator and decimal point of CSV files.

    Args:
        separator: Separator between fields.
        decimal: Decimal point of numbers.
    """

    separator: str = ","
    decimal: str = "."

    def __post_init__(self) -> None:
        """Checks that separator and decimal point differ."""
        if self.separator == self.decimal:
            raise ValueError("separator and decimal point must differ")


def parse_block(
    data: bytes,
    names: Sequence[str],
    dialect: Dialect,
    options: pacsv.ConvertOptions,
    on_row: object = None,
) -> pa.Table:
    """Parses complete records into columns, in this thread.

    Args:
        data: The records.
        names: Names of all columns.
        dialect: Separator and decimal point.
        options: Columns and types to convert.
        on_row: Function called with each row whose number of values differs from the number of
            names; it returns "skip" or "error". None is an error. It receives strings, so `data`
            must be UTF-8.

    Raises:
        pa.ArrowInvalid: for a faulty row.
    """
    read = pacsv.ReadOptions(
        use_threads=False, block_size=len(data) + 1, column_names=list(names)
    )  # a single block keeps newlines within quotes intact
    parse = pacsv.ParseOptions(delimiter=dialect.separator, invalid_row_handler=on_row)
    source = pa.BufferReader(data)
    return pacsv.read_csv(source, read_options=read, parse_options=parse, convert_options=options)


def convert_options(
    columns: Sequence[str], types: Mapping[str, pa.DataType], decimal: str, guess: bool = False
) -> pacsv.ConvertOptions:
    """Returns Arrow's conversion options for columns.

    Args:
        columns: Names of the columns.
        types: Their types by name; others are inferred.
        decimal: Decimal point of numbers.
        guess: Whether strings can be missing too, for type inference.
    """
    return pacsv.ConvertOptions(
        include_columns=list(columns),
        column_types=dict(types),
        null_values=list(MISSING),
        strings_can_be_null=guess,
        true_values=list(TRUE),
        false_values=list(FALSE),
        decimal_point=decimal,
    )


def to_utf8(data: bytes) -> bytes:
    """Replaces each byte that is not UTF-8 by a replacement character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def guess_types(
    data: bytes, names: Sequence[str], columns: Sequence[str], dialect: Dialect
) -> dict[str, pa.DataType]:
    """Infers the types of the columns that have a value; skips faulty rows.

    Args:
        data: The records.
        names: Names of all columns.
        columns: Columns to infer.
        dialect: Separator and decimal point.
    """
    data = to_utf8(data)
    options = convert_options(columns, {}, dialect.decimal, guess=True)
    found = parse_block(data, names, dialect, options, lambda row: "skip")
    return {
        field.name: _hold(field.type, data, names, field.name, dialect)
        for field in found.schema
        if not pa.types.is_null(field.type)
    }


def _hold(
    type: pa.DataType, data: bytes, names: Sequence[str], name: str, dialect: Dialect
) -> pa.DataType:
    """Widens a type for later values: decimals after integers, fractions of seconds."""
    if pa.types.is_integer(type):
        return pa.float64()
    if pa.types.is_time(type):
        return pa.time64("us")
    if pa.types.is_timestamp(type):
        wide = pa.timestamp("us", type.tz)
        options = convert_options([name], {name: wide}, dialect.decimal)
        try:
            parse_block(data, names, dialect, options, lambda row: "skip")
        except pa.ArrowInvalid:  # fractions of microseconds
            return type
        return wide
    return pa.string() if pa.types.is_binary(type) else type


def choose_decimal(data: bytes, names: Sequence[str], separator: str) -> str:
    """Returns the decimal point that makes more columns numeric.

    Args:
        data: The records.
        names: Names of all columns.
        separator: Separator between fields, which is no comma.
    """
    counts = {}
    for decimal in (".", ","):
        types = guess_types(data, names, names, Dialect(separator, decimal)).values()
        counts[decimal] = sum(type.equals(pa.float64()) for type in types)
    return "," if counts[","] > counts["."] else "."
