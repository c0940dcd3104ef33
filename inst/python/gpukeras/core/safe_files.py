"""Files of ours in folders that others may write to: nothing is opened there that is not ours.

A name that we choose may be taken by somebody else's link, whose file an ordinary open would
truncate; or by a pipe, which an ordinary open would wait at for ever.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PROMPT = getattr(os, "O_NONBLOCK", 0)  # a pipe without another end is opened, or refused, at once
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISREG, "a file that has another name too"),
)


class NotOursError(OSError):
    """Something else has the name of a file of ours; `strerror` says what."""


def create_file(path: Path) -> BinaryIO:
    """A new file to write to, in place of whatever had its name before; no link is followed.

    Raises:
        OSError: if it cannot be made.
    """
    try:
        return _create(path)
    except FileExistsError:
        path.unlink()  # the link, not what it leads to
        return _create(path)


def open_lasting(path: Path) -> int:
    """The descriptor of a file that stays, such as a lock's, for reading and writing.

    Its content is left as it is.

    Raises:
        NotOursError: for a link of either kind, a pipe, a folder or a device.
        OSError: if it cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE | _PROMPT, 0o666)
    except OSError as error:
        raise _explain(path) or error from error
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    raise _explain(path) or NotOursError(errno.EINVAL, f"{path.name} is no file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """A file to be read; links are followed, as nothing is changed.

    Raises:
        NotOursError: for anything but a file: reading a pipe might never end.
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
    """A hidden folder in the same folder as a path, open to this user alone; it goes at the end.

    What is made in it has names that nobody else can have taken.

    Raises:
        OSError: if it cannot be made.
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
        found = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return None
    text = f"{path.name} is {_name_kind(found.st_mode)}, which gpukeras has not made"
    return NotOursError(errno.EINVAL, text, str(path))


def _name_kind(mode: int) -> str:
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "a device")
