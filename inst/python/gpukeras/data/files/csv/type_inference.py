"""The types of a CSV file's columns, guessed from its start: R's rules, and they then hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpukeras.data.files.arrow import pa, pacsv

MISSING = ("NA", "NaN", "", " ", " NA", "NA ")  # as numbers, dates and logicals
TRUE = ("TRUE", "True", "true", "T")
FALSE = ("FALSE", "False", "false", "F")


@dataclass(frozen=True)
class Dialect:
    """How CSV files are written.

    Args:
        separator: Between fields.
        decimal: Between a number's whole part and the rest.
    """

    separator: str = ","
    decimal: str = "."

    def __post_init__(self) -> None:
        """Checks that fields and numbers can be told apart."""
        if self.separator == self.decimal:
            raise ValueError("separator and decimal point must differ")


def parse_block(
    data: bytes,
    names: Sequence[str],
    dialect: Dialect,
    options: pacsv.ConvertOptions,
    on_row: object = None,
) -> pa.Table:
    """Whole records as columns, in this thread.

    Args:
        data: The records.
        names: Of all columns.
        dialect: How they are written.
        options: Columns and types.
        on_row: Called with each row that has not as many values as there are names; it answers
            "skip" or "error". None is an error. It is shown texts, so `data` must be in UTF-8.

    Raises:
        pa.ArrowInvalid: for a row that does not fit.
    """
    read = pacsv.ReadOptions(
        use_threads=False, block_size=len(data) + 1, column_names=list(names)
    )  # in one block, newlines within quotes are safe
    parse = pacsv.ParseOptions(delimiter=dialect.separator, invalid_row_handler=on_row)
    source = pa.BufferReader(data)
    return pacsv.read_csv(source, read_options=read, parse_options=parse, convert_options=options)


def convert_options(
    columns: Sequence[str], types: Mapping[str, pa.DataType], decimal: str, guess: bool = False
) -> pacsv.ConvertOptions:
    """What Arrow is told of columns; for a guess, texts can be missing too."""
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
    """The same records with a mark for each byte that is not in UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def guess_types(
    data: bytes, names: Sequence[str], columns: Sequence[str], dialect: Dialect
) -> dict[str, pa.DataType]:
    """The types of those columns that have a value; rows that do not fit are passed over."""
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
    """The type that holds what may come later: decimals after whole numbers, parts of seconds."""
    if pa.types.is_integer(type):
        return pa.float64()
    if pa.types.is_time(type):
        return pa.time64("us")
    if pa.types.is_timestamp(type):
        wide = pa.timestamp("us", type.tz)
        options = convert_options([name], {name: wide}, dialect.decimal)
        try:
            parse_block(data, names, dialect, options, lambda row: "skip")
        except pa.ArrowInvalid:  # parts of microseconds
            return type
        return wide
    return pa.string() if pa.types.is_binary(type) else type


def choose_decimal(data: bytes, names: Sequence[str], separator: str) -> str:
    """The decimal point that makes more columns numbers; `separator` is no comma."""
    counts = {}
    for decimal in (".", ","):
        types = guess_types(data, names, names, Dialect(separator, decimal)).values()
        counts[decimal] = sum(type.equals(pa.float64()) for type in types)
    return "," if counts[","] > counts["."] else "."
