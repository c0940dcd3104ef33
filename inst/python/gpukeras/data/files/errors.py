"""What is wrong with a file: errors that name it, and the record of what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.errors import DataError

AGAIN = "Make the dataset again."


@dataclass(frozen=True)
class Skipped:
    """What `on_error = "skip"` has left out of a pass so far.

    A file that breaks off counts as a file; the batches before that were delivered.

    Args:
        rows: Broken rows, and those of a file that broke off, where they are known.
        files: Files that could not be read, or not to their end.
        first: What was wrong with the first of them, or "".
    """

    rows: int = 0
    files: int = 0
    first: str = ""

    def __post_init__(self) -> None:
        """Checks that what was left out is named."""
        if (self.rows or self.files) and not self.first:
            raise ValueError("what was left out needs a name")


class Tally:
    """Counts what a pass leaves out."""

    def __init__(self, skipped: Skipped | None = None) -> None:
        """Begins with what was left out before."""
        self.skipped = skipped or Skipped()

    def add(self, first: str, rows: int = 0, files: int = 0) -> None:
        """Some more; `first` is kept if nothing was left out before."""
        so_far = self.skipped
        self.skipped = Skipped(so_far.rows + rows, so_far.files + files, so_far.first or first)


def file_error(path: Path, arg: str, problem: str, hint: str = "", **details: Any) -> DataError:
    """An error about a file; the message has its name without its folder."""
    message = f"`{arg}`: the file {path.name} {problem}"
    return DataError(message, hint=hint, arg=arg, path=str(path), **details)


def opening_error(path: Path, arg: str, error: OSError) -> DataError:
    """The error for a file that the system does not open."""
    if isinstance(error, FileNotFoundError):
        return file_error(path, arg, "does not exist.", "Check the path.")
    reason = error.strerror or "it is not readable"
    return file_error(path, arg, f"cannot be opened: {reason}.", "Check its permissions.")


def read_stamp(path: Path) -> tuple[int, int]:
    """Size and time of change."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def check_unchanged(path: Path, arg: str, stamp: tuple[int, int]) -> None:
    """A file is still the one that was opened.

    Raises:
        DataError: if it is gone, or has changed.
    """
    try:
        same = read_stamp(path) == stamp
    except FileNotFoundError as error:
        raise file_error(path, arg, "is gone.", AGAIN) from error
    except OSError as error:
        raise file_error(path, arg, "cannot be read any more.", AGAIN) from error
    if not same:
        raise file_error(path, arg, "changed after it was opened.", AGAIN)
