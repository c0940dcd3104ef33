"""Expands paths, addresses, globs and folders to files, and determines their format."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpukeras.core.errors import DataError
from gpukeras.core.options import check_choice
from gpukeras.data.files.files import (
    AnyFile,
    RemoteFile,
    Stamp,
    file_error,
    is_url,
    opening_error,
    read_stamp,
)

SUFFIXES = {
    "csv": (".csv", ".tsv", ".txt"),
    "parquet": (".parquet",),
    "feather": (".feather", ".arrow", ".ipc"),
    "hdf5": (".h5", ".hdf5"),
}
COMPRESSED = {".gz": "gzip", ".bz2": "bz2"}  # for CSV
FORMATS = tuple(SUFFIXES)


class FileSet(NamedTuple):
    """Files of one format: their paths in reading order, and one of `FORMATS`."""

    paths: tuple[AnyFile, ...]
    format: str


def find_files(paths: str | Sequence[str | AnyFile], arg: str, format: str = "auto") -> FileSet:
    """Returns the files of paths, globs and folders; those of a glob or folder are sorted.

    Args:
        paths: One path or address, or several. In a folder, files whose names begin with "." or "_"
            are left out, as in Arrow and Spark; subfolders are not searched.
        arg: Name of the user's argument, for error messages.
        format: One of `FORMATS`, or "auto" (by the suffixes).

    Raises:
        DataError: if there are no files, a file is given twice, or formats are mixed or unknown.
    """
    check_choice("format", format, ("auto", *FORMATS))
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    stores: dict[Any, Any] = {}
    files = [path for each in listed for path in _find(each, arg, stores)]
    if not files:
        raise DataError(f"`{arg}` names no files.", hint="Give one path at least.", arg=arg)
    _check_different(files, arg)
    return FileSet(tuple(files), format if format != "auto" else choose_format(files, arg))


def _find(path: str | AnyFile, arg: str, stores: dict[Any, Any]) -> Sequence[AnyFile]:
    if isinstance(path, RemoteFile):
        return [path]
    if is_url(path):
        from gpukeras.data.files.stores import find_objects  # imports pyarrow

        return find_objects(str(path), arg, stores)
    return _expand(os.fspath(path), arg)


def _expand(pattern: str, arg: str) -> list[Path]:
    """Returns a path, or the matches of a glob; replaces folders by their files."""
    path = Path(pattern).expanduser()
    matches = [path]
    if not path.exists() and glob.has_magic(pattern):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            message = f"`{arg}`: no file matches {path.name}."
            raise DataError(message, hint="Check the path.", arg=arg, path=str(path))
    above = {folder for match in matches for folder in match.parents}  # what is in them matches too
    return [file for match in matches if match not in above for file in _each_file(match, arg)]


def _each_file(path: Path, arg: str) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise opening_error(path, arg, error) from error
    files = [file for file in inside if file.is_file() and file.name[0] not in "._"]
    if not files:
        raise DataError(
            f"`{arg}`: the folder {path.name} has no files.",
            hint='Give a glob such as "folder/*/*.parquet" for folders within folders.',
            arg=arg,
            path=str(path),
        )
    yield from files


def _check_different(paths: Sequence[AnyFile], arg: str) -> None:
    seen: set[str | RemoteFile] = set()
    for path in paths:
        absolute = path if isinstance(path, RemoteFile) else os.path.abspath(path)
        if absolute in seen:
            raise file_error(path, arg, "is given twice.", "Give each file once.")
        seen.add(absolute)


def choose_format(paths: Sequence[AnyFile], arg: str) -> str:
    """Determines the format of the files from their suffixes.

    Raises:
        DataError: for an unknown suffix, or several formats.
    """
    formats = [_format_of(path, arg) for path in paths]
    for path, format in zip(paths, formats, strict=True):
        if format != formats[0]:
            problem = f"is {format}, and {paths[0].name} is {formats[0]}: formats cannot be mixed."
            raise file_error(path, arg, problem, 'Give a glob such as "folder/*.parquet".')
    return formats[0]


def _format_of(path: AnyFile, arg: str) -> str:
    suffix = plain_suffix(path)
    for format, suffixes in SUFFIXES.items():
        if suffix in suffixes and (format == "csv" or not compression_of(path)):
            return format
    known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    hint = f"Known are {known}, and .gz or .bz2 behind those of CSV. Or say it by `format`."
    found = f"the unknown suffix {path.suffix}" if path.suffix else "no suffix"
    raise file_error(path, arg, f"has {found}.", hint)


def plain_suffix(path: AnyFile) -> str:
    """Returns the suffix in lower case, without that of a compression."""
    name = Path(path.stem) if compression_of(path) else path
    return name.suffix.lower()


def compression_of(path: AnyFile) -> str | None:
    """Returns the compression of a CSV file by its suffix, or None."""
    return COMPRESSED.get(path.suffix.lower())


def check_file(path: AnyFile, arg: str) -> Stamp:
    """Checks that a file exists, is readable and is not empty; returns its stamp.

    Raises:
        DataError: if not; names the file.
    """
    try:
        stamp = read_stamp(path)
        if isinstance(path, Path):
            if path.is_dir():
                raise file_error(path, arg, "is a folder.", "Give its files.")
            with path.open("rb"):
                pass
    except OSError as error:
        raise opening_error(path, arg, error) from error
    if stamp[0] == 0:
        raise file_error(path, arg, "is empty.", "Remove it, or write it again.")
    return stamp


def check_local(paths: str | Sequence[str], arg: str, what: str) -> None:
    """Checks that no path is an address of a store or web server.

    Args:
        paths: One path, or several.
        arg: Name of the user's argument, for error messages.
        what: What the files are, in the plural.

    Raises:
        DataError: if one is; does not repeat the address, which may hold credentials.
    """
    if any(map(is_url, [paths] if isinstance(paths, str) else paths)):
        message = f"`{arg}`: {what} are read from this computer only, not from stores or the web."
        raise DataError(message, hint="Copy them to a folder first.", arg=arg)
