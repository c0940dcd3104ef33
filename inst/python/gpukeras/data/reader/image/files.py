"""Image files: their paths, sizes, and what TensorFlow's decoder does not tell or cannot read.

Paths may be a column of a data frame; errors then name the column and the row.

This module reads file names only. The order is that of Keras' `image_dataset_from_directory()`
without shuffling: classes by name, subfolders of a class by path, files of a folder by name.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpukeras.core.errors import DataError, RuntimeMissingError
from gpukeras.core.messages import count_of
from gpukeras.core.prefetch import map_ahead
from gpukeras.data.files.paths import check_local
from gpukeras.system import pip
from gpukeras.system.host import count_workers

# Lists of files -----------------------------------------------------------------------------------

TIFF_SUFFIXES = (".tif", ".tiff")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", *TIFF_SUFFIXES)  # as Keras', and TIFF
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


# PNG ----------------------------------------------------------------------------------------------

SIGNATURE = b"\x89PNG\r\n\x1a\n"
START = SIGNATURE + b"\0\0\0\rIHDR"  # the header comes first, and has 13 bytes
GREY, PALETTE = 0, 3  # colour types
KEPT = (b"IDAT", b"IEND")  # the other chunks describe colours


def read_palette_as_grey(content: bytes) -> bytes:
    """Returns a PNG whose grey levels are the palette's indices; another PNG as it is.

    Tools that draw masks (VOC, labelme, CVAT) store a class as the index of its colour. The pixels
    of both colour types are stored alike, so only the header changes.

    Args:
        content: The file's content; what is damaged in it stays for the decoder to name.
    """
    if not is_palette(content):
        return content
    name, header = next(_each_chunk(content))
    made = [SIGNATURE, _make_chunk(name, header[:9] + bytes([GREY]) + header[10:])]
    made += [_make_chunk(name, body) for name, body in _each_chunk(content) if name in KEPT]
    return b"".join(made)


def is_palette(content: bytes) -> bool:
    """Whether a file is a PNG with a palette."""
    return content.startswith(START) and content[25:26] == bytes([PALETTE])


def read_bits(content: bytes) -> int:
    """Returns the bits of a PNG's number; 8 for any other file."""
    return content[24] if content.startswith(SIGNATURE) and len(content) > 24 else 8


