"""Builds the 3 x 3 matrices that map an image to its source, one per row, with NumPy only.

A matrix maps (column, row, 1) of the new image to that of the old image, as in TensorFlow's
`ImageProjectiveTransformV3`. Rotation and zoom are about the image's centre, as in Keras.
Successive transforms multiply from left to right, so that one resampling applies them all.
"""

from __future__ import annotations

import numpy as np


def shift(right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Returns matrices that read from further right and down, in pixels; one number per row."""
    matrices = np.tile(np.eye(3), (len(right), 1, 1))
    matrices[:, 0, 2], matrices[:, 1, 2] = right, down
    return matrices


def flip(across: np.ndarray, over: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns matrices that swap left and right where `across`, top and bottom where `over`.

    Args:
        across: Booleans, one per row.
        over: Booleans, one per row.
        size: Height and width.
    """
    matrices = np.tile(np.eye(3), (len(across), 1, 1))
    for axis, (flipped, length) in enumerate(((across, size[1]), (over, size[0]))):
        matrices[flipped, axis, axis], matrices[flipped, axis, 2] = -1.0, length - 1.0
    return matrices


def rotate(turns: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns rotations about the centre by shares of a full turn, anticlockwise if positive."""
    sine, cosine = np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)
    matrices = np.tile(np.eye(3), (len(turns), 1, 1))
    matrices[:, 0, 0], matrices[:, 0, 1] = cosine, -sine
    matrices[:, 1, 0], matrices[:, 1, 1] = sine, cosine
    return _about_centre(matrices, size)


def zoom(factors: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns zooms that show `factors` times as much of the image; below 1, it grows."""
    matrices = np.tile(np.eye(3), (len(factors), 1, 1))
    matrices[:, 0, 0] = matrices[:, 1, 1] = factors
    return _about_centre(matrices, size)


def flatten(matrices: np.ndarray) -> np.ndarray:
    """Returns the eight float32 numbers per row that TensorFlow takes."""
    return matrices.reshape(-1, 9)[:, :8].astype(np.float32)


def _about_centre(matrices: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    centre = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    matrices[:, :2, 2] = centre - matrices[:, :2, :2] @ centre
    return matrices
