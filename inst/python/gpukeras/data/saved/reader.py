"""Reads datasets saved by gpu_dataset_save(): the same rows and the same validation split.

    folder --read_manifest(), check_rows()--> FileRows (mapped) | MemoryRows --> MapDataset

Opening a folder verifies all checksums: one pass over the files, at 2.5 GB/s per thread if they are
in memory. Small datasets are then copied to memory; larger ones are read block by block through
memory maps of the files, without a second copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of, system_reason
from gpukeras.core.options import DatasetSpec
from gpukeras.core.prefetch import count_cores
from gpukeras.core.safe_files import open_regular
from gpukeras.data.dataset.map_dataset import MapDataset, Request, take_shard
from gpukeras.data.files.files import path_error, read_stamp
from gpukeras.data.plan import choose_batch_size
from gpukeras.data.reader.npy import MEMORY_BYTES, FileRows, NpyFile
from gpukeras.data.reader.registry import place_rows
from gpukeras.data.reader.rows import RowSource, SelectedRows
from gpukeras.data.recipe.serialization import from_portable
from gpukeras.data.saved.manifest import DTYPES, FIELDS, MANIFEST, Manifest, read_manifest

READ_BYTES = 2**20  # that are read at a time to verify them
THREADS = 4  # for checksums
SETTLED = ("encode", "hash_bins", "new_levels", "scale", "na")  # options applied before saving


def build_saved(features: Mapping[str, Any], request: Request) -> MapDataset:
    """Opens a saved dataset; only options for feeding its rows can change.

    Args:
        features: `{kind: "saved", path}`.
        request: How the dataset is to be made; a `seed` of None is the saved seed, which shuffles
            as the saved dataset did. What does not apply to saved rows, such as labels, is an
            error.

    Raises:
        SpecError: for an option that was applied before saving.
        DataError: for an incomplete or damaged folder, manifest or file.
    """
    folder = _check_folder(features["path"], request.arg)
    manifest = read_manifest(folder, request.arg)
    spec = _choose_spec(request.options, manifest.spec)
    _check_others(request, features.get("groups"))
    return open_folder(folder, manifest, spec, request.arg)


def open_folder(folder: Path, manifest: Manifest, spec: DatasetSpec, arg: str) -> MapDataset:
    """Returns the rows of a folder.

    Args:
        folder: The folder.
        manifest: Its manifest.
        spec: The dataset's options; those that encode rows are not applied again.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: for a damaged or missing file.
    """
    files = open_files(manifest, folder, arg)
    whole, skipped = check_rows(manifest, files, spec.on_error, arg)
    sources: dict[str, RowSource] = {
        name: FileRows(file, f"the saved {file.path.name}") for name, file in files.items()
    }
    marks = sources.pop("validation", None)
    held = np.zeros(len(whole), bool) if marks is None else marks.gather(slice(None)) != 0
    if not whole.all():
        kept = np.flatnonzero(whole).astype(np.int32)
        sources = {name: SelectedRows(source, kept) for name, source in sources.items()}
        held = held[kept]
    if held.all():
        raise DataError(f"`{arg}` has no training rows left.", arg=arg, path=str(folder))
    train = take_shard(np.flatnonzero(~held).astype(np.int32), spec.shard)
    choose_batch_size(len(train), spec.batch_size)
    return MapDataset(
        tuple(_place(sources[name], name, spec.cache, arg) for name in FIELDS if name in sources),
        from_portable(manifest.recipe),
        spec,
        train,
        take_shard(np.flatnonzero(held).astype(np.int32), spec.shard),
        na=manifest.spec["na"],
        dropped=manifest.spec["dropped"],
        skipped=skipped,
    )


def _place(source: RowSource, name: str, cache: str, arg: str) -> RowSource:
    """Copies rows into memory if they are to be there, or are few; others stay in their files."""
    few = source.stored_bytes <= MEMORY_BYTES
    small = name != "x" and source.dtype != np.uint8  # not masks
    keep = cache in ("host", "device") or (few and (small or cache in ("auto", "keep")))
    return place_rows(source, "host", arg) if keep else source


def _check_folder(path: Any, arg: str) -> Path:
    folder = Path(str(path)).expanduser()
    if not (folder / MANIFEST).is_file():
        found = "holds no saved dataset" if folder.is_dir() else "does not exist"
        hint = "Check the path; gpu_dataset_save() writes such folders."
        raise path_error(folder, arg, f"the folder {folder.name} {found}.", hint)
    return folder


def _choose_spec(options: Mapping[str, Any], saved: Mapping[str, Any]) -> DatasetSpec:
    options_given = {name: value for name, value in options.items() if value is not None}
    spec, plain = DatasetSpec.from_dict({"seed": saved["seed"], **options_given}), DatasetSpec()
    for name in SETTLED:
        if getattr(spec, name) != getattr(plain, name):
            raise _settled(name)
    if spec.validation not in (0, saved["validation"]):
        raise _settled("validation")
    return replace(spec, validation=saved["validation"])


def _check_others(request: Request, groups: Any) -> None:
    others = {
        "y": request.labels,
        "weights": request.weights,
        "class_weight": request.class_weight,
        "recipe": request.recipe,
        "formula": request.formula or None,
        "text": request.text,
        "inputs": groups,
    }
    for name, value in others.items():
        if value is not None:
            raise _settled(name)


def _settled(name: str) -> SpecError:
    return SpecError(
        f"`{name}` was settled when the rows were saved.",
        hint="Leave it out, or save the dataset again with other options.",
        arg=name,
    )


# Files -------------------------------------------------------------------------------------------


def open_files(manifest: Manifest, folder: Path, arg: str) -> dict[str, NpyFile]:
    """Returns the file of each field.

    Raises:
        DataError: for a file that is missing, has another size or header, or that the manifest does
            not list.
    """
    files = {}
    for name in FIELDS:
        path = folder / f"{name}.npy"
        if name not in manifest.fields:
            if path.exists():
                raise _fault(path, arg, f"is not listed in {MANIFEST}")
            continue
        try:
            files[name] = _open_file(manifest, path, arg)
        except FileNotFoundError as error:
            raise _fault(path, arg, "is missing") from error
        except OSError as error:
            raise _fault(path, arg, f"cannot be read: {system_reason(error)}") from error
    return files


def _open_file(manifest: Manifest, path: Path, arg: str) -> NpyFile:
    field, rows = manifest.fields[path.stem], manifest.rows
    header, stamp = field.header(rows), read_stamp(path)
    size = len(header) + rows * field.row_bytes
    with open_regular(path) as file:
        if stamp[0] != size:
            raise _fault(path, arg, f"has {stamp[0]:,} bytes where {size:,} were saved")
        if file.read(len(header)) != header:
            raise _fault(path, arg, "is damaged: its header is not the one that was saved")
    dtype = np.dtype(DTYPES[field.dtype])
    return NpyFile(path, arg, (rows, *field.shape), dtype, len(header), False, stamp)


def check_rows(
    manifest: Manifest, files: Mapping[str, NpyFile], on_error: str, arg: str
) -> tuple[np.ndarray, str]:
    """Verifies the checksums of all rows.

    Returns:
        Whether each row is intact (bool), and a phrase for those that are not, or "".

    Raises:
        DataError: for damaged rows; with `on_error` = "skip" only if no row is intact.
    """
    starts = range(0, manifest.rows, manifest.block_rows)
    blocks = [slice(start, min(start + starts.step, starts.stop)) for start in starts]
    broken: list[tuple[NpyFile, slice]] = []
    with ThreadPoolExecutor(min(THREADS, count_cores())) as pool:
        for name, file in files.items():
            sums = pool.map(partial(_sum_rows, file), blocks)
            for block, computed, saved in zip(
                blocks, sums, manifest.fields[name].crc32, strict=True
            ):
                if computed != saved:
                    broken.append((file, block))
    if not broken:
        return np.ones(manifest.rows, bool), ""
    path, fault = broken[0][0].path, "is damaged: its checksum is not the one that was saved"
    hint = 'Copy or save the dataset again, or use `on_error = "skip"`.'
    error = _fault(path, arg, fault, hint)
    if on_error == "stop":
        raise error
    whole = np.ones(manifest.rows, bool)
    for _, block in broken:
        whole[block] = False
    if not whole.any():
        raise error
    return whole, f"{count_of(int((~whole).sum()), 'row')} left out: {path.name} {fault}"


def _sum_rows(file: NpyFile, rows: slice) -> str:
    """Returns the checksum of consecutive rows.

    Raises:
        DataError: if they cannot be read.
    """
    row_bytes = file.width * file.dtype.itemsize
    left, crc = (rows.stop - rows.start) * row_bytes, 0
    try:
        with open_regular(file.path) as opened:
            opened.seek(file.offset + rows.start * row_bytes)
            while left > 0 and (piece := opened.read(min(left, READ_BYTES))):
                crc, left = zlib.crc32(piece, crc), left - len(piece)
    except OSError as error:
        raise _fault(file.path, file.arg, f"cannot be read: {system_reason(error)}") from error
    return f"{crc:08x}"


def _fault(
    path: Path, arg: str, fault: str, hint: str = "Copy or save the dataset again."
) -> DataError:
    return path_error(path, arg, f"the file {path.name} of {path.parent.name} {fault}.", hint)