def _each_chunk(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(SIGNATURE)
    while place + 8 <= len(content):
        length, name = struct.unpack(">I4s", content[place : place + 8])
        yield name, content[place + 8 : place + 8 + length]
        place += 12 + length


def _make_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


# TIFF ---------------------------------------------------------------------------------------------

MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two are BigTIFF
MOST_CHANNELS = 4
OTHER_PIXELS = "pixels are not unsigned"  # part of the messages of `read_tiff()`
OTHER_CHANNELS = "more than four channels"
# Deflate's largest ratio (zlib's technical details: 1032:1) and LZW's (a code of 12 bits stands for
# 4,096 bytes at most: 2731:1); pages beyond it are taken for forged.
MOST_RATIO = 2731


def require_tifffile() -> Any:
    """Returns the package tifffile.

    Raises:
        RuntimeMissingError: if it is not installed.
    """
    try:
        import tifffile
    except ImportError as error:
        raise RuntimeMissingError(
            "tifffile is needed to read TIFF images, and cannot be imported.",
            hint=pip.hint_import(error, "tifffile", "tifffile imagecodecs"),
        ) from error
    return tifffile


def read_tiff(content: bytes, raw: bool = False) -> np.ndarray:
    """Returns the first page of a TIFF as uint16, (height, width, channels).

    Args:
        content: The file's content.
        raw: Whether to return the numbers as stored, which are a mask's classes; otherwise they
            are brightness from 0 to 65,535, with the colours of a palette.

    Raises:
        RuntimeMissingError: if tifffile is not installed.
        ValueError: if the file is damaged, or has other pixels than 1 to 4 channels of unsigned
            integers of 1, 8 or 16 bits.
    """
    with _first_page(io.BytesIO(content)) as page:
        _check_size(page, len(content))
        pixels = _channels_last(page.asarray(), page)
        colors = None if raw else page.colormap
        inverted = not raw and page.photometric == 0  # the lowest number is white
    if pixels.dtype not in (np.bool_, np.uint8, np.uint16):
        raise ValueError(f"The {OTHER_PIXELS}: {pixels.dtype}.")
    if colors is not None:
        return np.ascontiguousarray(np.moveaxis(colors[:, pixels[..., 0]], 0, -1), np.uint16)
    if pixels.shape[-1] > MOST_CHANNELS:
        raise ValueError(f"It has {OTHER_CHANNELS}.")
    factor = 1 if raw else {1: 65535, 8: 257, 16: 1}[_bits(pixels.dtype)]
    values = pixels.astype(np.uint16) * np.uint16(factor)
    return np.uint16(65535) - values if inverted else values


def read_size(path: str) -> tuple[int, int, int]:
    """Returns height, width and bits per number of a file's first page; reads no pixels.

    Raises:
        RuntimeMissingError: if tifffile is not installed.
        ValueError: if the file is damaged.
    """
    with _first_page(path) as page:
        return int(page.imagelength), int(page.imagewidth), int(page.bitspersample)


@contextmanager
def _first_page(source: Any) -> Iterator[Any]:
    """Yields the first page of a file; errors with it, of many classes, become ValueErrors."""
    tifffile = require_tifffile()
    try:
        with tifffile.TiffFile(source) as file:
            yield file.pages[0]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(str(error)) from error


def _check_size(page: Any, size: int) -> None:
    """Refuses a page that is larger than the file's bytes can hold, before memory is taken for it.

    Args:
        page: The page.
        size: Bytes of the file.

    Raises:
        ValueError: if it is.
    """
    ratio = 1 if page.compression == 1 else MOST_RATIO  # 1: not compressed
    values = max(math.prod(page.shape), math.prod(page.chunks))
    if values * page.bitspersample > 8 * size * ratio:
        raise ValueError("The page is larger than its data.")


def _bits(dtype: np.dtype[Any]) -> int:
    return 1 if dtype == np.bool_ else 8 * dtype.itemsize


def _channels_last(pixels: np.ndarray, page: Any) -> np.ndarray:
    if pixels.ndim == 3 and page.axes.startswith("S"):  # a plane for each channel
        pixels = np.moveaxis(pixels, 0, -1)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3:
        raise ValueError("The page is no image.")
    return pixels


# Headers ------------------------------------------------------------------------------------------

FIRST_BYTES = 32
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers with the size
EIGHT_BITS = (".jpg", ".jpeg", ".gif", ".bmp")  # suffixes of files that never have 16
CHUNK = 256  # files that a thread reads at a time


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image tell.

    Args:
        height: Height in pixels.
        width: Width in pixels.
        bits: Bits of each number: 8 or fewer, or 16.
    """

    height: int
    width: int
    bits: int


def read_header(path: str) -> Header | None:
    """Returns an image's size and depth, or None if its first bytes do not tell them.

    A file that cannot be read or is damaged gives None: its decoder names what is wrong.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(FIRST_BYTES)
            if start[:4] in MAGICS:
                return Header(*read_size(path))
            return _read_jpeg(file) if start[:2] == b"\xff\xd8" else _parse(start)
    except (OSError, ValueError, IndexError, struct.error):
        return None


def read_headers(paths: Sequence[str]) -> list[Header | None]:
    """Returns the header of each file, read by several threads."""
    parts = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    read = map_ahead(lambda part: [read_header(path) for path in part], parts, count_workers())
    return [header for part in read for header in part]


def has_deep(paths: Sequence[str]) -> bool:
    """Whether one of some files has 16 bits for each number."""
    unsure = [path for path in paths if not path.lower().endswith(EIGHT_BITS)]
    return any(header is not None and header.bits > 8 for header in read_headers(unsure))


def _parse(start: bytes) -> Header | None:
    if start.startswith(SIGNATURE):
        width, height, bits = struct.unpack(">IIB", start[16:25])
        return Header(height, width, bits)
    if start.startswith(b"GIF8"):
        width, height = struct.unpack("<HH", start[6:10])
        return Header(height, width, 8)
    if start.startswith(b"BM"):
        width, height = struct.unpack("<ii", start[18:26])
        return Header(abs(height), width, 8)  # rows from the top have a negative height
    return None


def _read_jpeg(file: BinaryIO) -> Header | None:
    file.seek(2)
    while True:
        mark, kind = struct.unpack(">BB", file.read(2))
        while kind == 0xFF:  # padding
            kind = file.read(1)[0]
        if mark != 0xFF or kind == 0xDA:  # the pixels begin
            return None
        if kind == 0x01 or 0xD0 <= kind <= 0xD9:  # without a body
            continue
        (length,) = struct.unpack(">H", file.read(2))
        if kind in JPEG_FRAMES:
            bits, height, width = struct.unpack(">BHH", file.read(5))
            return Header(height, width, bits)
        file.seek(length - 2, 1)
