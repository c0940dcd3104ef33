"""Files of this computer and of stores: what readers use of both, and errors that name one.

A remote file has the part of `pathlib.Path` that the readers use. It is shown without credentials
and without the options of its address. It is no path of this computer, and so has no
`__fspath__()`.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of

Stamp = tuple[int, int | str]  # size, and modification time or, of remote files, version (ETag)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # two letters at least: not a drive of Windows
_DENIED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_SIGNATURE|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT|"
    "UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|MISSING_AUTHENTICATION|HTTP status (?:401|403)|"
    r"PERMISSION_DENIED|UNAUTHENTICATED|AuthenticationFailed|AuthorizationFailure",
)
_SILENT = re.compile("NETWORK_CONNECTION|UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]ould ?n.t resolve host")
_ANSWER = re.compile(
    r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d+)\))?|Status\(([A-Z_]+):|HTTP (\d+)"
)


class StoreError(OSError):
    """What went wrong at a store, in gpukeras' own words: texts of stores may hold credentials.

    Args:
        reason: The rest of a sentence.
    """

    def __init__(self, reason: str) -> None:
        """Stores the reason as `strerror`."""
        super().__init__(errno.EIO, reason)


class Store(Protocol):
    """Gives objects by key."""

    def open(self, key: str) -> Any:
        """Returns an object as a file of Arrow's that reads ranges."""

    def stamp(self, key: str) -> Stamp:
        """Returns an object's size and version."""


@dataclass(frozen=True)
class RemoteFile:
    """An object of a store.

    Args:
        store: The store.
        key: The object's key, as the store takes it.
        shown: Its address without credentials.
    """

    store: Store
    key: str
    shown: str

    def __str__(self) -> str:
        """Returns the address without credentials."""
        return self.shown

    __repr__ = __str__

    @property
    def name(self) -> str:
        """Last part of the address."""
        return PurePosixPath(self.shown).name

    @property
    def suffix(self) -> str:
        """Suffix of the name."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    def open(self) -> Any:
        """Opens the object as a file of Arrow's that reads ranges.

        Raises:
            OSError: if it cannot be opened.
        """
        return self.store.open(self.key)

    def stamp(self) -> Stamp:
        """Asks the store for the object's size and version.

        Raises:
            OSError: if the object is gone, or the store gives no answer.
        """
        return self.store.stamp(self.key)


AnyFile = Path | RemoteFile


def any_remote(files: Iterable[AnyFile]) -> bool:
    """Whether one of the files at least is an object of a store."""
    return any(isinstance(file, RemoteFile) for file in files)


def is_url(text: Any) -> bool:
    """Whether a path is an address such as "s3://bucket/key"."""
    return isinstance(text, str) and _URL.match(text) is not None


def close_stores() -> None:
    """Ends Arrow's S3 client, if it runs. Stores cannot be used afterwards.

    Arrow registers this for Python's end. R ends without it, and would crash in the client's
    threads.
    """
    arrow = sys.modules.get("pyarrow.fs")
    if arrow is not None and "ensure_s3_finalized" in vars(arrow):
        arrow.ensure_s3_finalized()


def store_reason(error: BaseException) -> str:
    """Returns what a store answered in plain words, or "" if the error is not about a store."""
    if isinstance(error, StoreError):
        return str(error.strerror)
    text = str(error)
    if _DENIED.search(text):
        return "access is denied"
    if "NO_SUCH_BUCKET" in text:
        return "there is no such bucket"
    answer = _ANSWER.search(text)
    if _SILENT.search(text):
        return "the store does not answer, or breaks off"
    if answer is None:
        return ""
    code, status, other, http = answer.groups()
    found = f"HTTP status {status or http}" if status or http else code or other
    return f"the store answers {found}"


# Errors -------------------------------------------------------------------------------------------

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
    status = path.stat()
    return status.st_size, status.st_mtime_ns


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
