"""Reads what TensorFlow's decoder does not tell or cannot read: sizes of images, palettes, TIFF."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gpukeras.core.errors import RuntimeMissingError
from gpukeras.core.prefetch import count_workers, map_ahead
from gpukeras.system import pip

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

SUFFIXES = (".tif", ".tiff")
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
