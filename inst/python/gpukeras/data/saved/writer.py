"""Saves the encoded rows of a dataset, so that later runs skip encoding.

    rows | blocks in sequence --RowReader.take()--> shards + manifest in a hidden folder --> path

The folder appears complete or not at all, see `atomic_dir`.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpukeras.core.atomic_dir import clean_up, move_folder, partial_folder, write_text
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import mib, system_reason
from gpukeras.core.options import (
    A_FOLDER,
    check_choice,
    check_count,
    check_flag,
    refused_value,
)
from gpukeras.core.safe_files import DISK_FAULTS, DiskFault, find_disk_fault, open_regular
from gpukeras.data.base import Dataset
from gpukeras.data.dataset import MapDataset
from gpukeras.data.files.errors import path_error
from gpukeras.data.preprocessing.recipe import AS_IS, WINDOWS
from gpukeras.data.preprocessing.serialization import to_portable
from gpukeras.data.saved.manifest import MANIFEST, Manifest, parse_manifest
from gpukeras.data.saved.shards import FORMATS, GROUP_BYTES, Shard, create_shard
from gpukeras.data.saved.tf_example import Field
from gpukeras.data.sources.row_store import RowSource
from gpukeras.data.streams.dataset import IterableDataset

SHARD_BYTES = 128 * 2**20  # size that is easy to copy and keeps the number of files low
STREAM_ROWS = 256  # rows per request for a sequential dataset
EVENT_S = 0.2  # seconds between events, as in training

OnEvent = Callable[[dict[str, Any]], Any]
Arrays = Mapping[str, np.ndarray]


class RowReader(Protocol):
    """Sequential reader of the rows to save.

    `fields` are the fields of a row; `rows` is the number of rows, or None if it is unknown before
    the end.
    """

    fields: dict[str, Field]
    rows: int | None

    def take(self, most: int) -> Arrays:
        """Returns the next rows, at most `most`; empty at the end."""


class DatasetReader:
    """Reads the rows of a map-style dataset in the user's order.

    Args:
        data: The dataset.
    """

    def __init__(self, data: MapDataset) -> None:
        """Stores the arguments; reads no data."""
        self._sources = dict(zip(("x", "y", "w"), data.sources, strict=False))
        self._order, self._done = data.rows("all"), 0
        self._validation = np.zeros(len(data), np.int32)
        self._validation[data.validation_rows] = 1
        self.rows: int | None = len(self._order)
        self.fields = {name: _field(source) for name, source in self._sources.items()}
        if len(data.validation_rows):
            self.fields["validation"] = Field("int32", ())

    def take(self, most: int) -> Arrays:
        """Returns the next rows, at most `most`."""
        chosen = self._order[self._done : self._done + most]
        self._done += len(chosen)
        rows: np.ndarray | slice = chosen
        if len(self._order) == len(self._validation):  # a slice is cheaper than row numbers
            rows = slice(self._done - len(chosen), self._done)
        arrays = {name: source.gather(rows) for name, source in self._sources.items()}
        if "validation" in self.fields:
            arrays["validation"] = self._validation[rows]
        return arrays


class BlockReader:
    """Reads rows from a sequence of blocks of any size.

    Args:
        blocks: Features, labels and weights of each block, if present.
        fields: Fields of a row.
    """

    def __init__(self, blocks: Iterator[tuple[np.ndarray, ...]], fields: dict[str, Field]) -> None:
        """Stores the arguments; reads no data."""
        self.fields = fields
        self.rows: int | None = None
        self._blocks = blocks
        self._left: tuple[np.ndarray, ...] = ()

    def take(self, most: int) -> Arrays:
        """Returns the next rows, at most `most`, joined from blocks."""
        parts, count = [], 0
        while count < most and (block := self._next()):
            part = tuple(array[: most - count] for array in block)
            self._left = tuple(array[most - count :] for array in block)
            parts.append(part)
            count += len(part[0])
        joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        return dict(zip(self.fields, joined, strict=True)) if joined else {}

    def _next(self) -> tuple[np.ndarray, ...]:
        if self._left and len(self._left[0]):
            return self._left
        return next(self._blocks, ())


def save_dataset(
    data: Any,
    path: str,
    format: str = "parquet",  # noqa: A002 (R's name for it)
    *,
    shards: float | None = None,
    overwrite: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Saves a dataset into a new folder.

    Args:
        data: The dataset.
        path: Path of the folder; its parent folder must exist.
        format: "parquet" or "tfrecord".
        shards: Number of files, or None for files of about 128 MiB.
        overwrite: Whether to replace a saved dataset, in a folder that holds no other files.
        on_event: Called at most every 0.2 s with `{kind: "saving", step, steps, bytes}`: rows
            written and rows in all (or None); if it returns True, no files are left.

    Returns:
        `{path, format, rows, shards, bytes, elapsed_s, stopped}`: "completed" or "interrupted".

    Raises:
        SpecError: for an invalid option.
        DataError: if the folder cannot be written: it exists, or the disk is full.
    """
    check_choice("format", format, FORMATS)
    check_flag("overwrite", overwrite)
    rows, target = open_rows(data), _check_path(path)
    count = None if shards is None else _check_shards(shards, rows.rows)
    began = time.perf_counter()
    with _file_errors(target):
        clean_up(target)
        _check_free(target, overwrite)
    with _file_errors(target), partial_folder(target) as partial:
        _check_room(partial, rows)
        writer = _Writer(rows, partial, format, on_event)
        done = writer.write(plan_shards(rows, count))
        if not writer.stopped:
            _check_some(done)
            manifest = _make_manifest(data, format, rows.fields, done)
            write_text(partial / MANIFEST, manifest.to_text())
            _check_free(target, overwrite)  # again: the folder may exist by now
            move_folder(partial, target)
    return {
        "path": str(target),
        "format": format,
        "rows": sum(shard.rows for shard in done),
        "shards": len(done),
        "bytes": float(sum(shard.bytes for shard in done)),
        "elapsed_s": time.perf_counter() - began,
        "stopped": "interrupted" if writer.stopped else "completed",
    }


