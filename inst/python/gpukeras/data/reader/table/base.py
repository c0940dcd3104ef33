"""Base class of all table readers: a schema, and passes that count what they leave out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.files import AnyFile, RemoteFile, Skipped, Stamp, check_unchanged

# Shares of workers --------------------------------------------------------------------------------


def split_units(weights: Sequence[int], count: int) -> list[range]:
    """Splits units into consecutive runs of about equal weight, none of them empty.

    Args:
        weights: The weight of each unit; at least `count` units.
        count: Number of runs.
    """
    ends, sums = [0], [*accumulate(weights)]
    for number in range(1, count):
        goal = sums[-1] * number / count
        least, most = ends[-1] + 1, len(weights) - (count - number)
        near = min(range(least, most + 1), key=lambda end: abs(sums[end - 1] - goal))
        ends.append(near)
    return [range(*pair) for pair in zip(ends, [*ends[1:], len(weights)], strict=True)]


def _name_run(noun: str, run: range, units: int) -> str:
    which = (
        f"{noun} {run.stop:,}" if len(run) == 1 else f"{noun}s {run.start + 1:,} to {run.stop:,}"
    )
    return f"{which} of {units:,}"


# Readers ------------------------------------------------------------------------------------------

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Part:
    """One file of a table.

    Args:
        path: Path of the file.
        stamp: Size, and modification time or version, when the file was opened.
        facts: Format-specific data for reading the file.
        groups: The row groups to read, of Parquet files, or None for all.
        footer: A remote file's footer, or None to read it again.
    """

    path: AnyFile
    stamp: Stamp
    facts: Any
    groups: tuple[int, ...] | None = None
    footer: Any = None

    def __post_init__(self) -> None:
        """Checks that the file is not empty."""
        if self.stamp[0] <= 0:
            raise ValueError("an empty file is no part")


def _join_groups(parts: Sequence[Part]) -> Part:
    """Joins row groups of one file; a whole file stands alone."""
    first = parts[0]
    if first.groups is None:
        return first
    groups = tuple(group for part in parts for group in part.groups or ())
    return replace(first, facts=sum(part.facts for part in parts), groups=groups)


class Reader(ABC):
    """Rows in record batches of one schema: what all readers of tables are to those who use them.

    Args:
        format: What is read, such as "csv".
        schema: Schema of the batches.
        arg: Name of the user's argument, for error messages.
        notes: Sentences for the user.

    Attributes:
        files: The files; none of rows that come once.
        skipped: Rows and files that the latest pass has left out so far.
    """

    files: tuple[AnyFile, ...] = ()

    def __init__(self, format: str, schema: pa.Schema, arg: str, notes: Iterable[str] = ()) -> None:
        """Stores the arguments; reads no data."""
        self.format = format
        self.schema = schema
        self.arg = arg
        self.skipped = Skipped()
        self._notes = dict.fromkeys(notes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.schema.names)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user, including the findings of passes so far."""
        return tuple(self._notes)

    @property
    def known_rows(self) -> int | None:
        """Number of rows, or None if only reading reveals it."""
        return None

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows in order, in batches of a few MiB; each call reads them again.

        Raises:
            DataError: for rows that cannot be read; names file, row and column, where they are
                known.
        """

    def note_rounded(self, name: str) -> None:
        """Notes that a column has integers beyond 2^53, which float64 (R, models) cannot hold."""
        said = f"Column `{name}` of `{self.arg}` has whole numbers beyond 2^53: they are rounded."
        self._notes.setdefault(said)


class TableReader(Reader):
    """A table in files of one format.

    Args:
        parts: The files.
        format: Format of the files.
        schema: Schema of the batches.
        arg: Name of the user's argument, for error messages.
        skipped: What opening left out, or None if the first fault is an error.
        notes: Sentences for the user.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        format: str,
        schema: pa.Schema,
        arg: str,
        *,
        skipped: Skipped | None,
        notes: Iterable[str] = (),
    ) -> None:
        """Stores the arguments; reads no data."""
        super().__init__(format, schema, arg, notes)
        self.files = tuple(part.path for part in parts)
        self.skips = skipped is not None
        self._parts = tuple(parts)
        self._opened = skipped or Skipped()
        self.skipped = replace(self._opened)

    def take_shard(self, index: int, count: int) -> str:
        """Restricts the reader to a worker's part of the files; returns a phrase for it.

        Args:
            index: Number of the worker, from 0.
            count: Number of workers.

        Raises:
            DataError: if there are fewer files, or row groups, than workers.
        """
        noun, units = self._list_units()
        if len(units) < count:
            raise DataError(
                f"`{self.arg}` has {count_of(len(units), noun)} for {count} workers.",
                hint="Write more files, or Parquet files with more row groups, or use fewer "
                "workers.",
                arg=self.arg,
            )
        run = split_units([weight for weight, _ in units], count)[index]
        taken: dict[AnyFile, list[Part]] = {}
        for _, part in units[run.start : run.stop]:
            taken.setdefault(part.path, []).append(part)
        files = len(self._parts)
        self._parts = tuple(map(_join_groups, taken.values()))
        self.files = tuple(taken)
        inside = noun != "file" and files > 1
        where = f", in {len(taken):,} of {count_of(files, 'file')}" if inside else ""
        return _name_run(noun, run, len(units)) + where

    def _list_units(self) -> tuple[str, list[tuple[int, Part]]]:
        """Returns what a unit that one worker reads is called, and the units with their weights."""
        return "file", [(part.stamp[0], part) for part in self._parts]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows in file order, in batches of a few MiB; each call reads the files again.

        Raises:
            DataError: if a file is gone, has changed or is broken; names file, row and column. With
                `on_error = "skip"` the rest of the file is left out and counted.
        """
        self.skipped = replace(self._opened)
        for part, batches in self._each():
            rows = 0
            try:
                for batch in batches:
                    yield batch
                    rows += batch.num_rows
            except DataError as error:
                if not self.skips:
                    raise
                self.skipped.add(error.message, rows=self._lost(part, rows), files=1)

    def _each(self) -> Iterator[tuple[Part, Iterator[pa.RecordBatch]]]:
        """Yields the files, each with its batches."""
        for part in self._parts:
            yield part, self._checked(part)

    def _checked(self, part: Part) -> Iterator[pa.RecordBatch]:
        if not isinstance(part.path, RemoteFile):  # the end tells the same, with one request less
            check_unchanged(part.path, self.arg, part.stamp)
        yield from self._read(part)
        check_unchanged(part.path, self.arg, part.stamp)

    @abstractmethod
    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yields the batches of one file."""

    def _lost(self, part: Part, rows: int) -> int:
        """Returns the rows lost in a file that broke off after `rows` rows, 0 if unknown."""
        return 0


def read_each(
    paths: Sequence[AnyFile], read: Callable[[AnyFile], Facts], arg: str, skipped: Skipped | None
) -> list[Facts]:
    """Calls `read` on each file and returns the results.

    Args:
        paths: The files.
        read: Function that reads a file's facts; raises DataError if the file cannot be read.
        arg: Name of the user's argument, for error messages.
        skipped: Counts the files that cannot be read; None if such a file is an error.

    Raises:
        DataError: for the first file that cannot be read, or if none can.
    """
    results = []
    for path in paths:
        try:
            results.append(read(path))
        except DataError as error:
            if skipped is None:
                raise
            skipped.add(error.message, files=1)
    if not results:
        first = "" if skipped is None else skipped.first
        message = f"`{arg}`: none of {count_of(len(paths), 'file')} can be read."
        raise DataError(message, hint=f"The first: {first}", arg=arg)
    return results
