"""Lists image files: those of a folder with one subfolder per class, or files given by path.

Paths may be a column of a data frame; errors then name the column and the row.

This module reads file names only. The order is that of Keras' `image_dataset_from_directory()`
without shuffling: classes by name, subfolders of a class by path, files of a folder by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.paths import check_local
from gpukeras.data.reader.image import formats

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", *formats.SUFFIXES)  # as Keras', and TIFF
LAYOUT_HINT = "It needs one subfolder a class, with JPEG, PNG, GIF, BMP or TIFF files in each."
PATH_HINT = "Check the path and its permissions."


@dataclass(frozen=True)
class ImageFiles:
    """A list of image files, with the class of each if folders define it.

    Args:
        paths: The files.
        arg: Name of the user's argument, for error messages.
        folder: The folder that contains the class folders, or "".
        classes: Names of the class folders, sorted; empty for files without classes.
        codes: Class number of each file from 1 (int32), or None.
        column: The column of a data frame that holds the paths, or "". A path may be missing: "".
        numbers: The row of each path in that data frame, from 1 (int64), or None.
    """

    paths: tuple[str, ...]
    arg: str
    folder: str = ""
    classes: tuple[str, ...] = ()
    codes: np.ndarray | None = None
    column: str = ""
    numbers: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def take(self, marked: np.ndarray) -> ImageFiles:
        """Returns the files selected by a mask, with all classes."""
        paths = tuple(path for path, taken in zip(self.paths, marked, strict=True) if taken)
        codes = None if self.codes is None else self.codes[marked]
        numbers = None if self.numbers is None else self.numbers[marked]
        return replace(self, paths=paths, codes=codes, numbers=numbers)

    __getitem__ = take  # as an array

    @property
    def missing(self) -> np.ndarray:
        """Mask of the missing paths."""
        return np.array([not path for path in self.paths], dtype=bool)

    def check_present(self) -> None:
        """Checks that no path is missing.

        Raises:
            DataError: naming the column and the first such row.
        """
        missing = self.missing
        if not missing.any():
            return
        row, count = self._row(int(missing.argmax())), int(missing.sum())
        more = f" and {count_of(count - 1, 'other')}" if count > 1 else ""
        raise DataError(
            f"`{self.arg}`: the column `{self.column}` has no path in row {row:,}{more}.",
            hint='`na = "drop"` leaves such rows out.',
            arg=self.arg,
            column=self.column,
            row=row,
            missing=count,
        )

    def _row(self, number: int) -> int:
        return number + 1 if self.numbers is None else int(self.numbers[number])

    def name(self, number: int) -> str:
        """Returns a file's name for messages: relative to the folder of classes, if any."""
        path = self.paths[number]
        return os.path.relpath(path, self.folder) if self.folder else os.path.basename(path)

    def describe(self) -> str:
        """Returns the number of files and their folder, such as "2,000 files of pets"."""
        count = count_of(len(self), "image file")
        return f"{count} of {Path(self.folder).name}" if self.folder else count

    def error(self, number: int, problem: str, hint: str = "") -> DataError:
        """Returns an error about one file.

        Args:
            number: Index of the file.
            problem: What is wrong with it, as the rest of a sentence.
            hint: What to do about it, or "".
        """
        row, details = self._row(number), {"column": self.column} if self.column else {}
        where = f" in row {row:,}" if self.column else ""
        if self.column not in ("", self.arg):
            where += f" of the column `{self.column}`"
        message = f"`{self.arg}`: the image {self.name(number)}{where} {problem}"
        path = self.paths[number]
        return DataError(message, hint=hint, arg=self.arg, path=path, row=row, **details)


def list_images(paths: str | Sequence[str], arg: str) -> ImageFiles:
    """Lists the files of a folder of classes, or the files given by path.

    Hidden folders and files with another suffix are left out, as in Keras. Hidden files are left
    out too, unlike in Keras: macOS writes "._cat.jpg" beside "cat.jpg" on foreign disks.

    Args:
        paths: A folder, a file, or several files. Files given by path need no suffix.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if there are no files, a class has no files, or a folder cannot be read.
    """
    named = [paths] if isinstance(paths, str) else list(paths)
    if not named:
        raise DataError(f"`{arg}` names no image files.", arg=arg)
    if len(named) == 1 and os.path.isdir(named[0]):
        return _list_classes(named[0], arg)
    return _check_files(ImageFiles(tuple(named), arg))


def list_column(paths: str | Sequence[str], column: str, arg: str) -> ImageFiles:
    """Lists the files of a column of a data frame.

    Args:
        paths: The column's values, "" for a missing one.
        column: The column's name.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: for a file that does not exist or is a folder; names the column and the row.
    """
    named = (paths,) if isinstance(paths, str) else tuple(paths)
    numbers = np.arange(1, len(named) + 1)
    return _check_files(ImageFiles(named, arg, column=column, numbers=numbers))


def _check_files(files: ImageFiles) -> ImageFiles:
    check_local(files.paths, files.arg, "images")
    for number, path in enumerate(files.paths):
        if path and os.path.isdir(path):
            raise files.error(number, "is a folder.", "Give one folder, or image files.")
        if path and not os.path.exists(path):
            raise files.error(number, "does not exist.", PATH_HINT)
    return files


def _list_classes(folder: str, arg: str) -> ImageFiles:
    classes = tuple(name for name in _read_names(folder, arg) if _is_class(folder, name))
    if not classes:
        raise _folder_error(folder, arg, "has no subfolders.", LAYOUT_HINT)
    paths: list[str] = []
    counts = []
    for name in classes:
        files = list(_walk(os.path.join(folder, name), arg))
        if not files:
            problem = f"has no image file in its subfolder {name}."
            raise _folder_error(folder, arg, problem, LAYOUT_HINT, column=name)
        paths += files
        counts.append(len(files))
    codes = np.repeat(np.arange(1, len(classes) + 1, dtype=np.int32), counts)
    return ImageFiles(tuple(paths), arg, folder, classes, codes)


def _is_class(folder: str, name: str) -> bool:
    return not name.startswith(".") and os.path.isdir(os.path.join(folder, name))


def _read_names(folder: str, arg: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise _unreadable(error, arg) from error


def _walk(folder: str, arg: str) -> Iterator[str]:
    """Yields the image files in a folder and its subfolders, in Keras' order."""

    def refuse(error: OSError) -> None:  # by default os.walk() skips the folder silently
        raise _unreadable(error, arg) from error

    for inside, _, names in sorted(os.walk(folder, onerror=refuse)):
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(inside, name)


def _unreadable(error: OSError, arg: str) -> DataError:
    problem = f"cannot be read: {error.strerror or 'it is not readable'}."
    return _folder_error(str(error.filename), arg, problem, PATH_HINT)


def _folder_error(folder: str, arg: str, problem: str, hint: str, **details: Any) -> DataError:
    message = f"`{arg}`: the folder {Path(folder).name} {problem}"
    return DataError(message, hint=hint, arg=arg, path=folder, **details)
