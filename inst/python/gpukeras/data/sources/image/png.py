"""Reads the class numbers of PNG masks, whose palette a decoder would turn into colours."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

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
