"""Reads Parquet files row group by row group, in batches with bounded memory.

Each column holds one page and one dictionary in memory, 1 MiB each in files from Arrow: 20 columns
took 110 MiB, 300 columns 680 MiB. Arrow's `pre_buffer`, memory maps and dataset scanners would hold
whole files (1.1 GB of 1.1 GB, measured), and were at most 1.2 times as fast.

Of a remote file, the columns of a row group are asked for together, in few large ranges, unless
they are larger than `GROUP_BYTES`; then as in a local file, with larger buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpukeras.data.files.arrow import READ_BYTES, batch_rows, open_input, pa, pq
from gpukeras.data.files.files import AnyFile, RemoteFile

NAME = "Parquet"
BUFFER_BYTES = 32 * 2**20  # for all columns; each column has a separate buffer
LEAST_READ_BYTES = 2**16
GROUP_BYTES = 64 * 2**20  # of the columns of a row group, compressed, read at once from a store


def read_facts(path: AnyFile) -> tuple[pa.Schema, int | None, pq.FileMetaData]:
    """Reads a file's schema and number of rows from its footer, and returns the footer too.

    Raises:
        pa.ArrowException, UnicodeError, OSError: if the file is no complete Parquet file.
    """
    with open_input(path) as source, pq.ParquetFile(source) as file:
        return file.schema_arrow.remove_metadata(), file.metadata.num_rows, file.metadata


def read_groups(path: AnyFile) -> list[int]:
    """Returns the rows of each row group, from a file's footer.

    Raises:
        pa.ArrowException, UnicodeError, OSError: if the file is no complete Parquet file.
    """
    with open_input(path) as source, pq.ParquetFile(source) as file:
        return [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]


def read_batches(
    path: AnyFile,
    names: Sequence[str],
    groups: Sequence[int] | None = None,
    footer: pq.FileMetaData | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the given columns of a file in batches, of all row groups or some.

    Args:
        path: The file.
        names: The columns.
        groups: Numbers of the row groups, or None for all.
        footer: The file's footer, or None to read it.

    Raises:
        pa.ArrowException, UnicodeError, OSError: if the file is damaged.
    """
    more = 2 if isinstance(path, RemoteFile) else 1
    ahead = min(more * READ_BYTES, max(LEAST_READ_BYTES, more * BUFFER_BYTES // len(names)))
    how = {"buffer_size": ahead, "page_checksum_verification": True, "metadata": footer}
    with open_input(path) as source, pq.ParquetFile(source, pre_buffer=False, **how) as file:
        schema = file.schema_arrow
        rows = batch_rows(pa.schema([schema.field(name) for name in names]))
        for part, some in _divide(path, source, file, names, groups):
            for batch in part.iter_batches(rows, some, list(names), use_threads=True):
                yield batch.select(list(names))


def _divide(
    path: AnyFile,
    source: pa.NativeFile,
    file: pq.ParquetFile,
    names: Sequence[str],
    groups: Sequence[int] | None,
) -> Iterator[tuple[pq.ParquetFile, list[int] | None]]:
    """Yields the row groups to read together, None for all, and the reader that reads them."""
    if not isinstance(path, RemoteFile):
        yield file, None if groups is None else list(groups)
        return
    facts, chosen = file.metadata, set(names)
    at_once = pq.ParquetFile(
        source, metadata=facts, pre_buffer=True, page_checksum_verification=True
    )
    for group in range(facts.num_row_groups) if groups is None else groups:
        columns = map(facts.row_group(group).column, range(facts.num_columns))
        sizes = [each.total_compressed_size for each in columns if each.path_in_schema in chosen]
        yield (at_once if sum(sizes) <= GROUP_BYTES else file), [group]
