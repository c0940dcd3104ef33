"""Saves the encoded rows of a dataset, so that later runs skip encoding.

    rows | blocks in sequence --Rows.read()--> .npy files + manifest in a hidden folder --> path

The folder appears complete or not at all, see `atomic_dir`.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.atomic_dir import clean_up, move_folder, partial_folder, write_text
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import mib, system_reason
from gpukeras.core.options import A_FOLDER, check_flag, refused_value
from gpukeras.core.progress import EVENT_S, OnEvent
from gpukeras.core.safe_files import DISK_FAULTS, DiskFault, find_disk_fault
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.files.files import path_error
from gpukeras.data.recipe.recipe import BatchesEncoding, SeriesEncoding
from gpukeras.data.recipe.serialization import to_portable
from gpukeras.data.saved.reader import DTYPES, FIELDS, MANIFEST, Field, Manifest, read_manifest

# Rows that are written, and have a checksum, at a time: the processor's cache holds them.
BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Rows:
    """The rows to save.

    Args:
        fields: The fields of a row.
        count: Number of rows, or None if it is unknown before the end.
        read: Yields the rows in blocks of so many, the last one of fewer.
    """

    fields: dict[str, Field]
    count: int | None
    read: Callable[[int], Iterator[Sequence[np.ndarray]]]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return sum(field.row_bytes for field in self.fields.values())


def save_dataset(
    data: Any, path: str, *, overwrite: bool = False, on_event: OnEvent | None = None
) -> dict[str, Any]:
    """Saves a dataset into a new folder.

    Args:
        data: The dataset.
        path: Path of the folder; its parent folder must exist.
        overwrite: Whether to replace a saved dataset, in a folder that holds no other files.
        on_event: Called at most every 0.2 s with `{kind: "saving", step, steps, bytes}`: rows
            written and rows in all (or None); if it returns True, no files are left.

    Returns:
        `{path, rows, bytes, elapsed_s, stopped}`: "completed" or "interrupted".

    Raises:
        SpecError: for an invalid option.
        DataError: if the folder cannot be written: it exists, or the disk is full.
    """
    check_flag("overwrite", overwrite)
    rows, target = open_rows(data), _check_path(path)
    began = time.perf_counter()
    with _file_errors(target):
        clean_up(target)
        _check_free(target, overwrite)
    with _file_errors(target), partial_folder(target) as hidden:
        done = write_folder(data, rows, hidden, on_event=on_event)
        if done is not None:
            _check_free(target, overwrite)  # again: the folder may exist by now
            move_folder(hidden, target)
    return {
        "path": str(target),
        "rows": done or 0,
        "bytes": float((done or 0) * rows.row_bytes),
        "elapsed_s": time.perf_counter() - began,
        "stopped": "interrupted" if done is None else "completed",
    }


def write_folder(
    data: Dataset,
    rows: Rows,
    folder: Path,
    *,
    on_event: OnEvent | None = None,
) -> int | None:
    """Writes the files of a dataset into an empty folder.

    Args:
        data: The dataset.
        rows: Its rows, see `open_rows()`.
        folder: The folder.
        on_event: See `save_dataset()`.

    Returns:
        Number of rows; None if the listener has stopped it, before there is a manifest.

    Raises:
        DataError: if there are no rows, or no room for them.
        OSError: if the files cannot be written.
    """
    _check_room(folder, rows)
    block_rows, done = max(1, BLOCK_BYTES // max(1, rows.row_bytes)), 0
    stops = _Listener(rows, on_event)
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(closing(_FieldFile(folder, name, field)))
            for name, field in rows.fields.items()
        }
        for block in rows.read(block_rows):
            for file, part in zip(files.values(), block, strict=True):
                file.write(part)
            done += len(block[0])
            if stops(done):
                return None
        if stops(done, last=True):
            return None
        fields = {name: file.finish(done) for name, file in files.items()}
    if done == 0:
        raise DataError("`data` gave no rows to save.", arg="data")
    recipe, spec = to_portable(data.recipe), {"seed": data.spec.seed, "na": data.na}
    spec |= {"validation": data.spec.validation, "dropped": int(data.dropped)}
    manifest = Manifest(done, block_rows, fields, recipe, spec)
    write_text(folder / MANIFEST, manifest.to_text())
    return done


def open_rows(data: Any) -> Rows:
    """Returns a reader of a dataset's rows.

    Raises:
        SpecError: if `data` is no dataset, or has rows that cannot be saved.
    """
    if not isinstance(data, Dataset):
        raise refused_value("data", data, "a gpu_dataset")
    rows = data.recipe.features
    if isinstance(rows, BatchesEncoding) or rows.has_texts:
        what = "texts" if rows.has_texts else data.obstacle
        raise SpecError(f"`data` gives {what}: only rows of numbers can be saved.", arg="data")
    if isinstance(rows, SeriesEncoding):
        raise SpecError(
            "`data` gives windows, which share their rows: they cannot be saved one by one.",
            hint="Save the data frame, and the recipe by gpu_recipe().",
            arg="data",
        )
    fields = {
        name: Field(str(source.dtype), tuple(source.shape[1:]))
        for name, source in zip(FIELDS, data.sources, strict=False)
    }
    if isinstance(data, IterableDataset):
        return Rows(fields, None, partial(_read_stream, data))
    assert isinstance(data, MapDataset)
    if len(data.validation_rows):
        fields["validation"] = Field("uint8", ())
    return Rows(fields, len(data.rows("all")), partial(_read_map, data))


def _read_map(data: MapDataset, most: int) -> Iterator[Sequence[np.ndarray]]:
    """Yields the rows in the user's order."""
    order, marks = data.rows("all"), np.zeros(len(data), np.uint8)
    marks[data.validation_rows] = 1
    for start in range(0, len(order), most):
        rows: np.ndarray | slice = order[start : start + most]
        if len(order) == len(data):  # a slice is cheaper than row numbers
            rows = slice(start, start + len(order[start : start + most]))
        parts = [source.gather(rows) for source in data.sources]
        yield [*parts, marks[rows]] if len(data.validation_rows) else parts


