"""Bounds the size of XLA's compiled programs on disk, and removes damaged ones.

Several processes do this at once, and one may remove what another looks at: that is no error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PROGRAM = "xla_compile_cache__"  # how the names of TensorFlow's programs begin
JAX_PROGRAM = "-cache"  # how the names of JAX's programs end
PATTERNS = (f"tensorflow-*/{PROGRAM}*", f"jax-*/*{JAX_PROGRAM}")
MOST_BYTES = 128 * 2**20  # some 300 programs of small models
LEAST_FREE_BYTES = 256 * 2**20  # on the disk; TensorFlow fails where it cannot write a program
TRIED_BYTES = 4 * 2**20  # written to find out whether a quota allows a program
UNFINISHED_S = 3600.0  # age from which a program that was not renamed belongs to a killed process
CUT_OFF = 2**50  # in place of a number that is not there: a length beyond the end of any file
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how its data begin
EXECUTABLE = 3  # number of the field with the machine code in XlaSerializedCacheEntry


def can_keep(folder: Path) -> bool:
    """Whether programs can be written to a folder, which is made for this user alone."""
    tried = folder / f".tried-{os.getpid()}"
    try:
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(tried, "wb") as file:
                _reserve(file, TRIED_BYTES)
        finally:
            tried.unlink(missing_ok=True)
        return shutil.disk_usage(folder).free >= LEAST_FREE_BYTES
    except OSError:
        return False


def _reserve(file: BinaryIO, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.write(bytes(size))


def clean(whole: Path, most_bytes: int = MOST_BYTES) -> None:
    """Removes damaged and unfinished programs, then the least recently used until the rest fits.

    Where the file system keeps no times of reading, these are the oldest.

    Args:
        whole: The folder with the subfolders of all kinds of computers.
        most_bytes: Bytes that may remain.
    """
    kept = []
    for file in _list_programs(whole):
        with contextlib.suppress(OSError):
            status = file.stat()
            finished = file.suffix == ".pb" or file.name.endswith(JAX_PROGRAM)
            if finished and is_whole(file):
                kept.append((max(status.st_atime, status.st_mtime), status.st_size, file))
            elif finished or time.time() - status.st_mtime > UNFINISHED_S:
                file.unlink()
    excess = sum(size for _, size, _ in kept) - most_bytes
    for _, size, file in sorted(kept):
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            file.unlink()
        excess -= size


def _list_programs(whole: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for file in (path for pattern in PATTERNS for path in whole.glob(pattern)):
            if file.is_file() and not file.is_symlink():
                yield file


def is_whole(file: Path) -> bool:
    """Whether a program's file was written to its end.

    A file that a crash of the computer has cut off makes each training of its model on TensorFlow
    fail, and JAX never replaces it.
    """
    return _is_whole_on_jax(file) if file.name.endswith(JAX_PROGRAM) else _has_machine_code(file)


def _is_whole_on_jax(file: Path) -> bool:
    """Whether compressed data are complete; of zstandard's, which Python cannot read, not asked.

    What was found whole is made read-only, and not unpacked again.
    """
    if not file.stat().st_mode & stat.S_IWUSR:
        return True
    content, unpacked = file.read_bytes(), zlib.decompressobj()
    if not content.startswith(ZSTANDARD):
        try:
            unpacked.decompress(content)
        except zlib.error:
            return False
        if not unpacked.eof:
            return False
    if os.name == "posix":  # elsewhere it could not be removed
        file.chmod(stat.S_IRUSR)
    return True


def _has_machine_code(file: Path) -> bool:
    """Whether a protocol buffer ends where its fields say and has the field of machine code."""
    size, seen = file.stat().st_size, set()
    with open(file, "rb") as content:
        while content.tell() < size:
            field, length = _read_number(content), _read_number(content)
            if field & 7 != 2 or length > size - content.tell():  # all fields have a length
                return False
            content.seek(length, os.SEEK_CUR)
            seen.add(field >> 3)
    return EXECUTABLE in seen


def _read_number(content: BinaryIO) -> int:
    """Reads a variable-length integer of a protocol buffer."""
    number = 0
    for place in range(10):
        byte = content.read(1)
        if not byte:
            return CUT_OFF
        number |= (byte[0] & 127) << (7 * place)
        if byte[0] < 128:
            break
    return number
