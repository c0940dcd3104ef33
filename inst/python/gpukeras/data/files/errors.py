"""Errors that name a file, and counts of what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.remote_file import AnyFile, RemoteFile, Stamp, store_reason

AGAIN = "Make the dataset again."
CREDENTIALS = "Check the address, the credentials in the environment, and the network."


class FileFaultError(Exception):
    """What is wrong with a file, from code that does not know the user's argument.

    Args:
        problem: What is wrong, as the rest of a sentence.
        hint: What to do about it.
    """

    def __init__(self, problem: str, hint: str) -> None:
        """Stores the arguments."""
        super().__init__(problem)
        self.problem, self.hint = problem, hint


@dataclass
class Skipped:
    """What `on_error = "skip"` has left out of a pass so far.

    A file that breaks off counts as a file; its earlier batches were delivered.

    Args:
        rows: Number of broken rows, and of rows lost in a file that broke off, if known.
        files: Number of files that could not be read completely.
        first: Message of the first fault, or "".
    """

    rows: int = 0
    files: int = 0
    first: str = ""

    def add(self, first: str, rows: int = 0, files: int = 0) -> None:
        """Adds to the counts.

        Args:
            first: Message of the fault; kept if it is the first.
            rows: Number of rows.
            files: Number of files.
        """
        self.rows += rows
        self.files += files
        self.first = self.first or first

    def explain(self, noun: str = "row") -> str:
        """Returns a phrase for what was left out, or "".

        Args:
            noun: Noun for a row.
        """
        counts = [(self.rows, noun), (self.files, "file")]
        parts = [count_of(count, what) for count, what in counts if count]
        return f"{' and '.join(parts)}; the first: {self.first}" if parts else ""


def path_error(path: AnyFile, arg: str, text: str, hint: str = "", **details: Any) -> DataError:
    """Returns an error about a path.

    Args:
        path: The file or folder.
        arg: Name of the user's argument, for error messages.
        text: The rest of the message.
        hint: What to do about it, or "".
        **details: Fields of the error, such as `row` and `column`.
    """
    return DataError(f"`{arg}`: {text}", hint=hint, arg=arg, path=str(path), **details)


def file_error(
    path: AnyFile | None, arg: str, problem: str, hint: str = "", **details: Any
) -> DataError:
    """Returns an error about a file; the message names the file without its folder.

    Args:
        path: The file, or None for rows of a stream, which the argument alone names.
        arg: Name of the user's argument, for error messages.
        problem: What is wrong, as the rest of a sentence.
        hint: What to do about it, or "".
        **details: Fields of the error, such as `row` and `column`.
    """
    if path is None:
        return DataError(f"`{arg}` {problem}", hint=hint, arg=arg, **details)
    return path_error(path, arg, f"the file {path.name} {problem}", hint, **details)


def opening_error(path: AnyFile, arg: str, error: OSError) -> DataError:
    """Returns the error for a file that the operating system or a store cannot open.

    Args:
        path: The file.
        arg: Name of the user's argument, for error messages.
        error: The error of the system or the store.
    """
    if isinstance(error, FileNotFoundError):
        return file_error(path, arg, "does not exist.", "Check the path.")
    reason = store_reason(error) or error.strerror or "it is not readable"
    hint = CREDENTIALS if isinstance(path, RemoteFile) else "Check its permissions."
    return file_error(path, arg, f"cannot be opened: {reason}.", hint)


def read_stamp(path: AnyFile) -> Stamp:
    """Returns a file's size and modification time; of a remote file size and version (ETag)."""
    if isinstance(path, RemoteFile):
        return path.stamp()
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def check_unchanged(path: AnyFile, arg: str, stamp: Stamp) -> None:
    """Checks that a file is unchanged since it was opened.

    Args:
        path: The file.
        arg: Name of the user's argument, for error messages.
        stamp: What `read_stamp()` gave when the file was opened.

    Raises:
        DataError: if the file is gone, or has changed.
    """
    try:
        same = read_stamp(path) == stamp
    except FileNotFoundError as error:
        raise file_error(path, arg, "is gone.", AGAIN) from error
    except OSError as error:
        reason = store_reason(error)
        problem = f"cannot be read any more{reason and f': {reason}'}."
        raise file_error(path, arg, problem, AGAIN) from error
    if not same:
        raise file_error(path, arg, "changed after it was opened.", AGAIN)
