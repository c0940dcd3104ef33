"""Scratch files, and whether they fit on the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from gpukeras.core.errors import DataError
from gpukeras.core.messages import mib

SPARE_BYTES = 256 * 2**20  # free disk space that a scratch file leaves


def make_scratch(suffix: str, needed: int, arg: str) -> Path:
    """Returns a new scratch file, which is empty.

    Args:
        suffix: How its name ends.
        needed: What it will take at least, in bytes.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if that does not fit on the disk.
    """
    folder = scratch_folder()
    check_disk(folder, needed, arg)
    handle, path = tempfile.mkstemp(prefix="gpukeras-", suffix=suffix, dir=folder)
    os.close(handle)
    return Path(path)


def scratch_folder() -> Path:
    """Returns the folder for scratch files.

    It is R's session folder, which R removes, or the system's temporary folder. Both follow the
    environment variable TMPDIR at the start of the session.
    """
    return Path(os.environ.get("R_SESSION_TMPDIR") or tempfile.gettempdir())


def check_disk(folder: Path, needed: int, arg: str) -> None:
    """Checks that a scratch file fits on the disk.

    Args:
        folder: The folder for the file.
        needed: Size of the file in bytes.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if it does not fit; with the bytes needed and free.
    """
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise disk_full(folder, arg, f"{mib(needed)} of {mib(free)} free")


def disk_full(folder: Path, arg: str, sizes: str = "") -> DataError:
    """Returns the error for a scratch file that does not fit.

    Args:
        folder: The folder for the file.
        arg: Name of the user's argument, for error messages.
        sizes: The bytes needed and free as text, if known, or "".
    """
    asked = f": it needs {sizes}" if sizes else ""
    return DataError(
        f"`{arg}` does not fit into the temporary folder{asked}.",
        hint="Set the environment variable TMPDIR to a larger disk before the session starts.",
        arg=arg,
        path=str(folder),
    )
