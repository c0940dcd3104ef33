"""Reads Arrow files (Feather version 2) record batch by record batch.

Files are read, not mapped: mapped pages count as memory of this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpukeras.data.files.arrow import batch_rows, ipc, open_input, pa
from gpukeras.data.files.files import AnyFile, RemoteFile

NAME = "Arrow"
MAGIC = b"ARROW1"


def read_facts(path: AnyFile) -> tuple[pa.Schema, int | None, None]:
    """Returns a file's schema and number of rows, which is None for a stream and a remote file.

    The third value is where Parquet's footer stands.

    Raises:
        pa.ArrowException, UnicodeError, OSError: if the file is no complete Arrow file.
    """
    with _opened(path) as reader:
        schema = reader.schema.remove_metadata()
        streamed = isinstance(reader, ipc.RecordBatchStreamReader)
    if streamed or isinstance(path, RemoteFile) or not len(schema):
        return schema, 0 if not (streamed or len(schema)) else None, None
    with _opened(path, [0]) as reader:  # without the other columns' data
        counts = (reader.get_batch(index).num_rows for index in range(reader.num_record_batches))
        return schema, sum(counts), None


def read_batches(path: AnyFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the given columns of a file in batches.

    Raises:
        pa.ArrowException, UnicodeError, OSError: if the file is damaged.
    """
    with _opened(path) as reader:
        places = [reader.schema.get_field_index(name) for name in names]
    with _opened(path, sorted(places)) as reader:
        for batch in _each_batch(reader):
            part = batch.select(list(names))
            rows = batch_rows(part.schema)
            for start in range(0, part.num_rows, rows):
                yield part.slice(start, rows)


def _each_batch(reader: ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader) -> Iterator:
    if isinstance(reader, ipc.RecordBatchStreamReader):
        yield from reader
        return
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


@contextmanager
def _opened(
    path: AnyFile, fields: Sequence[int] = ()
) -> Iterator[ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader]:
    """Opens a reader of an Arrow file or stream, with all fields or only some."""
    options = ipc.IpcReadOptions(included_fields=list(fields))
    with open_input(path) as file:
        is_file = file.read(len(MAGIC)) == MAGIC
        file.seek(0)
        yield (ipc.open_file if is_file else ipc.open_stream)(file, options=options)
