"""The format of saved datasets, and how they are read.

    gpukeras-dataset.json  {"version": 2, "rows": 150, "block_rows": 100, "fields": {"x": {"dtype":
                           "float32", "shape": [4], "crc32": ["0f3c8a1d", "5b0e7711"]}, ...},
                           "recipe": {...}, "spec": {...}, "crc32": of the other entries}
    x.npy                  and, if present, y.npy, weights.npy and validation.npy

Each `block_rows` rows of a field have a checksum, the last ones too if they are fewer.

    folder --read_manifest(), check_rows()--> FileRows (mapped) | MemoryRows --> MapDataset

Opening a folder verifies all checksums: one pass over the files, at 2.5 GB/s per thread if they are
in memory. Small datasets are then copied to memory; larger ones are read block by block through
memory maps of the files, without a second copy.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of, system_reason
from gpukeras.core.options import DatasetSpec
from gpukeras.core.progress import count_pass, count_rows
from gpukeras.core.safe_files import open_regular
from gpukeras.data.dataset.map_dataset import MapDataset, Request, take_shard
from gpukeras.data.files.files import path_error, read_stamp
from gpukeras.data.reader.npy import FileRows, NpyFile
from gpukeras.data.reader.rows import RowSource, SelectedRows
from gpukeras.data.reader.storage import MEMORY_BYTES, place_rows
from gpukeras.data.recipe.serialization import from_portable
from gpukeras.system.host import count_cores

# Folders of saved rows ----------------------------------------------------------------------------

MANIFEST = "gpukeras-dataset.json"
VERSION = 2
FIELDS = ("x", "y", "weights", "validation")
DTYPES = {"float32": "<f4", "uint8": "|u1", "int32": "<i4"}  # by name: that in a .npy file
MOST = 2**53  # larger numbers are no valid counts
MOST_AXES = 32  # of a NumPy array, the rows included
# What an entry that nobody saved so can raise.
FORGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, SpecError)


@dataclass(frozen=True)
class Field:
    """One entry of a row, such as its features.

    Args:
        dtype: One of `DTYPES`.
        shape: Shape of the entry in one row.
        crc32: CRC-32 of each block of rows, as 8 hexadecimal digits. They detect accidental damage,
            not tampering: 2.5 GB/s, where SHA-256 reached 0.5 GB/s.
    """

    dtype: str
    shape: tuple[int, ...]
    crc32: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def header(self, rows: int) -> bytes:
        """Returns the start of the field's file: the header of a `.npy` file, version 1.0.

        Its length does not depend on the number of rows, which can be written last.

        Args:
            rows: Number of rows.
        """
        size = -(-(len(self._describe(MOST)) + 11) // 64) * 64  # 10 bytes before it, a newline
        start = b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little")
        return start + self._describe(rows).ljust(size - 11).encode() + b"\n"

    def _describe(self, rows: int) -> str:
        shape = (rows, *self.shape)
        described = {"descr": DTYPES[self.dtype], "fortran_order": False, "shape": shape}
        return str(described)[:-1] + ", }"  # as NumPy writes it


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest.

    Args:
        rows: Number of rows.
        block_rows: Rows of a block, which has a checksum for each field.
        fields: The fields by name: "x", and if present "y", "weights" and "validation" (1 for
            validation rows, else 0).
        recipe: The recipe that encoded the rows, see `serialization`.
        spec: Options of the saved dataset: `seed`, `validation` (share), `na`, `dropped` (rows).
    """

    rows: int
    block_rows: int
    fields: Mapping[str, Field]
    recipe: Mapping[str, Any]
    spec: Mapping[str, Any]

    @property
    def files(self) -> list[str]:
        """Names of the fields' files."""
        return [f"{name}.npy" for name in self.fields]

    def to_text(self) -> str:
        """Returns the manifest as JSON."""
        plain = {"version": VERSION, **asdict(self)}
        return json.dumps({**plain, "crc32": _sum_of(plain)}, indent=1)


def read_manifest(folder: Path, arg: str) -> Manifest:
    """Reads the manifest of a folder, and checks its numbers before memory is taken for them.

    Args:
        folder: The folder.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if it cannot be read, is damaged, or was written by another version of gpukeras.
    """
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        message = f"{MANIFEST} in {folder.name} cannot be read: {system_reason(error)}."
        raise path_error(path, arg, message, "Check its permissions.") from error
    try:
        plain = json.loads(text)
        version, stored_sum = plain["version"], plain.pop("crc32")
        if is_count(version) and version != VERSION:
            other = f"its format is {version}, this one reads {VERSION}"
            message = f"{folder.name} was saved by another version of gpukeras ({other})."
            raise path_error(path, arg, message, "Update gpukeras, or save the dataset again.")
        if stored_sum != _sum_of(plain):
            raise ValueError("another checksum")
        return _parse(plain)
    except FORGED as error:
        message = f"{MANIFEST} in {folder.name} is not as gpu_dataset_save() wrote it."
        raise path_error(path, arg, message, "Save the dataset again.") from error


def is_count(value: Any) -> bool:
    """Whether a JSON value is an integer from 0; `true` and 3.0 are not."""
    return type(value) is int and 0 <= value < MOST


def _sum_of(plain: Mapping[str, Any]) -> str:
    """Returns the checksum of a JSON object."""
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _parse(plain: Mapping[str, Any]) -> Manifest:
    """Checks the entries; the files' sizes are compared with them when they are opened.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, SpecError: for an entry that is none.
    """
    rows = plain["rows"]
    block_rows = plain["block_rows"]
    spec = plain["spec"]
    counts = (plain["version"], rows, block_rows, spec["dropped"])
    if not all(map(is_count, counts)) or not rows * block_rows:
        raise ValueError(counts)
    if not isinstance(plain["recipe"], Mapping):
        raise ValueError("no recipe")
    DatasetSpec.from_dict({name: spec[name] for name in ("seed", "validation", "na")})
    blocks = -(-rows // block_rows)
    fields = {name: _parse_field(plain["fields"][name], blocks) for name in plain["fields"]}
    if "x" not in fields or not set(fields) <= set(FIELDS):
        raise ValueError(list(fields))
    if sum(field.row_bytes for field in fields.values()) * rows >= MOST:
        raise ValueError(rows)
    return Manifest(rows, block_rows, fields, plain["recipe"], spec)


def _parse_field(plain: Mapping[str, Any], blocks: int) -> Field:
    field = Field(plain["dtype"], tuple(plain["shape"]), tuple(plain["crc32"]))
    known = field.dtype in DTYPES and len(field.shape) < MOST_AXES
    if not known or not all(is_count(size) and size > 0 for size in field.shape):
        raise ValueError(field.shape)
    if len(field.crc32) != blocks or not all(isinstance(crc, str) for crc in field.crc32):
        raise ValueError(len(field.crc32))
    return field


# Datasets -----------------------------------------------------------------------------------------

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
        name: FileRows(file, file.describe(f"the saved {file.path.name}"))
        for name, file in files.items()
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
    return NpyFile(path, arg, (rows, *field.shape), dtype, stamp, offset=len(header))


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
            pairs = zip(blocks, sums, manifest.fields[name].crc32, strict=True)
            checked = count_pass(pairs, "checking", manifest.rows, lambda pair: count_rows(pair[0]))
            for block, computed, saved in checked:
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
