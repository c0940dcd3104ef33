"""The door to pyarrow: imported late (it takes 0.3 s), and named where it is missing."""

from __future__ import annotations

import re

from gpukeras.core.errors import RuntimeMissingError

SAFE = (14, 0, 1)  # before, a file could name a pickle, which was read (CVE-2023-47248)

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq
except ImportError as _error:
    raise RuntimeMissingError(
        "pyarrow is needed to read CSV, Parquet and Arrow files, and cannot be imported.",
        hint="Install it: pip install pyarrow.",
    ) from _error


def check_version(version: str) -> None:
    """Refuses a pyarrow that runs code out of Parquet and Arrow files.

    Raises:
        RuntimeMissingError: for one before 14.0.1.
    """
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < SAFE:
        raise RuntimeMissingError(
            f"pyarrow {version} runs code that a Parquet or Arrow file holds (CVE-2023-47248).",
            hint="Update it: pip install --upgrade pyarrow.",
        )


check_version(pa.__version__)

__all__ = ["ipc", "pa", "pacsv", "pc", "pq"]

DAMAGED = (pa.ArrowException, UnicodeError, OSError)  # what a broken Parquet or Arrow file raises
READ_BYTES = 2**20  # of a file, read at once
BATCH_BYTES = 4 * 2**20  # of a record batch, about
TEXT_BYTES = 32  # a text's size, where it is guessed


def row_bytes(schema: pa.Schema) -> int:
    """About how many bytes a row takes in memory."""

    def width(of: pa.DataType) -> int:
        of = of.index_type if pa.types.is_dictionary(of) else of
        try:
            return max(1, of.bit_width // 8)
        except ValueError:  # of variable length
            return TEXT_BYTES

    return max(1, sum(width(field.type) for field in schema))


def batch_rows(schema: pa.Schema) -> int:
    """How many rows make a record batch of about `BATCH_BYTES`."""
    return min(2**17, max(256, BATCH_BYTES // row_bytes(schema)))
