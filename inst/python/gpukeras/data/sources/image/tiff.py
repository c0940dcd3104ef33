"""Reads TIFF files, which TensorFlow cannot decode, by the package tifffile."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from gpukeras.core.errors import RuntimeMissingError

SUFFIXES = (".tif", ".tiff")
MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two are BigTIFF
MOST_CHANNELS = 4
OTHER_PIXELS = "pixels are not unsigned"  # part of the messages of `read_tiff()`
OTHER_CHANNELS = "more than four channels"


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
            hint="Install it: pip install tifffile imagecodecs (the latter for compressed files).",
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
    tifffile = require_tifffile()
    try:
        with tifffile.TiffFile(io.BytesIO(content)) as file:
            page = file.pages[0]
            pixels = _channels_last(page.asarray(), page)
            colors = None if raw else page.colormap
            inverted = not raw and page.photometric == tifffile.PHOTOMETRIC.MINISWHITE
    except Exception as error:  # of many classes, where the file is damaged
        raise ValueError(str(error)) from error
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
    """Returns height, width and bits per number of a file's first page; reads no pixels."""
    with require_tifffile().TiffFile(path) as file:
        page = file.pages[0]
        return int(page.imagelength), int(page.imagewidth), int(page.bitspersample)


def _bits(dtype: np.dtype[Any]) -> int:
    return 1 if dtype == np.bool_ else 8 * dtype.itemsize


def _channels_last(pixels: np.ndarray, page: Any) -> np.ndarray:
    if pixels.ndim == 3 and page.axes.startswith("S"):  # a plane for each channel
        pixels = np.moveaxis(pixels, 0, -1)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3:
        raise ValueError("The page is no image.")
    return pixels
