"""Opens `.npy` files, also those of stores and web servers, which are copied to a scratch file.

Shuffled batches touch all of an array in each epoch, so that ranges of it would be asked for again
and again.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from gpukeras.data.files.errors import check_unchanged, file_error, opening_error
from gpukeras.data.files.paths import check_file
from gpukeras.data.files.remote_file import RemoteFile, is_url, store_reason
from gpukeras.data.reader.npy import NpyFile, open_npy
from gpukeras.data.reader.spill import check_disk, disk_full, scratch_folder

CHUNK_BYTES = 8 * 2**20


def open_npy_anywhere(path: str, arg: str) -> NpyFile:
    """Opens a `.npy` file; a copy of a remote one is removed with the object returned.

    Args:
        path: Path or address.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: as `open_npy()` raises; if the store fails, the object changes meanwhile, or its
            copy does not fit into the temporary folder.
    """
    if not is_url(path):
        return open_npy(path, arg)
    from gpukeras.data.files.stores.find import find_objects  # imports pyarrow

    found = find_objects(path, arg)
    if len(found) != 1:
        raise file_error(found[0], arg, "is one of several: they cannot be one array.", "Give one.")
    folder = Path(tempfile.mkdtemp(prefix="gpukeras-", suffix=".npy", dir=scratch_folder()))
    try:
        file = open_npy(str(_copy(found[0], folder, arg)), arg)
        weakref.finalize(file, shutil.rmtree, folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return file


def _copy(remote: RemoteFile, folder: Path, arg: str) -> Path:
    stamp = check_file(remote, arg)
    check_disk(folder, stamp[0], arg)
    copy = folder / remote.name
    copy.touch(mode=0o600)
    try:
        with remote.open() as source:
            for chunk in iter(lambda: source.read(CHUNK_BYTES), b""):
                _append(copy, chunk, arg)
    except OSError as error:
        check_unchanged(remote, arg, stamp)
        if not store_reason(error):
            raise
        raise opening_error(remote, arg, error) from None
    check_unchanged(remote, arg, stamp)
    return copy


def _append(copy: Path, chunk: bytes, arg: str) -> None:
    try:
        with copy.open("ab") as file:
            file.write(chunk)
    except OSError as error:
        raise disk_full(copy.parent, arg) from error
