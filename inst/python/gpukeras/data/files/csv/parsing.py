"""Parses one block of CSV records into a record batch, in any thread.

It marks missing values, and detects rounded integers and faulty rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpukeras.data.files.arrow import pa, pacsv, pc
from gpukeras.data.files.csv.chunks import Block
from gpukeras.data.files.csv.errors import parse_leniently
from gpukeras.data.files.csv.header import Header
from gpukeras.data.files.csv.type_inference import Dialect, convert_options, parse_block, to_utf8

EXACT = 2.0**53  # float64 represents all integers up to here
_DIGITS = r"^ *[+-]?[0-9]{16,} *$"


@dataclass(frozen=True)
class CsvPlan:
    """Types and options for parsing CSV records.

    Args:
        schema: Schema of the batches, with the types of the first rows.
        dialect: Separator and decimal point of the files.
        skips: Whether faulty rows are left out and counted.
    """

    schema: pa.Schema
    dialect: Dialect
    skips: bool
    options: pacsv.ConvertOptions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepares the options shared by all blocks."""
        types = {column.name: column.type for column in self.schema}
        options = convert_options(self.schema.names, types, self.dialect.decimal)
        object.__setattr__(self, "options", options)

    def columns(self, type: pa.DataType) -> list[str]:
        """Returns the names of the columns of a type."""
        return [column.name for column in self.schema if column.type.equals(type)]


@dataclass(frozen=True)
class Parsed:
    """A parsed block.

    Args:
        block: The block.
        batch: The valid rows, or None if there are none, or if a row is faulty and none may be
            skipped.
        bad: Number of faulty rows.
        rounded: Columns with integers that float64 rounds.
    """

    block: Block
    batch: pa.RecordBatch | None
    bad: int = 0
    rounded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that a block without rows has a count of faulty rows."""
        if self.batch is None and not self.bad:
            raise ValueError("a block without rows has bad ones")


class BlockParser:
    """Parses the blocks of one file.

    Args:
        plan: Types and options for parsing.
        header: Header of the file.
    """

    def __init__(self, plan: CsvPlan, header: Header) -> None:
        """Stores the plan and the header."""
        self._plan = plan
        self._header = header
        self._texts = plan.columns(pa.string())
        self._numbers = plan.columns(pa.float64())

    def __call__(self, block: Block) -> Parsed:
        """Parses a block; returns its valid rows and the number of faulty rows."""
        if block.endless:
            return Parsed(block, None, bad=1)
        batch, bad = self._parse(block.data)
        if batch is None:
            return Parsed(block, None, bad=bad)
        rounded = [name for name in self._numbers if self._is_rounded(name, batch, block.data)]
        return Parsed(block, self._mark_missing(batch), bad, tuple(rounded))

    def parse_strictly(self, data: bytes) -> pa.Table:
        """Parses records.

        Raises:
            pa.ArrowInvalid: for a faulty record.
        """
        return parse_block(data, self._header.names, self._plan.dialect, self._plan.options)

    def _parse(self, data: bytes) -> tuple[pa.RecordBatch | None, int]:
        try:
            return _to_batch(self.parse_strictly(data)), 0
        except pa.ArrowInvalid:
            if not self._plan.skips:
                return None, 1
        parts, bad = parse_leniently(data, self._parse_counting, self._header.separator)
        bad += sum(skipped for _, skipped in parts)
        return (_to_batch(pa.concat_tables([table for table, _ in parts])) if parts else None), bad

    def _parse_counting(self, data: bytes) -> tuple[pa.Table, int]:
        """Returns the records with one value per name, and the number of others.

        Raises:
            pa.ArrowInvalid: for another fault, or for any fault if some bytes are not UTF-8.
        """
        wrong: list[int] = []

        def skip(row: pacsv.InvalidRow) -> str:
            wrong.append(row.actual_columns)
            return "skip"

        plan, on_row = self._plan, skip if to_utf8(data) is data else None
        table = parse_block(data, self._header.names, plan.dialect, plan.options, on_row)
        return table, len(wrong)

    def _mark_missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Marks strings "NA" as missing, but not empty strings, as R does."""
        for name in self._texts:
            values = batch.column(name)
            missing = pc.equal(values, "NA")
            if missing.true_count:
                values = pc.if_else(missing, pa.scalar(None, pa.string()), values)
                batch = batch.set_column(batch.schema.get_field_index(name), name, values)
        return batch

    def _is_rounded(self, name: str, batch: pa.RecordBatch, data: bytes) -> bool:
        """Whether float64 changes any integer of a column."""
        if not reaches(batch.column(name), EXACT - 1):
            return False
        options = convert_options([name], {name: pa.string()}, self._plan.dialect.decimal)
        table = parse_block(
            to_utf8(data), self._header.names, self._plan.dialect, options, lambda row: "skip"
        )
        texts = table.column(0).filter(pc.match_substring_regex(table.column(0), _DIGITS))
        return any(int(text) != int(float(text)) for text in texts.to_pylist())


def reaches(values: pa.Array, limit: float) -> bool:
    """Whether any absolute value exceeds a limit."""
    if values.null_count or pa.types.is_integer(values.type):
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return low is not None and (high > limit or low < -limit)
    numbers = values.to_numpy()
    high, low = np.fmax.reduce(numbers, initial=0.0), np.fmin.reduce(numbers, initial=0.0)
    return bool(high > limit or low < -limit)


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    """Converts the table of a block to a record batch."""
    return pa.RecordBatch.from_arrays(
        [
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays([pa.array([], column.type), *column.chunks])
            for column in table.columns
        ],
        schema=table.schema,
    )
