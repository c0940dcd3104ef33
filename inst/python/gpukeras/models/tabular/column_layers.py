"""Layers that take numbers and factors out of a row.

They compute in float32 under mixed precision too: bfloat16 has 8 bits for a level's code, and a
number not yet scaled may be large.

References:
    Holzmüller, D., Grinsztajn, L. & Steinwart, I. (2024). Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data. arXiv:2407.04491, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.custom_layers import LayerBody


class TableNumbers(LayerBody):
    """Takes the numbers out of a row and scales them; float32 (rows, numbers).

    Args:
        places: Places of the numbers in a row.
        centers: Subtracted, one for each place.
        scales: Divides, one for each place.
        clip: The bound that scaled numbers approach: z becomes z / sqrt(1 + (z / clip)^2), "smooth
            clipping" of arXiv:2407.04491. None for none, as in files of earlier versions.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("places", "centers", "scales", "clip")

    def __init__(
        self,
        places: Sequence[int],
        centers: Sequence[float],
        scales: Sequence[float],
        clip: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Stores the arguments."""
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.places = list(places)
        self.centers = list(centers)
        self.scales = list(scales)
        self.clip = clip

    def call(self, inputs: Any) -> Any:
        """Returns the scaled numbers."""
        ops = runtime.keras().ops
        columns = ops.take(inputs, np.array(self.places, np.int32), axis=-1)
        centers, scales = (np.array(numbers, np.float32) for numbers in (self.centers, self.scales))
        columns = (columns - centers) / scales
        if self.clip is None:
            return columns
        return columns * ops.rsqrt(1 + ops.square(columns / self.clip))

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns (rows, numbers)."""
        return (*input_shape[:-1], len(self.places))


class FactorCodes(LayerBody):
    """Takes factors out of a row as codes of one table of all their levels; int32 (rows, factors).

    The first factor has the codes from 0, and one more than it has levels; the next factor follows.
    That last code is of levels that the training data did not have: of a row with zeros only, or
    of a code outside the levels.

    Args:
        starts: Each factor's first place in a row.
        levels: The number of its levels.
        onehot: Whether it has a 0/1 place for each level; otherwise one place, with its code.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("starts", "levels", "onehot")

    def __init__(
        self, starts: Sequence[int], levels: Sequence[int], onehot: Sequence[bool], **kwargs: Any
    ) -> None:
        """Stores the arguments."""
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.starts = list(starts)
        self.levels = list(levels)
        self.onehot = list(onehot)

    @property
    def unknown(self) -> np.ndarray:
        """The code of each factor's unknown levels (int32)."""
        return (np.cumsum(np.array(self.levels) + 1) - 1).astype(np.int32)

    def call(self, inputs: Any) -> Any:
        """Returns the codes."""
        ops = runtime.keras().ops
        codes = ops.cast(ops.take(inputs, np.array(self.starts, np.int32), axis=-1), "int32")
        if any(self.onehot):
            columns = [self._read(inputs, codes, place) for place in range(len(self.starts))]
            codes = ops.stack(columns, axis=-1)
        levels = np.array(self.levels, np.int32)
        known = ops.logical_and(codes >= 0, codes < levels)
        # The bounds change nothing, and show that each code has its row.
        places = ops.maximum(ops.minimum(ops.where(known, codes, levels), levels), 0)
        return places + (self.unknown - levels)

    def _read(self, inputs: Any, codes: Any, place: int) -> Any:
        """Returns a factor's codes from 0, -1 for unknown levels."""
        if not self.onehot[place]:
            return codes[:, place]
        ops, start = runtime.keras().ops, self.starts[place]
        block = inputs[:, start : start + self.levels[place]]
        code = ops.cast(ops.argmax(block, axis=-1), "int32")
        return ops.where(ops.max(block, axis=-1) > 0, code, -1)

    def compute_output_spec(self, inputs: Any, **_: Any) -> Any:
        """Returns the shape (rows, factors) and the dtype int32."""
        shape = (inputs.shape[0], len(self.starts))
        return runtime.keras().KerasTensor(shape, dtype="int32")


class LevelTable(LayerBody):
    """An initializer of the table of `FactorCodes`: unknown levels have zeros.

    Args:
        limit: Other rows are uniform in +-limit.
        unknown: The rows of unknown levels.
        seed: Of the numbers.
    """

    PARENT = "Initializer"
    FIELDS = ("limit", "unknown", "seed")

    def __init__(self, limit: float, unknown: Sequence[int], seed: int) -> None:
        """Stores the arguments."""
        self.limit = limit
        self.unknown = list(unknown)
        self.seed = seed

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Returns the first values of a table."""
        uniform = runtime.keras().initializers.RandomUniform(-self.limit, self.limit, self.seed)
        table = uniform(shape, dtype)
        known = ~np.isin(np.arange(shape[0]), self.unknown)
        return table * runtime.keras().ops.cast(known[:, None], table.dtype)


class ClassToken(LayerBody):
    """Puts a learned token before the tokens of a row, as the transformer's output is read from it.

    Args:
        seed: Seed of the token: uniform in +-1 / sqrt(its size), as in rtdl_revisiting_models.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("seed",)

    def __init__(self, seed: int = 0, **kwargs: Any) -> None:
        """Stores the arguments."""
        super().__init__(**kwargs)
        self.seed = seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes the token, (1, 1, size)."""
        size = input_shape[-1]
        limit = size**-0.5
        uniform = runtime.keras().initializers.RandomUniform(-limit, limit, self.seed)
        self.token = self.add_weight(shape=(1, 1, size), initializer=uniform, name="token")

    def call(self, inputs: Any) -> Any:
        """Returns (rows, tokens + 1, size) for (rows, tokens, size)."""
        ops = runtime.keras().ops
        first = ops.zeros_like(inputs[:, :1]) + ops.cast(self.token, inputs.dtype)
        return ops.concatenate([first, inputs], axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape with one more token."""
        return (input_shape[0], input_shape[1] + 1, input_shape[2])


CLASSES = (TableNumbers, FactorCodes, LevelTable, ClassToken)
