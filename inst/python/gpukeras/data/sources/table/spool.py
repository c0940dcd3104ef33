"""Record batches that are read more than once, though their files are parsed once.

    files --reader--> Spool.write() ... finish() --> Spool.batches(), again and again

They stay in memory while they are few. Beyond that, CSV goes to a scratch file (an uncompressed
Arrow stream), because parsing it costs most; files that are quick to decode are read anew. The
scratch file is read, not mapped: mapped pages would count as this process's memory.
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

MEMORY_BYTES = 128 * 2**20  # of batches in memory; what they are encoded to takes some as well


class Spool:
    """Keeps record batches in their order.

    Args:
        schema: Of all batches, except that dictionaries may differ.
        arg: The user's name for the rows, for messages.
        anew: Reads the files again, or None where that is not to be done.
        expected: About how many bytes the batches will take.
    """

    def __init__(
        self,
        schema: pa.Schema,
        arg: str,
        anew: Callable[[], Iterator[pa.RecordBatch]] | None = None,
        expected: int = 0,
    ) -> None:
        """Keeps nothing yet."""
        self.rows = 0
        self._schema, self._arg, self._anew = schema, arg, anew
        self._kept: list[pa.RecordBatch] | None = []
        self._bytes = 0
        self._path: Path | None = None
        self._writer: Any = None
        self._sink: Any = None
        if expected > MEMORY_BYTES:  # memory once taken is not all given back
            self._overflow()

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends a batch."""
        self.rows += batch.num_rows
        if self._writer is not None:
            self._write_disk(batch)
        elif self._kept is not None:
            self._kept.append(batch)
            self._bytes += batch.nbytes
            if self._bytes > MEMORY_BYTES:
                self._overflow()

    def finish(self) -> None:
        """No more batches will come."""
        if self._writer is not None:
            try:
                self._writer.close()
                self._sink.close()
            except OSError as error:
                assert self._path is not None  # there is a writer
                raise disk_full(self._path.parent, self._arg) from error
            self._writer = self._sink = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches in their order.

        Raises:
            DataError: if the files, or the scratch file, are not what they were.
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
        """Forgets the batches; the scratch file goes."""
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
        # A stream may change its dictionaries on the way, a file may not.
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
