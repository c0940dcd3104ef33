"""Reads an image's size and depth from the first bytes of its file, without decoding it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from gpukeras.core.prefetch import count_workers, map_ahead
from gpukeras.data.sources.image import tiff
from gpukeras.data.sources.image.png import SIGNATURE

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
            if start[:4] in tiff.MAGICS:
                return Header(*tiff.read_size(path))
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
