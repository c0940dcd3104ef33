"""Locks a file for one process; the system releases the lock when the process dies."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from gpukeras.core.safe_files import NotOursError, open_lasting

try:
    import fcntl
except ImportError:  # Windows: no locking
    fcntl = None  # type: ignore[assignment]


_OURS = re.compile(rb"\d{0,20}")  # a process id, or an empty file


def take_lock(handle: int) -> bool:
    """Locks an open file to the end of this process; returns false if another one has.

    Raises:
        OSError: on a file system without locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class TakenError(Exception):
    """Another process holds the lock; the message is its process id, or "" if unknown."""


class FolderLock:
    """A file lock, held until `close()` or until the process ends in any way.

    On a file system without locks (some network file systems) nothing is locked.

    Args:
        path: The lock file; it is created if missing and never deleted.

    Raises:
        TakenError: if another process holds it, or another object of this process.
        OSError: if the file cannot be created, or was not created by this class.
    """

    def __init__(self, path: Path) -> None:
        """Acquires the lock."""
        self._handle: int | None = open_lasting(path)
        try:
            self._take(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _take(self, path: Path) -> None:
        handle = self._handle
        if fcntl is None or handle is None:
            return
        try:
            taken = take_lock(handle)
        except OSError:
            return
        if not taken:
            raise TakenError(os.read(handle, 20).decode(errors="replace"))
        if not _OURS.fullmatch(os.pread(handle, 21, 0)):
            raise NotOursError(errno.EINVAL, f"{path.name} holds what gpukeras has not written")
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the process id
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