def open_rows(data: Any) -> RowReader:
    """Returns a reader of a dataset's rows.

    Raises:
        SpecError: if `data` is no dataset, or has rows that cannot be saved.
    """
    if not isinstance(data, Dataset):
        raise refused_value("data", data, "a gpu_dataset")
    if data.recipe.kind == AS_IS or data.recipe.has_texts:
        what = "texts" if data.recipe.has_texts else data.obstacle
        raise SpecError(f"`data` gives {what}: only rows of numbers can be saved.", arg="data")
    if data.recipe.kind == WINDOWS:
        raise SpecError(
            "`data` gives windows, which share their rows: they cannot be saved one by one.",
            hint="Save the data frame, and the recipe by gpu_recipe().",
            arg="data",
        )
    if isinstance(data, IterableDataset):
        names = zip(("x", "y", "w"), data.sources, strict=False)
        return BlockReader(_stream_blocks(data), {name: _field(source) for name, source in names})
    assert isinstance(data, MapDataset)
    return DatasetReader(data)


def _field(source: RowSource) -> Field:
    return Field(str(source.dtype), tuple(source.shape[1:]))


def _stream_blocks(data: IterableDataset) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields one epoch's rows, not shuffled; the recipe learns the range of all labels."""
    reading = data.stream.open(data, STREAM_ROWS, 1, False)
    try:
        for arrays, batches, tail in reading.blocks(1):
            rows = len(arrays[0]) if tail else batches * STREAM_ROWS
            # Copies, because the stream reuses its memory.
            block = tuple(np.array(np.asarray(array)[:rows]) for array in arrays)
            if len(block) > 1:
                data.widen_label(block[1])
            yield block
    finally:
        reading.close()


