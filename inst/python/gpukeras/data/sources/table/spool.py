"""Stores record batches for several passes, while their files are parsed once.

    files --reader--> Spool.write() ... finish() --> Spool.batches(), repeatedly

Up to 128 MiB of batches stay in memory, or 32 MiB of a stream, whose size is unknown. Beyond that,
CSV and streams go to a scratch file (an uncompressed Arrow stream), because parsing CSV costs most
and a stream comes once; files that decode quickly are read again. The scratch file is read, not
mapped: mapped pages would count as memory of this process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.core.prefetch import read_ahead
from gpukeras.data.files.arrow import ipc, pa
from gpukeras.data.sources.spill import check_disk, disk_full, scratch_folder

MEMORY_BYTES = 128 * 2**20  # of batches in memory; encoded rows take memory too
# The same where the size is not known before: the allocator does not return all memory, and what
# makes the batches, such as a database's driver, needs some of its own.
UNKNOWN_BYTES = 32 * 2**20


class Spool:
    """Stores record batches in order.

    Args:
        schema: Schema of all batches; dictionaries may differ.
        arg: Name of the user's argument, for error messages.
        anew: Function that reads the files again, or None to store the batches.
        expected: Estimated size of all batches in bytes, or None if it is unknown.
    """

    def __init__(
        self,
        schema: pa.Schema,
        arg: str,
        anew: Callable[[], Iterator[pa.RecordBatch]] | None = None,
        expected: int | None = 0,
    ) -> None:
        """Starts without batches."""
        self.rows = 0
        self._schema, self._arg, self._anew = schema, arg, anew
        self._kept: list[pa.RecordBatch] | None = []
        self._bytes = 0
        self._path: Path | None = None
        self._writer: Any = None
        self._sink: Any = None
        self._limit = UNKNOWN_BYTES if expected is None else MEMORY_BYTES
        if expected is not None and expected > self._limit:
            self._overflow()  # at once: the allocator does not return all memory

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends a batch."""
        self.rows += batch.num_rows
        if self._writer is not None:
            self._write_disk(batch)
        elif self._kept is not None:
            self._kept.append(batch)
            self._bytes += batch.nbytes
            if self._bytes > self._limit:
                self._overflow()

    def finish(self) -> None:
        """Ends writing."""
        if self._writer is not None:
            try:
                self._writer.close()
                self._sink.close()
            except OSError as error:
                assert self._path is not None  # there is a writer
                raise disk_full(self._path.parent, self._arg) from error
            self._writer = self._sink = None
        # What files and stores were read into: 100 MiB of objects of S3, of 300 in all.
        pa.default_memory_pool().release_unused()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all batches in order.

        Raises:
            DataError: if the files, or the scratch file, changed.
        """
        rows = 0
        for batch in self._read():
            rows += batch.num_rows
            yield batch
        if rows != self.rows:
            raise DataError(
                f"`{self._arg}` has {count_of(rows, 'row')} where it had {self.rows:,}: "
                f"its files changed "
                "while they were read.",
                hint="Make the dataset again.",
                arg=self._arg,
            )

    def close(self) -> None:
        """Drops the batches and removes the scratch file."""
        self.finish()
        self._kept = []
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        pa.default_memory_pool().release_unused()

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self._kept is not None:
            return iter(self._kept)
        if self._path is not None:
            return read_ahead(self._read_disk())
        assert self._anew is not None  # else they were kept or written
        return read_ahead(self._anew())

    def _overflow(self) -> None:
        kept, self._kept = self._kept, None
        if self._anew is None:
            self._open_disk()
            for batch in kept or ():
                self._write_disk(batch)
        del kept
        pa.default_memory_pool().release_unused()

    def _open_disk(self) -> None:
        folder = scratch_folder()
        check_disk(folder, self._bytes, self._arg)
        handle, path = tempfile.mkstemp(prefix="gpukeras-", suffix=".arrows", dir=folder)
        os.close(handle)
        self._path = Path(path)
        weakref.finalize(self, self._path.unlink, missing_ok=True)
        self._sink = pa.OSFile(path, "wb")
        # In Arrow's stream format dictionaries may change between batches, in its file format not.
        self._writer = ipc.new_stream(self._sink, self._schema)

    def _write_disk(self, batch: pa.RecordBatch) -> None:
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            assert self._path is not None  # opened before
            folder = self._path.parent
            self._path.unlink(missing_ok=True)
            raise disk_full(folder, self._arg) from error

    def _read_disk(self) -> Iterator[pa.RecordBatch]:
        try:
            with pa.OSFile(str(self._path), "rb") as file, ipc.open_stream(file) as stream:
                yield from stream
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(
                f"The scratch file of `{self._arg}` is gone or damaged.",
                hint="Make the dataset again, and leave the temporary folder alone meanwhile.",
                arg=self._arg,
                path=str(self._path),
            ) from error
