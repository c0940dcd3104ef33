"""Where each pixel of a moved image comes from, as 3 x 3 matrices, one a row; NumPy only.

A matrix takes (column, row, 1) of the new image to that of the old one, as TensorFlow's
`ImageProjectiveTransformV3`; turns and zooms are about the image's centre, as Keras has them.
Moves that follow each other multiply from left to right, so that one resampling does them all.
"""

from __future__ import annotations

import numpy as np


def shift(right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Takes pixels from further right and down, in pixels; one number a row."""
    matrices = np.tile(np.eye(3), (len(right), 1, 1))
    matrices[:, 0, 2], matrices[:, 1, 2] = right, down
    return matrices


def flip(across: np.ndarray, over: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Swaps left and right where `across`, top and bottom where `over`.

    Args:
        across: Booleans, one a row.
        over: Booleans, one a row.
        size: Height and width.
    """
    matrices = np.tile(np.eye(3), (len(across), 1, 1))
    for axis, (flipped, length) in enumerate(((across, size[1]), (over, size[0]))):
        matrices[flipped, axis, axis], matrices[flipped, axis, 2] = -1.0, length - 1.0
    return matrices


def rotate(turns: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Turns about the centre by shares of a full turn, anticlockwise if positive."""
    sine, cosine = np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)
    matrices = np.tile(np.eye(3), (len(turns), 1, 1))
    matrices[:, 0, 0], matrices[:, 0, 1] = cosine, -sine
    matrices[:, 1, 0], matrices[:, 1, 1] = sine, cosine
    return _about_centre(matrices, size)


def zoom(factors: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Shows `factors` times as much of the image: below 1 it grows."""
    matrices = np.tile(np.eye(3), (len(factors), 1, 1))
    matrices[:, 0, 0] = matrices[:, 1, 1] = factors
    return _about_centre(matrices, size)


def flatten(matrices: np.ndarray) -> np.ndarray:
    """The eight numbers a row that TensorFlow takes, float32."""
    return matrices.reshape(-1, 9)[:, :8].astype(np.float32)


def _about_centre(matrices: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    centre = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    matrices[:, :2, 2] = centre - matrices[:, :2, :2] @ centre
    return matrices
