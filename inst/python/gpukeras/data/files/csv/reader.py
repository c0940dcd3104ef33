"""CSV files: blocks of whole records, parsed in several threads, in order.

    read_blocks() --BlockParser, in threads--> record batches

Each block is parsed alone, so that memory is bounded and a fault is found by looking at one block
again; of a file of 400 MB this took two thirds of the processor time of Arrow's own readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from gpukeras.core.errors import DataError
from gpukeras.core.prefetch import count_workers, map_ahead
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.base import Part, TableReader, read_each
from gpukeras.data.files.csv.chunks import MAX_RECORD_BYTES, Block, open_bytes, read_blocks
from gpukeras.data.files.csv.errors import explain
from gpukeras.data.files.csv.header import has_header, parse_header
from gpukeras.data.files.csv.parsing import BlockParser, CsvPlan, Parsed
from gpukeras.data.files.csv.type_inference import Dialect, choose_decimal, guess_types
from gpukeras.data.files.errors import Tally, check_unchanged, file_error, opening_error, read_stamp
from gpukeras.data.files.paths import check_file, plain_suffix
from gpukeras.data.files.schema import check_same_names, choose_columns

HEAD_BYTES = 2**16  # read at once to find the header


class DelimitedReader(TableReader):
    """CSV files with the same columns.

    Args:
        parts: The files, with their headers.
        plan: What becomes of their records.
        arg: The user's name for the files.
        tally: What opening left out, or None where the first fault stops everything.
        notes: What users should know.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        plan: CsvPlan,
        arg: str,
        tally: Tally | None,
        notes: Sequence[str] = (),
    ) -> None:
        """Reads nothing yet."""
        super().__init__(parts, "csv", plan.schema, arg, tally=tally, notes=notes)
        self._plan = plan

    def _read(self, part: Part, tally: Tally) -> Iterator[pa.RecordBatch]:
        parser = BlockParser(self._plan, part.facts)
        blocks = _safe_blocks(part, self.arg)
        with closing(map_ahead(parser, blocks, count_workers())) as results:
            for parsed in results:
                if parsed.bad:
                    self._count_bad(part, parsed, parser, tally)
                for name in parsed.rounded:
                    self._note_rounded(name)
                if parsed.batch is not None and parsed.batch.num_rows:
                    yield parsed.batch

    def _count_bad(self, part: Part, parsed: Parsed, parser: BlockParser, tally: Tally) -> None:
        """Counts rows that do not fit, where they may be left out.

        Raises:
            DataError: where they may not; names the first one's line and column.
        """
        if self.skips and tally.skipped.first:
            tally.add("", rows=parsed.bad)
            return
        check_unchanged(part.path, self.arg, part.stamp)
        error = explain(part, parsed.block, parser.parse_strictly, self.schema, self.arg)
        if not self.skips:
            raise error
        tally.add(error.message, rows=parsed.bad)


def open_delimited(
    paths: Sequence[Path], arg: str, columns: Sequence[str] | None, tally: Tally | None
) -> DelimitedReader:
    """CSV files as a table; reads their headers, and the first one's start for its types.

    Raises:
        DataError: if a file cannot be read, or has other columns than the first.
    """
    separator = "\t" if plain_suffix(paths[0]) == ".tsv" else None
    first: Part | None = None
    requested: tuple[str, ...] = ()

    def read(path: Path) -> Part:
        nonlocal first, requested
        part = read_part(path, arg, first.facts.separator if first else separator)
        if first is None:
            requested = choose_columns(part.facts.names, columns, arg, path)
            first = part
        check_same_names(
            part.facts.names, first.facts.names, requested, columns is None, arg=arg, path=path
        )
        return part

    parts = read_each(paths, read, arg, tally)
    dialect = choose_dialect(parts, arg, tally)
    types = find_types(parts, requested, dialect, arg, tally)
    plan = CsvPlan(
        pa.schema([(name, types[name]) for name in requested]), dialect, tally is not None
    )
    return DelimitedReader(parts, plan, arg, tally, list_notes(parts[0], dialect))


