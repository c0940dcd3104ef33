"""What all table files have in common: a schema, and passes that count what they leave out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.errors import Skipped, Tally, check_unchanged

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Part:
    """One file of a table.

    Args:
        path: Where it is.
        stamp: Its size and time of change when it was opened.
        facts: What its format needs to read it.
    """

    path: Path
    stamp: tuple[int, int]
    facts: Any

    def __post_init__(self) -> None:
        """Checks that it has something in it."""
        if self.stamp[0] <= 0:
            raise ValueError("an empty file is no part")


class TableReader(ABC):
    """A table in files: its columns, and its rows in record batches, as often as asked.

    Args:
        parts: The files.
        format: Theirs.
        schema: Of the batches.
        arg: The user's name for the files.
        tally: What opening left out, or None where the first fault stops everything.
        notes: What users should know, in sentences.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        format: str,
        schema: pa.Schema,
        arg: str,
        *,
        tally: Tally | None,
        notes: Iterable[str] = (),
    ) -> None:
        """Reads nothing yet."""
        self.files = tuple(part.path for part in parts)
        self.format = format
        self.schema = schema
        self.arg = arg
        self.skips = tally is not None
        self._parts = tuple(parts)
        self._opened = tally.skipped if tally else Skipped()
        self._tally = Tally(self._opened)
        self._notes = dict.fromkeys(notes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.schema.names)

    @property
    def known_rows(self) -> int | None:
        """Rows of all files, or None where only reading tells."""
        return None

    @property
    def skipped(self) -> Skipped:
        """What the latest pass has left out so far."""
        return self._tally.skipped

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know, and what passes have found so far, in sentences."""
        return tuple(self._notes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in the files' order, in record batches of a few MiB; each call reads anew.

        Raises:
            DataError: if a file is gone, has changed or is broken; names file, row and column.
                With `on_error = "skip"` it is left out from there on, and counted.
        """
        self._tally = tally = Tally(self._opened)
        for part in self._parts:
            rows = 0
            try:
                check_unchanged(part.path, self.arg, part.stamp)
                for batch in self._read(part, tally):
                    yield batch
                    rows += batch.num_rows
                check_unchanged(part.path, self.arg, part.stamp)
            except DataError as error:
                if not self.skips:
                    raise
                tally.add(error.message, rows=self._lost(part, rows), files=1)

    @abstractmethod
    def _read(self, part: Part, tally: Tally) -> Iterator[pa.RecordBatch]:
        """The batches of one file."""

    def _lost(self, part: Part, rows: int) -> int:
        """Rows lost with a file that broke off after `rows` of them, 0 where it is not known."""
        return 0

    def _note_rounded(self, name: str) -> None:
        """Float64, and so R and every model, has not all whole numbers beyond 2^53."""
        said = f"Column `{name}` of `{self.arg}` has whole numbers beyond 2^53: they are rounded."
        self._notes.setdefault(said)


def read_each(
    paths: Sequence[Path], read: Callable[[Path], Facts], arg: str, tally: Tally | None
) -> list[Facts]:
    """What `read` finds in each file.

    Args:
        paths: The files.
        read: Raises a DataError for a file that cannot be read.
        arg: The user's name for them.
        tally: Counts the files that cannot be read, or None where they are an error.

    Raises:
        DataError: for the first file that cannot be read, or if none can.
    """
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except DataError as error:
            if tally is None:
                raise
            tally.add(error.message, files=1)
    if not found:
        first = "" if tally is None else tally.skipped.first
        message = f"`{arg}`: none of {count_of(len(paths), 'file')} can be read."
        raise DataError(message, hint=f"The first: {first}", arg=arg)
    return found
