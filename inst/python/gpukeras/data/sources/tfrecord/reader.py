"""TFRecord files: their records in batches, and which record is wrong when one is.

A TFRecord file is a chain: each record has its length in front of it and a checksum of both. Where
the chain breaks (a wrong checksum, an end within a record) nothing behind it can be found. A record
that is whole but lacks a feature breaks nothing: the next one follows.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError
from gpukeras.data.files.errors import Skipped, Tally, check_unchanged, file_error, read_stamp
from gpukeras.data.files.paths import check_file

BATCH_BYTES = 4 * 2**20  # of records parsed at once
MOST_RECORDS = 8192
SKIP = 'Write the file again, or use `on_error = "skip"`.'
GZIP = b"\x1f\x8b\x08"

Arrays = Mapping[str, np.ndarray]
Parse = Callable[[Any], Arrays]  # a batch of serialized records to arrays; TensorFlow's errors
Explain = Callable[[str], str]  # TensorFlow's message about a record to plain words


class RecordFiles:
    """TFRecord files.

    Args:
        paths: In the order in which they are read.
        arg: The user's name for them, for messages.
        on_error: "stop", or "skip": a record that cannot be parsed is left out, a file whose chain
            breaks is left from there on; both are counted.

    Raises:
        DataError: for a file that is not there, may not be read, or is empty.
    """

    def __init__(self, paths: tuple[Path, ...], arg: str, on_error: str = "stop") -> None:
        """Looks whether the files are there."""
        self.arg, self._skips = arg, on_error == "skip"
        self._missing = Tally()
        self.paths = tuple(path for path in paths if self._is_there(path))
        if not self.paths:
            raise DataError(f"`{arg}`: {self._missing.skipped.first}", arg=arg)
        self._stamps = {path: read_stamp(path) for path in self.paths}
        self._tally = Tally(self._missing.skipped)

    @property
    def skipped(self) -> Skipped:
        """What the last reading has left out so far."""
        return self._tally.skipped

    def read_first(self) -> tuple[Path, bytes]:
        """The first record, and its file.

        Raises:
            DataError: if there is none, or it is damaged.
        """
        for path in self.paths:
            try:
                for record in self._open(path).take(1):
                    return path, record.numpy()
            except runtime.tensorflow().errors.OpError as error:
                if not self._skips:
                    raise self._broken(path, 0, str(error)) from error
        raise DataError(f"`{self.arg}` has no records.", hint="Check the files.", arg=self.arg)

    def read(self, parse: Parse, explain: Explain, record_bytes: int) -> Iterator[Arrays]:
        """All records in their order, parsed, in batches.

        Args:
            parse: Parses a batch.
            explain: Says what TensorFlow's error about a record means.
            record_bytes: About the size of a record.

        Raises:
            DataError: naming the file and the record, counted from 1, unless such are skipped.
        """
        self._tally = Tally(self._missing.skipped)
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
        """Batches of records as long as the chain holds."""
        tf, packed = runtime.tensorflow(), _is_packed(path)
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
        # TensorFlow takes the end of a packed file that was cut between two records for its end.
        if packed and not _is_whole(path, length):
            self._leave(self._broken(path, done, "truncated"), files=1)

    def _read_to_fault(self, path: Path, done: int, size: int) -> tuple[Any, str]:
        """The whole records of the batch in which the chain breaks, and how it does."""
        tf, rest = runtime.tensorflow(), []
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
        errors = runtime.tensorflow().errors
        try:
            yield parse(batch)
            return
        except errors.OpError:
            pass  # of many at once it is not told which
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
        self._tally.add(error.message, rows, files)

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
        tf = runtime.tensorflow()
        with tf.device("/CPU:0"):
            return tf.data.TFRecordDataset(str(path), "GZIP" if _is_packed(path) else "")

    def _broken(self, path: Path, before: int, message: str) -> DataError:
        """The error for a chain that breaks behind so many records."""
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
    """Whether a packed file holds just so many bytes, and its own end.

    The last four bytes say how many there are. Only where they do not agree, as in a file of
    several packed parts, is it unpacked once more.
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