def choose_dialect(parts: Sequence[Part], arg: str, tally: Tally | None) -> Dialect:
    """The separator of the first header, and the decimal point that the first rows have."""
    separator = parts[0].facts.separator
    for part in parts if separator != "," else ():
        for block in _look_at(part, arg, tally):
            return Dialect(separator, choose_decimal(block.data, part.facts.names, separator))
    return Dialect(separator)


def list_notes(part: Part, dialect: Dialect) -> list[str]:
    """What users should know of the files, by the first one."""
    notes = [*part.facts.notes]
    if dialect.decimal == ",":
        notes.append("has numbers with a decimal comma.")
    return [f"The file {part.path.name} {note}" for note in notes]


def find_types(
    parts: Sequence[Part],
    requested: Sequence[str],
    dialect: Dialect,
    arg: str,
    tally: Tally | None,
) -> dict[str, pa.DataType]:
    """The columns' types, from the first block in which each has a value.

    A column that is missing everywhere is logical, as in R.

    Raises:
        DataError: if no file has a row.
    """
    types: dict[str, pa.DataType] = {}

    def guess(found: tuple[Part, Block]) -> dict[str, pa.DataType]:
        part, block = found
        unknown = [name for name in requested if name not in types]
        return guess_types(block.data, part.facts.names, unknown, dialect) if unknown else {}

    blocks = ((part, block) for part in parts for block in _look_at(part, arg, tally))
    any_rows = False
    with closing(map_ahead(guess, blocks, count_workers())) as guesses:
        for found in guesses:
            any_rows = True
            types.update({name: found[name] for name in found if name not in types})
            if len(types) == len(requested):
                return types
    if not any_rows:
        hint = "Each has a header and nothing else." if len(parts) > 1 else "It has a header only."
        raise file_error(parts[0].path, arg, "has no rows.", hint)
    return dict.fromkeys(requested, pa.bool_()) | types


def _look_at(part: Part, arg: str, tally: Tally | None) -> Iterator[Block]:
    """A file's blocks with rows; where faults are counted, reading counts them later."""
    try:
        for block in _safe_blocks(part, arg):
            if not block.endless and block.data.strip(b"\r\n"):
                yield block
    except DataError:
        if tally is None:
            raise


def _safe_blocks(part: Part, arg: str) -> Iterator[Block]:
    """A file's blocks; one that breaks off is a DataError."""
    try:
        with closing(read_blocks(part.path, part.facts)) as blocks:
            yield from blocks
    except OSError as error:
        raise _broken_off(part.path, arg, error) from error


def _broken_off(path: Path, arg: str, error: OSError) -> DataError:
    if error.errno is not None:
        return opening_error(path, arg, error)
    problem = "is no whole compressed file: it is cut off, or not what its suffix says."
    return file_error(path, arg, problem, "Write or copy it again.")


def _read_head(path: Path) -> bytes:
    """The start of a file with its header, or all of a file that is smaller."""
    data = b""
    with closing(open_bytes(path)) as file:
        while not has_header(data) and len(data) < MAX_RECORD_BYTES:
            chunk = file.read(HEAD_BYTES)
            if not chunk:
                break
            data += chunk
    return data


def read_part(path: Path, arg: str, separator: str | None) -> Part:
    """A file and its header.

    Raises:
        DataError: if it cannot be opened, is empty, or is not text in UTF-8.
    """
    check_file(path, arg)
    stamp = read_stamp(path)
    try:
        data = _read_head(path)
    except OSError as error:
        raise _broken_off(path, arg, error) from error
    try:
        header = parse_header(data, separator)
    except UnicodeDecodeError as error:  # UTF-16 begins with bytes that UTF-8 does not have
        problem = "has a header that is not in UTF-8."
        raise file_error(path, arg, problem, "Save the file in UTF-8.", row=1) from error
    if header is None:
        problem = "has no header: it has no text, or a quote that is not closed."
        raise file_error(path, arg, problem, "Write it again.", row=1)
    return Part(path, stamp, header)
