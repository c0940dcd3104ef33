"""Opens tables in files: CSV, Parquet or Arrow; one file, several, a glob or a folder.

open_table() -> TableReader --batches()--> record batches --to_column()--> column records
"""

from __future__ import annotations

from collections.abc import Sequence

from gpukeras.core.options import check_choice
from gpukeras.data.files.errors import Skipped
from gpukeras.data.files.paths import find_files
from gpukeras.data.files.remote_file import AnyFile
from gpukeras.data.reader.table.base import TableReader
from gpukeras.data.reader.table.columnar import open_columnar
from gpukeras.data.reader.table.csv.reader import open_delimited
from gpukeras.data.reader.table.schema import Asked


def open_table(
    paths: str | Sequence[str | AnyFile],
    arg: str,
    *,
    format: str = "auto",
    columns: Asked = None,
    on_error: str = "stop",
) -> TableReader:
    """Opens files with the same columns as one table, read in batches with bounded memory.

    Args:
        paths: One path, several, globs such as "flights/*.parquet", or folders; of this computer or
            of a store, such as "s3://bucket/flights/*.parquet".
        arg: Name of the user's argument, for error messages.
        format: One of `paths.FORMATS`, or "auto" (by the suffixes).
        columns: Columns to read, in that order, a function that chooses them of the first file's
            names, or None for all. Others may have any type.
        on_error: "stop" at the first fault, or "skip" broken rows of CSV files and files that
            cannot be read; `TableReader.skipped` counts them.

    Raises:
        DataError: if a file cannot be found or read, or does not match the others; names it.
        SpecError: for an unknown `format` or `on_error`.
    """
    check_choice("on_error", on_error, ("stop", "skip"))
    files = find_files(paths, arg, format)
    skipped = Skipped() if on_error == "skip" else None
    if files.format == "csv":
        return open_delimited(files.paths, arg, columns, skipped)
    return open_columnar(files.paths, files.format, arg, columns, skipped)
