"""Imports pyarrow for the other modules; a missing pyarrow is a clear error.

Importing pyarrow takes 0.3 s, so this module is imported late.
"""

from __future__ import annotations

import re

from gpukeras.core.errors import RuntimeMissingError
from gpukeras.data.files.files import AnyFile, RemoteFile
from gpukeras.system import pip

SAFE = (14, 0, 1)  # earlier versions load pickles that a file names (CVE-2023-47248)

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq
except ImportError as _error:
    raise RuntimeMissingError(
        "pyarrow is needed to read CSV, Parquet and Arrow files, and cannot be imported.",
        hint=pip.hint_import(_error, "pyarrow", "pyarrow"),
    ) from _error


def check_version(version: str) -> None:
    """Checks that pyarrow does not run code from Parquet and Arrow files.

    Raises:
        RuntimeMissingError: for a version before 14.0.1.
    """
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < SAFE:
        raise RuntimeMissingError(
            f"pyarrow {version} runs code that a Parquet or Arrow file holds (CVE-2023-47248).",
            hint=f"Update it: {pip.install('--upgrade pyarrow')}.",
        )


check_version(pa.__version__)

__all__ = ["ipc", "pa", "pacsv", "pc", "pq"]

DAMAGED = (
    pa.ArrowException,
    UnicodeError,
    OSError,
)  # raised by damaged files
READ_BYTES = 2**20  # per read of a file
BATCH_BYTES = 4 * 2**20  # approximate size of a record batch
TEXT_BYTES = 32  # assumed size of a string


def open_input(path: AnyFile) -> pa.NativeFile:
    """Opens a file to read ranges of it."""
    return path.open() if isinstance(path, RemoteFile) else pa.OSFile(str(path))


def row_bytes(schema: pa.Schema) -> int:
    """Estimates the memory of a row in bytes."""

    def width(of: pa.DataType) -> int:
        of = of.index_type if pa.types.is_dictionary(of) else of
        try:
            return max(1, of.bit_width // 8)
        except ValueError:  # of variable length
            return TEXT_BYTES

    return max(1, sum(width(field.type) for field in schema))


def batch_rows(schema: pa.Schema) -> int:
    """Returns the number of rows in a record batch of about `BATCH_BYTES`."""
    return min(2**17, max(256, BATCH_BYTES // row_bytes(schema)))
