"""Objects of a store or a web server, with the part of `pathlib.Path` that the readers use.

A remote file is shown without credentials and without the options of its address. It is no path of
this computer, and so has no `__fspath__()`.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

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
