"""Reads records of TFRecord files in batches, and locates faulty records.

In a TFRecord file each record is preceded by its length, and both have checksums. Records after a
wrong checksum, or after an incomplete record, cannot be found. A complete record that lacks a
feature does not affect the records after it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError
from gpukeras.data.files.errors import Skipped, check_unchanged, file_error, read_stamp
from gpukeras.data.files.paths import check_file

BATCH_BYTES = 4 * 2**20  # of records per parsed batch
MOST_RECORDS = 8192
SKIP = 'Write the file again, or use `on_error = "skip"`.'
GZIP = b"\x1f\x8b\x08"

Arrays = Mapping[str, np.ndarray]
Parse = Callable[[Any], Arrays]  # batch of serialized records to arrays; raises TensorFlow's errors
Explain = Callable[[str], str]  # TensorFlow's message about a record to plain words


class RecordFiles:
    """A list of TFRecord files.

    Args:
        paths: The paths in reading order.
        arg: Name of the user's argument, for error messages.
        on_error: "stop", or "skip": leave out a record that cannot be parsed, and the rest of a
            file from a broken record on; both are counted.

    Raises:
        DataError: for a file that does not exist, is not readable, or is empty.
    """

    def __init__(self, paths: tuple[Path, ...], arg: str, on_error: str = "stop") -> None:
        """Checks that the files exist."""
        require_feature("records")
        self.arg, self._skips = arg, on_error == "skip"
        self._missing = Skipped()
        self.paths = tuple(path for path in paths if self._is_there(path))
        if not self.paths:
            raise DataError(f"`{arg}`: {self._missing.first}", arg=arg)
        self._stamps = {path: read_stamp(path) for path in self.paths}
        self.skipped = replace(self._missing)

    def read_first(self) -> tuple[Path, bytes]:
        """Returns the path of the first record's file, and the record.

        Raises:
            DataError: if there is no record, or the first is damaged.
        """
        for path in self.paths:
            try:
                for record in self._open(path).take(1):
                    return path, record.numpy()
            except runtime.reader().errors.OpError as error:
                if not self._skips:
                    raise self._broken(path, 0, str(error)) from error
        raise DataError(f"`{self.arg}` has no records.", hint="Check the files.", arg=self.arg)

    def read(self, parse: Parse, explain: Explain, record_bytes: int) -> Iterator[Arrays]:
        """Yields all records in order, parsed, in batches.

        Args:
            parse: Function that parses a batch.
            explain: Function that translates TensorFlow's error about a record.
            record_bytes: Approximate size of a record in bytes.

        Raises:
            DataError: for a faulty record or file, unless `on_error` is "skip"; names the file and
                the record, counted from 1.
        """
        self.skipped = replace(self._missing)
        size = int(np.clip(BATCH_BYTES // max(1, record_bytes), 1, MOST_RECORDS))
        for path in self.paths:
            check_unchanged(path, self.arg, self._stamps[path])
            yield from self._read_file(path, parse, explain, size)
            check_unchanged(path, self.arg, self._stamps[path])

    def _read_file(self, path: Path, parse: Parse, explain: Explain, size: int) -> Iterator[Arrays]:
        done, records = 0, self._batches(path, size)
        while (batch := next(records, None)) is not None:
            yield from self._parse(path, batch, done, parse, explain)
            done += len(batch)
        if done == 0:
            self._leave(file_error(path, self.arg, "has no records.", SKIP), files=1)

    def _batches(self, path: Path, size: int) -> Iterator[Any]:
        """Yields batches of records up to the first broken record."""
        tf, packed = runtime.reader(), _is_packed(path)
        done = length = 0
        try:
            for batch in self._open(path).batch(size).prefetch(2):
                yield batch
                done += len(batch)
                if packed:
                    length += int(tf.reduce_sum(tf.strings.length(batch))) + 16 * len(batch)
        except tf.errors.OpError:
            rest, message = self._read_to_fault(path, done, size)
            if len(rest):
                yield rest
            self._leave(self._broken(path, done + len(rest), message), files=1)
            return
        # TensorFlow reports no error if a compressed file was cut between two records.
        if packed and not _is_whole(path, length):
            self._leave(self._broken(path, done, "truncated"), files=1)

    def _read_to_fault(self, path: Path, done: int, size: int) -> tuple[Any, str]:
        """Returns the complete records before the broken one, and TensorFlow's message."""
        tf, rest = runtime.reader(), []
        message = "the file changed while it was read"
        try:
            for record in self._open(path).skip(done).take(size):
                rest.append(record)
        except tf.errors.OpError as error:
            message = str(error)
        return tf.stack(rest) if rest else tf.zeros([0], tf.string), message

    def _parse(
        self, path: Path, batch: Any, done: int, parse: Parse, explain: Explain
    ) -> Iterator[Arrays]:
        errors = runtime.reader().errors
        try:
            yield parse(batch)
            return
        except errors.OpError:
            pass  # the error of a batch does not name the record
        for place in range(len(batch)):
            try:
                yield parse(batch[place : place + 1])
            except errors.OpError as error:
                number, problem = done + place + 1, explain(str(error))
                what = f"has a record that cannot be read, number {number:,}: {problem}."
                self._leave(file_error(path, self.arg, what, SKIP, record=number), rows=1)

    def _leave(self, error: DataError, rows: int = 0, files: int = 0) -> None:
        if not self._skips:
            raise error
        self.skipped.add(error.message, rows, files)

    def _is_there(self, path: Path) -> bool:
        try:
            check_file(path, self.arg)
        except DataError as error:
            if not self._skips:
                raise
            self._missing.add(error.message, files=1)
            return False
        return True

    def _open(self, path: Path) -> Any:
        tf = runtime.reader()
        with tf.device("/CPU:0"):
            return tf.data.TFRecordDataset(str(path), "GZIP" if _is_packed(path) else "")

    def _broken(self, path: Path, before: int, message: str) -> DataError:
        """Returns the error for a file that is broken after `before` records."""
        number = before + 1
        if "truncated" in message or "Read less bytes" in message:
            problem = f"ends within record {number:,}: it is cut short."
        elif "corrupted" in message and before == 0:
            problem = "is no TFRecord file, or its first record has a wrong checksum."
        elif "corrupted" in message:
            problem = f"has a wrong checksum in record {number:,}."
        else:
            problem = f"cannot be read from record {number:,} on."
        return file_error(path, self.arg, problem, SKIP, record=number)


def _is_packed(path: Path) -> bool:
    if path.suffix.lower() == ".gz":
        return True
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def _is_whole(path: Path, length: int) -> bool:
    """Whether a gzip file holds `length` bytes and a proper end.

    The last four bytes store the length. If they differ from `length`, as in a file of several gzip
    members, the file is decompressed again to count.
    """
    with path.open("rb") as file:
        file.seek(-4, 2)
        if int.from_bytes(file.read(4), "little") == length % 2**32:
            return True
    found = 0
    try:
        with gzip.open(path) as unpacked:
            while piece := unpacked.read(2**20):
                found += len(piece)
    except (OSError, EOFError, zlib.error):
        return False
    return found == length
