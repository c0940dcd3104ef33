"""One process at a time: a lock on a file, which the system takes back when the process dies."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None  # type: ignore[assignment]


class TakenError(Exception):
    """Another process holds the lock; the text is its number, or "" if that is not known."""


class FolderLock:
    """A lock that is held until it is closed, or the process ends, however it ends.

    A file system that has no locks (some of those on a network) goes without.

    Args:
        path: The file; it is made, and stays.

    Raises:
        TakenError: if another process holds it.
        OSError: if the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        """Takes the lock."""
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the lock back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _take(self) -> None:
        handle = self._handle
        if fcntl is None or handle is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TakenError(os.read(handle, 20).decode(errors="replace")) from error
        except OSError:
            return
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
