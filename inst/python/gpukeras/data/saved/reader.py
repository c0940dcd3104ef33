"""Reads datasets saved by gpu_dataset_save(): the same rows and the same validation split.

    folder --parse_manifest(), check_shards()--> SavedRows (mapped) | MemoryRows --> MapDataset

Opening a folder verifies every shard's checksum: one pass over the files, at 2.5 GB/s per thread if
they are in memory. Small datasets are then copied to memory; larger ones are read block by block
through memory maps of the shards, without a second copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import count_of, mib, system_reason
from gpukeras.core.options import DatasetSpec
from gpukeras.core.prefetch import count_cores
from gpukeras.data.dataset import MapDataset, take_shard
from gpukeras.data.files.errors import AGAIN, file_error, path_error, read_stamp
from gpukeras.data.files.remote_file import Stamp
from gpukeras.data.plan import choose_batch_size
from gpukeras.data.preprocessing.serialization import from_portable
from gpukeras.data.saved.crc32c import file_crc32
from gpukeras.data.saved.manifest import MANIFEST, Manifest, parse_manifest
from gpukeras.data.saved.shards import Shard, decode_shard
from gpukeras.data.saved.tf_example import Field, from_bytes
from gpukeras.data.sources.npy import MAP_BYTES
from gpukeras.data.sources.row_store import Rows, RowSource, row_numbers
from gpukeras.data.sources.spill import MEMORY_BYTES, RowsWriter
from gpukeras.data.stage_timer import end_stage

THREADS = 4  # for checksums
SETTLED = ("encode", "hash_bins", "new_levels", "scale", "na")  # options applied before saving


@dataclass(frozen=True)
class Run:
    """Consecutive rows of one field in a file, at a constant stride.

    Args:
        path: Path of the file.
        stamp: Size and modification time when the file was opened.
        offset: Offset of the first row in bytes.
        stride: Bytes from one row to the next.
        rows: Number of rows.
        first: Number of the first row within the dataset.
    """

    path: Path
    stamp: Stamp
    offset: int
    stride: int
    rows: int
    first: int

    def map(self, start: int, stop: int, row_bytes: int) -> np.ndarray:
        """Maps the rows from `start` to `stop`, numbered within the dataset, as opaque items.

        With opaque items NumPy copies whole rows instead of bytes.

        Args:
            start: Number of the first row.
            stop: Number after the last row.
            row_bytes: Bytes of a row in the file.

        Raises:
            OSError: if the file changed since it was opened.
        """
        if read_stamp(self.path) != self.stamp:
            raise OSError("changed after it was opened")
        count, offset = stop - start, self.offset + (start - self.first) * self.stride
        size = (count - 1) * self.stride + row_bytes
        mapped = np.memmap(self.path, np.uint8, "r", offset, (size,))
        return np.ndarray(count, f"V{row_bytes}", mapped.data, strides=(self.stride,))


class SavedRows(RowSource):
    """Rows of a field in shards, gathered one block at a time.

    Args:
        field: Dtype and shape of a row.
        runs: Locations of the rows, in row order.
        arg: Name of the user's argument, for error messages.
        row_bytes: Bytes of a row in the files.
    """

    def __init__(self, field: Field, runs: Sequence[Run], arg: str, row_bytes: int) -> None:
        """Stores the arguments; reads no data."""
        rows = runs[-1].first + runs[-1].rows
        files = len({run.path for run in runs})
        size = mib(rows * field.row_bytes, 1)
        reason = f"a block at a time from {count_of(files, 'saved file')}, {size}"
        super().__init__((rows, *field.shape), field.dtype, reason)
        self._field, self._runs, self._arg, self._row_bytes = field, runs, arg, row_bytes
        self._firsts = np.array([run.first for run in runs])
        self._window = max(1, MAP_BYTES // runs[0].stride)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows in the order requested; reads them in file order."""
        if isinstance(rows, slice) and rows.step in (None, 1):
            return self._gather_range(*rows.indices(len(self))[:2])
        numbers = row_numbers(rows, len(self))
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        out = aligned_empty((len(numbers), *self.shape[1:]), self.dtype)
        end_stage("gather")
        for run, start, end in self._pieces(ascending):
            part = ascending[start:end]
            values = self._values(self._map(run, int(part[0]), int(part[-1]) + 1)[part - part[0]])
            end_stage("read")
            out[order[start:end]] = values
            end_stage("gather")
        return out

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """Yields consecutive rows, read-only, as many per block as one map covers."""
        window = self._window
        for run in self._runs:
            low = max(start, run.first)
            high = min(run.first + run.rows, len(self) if stop is None else stop)
            for first in range(low, high, window):
                yield self._values(self._map(run, first, min(high, first + window)))

    def _gather_range(self, start: int, stop: int) -> np.ndarray:
        out, done = aligned_empty((max(0, stop - start), *self.shape[1:]), self.dtype), 0
        for block in self.blocks(start, stop):
            out[done : done + len(block)] = block
            done += len(block)
        return out

    def _pieces(self, ascending: np.ndarray) -> Iterator[tuple[Run, int, int]]:
        """Yields parts of `ascending` that lie in one run and one map."""
        if len(ascending) == 0:
            return
        cuts = np.searchsorted(ascending, [*self._firsts[1:], len(self)])
        for run, start, end in zip(self._runs, [0, *cuts[:-1]], cuts, strict=True):
            places = (ascending[start:end] - run.first) // self._window
            changes = start + 1 + np.flatnonzero(np.diff(places))
            ends = [*changes.tolist(), int(end)] if end > start else []
            for first, last in zip([int(start), *ends], ends, strict=False):
                yield run, first, last

    def _values(self, items: np.ndarray) -> np.ndarray:
        plain = np.ascontiguousarray(items).view(np.uint8)
        if self._row_bytes != self._field.row_bytes:
            return from_bytes(plain.reshape(len(items), -1), self._field)
        return plain.view(self.dtype).reshape(len(items), *self.shape[1:])

    def _map(self, run: Run, start: int, stop: int) -> np.ndarray:
        try:
            return run.map(start, stop, self._row_bytes)
        except (OSError, ValueError) as error:
            found = "is gone" if isinstance(error, FileNotFoundError) else "changed"
            problem = f"{found} after it was opened."
            raise file_error(run.path, self._arg, problem, AGAIN) from error


