"""Reads TIFF files, which TensorFlow cannot decode, by the package tifffile."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpukeras.core.errors import RuntimeMissingError
from gpukeras.system import pip

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