def _read_stream(data: IterableDataset, most: int) -> Iterator[Sequence[np.ndarray]]:
    """Yields one epoch's rows, not shuffled; the recipe learns the range of all labels."""
    reading = data.open_pass(most, 1, False)
    try:
        for arrays, batches, tail in reading.blocks(1):
            rows = len(arrays[0]) if tail else batches * most
            # Copies, because the stream reuses its memory.
            block = [np.array(np.asarray(array)[:rows]) for array in arrays]
            if len(block) > 1:
                data.widen_label(block[1])
            yield block
    finally:
        reading.close()


class _Listener:
    """Tells the listener how many rows are written, and returns whether it stops the writing."""

    def __init__(self, rows: Rows, on_event: OnEvent | None) -> None:
        self._rows = rows
        self._on_event = on_event
        self._told = 0.0

    def __call__(self, done: int, last: bool = False) -> bool:
        now = time.perf_counter()
        if self._on_event is None or (not last and now - self._told < EVENT_S):
            return False
        self._told = now
        steps = None if self._rows.count is None else float(self._rows.count)
        event = {"kind": "saving", "step": float(done), "steps": steps}
        return self._on_event({**event, "bytes": float(done * self._rows.row_bytes)}) is True


class _FieldFile:
    """A field's file that is being written; its header tells of no rows until the end."""

    def __init__(self, folder: Path, name: str, field: Field) -> None:
        self._field, self._sums = field, list[str]()
        self._file = (folder / f"{name}.npy").open("xb")
        self._file.write(field.header(0))

    def write(self, block: np.ndarray) -> None:
        """Appends a block of rows, which gets a checksum of its own."""
        plain = np.ascontiguousarray(block, DTYPES[self._field.dtype])
        self._sums.append(f"{zlib.crc32(plain.data):08x}")
        self._file.write(plain.data)

    def finish(self, rows: int) -> Field:
        """Writes the header and syncs the file to disk; returns the field with its checksums."""
        self._file.seek(0)
        self._file.write(self._field.header(rows))
        self._file.flush()
        os.fsync(self._file.fileno())
        return replace(self._field, crc32=tuple(self._sums))

    def close(self) -> None:
        """Closes the file; buffered bytes of an incomplete one may not fit on the disk."""
        with suppress(OSError):
            self._file.close()


# Checks ------------------------------------------------------------------------------------------


def _check_path(path: Any) -> Path:
    if not isinstance(path, str) or not path:
        raise refused_value("path", path, A_FOLDER)
    target = Path(path).expanduser().absolute()
    if not target.parent.is_dir():
        text = f"the folder {target.parent.name} that {target.name} is to be in does not exist."
        raise path_error(target, "path", text, "Make it first.")
    return target


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
        manifest = read_manifest(folder, "path")
    except DataError:
        return False
    return {entry.name for entry in folder.iterdir()} <= {MANIFEST, *manifest.files}


def _check_room(folder: Path, rows: Rows) -> None:
    needed = (rows.count or 0) * rows.row_bytes
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
