"""One process at a time: a lock on a file, which the system takes back when the process dies."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from gpukeras.core.safe_files import NotOursError, open_lasting

try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None  # type: ignore[assignment]


_OURS = re.compile(rb"\d{0,20}")  # the number of a process, or nothing yet


class TakenError(Exception):
    """Another process holds the lock; the text is its number, or "" if that is not known."""


class FolderLock:
    """A lock that is held until it is closed, or the process ends, however it ends.

    A file system that has no locks (some of those on a network) goes without.

    Args:
        path: The file; it is made, and stays.

    Raises:
        TakenError: if another process holds it.
        OSError: if the file cannot be made, or is not one that this class has made.
    """

    def __init__(self, path: Path) -> None:
        """Takes the lock."""
        self._handle: int | None = open_lasting(path)
        try:
            self._take(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the lock back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _take(self, path: Path) -> None:
        handle = self._handle
        if fcntl is None or handle is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TakenError(os.read(handle, 20).decode(errors="replace")) from error
        except OSError:
            return
        if not _OURS.fullmatch(os.pread(handle, 21, 0)):
            raise NotOursError(errno.EINVAL, f"{path.name} holds what gpukeras has not written")
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
