"""The door to pyarrow: imported late (it takes 0.3 s), and named where it is missing."""

from __future__ import annotations

from ..errors import RuntimeMissingError

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
