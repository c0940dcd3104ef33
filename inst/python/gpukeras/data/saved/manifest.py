"""The manifest of a folder of saved rows: `gpukeras-dataset.json`.

{"format": "parquet", "version": 1, "rows": 150, "fields": {"x": {"dtype": "float32",
 "shape": [4]}, ...}, "recipe": {...}, "spec": {...}, "shards": [{"file", "rows", "bytes",
 "crc32", "places"}], "crc32": of the other entries}
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.data.files.errors import path_error
from gpukeras.data.saved.shards import FORMATS, Place, Shard
from gpukeras.data.saved.tf_example import Field

MANIFEST = "gpukeras-dataset.json"
VERSION = 1
MOST = 2**53  # larger numbers are no valid counts
DTYPES = ("float32", "uint8", "int32")


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest.

    Args:
        format: "parquet" or "tfrecord".
        rows: Number of rows in all shards.
        fields: Fields of a row: "x", and if present "y", "w" and "validation" (1 for validation
            rows, else 0).
        recipe: The recipe that encoded the rows, see `serialization`.
        spec: Options of the saved dataset: `seed`, `validation` (share), `na`, `dropped` (rows).
        shards: The files, in row order.
    """

    format: str
    rows: int
    fields: Mapping[str, Field]
    recipe: Mapping[str, Any]
    spec: Mapping[str, Any]
    shards: tuple[Shard, ...]

    def to_text(self) -> str:
        """Returns the manifest as JSON."""
        plain = {"format": self.format, "version": VERSION, **asdict(self)}
        return json.dumps({**plain, "crc32": _sum(plain)}, indent=1)


def parse_manifest(text: str, folder: Path, arg: str) -> Manifest:
    """Parses a manifest.

    Args:
        text: The file's text.
        folder: Folder of the file, for error messages.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the manifest is damaged, or written by a later version of gpukeras.
    """
    try:
        plain = json.loads(text)
        version, found = plain["version"], plain.pop("crc32")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(folder, arg) from error
    if not is_count(version):
        raise _broken(folder, arg)
    if version > VERSION:
        raise path_error(
            folder,
            arg,
            f"{folder.name} was saved by a later version of gpukeras (its format is {version}, "
            f"this one reads up to {VERSION}).",
            "Update gpukeras.",
        )
    if found != _sum(plain):
        raise _broken(folder, arg)
    try:
        manifest = _parse(plain)
        check_counts(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(folder, arg) from error
    return manifest


def _parse(plain: Mapping[str, Any]) -> Manifest:
    if plain["format"] not in FORMATS:
        raise ValueError(plain["format"])
    return Manifest(
        format=plain["format"],
        rows=plain["rows"],
        fields={
            name: Field(field["dtype"], tuple(field["shape"]))
            for name, field in plain["fields"].items()
        },
        recipe=plain["recipe"],
        spec=plain["spec"],
        shards=tuple(_parse_shard(shard) for shard in plain["shards"]),
    )


def _parse_shard(shard: Mapping[str, Any]) -> Shard:
    if Path(shard["file"]).name != shard["file"]:  # must be inside the folder
        raise ValueError(shard["file"])
    places = shard["places"] and {
        name: Place(place["stride"], tuple((start, rows) for start, rows in place["at"]))
        for name, place in shard["places"].items()
    }
    return Shard(shard["file"], shard["rows"], shard["bytes"], shard["crc32"], places)


# Counts -------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    """Whether a JSON value is an integer from 0; `true` and 3.0 are not."""
    return type(value) is int and 0 <= value < MOST


def check_counts(manifest: Manifest) -> None:
    """Checks that a manifest's numbers are valid and consistent, before memory is allocated.

    File sizes are checked when the files are opened.

    Raises:
        ValueError: if they are not.
    """
    fields, shards = manifest.fields, manifest.shards
    whole = is_count(manifest.rows) and "x" in fields and shards
    known = isinstance(manifest.spec["na"], str) and is_count(manifest.spec["dropped"])
    if not whole or not known or not isinstance(manifest.recipe, Mapping):
        raise ValueError("no manifest")
    for name, field in fields.items():
        if field.dtype not in DTYPES or not all(map(is_count, field.shape)):
            raise ValueError(name)
    for shard in shards:
        if not all(map(is_count, (shard.rows, shard.bytes))) or not isinstance(shard.crc32, str):
            raise ValueError(shard.file)
        _check_places(shard, manifest)
    if len({shard.file for shard in shards}) < len(shards):
        raise ValueError("a file twice")
    if sum(shard.rows for shard in shards) != manifest.rows:
        raise ValueError(manifest.rows)


def _check_places(shard: Shard, manifest: Manifest) -> None:
    """Checks that a shard's rows fit into its file and lie inside it."""
    needed = sum(field.row_bytes for field in manifest.fields.values())
    if shard.rows * needed > shard.bytes:  # rows are not compressed
        raise ValueError(shard.rows)
    if shard.places is None:
        return
    for name, field in manifest.fields.items():
        place = shard.places[name]
        size = field.record_bytes if manifest.format == "tfrecord" else field.row_bytes
        numbers = [place.stride, *(number for run in place.at for number in run)]
        if not all(map(is_count, numbers)) or place.stride < max(1, size):
            raise ValueError(numbers)
        ends = [start + (rows - 1) * place.stride + size for start, rows in place.at if rows]
        if sum(rows for _, rows in place.at) != shard.rows or max(ends, default=0) > shard.bytes:
            raise ValueError(shard.file)


def _sum(plain: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _broken(folder: Path, arg: str) -> DataError:
    text = f"{MANIFEST} in {folder.name} is not as gpu_dataset_save() wrote it."
    return path_error(folder / MANIFEST, arg, text, "Save the dataset again.")
