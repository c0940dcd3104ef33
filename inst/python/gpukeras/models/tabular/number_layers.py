"""Layers that embed numbers: linear, piecewise linear and periodic.

The matrices after the encodings are `keras.layers.EinsumDense`, one for each number.

References:
    Gorishniy, Y., Rubachev, I. & Babenko, A. (2022). On embeddings for numerical features in
    tabular deep learning. arXiv:2203.05556; and its package rtdl_num_embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.custom_layers import LayerBody


class NumberTokens(LayerBody):
    """Makes a vector of each number: the number times a learned vector, plus a learned vector.

    Args:
        size: Numbers per vector.
        seed: Seed of both: uniform in +-1 / sqrt(size), as in rtdl_revisiting_models.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("size", "seed")

    def __init__(self, size: int, seed: int = 0, **kwargs: Any) -> None:
        """Stores the arguments."""
        super().__init__(**kwargs)
        self.size, self.seed = size, seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes the vectors, (numbers, size)."""
        shape, limit = (input_shape[-1], self.size), self.size**-0.5
        uniform = runtime.keras().initializers.RandomUniform
        self.kernel, self.bias = (
            self.add_weight(
                shape=shape, initializer=uniform(-limit, limit, self.seed + place), name=name
            )
            for place, name in enumerate(("kernel", "bias"))
        )

    def call(self, inputs: Any) -> Any:
        """Returns (rows, numbers, size) for (rows, numbers)."""
        return inputs[..., None] * self.kernel + self.bias

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape with `size` as its last axis."""
        return (*input_shape, self.size)


class PiecewiseLinearEncoding(LayerBody):
    """Encodes a number by its place among the edges of bins (section 3.2, equation 1).

    Bins below the number are 1, those above it 0, and its own has its share of the way. Below the
    first and above the last edge the share goes on. The last bin of each number is the last place;
    numbers with fewer bins have zeros before it. Shares are computed in float32.

    Args:
        edges: Increasing edges of each number's bins, at least two each.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("edges",)

    def __init__(self, edges: Sequence[Sequence[float]], **kwargs: Any) -> None:
        """Stores the arguments."""
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.edges = [list(each) for each in edges]
        self._kernel, self._bias, self._low, self._high = encode_edges(self.edges)

    def call(self, inputs: Any) -> Any:
        """Returns (rows, numbers, bins) for (rows, numbers)."""
        ops = runtime.keras().ops
        shares = inputs[..., None] * self._kernel + self._bias
        return ops.minimum(ops.maximum(shares, self._low), self._high)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape with the bins as its last axis."""
        return (*input_shape, self._kernel.shape[1])


def encode_edges(edges: Sequence[Sequence[float]]) -> tuple[np.ndarray, ...]:
    """Returns what makes a number's shares: factor, summand, lower and upper bound.

    Args:
        edges: Increasing edges of each number's bins.

    Returns:
        Four arrays (numbers, most bins), float32.
    """
    most = max(len(each) for each in edges) - 1
    kernel, bias = (np.zeros((len(edges), most), np.float64) for _ in range(2))
    low, high = np.zeros((len(edges), most)), np.ones((len(edges), most))
    for place, each in enumerate(edges):
        left, width = np.array(each)[:-1], np.diff(each)
        own = [*range(len(width) - 1), most - 1]  # the last bin is the last place
        kernel[place, own], bias[place, own] = 1 / width, -left / width
        low[place, own[0]], high[place, -1] = -np.inf, np.inf
    return tuple(array.astype(np.float32) for array in (kernel, bias, low, high))


class PeriodicEncoding(LayerBody):
    """Encodes a number by cosines and sines with learned frequencies (section 3.3).

    Args:
        frequencies: Frequencies of each number.
        scale: Standard deviation of the first frequencies, cut at two of it.
        seed: Seed of these.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("frequencies", "scale", "seed")

    def __init__(
        self, frequencies: int = 48, scale: float = 0.01, seed: int = 0, **kwargs: Any
    ) -> None:
        """Stores the arguments; the defaults are rtdl_num_embeddings'."""
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.frequencies = frequencies
        self.scale = scale
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes the frequencies, (numbers, frequencies)."""
        draw = runtime.keras().random.truncated_normal
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.frequencies),
            # Keras cuts at two deviations, rtdl_num_embeddings at three: 4 % of the values differ.
            initializer=lambda shape, dtype: draw(shape, 0.0, self.scale, dtype, self.seed),
            name="frequencies",
        )

    def call(self, inputs: Any) -> Any:
        """Returns (rows, numbers, 2 * frequencies): the cosines, then the sines."""
        ops = runtime.keras().ops
        angle = 2 * math.pi * self.kernel * inputs[..., None]
        return ops.concatenate([ops.cos(angle), ops.sin(angle)], axis=-1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape with cosines and sines as its last axis."""
        return (*input_shape, 2 * self.frequencies)


LAYERS = (NumberTokens, PiecewiseLinearEncoding, PeriodicEncoding)
