"""Opens gpukeras' files safely in folders that other users can write to.

Another user may have put a link under the file's name, whose target an ordinary open would
truncate; or a pipe, on which an ordinary open would block forever.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PROMPT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe without a peer succeeds or fails at once
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISREG, "a file that has another name too"),
)


@dataclass(frozen=True)
class DiskFault:
    """Why a disk takes nothing more, whatever is written to it.

    Args:
        reason: Words for it, to be a part of a sentence.
        hint: What to do about it.
    """

    reason: str
    hint: str


_ROOM = "Make room, or give a path on another disk."
DISK_FAULTS: Mapping[int, DiskFault] = {
    errno.ENOSPC: DiskFault("the disk is full", _ROOM),
    errno.EDQUOT: DiskFault("the disk is full: your quota is used up", _ROOM),
    errno.EFBIG: DiskFault("the disk is full: a file may not become larger", _ROOM),
    errno.EROFS: DiskFault(
        "the disk is read-only", "Mount it to be written to, or give a path on another disk."
    ),
    errno.ESTALE: DiskFault(
        "the network's disk is not the one that was opened",
        "Mount it anew, or give a path on another disk.",
    ),
}


def find_disk_fault(error: BaseException | None) -> DiskFault | None:
    """Finds the fault of a disk in an error or its causes; None if it has another reason.

    TensorFlow and h5py raise errors of their own, which quote the system's words for the number.
    """
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and number in DISK_FAULTS:
            return DISK_FAULTS[number]
        text = str(error)
        for number, fault in DISK_FAULTS.items():
            if os.strerror(number) in text:
                return fault
        error = error.__cause__
    return None


class NotOursError(OSError):
    """Something else has the name of a gpukeras file; `strerror` says what."""


def create_file(path: Path) -> BinaryIO:
    """Creates a file for writing, replaces any existing entry and follows no link.

    Raises:
        OSError: if it cannot be created.
    """
    try:
        return _create(path)
    except FileExistsError:
        path.unlink()  # removes the link, not its target
        return _create(path)


def open_lasting(path: Path) -> int:
    """Opens a persistent file, such as a lock file, for reading and writing.

    The file is created if missing; existing content is kept. Returns a descriptor.

    Raises:
        NotOursError: for a symbolic or hard link, a pipe, a folder or a device.
        OSError: if it cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE | _PROMPT, 0o666)
    except OSError as error:
        if other := _explain(path):
            raise other from error
        raise
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return handle
    os.close(handle)
    raise _explain(path) or NotOursError(errno.EINVAL, f"{path.name} is no file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading and follows links, because nothing is changed.

    Raises:
        NotOursError: for anything but a regular file: reading a pipe might never end.
        OSError: if it cannot be opened.
    """
    flags = os.O_RDONLY | _PROMPT | (_SAFE & ~getattr(os, "O_NOFOLLOW", 0))
    handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise NotOursError(errno.EINVAL, f"it is {_name_kind(mode)}, not a file", str(path))


@contextmanager
def private_folder(beside: Path) -> Iterator[Path]:
    """Yields a hidden sibling folder of a path that only this user can open; deletes it at exit.

    No other user can have taken a name inside it.

    Raises:
        OSError: if it cannot be created.
    """
    folder = Path(tempfile.mkdtemp(dir=beside.parent, prefix=f".{beside.stem[:100]}.partial-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666), "wb")


def _explain(path: Path) -> NotOursError | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return None
    text = f"{path.name} is {_name_kind(status.st_mode)}, which gpukeras has not made"
    return NotOursError(errno.EINVAL, text, str(path))


def _name_kind(mode: int) -> str:
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "a device")
