"""Checks whether a zip archive of unknown origin is safe to read: names, sizes and content.

A `.keras` file is such an archive. A crafted one can name members outside of the folder it is
extracted to, expand to many times its size, or hold a pickle, which runs code when it is read. The
module uses NumPy and the standard library only, and extracts nothing.
"""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

MOST_MEMBERS = 10_000
# Deflate compresses to at best 1/1032: weights come to 1/1.1, those of a pruned model to 1/10.
MOST_SWELLING = 100
FREE_BYTES = 64 * 2**20  # small archives may expand more: an empty vocabulary, zeros
PICKLED_SUFFIXES = (".pkl", ".pickle", ".joblib", ".dill", ".pt", ".pth")
PICKLED = re.compile(rb"\x80[\x02-\x05]")  # first bytes of protocols 2 to 5
HDF5 = b"\x89HDF\r\n\x1a\n"
READS = (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zlib.error)


def explain_fault(path: Path) -> str:
    """Returns why an archive must not be read, as the end of a sentence; "" if it may.

    It reads the whole file once, for its checksums.

    Args:
        path: Path of the file.
    """
    if not path.is_file():
        return "is a folder" if path.is_dir() else "does not exist"
    try:
        with path.open("rb") as file:
            return _explain_start(file.read(8)) or _explain_archive(file, path.stat().st_size)
    except zipfile.BadZipFile:
        return "is damaged: it is no complete archive"
    except READS as error:
        return f"is damaged: it cannot be read ({type(error).__name__})"


def _explain_start(start: bytes) -> str:
    if PICKLED.match(start):
        return "is a Python pickle, which can run any code when it is read"
    if start == HDF5:
        return "is an HDF5 file, the old format of Keras, for which there is no safe mode"
    return "" if start.startswith(b"PK") else "is not a .keras file"


def _explain_archive(file: IO[bytes], size: int) -> str:
    with zipfile.ZipFile(file) as archive:
        fault = check_members(archive.infolist(), size)
        if fault:
            return fault
        broken = archive.testzip()
        if broken is not None:
            return f"is damaged: the checksum of its member {show(broken)} is wrong"
        return next(filter(None, (_explain_member(archive, m) for m in archive.infolist())), "")


def check_members(members: Sequence[zipfile.ZipInfo], size: int) -> str:
    """Returns the fault of an archive's list of members, as the end of a sentence; "" if none.

    Args:
        members: The result of `ZipFile.infolist()`.
        size: Bytes of the archive.
    """
    if len(members) > MOST_MEMBERS:
        return f"has {len(members)} members, more than {MOST_MEMBERS}"
    for member in members:
        if fault := _explain_name(member):
            return f"has the member {show(member.orig_filename)}, {fault}"
    name, count = Counter(member.filename for member in members).most_common(1)[0]
    if count > 1:
        return f"has {count} members with the name {show(name)}"
    if sum(member.compress_size for member in members) > size:
        return "has members that overlap: it is a zip bomb"
    swollen = sum(member.file_size for member in members)
    if swollen > FREE_BYTES + MOST_SWELLING * size:
        return f"would swell from {size} to {swollen} bytes: it is a zip bomb"
    return ""


def _explain_name(member: zipfile.ZipInfo) -> str:
    name = member.orig_filename  # `filename` is cut at a NUL, and changed on Windows
    outside = name.startswith("/") or ".." in name.split("/") or re.match(r"[A-Za-z]:", name)
    if outside or "\\" in name or "\0" in name or not name:
        return "which lies outside of it"
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "which is a link or a device, not a file"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "which is compressed in a way that Keras does not use"
    return "which is encrypted" if member.flag_bits & 1 else ""


def show(name: str) -> str:
    """Returns a member's name for a message: short, printable."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


# Pickles -----------------------------------------------------------------------------------------


def _explain_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    """Returns why a member is unsafe: it is a pickle, or has arrays with pickles in them; or ""."""
    fault = f"holds a Python pickle in its member {show(member.filename)}"
    if member.filename.lower().endswith(PICKLED_SUFFIXES):
        return fault
    with archive.open(member) as file:
        start = file.read(8)
        if PICKLED.match(start):
            return fault
        if not member.filename.endswith(".npz"):
            return ""
        file.seek(0)
        with zipfile.ZipFile(file) as inner:
            inside = check_members(inner.infolist(), member.file_size)
            if inside:
                return f"has the member {show(member.filename)}, which {inside}"
            return fault if any(_find_objects(inner)) else ""


def _find_objects(archive: zipfile.ZipFile) -> Iterator[bool]:
    """Yields whether each NumPy array in an archive holds pickled objects."""
    for name in archive.namelist():
        with archive.open(name) as file:
            if PICKLED.match(file.read(8)):
                yield True
        if not name.endswith(".npy"):
            continue
        with archive.open(name) as file:
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                np.lib.format.read_magic(file), np.lib.format.read_array_header_2_0
            )
            yield read(file)[2].hasobject
