"""Describes what encoded rows were made from, so that a later session knows them again.

    files, options, labels --read_fingerprint()--> key | NotKeptError, with the reason

A file counts by its path, size and times, in nanoseconds; what R holds in memory beside it (labels,
columns of a table of images) by its bytes. A file that is written again changes the key, even where
its modification time was put back.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import gpukeras
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec
from gpukeras.data.files.errors import read_stamp
from gpukeras.data.files.paths import FORMATS, find_files
from gpukeras.data.files.remote_file import AnyFile, RemoteFile
from gpukeras.data.reader.image.paths import list_images
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.serialization import to_portable
from gpukeras.data.recipe.targets import MASKS
from gpukeras.data.saved.manifest import VERSION
from gpukeras.system import packages

# Options that change the encoded rows; the seed does where it draws the validation rows.
ENCODING = ("encode", "hash_bins", "new_levels", "scale", "na", "on_error", "validation")
DECODERS = ("pyarrow", "tifffile", "numpy")  # their versions count
CHANGING = {"generator": "a function", "tfdata": "a pipeline", "table": "a database or a stream"}


class NotKeptError(Exception):
    """Rows are not kept for later sessions; the message is the reason."""


@dataclass(frozen=True)
class Fingerprint:
    """What encoded rows were made from.

    Args:
        key: A digest of it, 32 hexadecimal digits.
        kind: The kind of the rows: "table", "images", "records", "npy" or "inputs".
        source: Name of the file or folder, without its path.
    """

    key: str
    kind: str
    source: str


def read_fingerprint(
    features: Mapping[str, Any], spec: DatasetSpec, recipe: Recipe | None, given: Mapping[str, Any]
) -> Fingerprint:
    """Describes rows by the files they come from and all that encodes them.

    Args:
        features: See `registry.open_features()`.
        spec: The dataset's options.
        recipe: An encoding to apply instead of learning one.
        given: The other arguments of `dataset.build_dataset()`: labels, weights and so on.

    Raises:
        NotKeptError: if nothing of it would show that the rows have changed.
        DataError: if a file cannot be found.
    """
    files = [*_list_files(features), *_list_files(given.get("labels") or {})]
    if not files:
        raise NotKeptError(explain_unknown(features))
    digest = hashlib.sha256()
    options = {name: getattr(spec, name) for name in ENCODING}
    options["seed"] = spec.seed if spec.validation > 0 else None
    parts = (
        [_describe_file(path) for path in files],
        features,
        options,
        given,
        None if recipe is None else to_portable(recipe),
        _read_versions(),
    )
    try:
        _add(digest, parts)
    except TypeError as error:
        raise NotKeptError(f"{error} has no fingerprint") from error
    return Fingerprint(digest.hexdigest()[:32], features["kind"], _name(features, files))


def explain_unknown(features: Mapping[str, Any]) -> str:
    """Returns why rows that come from no file are not kept for later sessions."""
    source = CHANGING.get(features["kind"])
    return f"{source} may give other rows next time" if source else "they come from no file"


def _list_files(given: Mapping[str, Any]) -> Iterator[AnyFile]:
    """Yields the files of features or labels, in reading order."""
    kind = given.get("kind")
    if kind in ("table", "records") and given.get("stream") is None:
        # Of records only the paths are used.
        form = (given.get("format") or "auto") if kind == "table" else FORMATS[0]
        yield from find_files(_texts(given["paths"]), "x", form).paths
    elif kind == "npy":
        yield from find_files(given["path"], "x", FORMATS[0]).paths
    elif kind == MASKS or (kind == "images" and given.get("column")):
        paths = given["values"] if kind == MASKS else given["paths"]
        yield from (Path(path) for path in _texts(paths) if path)
    elif kind == "images":
        yield from map(Path, list_images(given["paths"], "x").paths)
    for part in (*given.get("inputs", ()), *given.get("outputs", ())):
        yield from _list_files(part.get("features") or part.get("labels") or {})


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _describe_file(path: AnyFile) -> tuple[Any, ...]:
    if isinstance(path, RemoteFile):
        size, version = read_stamp(path)
        if not version:
            raise NotKeptError(f"{path} has neither ETag nor time, which would show a change")
        return str(path), size, version
    found: tuple[Any, ...] = os.path.abspath(path), *read_stamp(path)
    with suppress(OSError):
        found = *found, os.stat(path).st_ctime_ns
    return found


def _read_versions() -> tuple[Any, ...]:
    """Returns the versions of what reads and encodes rows, and the order of a number's bytes."""
    tensorflow = packages.find_tensorflow()
    found = ["" if tensorflow is None else packages.find_version(tensorflow.parent)]
    for name in DECODERS:
        try:
            found.append(version(name))
        except PackageNotFoundError:
            found.append("")
    return (VERSION, gpukeras.__version__, sys.byteorder, *found)


def _name(features: Mapping[str, Any], files: Sequence[AnyFile]) -> str:
    """Returns a name for people: what the user gave, without folders."""
    first = files[0]
    if isinstance(first, RemoteFile):  # its address may hold credentials
        return first.name + (f" and {count_of(len(files) - 1, 'other')}" if len(files) > 1 else "")
    given = _texts(features.get("paths") or features.get("path") or [str(first.parent)])
    name = Path(given[0]).name
    if len(given) > 1 and features["kind"] == "images":
        name = first.parent.name  # of a column, with a path for each row
    elif len(given) > 1:
        name += f" and {count_of(len(given) - 1, 'other')}"
    return name


def _add(digest: Any, value: Any) -> None:
    """Adds a plain value to a digest, with its type and length, so that no two are alike.

    Raises:
        TypeError: for a value that is not plain; the message is its type.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        _add(digest, ["mapping", *(pair for pair in sorted(value.items(), key=_by_key))])
    elif isinstance(value, np.ndarray) and value.dtype != object:
        _add(digest, ["array", value.dtype.str, list(value.shape)])
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, (list, tuple, np.ndarray)):
        digest.update(b"list %d;" % len(value))
        for item in value:
            _add(digest, item)
    elif value is None or isinstance(value, (bool, int, float, str)):
        plain = repr(value).encode("utf-8", "surrogatepass")
        digest.update(b"%s %d;%s" % (type(value).__name__.encode(), len(plain), plain))
    else:
        raise TypeError(f"a {type(value).__name__}")


def _by_key(item: tuple[Any, Any]) -> str:
    return str(item[0])
