"""Reads and writes JSON values and arrays in one `.npz` file, as `numpy.load()` reads it.

    state.json  {"version": 1, "plain": JSON values, "arrays": {"model/weights/0000": "bfloat16"}}
    model/weights/0000.npy ...

A `.npz` file is a zip archive, whose CRC-32 of each member finds damage; the list of the arrays
finds those that the archive's directory has lost, and names dtypes that a `.npy` file cannot name.
Members are not compressed, so that reading takes no more memory than the file has bytes. No code
runs: arrays of Python objects, which are pickles, are neither written nor read.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import struct
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from gpukeras.core.errors import CheckpointError
from gpukeras.core.safe_files import create_file, open_regular

VERSION = 1
STATE = "state.json"
SUFFIX = ".npy"
NUMBERS = "biufc"  # kinds of dtypes that a .npy file can name, if they are NumPy's own
OF_OTHERS = 2  # `isbuiltin` of a dtype that another package has added to NumPy
MOST = 2**53  # larger numbers are no valid sizes
ZIP64_BYTES = 2**31  # a larger member needs the header for large files, as zipfile asks
# What `zipfile` and NumPy raise for a file that nobody saved so.
FORGED = (
    *(BadZipFile, NotImplementedError, RuntimeError, RecursionError, struct.error),
    *(ValueError, TypeError, KeyError, AttributeError, EOFError, MemoryError, TokenError),
)

Arrays = dict[str, np.ndarray]


class DamagedError(Exception):
    """A file differs from what was written; the text says how, as the end of a sentence."""


# Writing -----------------------------------------------------------------------------------------


def write_file(path: Path, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file and flushes it to the disk; the arrays are not copied.

    Args:
        path: The new file.
        plain: JSON values; NumPy numbers count as numbers, and NaN and infinity are kept.
        arrays: Numeric arrays of any shape.

    Raises:
        CheckpointError: for arrays of another kind, such as strings.
        OSError: if the file cannot be written.
    """
    known = {name: _as_known(name, array) for name, array in arrays.items()}
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    state = {"version": VERSION, "plain": plain, "arrays": dtypes}
    with create_file(path) as file:
        with ZipFile(file, "w") as archive:
            archive.writestr(STATE, json.dumps(state, default=as_number))
            for name, array in known.items():
                large = array.nbytes >= ZIP64_BYTES
                with archive.open(name + SUFFIX, "w", force_zip64=large) as member:
                    npy.write_array_header_1_0(member, npy.header_data_from_array_1_0(array))
                    member.write(array.reshape(-1).view(np.uint8).data)  # without a copy
        file.flush()
        os.fsync(file.fileno())
        _forget(file.fileno())


def _forget(handle: int) -> None:
    """Drops a written file from the page cache, because it is not read soon.

    Otherwise each save takes new memory from the training and the data loader: 100 MB then took
    2.8 s to write instead of 0.3 s (measured on a virtual machine).
    """
    if hasattr(os, "posix_fadvise"):  # Linux
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _as_known(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array in C order; as integers if a .npy file cannot name its dtype."""
    array = np.asarray(array, order="C")
    if array.dtype.kind in NUMBERS and array.dtype.isbuiltin != OF_OTHERS:
        return array
    if array.dtype.hasobject or array.dtype.kind in "SUmM":
        raise CheckpointError(
            f"`checkpoint`: the training cannot be saved: {name} holds {array.dtype}, not numbers.",
            hint="Train without `checkpoint`.",
            arg="checkpoint",
        )
    return array.view(f"u{array.dtype.itemsize}")


# Reading -----------------------------------------------------------------------------------------


def read_file(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Reads the JSON values and the arrays of a file.

    Raises:
        DamagedError: if its values or arrays differ in any bit from what was written.
        OSError: if it cannot be read.
    """
    with open_regular(path) as file:
        try:
            with ZipFile(file) as archive:
                return _read_archive(archive, os.fstat(file.fileno()).st_size)
        except FORGED as error:
            raise DamagedError("it is not as it was written") from error


def _read_archive(archive: ZipFile, size: int) -> tuple[dict[str, Any], Arrays]:
    members = {info.filename: info for info in archive.infolist()}
    sizes = [info.file_size for info in archive.infolist()]
    stored = all(info.compress_type == ZIP_STORED for info in members.values())
    # So that never more memory is allocated than the file has bytes.
    if not stored or sum(sizes) > size or len(sizes) > len(members):
        raise DamagedError("it is not as it was written")
    state = json.loads(archive.read(members.pop(STATE)))
    if state["version"] > VERSION:
        raise DamagedError("a later version of gpukeras has written it")
    plain, listed = state["plain"], state["arrays"]
    if not isinstance(plain, dict) or [name + SUFFIX for name in listed] != list(members):
        raise DamagedError("it is not as it was written")
    return plain, {
        name: _read_array(archive, members[name + SUFFIX], name, dtype)
        for name, dtype in listed.items()
    }


def _read_array(archive: ZipFile, info: ZipInfo, name: str, dtype: str) -> np.ndarray:
    try:
        with archive.open(info) as member:
            _check_header(member, info)
        with archive.open(info) as member:
            array = npy.read_array(member, allow_pickle=False)
        return array if array.dtype.name == dtype else _restore_dtype(array, dtype)
    except FORGED as error:
        raise DamagedError(f"{name} is not as it was written") from error


def _check_header(member: Any, info: ZipInfo) -> None:
    """Checks that an array takes the bytes of its member, before memory is taken for it."""
    if npy.read_magic(member) != (1, 0):
        raise ValueError("another version")
    shape, _, dtype = npy.read_array_header_1_0(member)
    size = dtype.itemsize * math.prod(shape)
    if dtype.kind not in NUMBERS or size != info.file_size - member.tell():
        raise ValueError(shape)


def _restore_dtype(array: np.ndarray, name: str) -> np.ndarray:
    """Returns integers as a dtype of TensorFlow and JAX that NumPy lacks, such as bfloat16."""
    dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    if dtype.name != name or array.dtype != f"u{dtype.itemsize}":
        raise ValueError(name)
    return array.view(dtype)


# JSON values: their digests, and numbers of NumPy ------------------------------------------------


DIGITS = 6  # digits of learned numbers: sums on another processor differ in later ones


def digest(value: Any) -> str:
    """Returns a short digest of JSON values, of whose numbers 6 digits count."""
    text = json.dumps(_rounded(value), sort_keys=True, default=as_number)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def as_number(value: Any) -> Any:
    """Converts a NumPy number to a Python number, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")
