"""Resamples images on JAX as TensorFlow's `ImageProjectiveTransformV3` does."""

from __future__ import annotations

from typing import Any

from gpukeras.backend.jax_module import jax


def resample(images: Any, moves: Any, size: tuple[int, int], smooth: bool) -> Any:
    """Returns images whose pixels are read from elsewhere; see `tensor_ops.resample()`."""
    numpy, (height, width) = jax().numpy, size
    right = numpy.arange(width, dtype="float32")[None, None, :]
    down = numpy.arange(height, dtype="float32")[None, :, None]
    a, b, c, d, e, f, g, h = numpy.moveaxis(moves, 1, 0)[:, :, None, None]
    depth = g * right + h * down + 1.0
    column = _reflect((a * right + b * down + c) / depth, images.shape[2])
    row = _reflect((d * right + e * down + f) / depth, images.shape[1])
    if not smooth:
        return _read(images, numpy.round(row), numpy.round(column))
    top, left = numpy.floor(row), numpy.floor(column)
    low, far = (row - top)[..., None], (column - left)[..., None]
    above = _read(images, top, left) * (1 - far) + _read(images, top, left + 1) * far
    below = _read(images, top + 1, left) * (1 - far) + _read(images, top + 1, left + 1) * far
    return above * (1 - low) + below * low


def _reflect(place: Any, length: int) -> Any:
    """Returns places within an axis; those beyond are mirrored at the outer side of its ends."""
    numpy = jax().numpy
    around = numpy.mod(place, 2.0 * length)
    mirrored = numpy.where(around > length - 0.5, 2.0 * length - 1.0 - around, around)
    return numpy.clip(mirrored, 0.0, length - 1.0)


def _read(images: Any, row: Any, column: Any) -> Any:
    numpy = jax().numpy
    row = numpy.clip(row, 0, images.shape[1] - 1).astype("int32")
    column = numpy.clip(column, 0, images.shape[2] - 1).astype("int32")
    return images[numpy.arange(images.shape[0])[:, None, None], row, column]