def plan_shards(rows: RowReader, shards: int | None) -> Iterator[int]:
    """Yields the rows of each shard: for a given number of shards, or about `SHARD_BYTES` each."""
    row_bytes = sum(field.row_bytes for field in rows.fields.values())
    most = max(1, SHARD_BYTES // max(1, row_bytes))
    if rows.rows is None:
        while True:
            yield most
    shards = shards or math.ceil(rows.rows / most)
    for number in range(shards):
        yield rows.rows * (number + 1) // shards - rows.rows * number // shards


class _Writer:
    """Writes shards until the rows end or the listener stops it."""

    def __init__(
        self,
        rows: RowReader,
        folder: Path,
        format: str,  # noqa: A002
        on_event: OnEvent | None,
    ) -> None:
        self._rows, self._folder, self._format, self._on_event = rows, folder, format, on_event
        row_bytes = sum(field.row_bytes for field in rows.fields.values())
        self._group = max(1, GROUP_BYTES[format] // max(1, row_bytes))
        self._row_bytes, self._done, self._told = row_bytes, 0, 0.0
        self.stopped = False

    def write(self, sizes: Iterator[int]) -> list[Shard]:
        """Writes the shards and returns their records."""
        done: list[Shard] = []
        for size in sizes:
            first = self._rows.take(min(size, self._group))
            if not first or self.stopped:
                break
            done.append(self._write_shard(len(done) + 1, size, first))
        self._emit(last=True)
        return done

    def _write_shard(self, number: int, size: int, block: Arrays) -> Shard:
        name = f"part-{number:05d}.{self._format}"
        shard, left = create_shard(self._folder / name, self._format, self._rows.fields), size
        try:
            while block and not self.stopped:
                shard.write(block)
                count = len(block["x"])
                left, self._done = left - count, self._done + count
                self._emit()
                block = self._rows.take(min(left, self._group)) if left else {}
            return shard.finish()
        except BaseException:
            shard.abandon()
            raise

    def _emit(self, last: bool = False) -> None:
        if self._on_event is None or self.stopped:
            return
        if not last and time.perf_counter() - self._told < EVENT_S:
            return
        self._told = time.perf_counter()
        event = {
            "kind": "saving",
            "step": float(self._done),
            "steps": None if self._rows.rows is None else float(self._rows.rows),
            "bytes": float(self._done * self._row_bytes),
        }
        self.stopped = self._on_event(event) is True


def _make_manifest(
    data: Dataset,
    format: str,  # noqa: A002
    fields: dict[str, Field],
    done: list[Shard],
) -> Manifest:
    rows = sum(shard.rows for shard in done)
    recipe = to_portable(data.recipe)
    return Manifest(format, rows, fields, recipe, _describe(data), tuple(done))


def _describe(data: Dataset) -> dict[str, Any]:
    given = {"seed": data.spec.seed, "validation": data.spec.validation}
    return {**given, "na": data.na, "dropped": int(data.dropped)}


# Checks ------------------------------------------------------------------------------------------


def _check_path(path: Any) -> Path:
    if not isinstance(path, str) or not path:
        raise refused_value("path", path, A_FOLDER)
    target = Path(path).expanduser().absolute()
    if not target.parent.is_dir():
        text = f"the folder {target.parent.name} that {target.name} is to be in does not exist."
        raise path_error(target, "path", text, "Make it first.")
    return target


def _check_shards(shards: Any, rows: int | None) -> int:
    if rows is None:
        raise SpecError(
            "`shards` needs the number of rows, which rows in sequence do not tell.",
            hint="Leave it out: files become about 128 MiB.",
            arg="shards",
        )
    return check_count("shards", shards, 1, rows)


def _check_free(target: Path, overwrite: bool) -> None:
    """Checks that the path is free or may be replaced."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        hint = "Choose another path, or use `overwrite = TRUE`."
        raise path_error(target, "path", f"{target.name} exists already.", hint)
    if not is_ours(target):
        raise path_error(
            target,
            "path",
            f"{target.name} is not a folder that gpu_dataset_save() wrote, or holds something "
            "else too.",
            "Nothing else is ever deleted: choose another path.",
        )


def is_ours(folder: Path) -> bool:
    """Whether a folder holds the files of its manifest and no others."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        with open_regular(folder / MANIFEST) as file:
            text = file.read().decode()
        manifest = parse_manifest(text, folder, "path")
    except (OSError, ValueError, DataError):
        return False
    return {entry.name for entry in folder.iterdir()} <= {
        MANIFEST,
        *(shard.file for shard in manifest.shards),
    }


def _check_some(shards: list[Shard]) -> None:
    if not shards:
        raise DataError("`data` gave no rows to save.", arg="data")


def _check_room(folder: Path, rows: RowReader) -> None:
    if rows.rows is None:
        return
    needed = rows.rows * sum(field.record_bytes for field in rows.fields.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        asked = f": the dataset needs {mib(needed)} of {mib(free)} free"
        raise _disk_error(folder, DISK_FAULTS[errno.ENOSPC], asked)


@contextmanager
def _file_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if fault := find_disk_fault(error):
            raise _disk_error(target, fault) from error
        text = f"{target.name} cannot be written: {system_reason(error)}."
        raise path_error(target, "path", text, "Check the path and its permissions.") from error


def _disk_error(target: Path, fault: DiskFault, sizes: str = "") -> DataError:
    return path_error(target, "path", f"{fault.reason}{sizes}.", fault.hint)