def build_saved(
    features: Mapping[str, Any], options: Mapping[str, Any], arg: str = "x", **others: Any
) -> MapDataset:
    """Opens a saved dataset; only options for feeding its rows can change.

    Args:
        features: `{kind: "saved", path}`.
        options: Fields of `DatasetSpec`; a `seed` of None is the saved seed, which shuffles as the
            saved dataset did.
        arg: Name of the user's argument, for error messages.
        **others: Arguments that do not apply to saved rows, such as labels; other than None they
            are an error.

    Raises:
        SpecError: for an option that was applied before saving.
        DataError: for an incomplete or damaged folder, manifest or shard.
    """
    folder = _check_folder(features["path"], arg)
    manifest = read_manifest(folder, arg)
    spec = _choose_spec(options, manifest.spec)
    _check_others({**others, "inputs": features.get("groups")})
    return open_folder(folder, manifest, spec, arg)


def open_folder(folder: Path, manifest: Manifest, spec: DatasetSpec, arg: str) -> MapDataset:
    """Returns the rows of a folder.

    Args:
        folder: The folder.
        manifest: Its manifest.
        spec: The dataset's options; those that encode rows are not applied again.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: for a damaged or missing shard.
    """
    whole, skipped = check_shards(manifest, folder, spec.on_error, arg)
    sources = _read_fields(manifest, folder, whole, spec.cache, arg)
    rows = len(sources["x"])
    marks = sources.pop("validation", None)
    held = np.zeros(rows, bool) if marks is None else marks.gather(slice(rows)) != 0
    if held.all():
        raise DataError(f"`{arg}` has no training rows left.", arg=arg, path=str(folder))
    train = take_shard(np.flatnonzero(~held).astype(np.int32), spec.shard)
    choose_batch_size(len(train), spec.batch_size)
    return MapDataset(
        tuple(sources[name] for name in ("x", "y", "w") if name in sources),
        from_portable(manifest.recipe),
        spec,
        train,
        take_shard(np.flatnonzero(held).astype(np.int32), spec.shard),
        na=manifest.spec["na"],
        dropped=manifest.spec["dropped"],
        skipped=skipped,
    )


def _check_folder(path: Any, arg: str) -> Path:
    folder = Path(str(path)).expanduser()
    if not (folder / MANIFEST).is_file():
        found = "holds no saved dataset" if folder.is_dir() else "does not exist"
        hint = "Check the path; gpu_dataset_save() writes such folders."
        raise path_error(folder, arg, f"the folder {folder.name} {found}.", hint)
    return folder


def read_manifest(folder: Path, arg: str) -> Manifest:
    """Reads the manifest of a folder.

    Raises:
        DataError: if it cannot be read, or is damaged.
    """
    try:
        text = (folder / MANIFEST).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        text = f"{MANIFEST} in {folder.name} cannot be read: {system_reason(error)}."
        raise path_error(folder / MANIFEST, arg, text, "Check its permissions.") from error
    return parse_manifest(text, folder, arg)


def _choose_spec(options: Mapping[str, Any], saved: Mapping[str, Any]) -> DatasetSpec:
    given = {name: value for name, value in options.items() if value is not None}
    spec, plain = DatasetSpec.from_dict({"seed": saved["seed"], **given}), DatasetSpec()
    for name in SETTLED:
        if getattr(spec, name) != getattr(plain, name):
            raise _settled(name)
    if spec.validation not in (0, saved["validation"]):
        raise _settled("validation")
    return replace(spec, validation=saved["validation"])


def _check_others(others: Mapping[str, Any]) -> None:
    names = {"labels": "y", "recipe_of": "recipe"}
    for name, value in others.items():
        if value is not None and not (isinstance(value, str) and not value):
            raise _settled(names.get(name, name))


def _settled(name: str) -> SpecError:
    return SpecError(
        f"`{name}` was settled when the rows were saved.",
        hint="Leave it out, or save the dataset again with other options.",
        arg=name,
    )


# Shards ------------------------------------------------------------------------------------------


def check_shards(
    manifest: Manifest, folder: Path, on_error: str, arg: str
) -> tuple[list[Shard], str]:
    """Returns the intact shards, and a phrase for what was left out, or "".

    Raises:
        DataError: for a shard that is missing, has another size or another checksum; for a file
            that the manifest does not list. With `on_error` = "skip" only if no shard is intact.
    """
    faults = dict(_check_extra(manifest, folder))
    with ThreadPoolExecutor(min(THREADS, count_cores())) as pool:
        found = list(pool.map(lambda shard: _find_fault(shard, folder), manifest.shards))
    faults.update(
        (shard.file, fault) for shard, fault in zip(manifest.shards, found, strict=True) if fault
    )
    whole = [shard for shard in manifest.shards if shard.file not in faults]
    if faults and (on_error == "stop" or not whole):
        file, fault = next(iter(faults.items()))
        hint = 'Copy or save the dataset again, or use `on_error = "skip"`.'
        text = f"the file {file} of {folder.name} {fault}."
        raise path_error(folder / file, arg, text, hint)
    return whole, _explain_skipped(manifest, whole, faults)


def _explain_skipped(manifest: Manifest, whole: Sequence[Shard], faults: Mapping[str, str]) -> str:
    if not faults:
        return ""
    lost = manifest.rows - sum(shard.rows for shard in whole)
    file, fault = next(iter(faults.items()))
    rows, files = count_of(lost, "row"), count_of(len(faults), "file")
    return f"{rows} of {files} left out: {file} {fault}"


def _check_extra(manifest: Manifest, folder: Path) -> Iterator[tuple[str, str]]:
    known = {shard.file for shard in manifest.shards}
    for file in sorted(folder.glob(f"part-*.{manifest.format}")):
        if file.name not in known:
            yield file.name, f"is not listed in {MANIFEST}"


def _find_fault(shard: Shard, folder: Path) -> str:
    """Returns what is wrong with a shard, or ""."""
    path = folder / shard.file
    try:
        size = path.stat().st_size
        if size != shard.bytes:
            return f"has {size:,} bytes where {shard.bytes:,} were saved"
        if f"{file_crc32(path):08x}" != shard.crc32:
            return "is damaged: its checksum is not the one that was saved"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {system_reason(error)}"
    return ""


def _read_fields(
    manifest: Manifest, folder: Path, shards: Sequence[Shard], cache: str, arg: str
) -> dict[str, RowSource]:
    """Returns the rows of each field; those that are many stay in their files."""
    rows = sum(shard.rows for shard in shards)
    memory = cache in ("host", "device")
    if any(shard.places is None for shard in shards):
        return _decode(manifest, folder, shards, "memory" if memory else "auto", arg)
    sources: dict[str, RowSource] = {}
    for name, field in manifest.fields.items():
        row_bytes = field.record_bytes if manifest.format == "tfrecord" else field.row_bytes
        mapped = SavedRows(field, list(_runs(name, shards, folder)), arg, row_bytes)
        few = rows * field.row_bytes <= MEMORY_BYTES
        small = name != "x" and field.dtype != "uint8"  # not masks
        keep = memory or (few and (small or cache in ("auto", "keep")))
        sources[name] = _copy(mapped, arg) if keep else mapped
    return sources


def _runs(name: str, shards: Sequence[Shard], folder: Path) -> Iterator[Run]:
    first = 0
    for shard in shards:
        path, place = folder / shard.file, (shard.places or {})[name]
        stamp = read_stamp(path)
        for offset, rows in place.at:
            yield Run(path, stamp, offset, place.stride, rows, first)
            first += rows


def _copy(source: SavedRows, arg: str) -> RowSource:
    writer = RowsWriter(source.shape[1:], source.dtype, "memory", arg, len(source))
    for block in source.blocks():
        writer.write(block)
    return writer.finish()


def _decode(
    manifest: Manifest, folder: Path, shards: Sequence[Shard], keep: str, arg: str
) -> dict[str, RowSource]:
    """Decodes the rows of Parquet files whose values cannot be mapped."""
    rows = sum(shard.rows for shard in shards)
    writers = {
        name: RowsWriter(field.shape, field.dtype, keep if name == "x" else "memory", arg, rows)
        for name, field in manifest.fields.items()
    }
    try:
        for shard in shards:
            with _rows_as_told(shard, folder, arg):
                for block in decode_shard(folder / shard.file, manifest.fields, shard.rows):
                    for name, writer in writers.items():
                        writer.write(block[name])
    except BaseException:
        for writer in writers.values():
            writer.close()
        raise
    return {name: writer.finish() for name, writer in writers.items()}


@contextmanager
def _rows_as_told(shard: Shard, folder: Path, arg: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, OSError) as error:  # pyarrow's errors are subclasses
        text = f"the rows of {shard.file} in {folder.name} are not those that {MANIFEST} tells of."
        raise path_error(folder / shard.file, arg, text, "Save the dataset again.") from error
