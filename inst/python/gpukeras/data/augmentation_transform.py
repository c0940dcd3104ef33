"""Casts, crops and augments the rows of a block on the device.

    build_device_transform(recipe, spec, training, batch_size)
        --> device_transform(arrays, (epoch, block)) --> arrays

Evaluation casts, scales and crops at the centre; it never augments.

Flip, brightness and contrast use Keras' layers RandomFlip, RandomBrightness and RandomContrast.
RandomFlip in both directions flips an image both ways or not at all, so two layers are used, one
for each direction. RandomContrast with one number only strengthens contrast, so it gets both
bounds.

Crop, flip, rotation, zoom and translation together are one resampling (`augmentation_geometry`).
Keras' layers would resample once each, which on a CPU costs 3 to 4 ms for an image of 224 x 224
and blurs it once more. Keras' RandomCrop also crops all images of a call at the same place; here
each image is cropped at a different place. On TensorFlow, XLA compiles none of this.

Masks are resampled by the numbers of their images, each pixel from the nearest one. Of several
inputs the images are taken out of the row, and put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.data.augmentation import (
    FLIPS,
    AugmentSpec,
    choose_value_range,
    draw_numbers,
    draws_moves,
    image_encoding,
)
from gpukeras.data.preprocessing.recipe import (
    ImageEncoding,
    PixelEncoding,
    Recipe,
)
from gpukeras.data.stage_timer import end_stage

Arrays = tuple[Any, ...]
DeviceTransform = Callable[..., Arrays]  # (arrays, (epoch, block)) to arrays


def build_device_transform(
    recipe: Recipe, spec: AugmentSpec | None, training: bool, batch_size: int
) -> DeviceTransform | None:
    """Builds the function that prepares a block's rows for the model, on the rows' device.

    Args:
        recipe: The rows' recipe, from `choose_augmented()` if rows are augmented.
        spec: The options of augmentation, or None.
        training: Whether rows are augmented; otherwise they are cast, scaled and cropped at the
            centre, and the classes of a recipe with mixup become one-hot columns all the same.
        batch_size: Rows per batch; mixup mixes only rows of the same batch.

    Returns:
        `device_transform(arrays, (epoch, block)) -> arrays` for blocks of full batches or one
        shorter batch; None if there is nothing to do.
    """
    if training and spec is not None and (spec.moves or spec.mixup):
        return _Varying(recipe, spec, batch_size)
    image = image_encoding(recipe)
    cropped = isinstance(image, PixelEncoding) and image.crop is not None
    if isinstance(image, ImageEncoding) or cropped or recipe.mixes_classes:
        return _DeviceTransform(recipe)
    return None


class _DeviceTransform:
    """Cast, scaling and centre crop of a block; one graph for each block shape."""

    stage = "cast"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._image = recipe, image_encoding(recipe)
        self._program = tensor_ops.traced(self._run)

    def __call__(self, arrays: Arrays, key: tuple[int, int] = (0, 0)) -> Arrays:
        with tensor_ops.device_scope(tensor_ops.place_of(arrays[0])):
            arrays = self._program(tuple(arrays), self._draw(len(arrays[0]), key))
        end_stage(self.stage, arrays)
        return arrays

    def _draw(self, rows: int, key: tuple[int, int]) -> dict[str, np.ndarray]:
        return {}

    def _run(self, arrays: Arrays, draws: dict[str, Any]) -> Arrays:
        rows, *others = arrays
        label = self._recipe.label
        if others and label is not None and label.pixels:
            masks = runtime.keras().ops.cast(others[0], "float32")[..., None]
            others[0] = self._crop(masks, draws, smooth=False)[..., 0]
        if self._recipe.features.images is None:
            return (self._vary(rows, draws), *self._spread(others))
        return (self._vary_input(rows, draws), *self._spread(others))

    def _vary_input(self, rows: Any, draws: dict[str, Any]) -> Any:
        """Returns the rows of several inputs with varied images."""
        ops, start = runtime.keras().ops, 0
        for part in self._recipe.features.inputs:
            if part is self._recipe.features.images:
                break
            start += math.prod(part.encoding.staged_shape)
        stop = start + math.prod(self._image.staged_shape)
        images = ops.reshape(rows[:, start:stop], (-1, *self._image.staged_shape))
        flat = ops.reshape(self._vary(images, draws), (-1, math.prod(self._image.shape)))
        return ops.concatenate([rows[:, :start], flat, rows[:, stop:]], axis=1)

    def _vary(self, rows: Any, draws: dict[str, Any]) -> Any:
        if isinstance(self._image, ImageEncoding):  # first, as few operations take bytes on a GPU
            rows = runtime.keras().ops.cast(rows, "float32")
        return self._scale(self._crop(rows, draws))

    def _crop(self, rows: Any, draws: dict[str, Any], smooth: bool = True) -> Any:
        if not isinstance(self._image, PixelEncoding) or self._image.crop is None:
            return rows
        (high, wide), (height, width) = self._image.row_shape[:2], self._image.crop
        top, left = (high - height) // 2, (wide - width) // 2
        return rows[:, top : top + height, left : left + width]

    def _scale(self, rows: Any) -> Any:
        image = self._image  # arrays are scaled when they are staged
        if not isinstance(image, ImageEncoding) or image.scale is None:
            return rows
        return rows / np.array(image.scale, np.float32)

    def _spread(self, others: list[Any]) -> list[Any]:
        """Returns labels and weights; classes as one-hot columns if training mixes them."""
        label = self._recipe.label
        if label is None or not self._recipe.mixes_classes or not others:
            return others
        one_hot = runtime.keras().ops.one_hot
        return [one_hot(others[0], label.units, dtype="float32"), *others[1:]]


class _Varying(_DeviceTransform):
    """Cast, scaling and augmentation of each row, in one graph and so one stage."""

    stage = "augment"

    def __init__(self, recipe: Recipe, spec: AugmentSpec, batch_size: int) -> None:
        super().__init__(recipe)
        self._spec, self._batch_size = spec, batch_size
        flips = () if draws_moves(spec, recipe) else FLIPS[spec.flip]
        self._layers = _build_layers(spec, flips, choose_value_range(recipe, spec))

    def _draw(self, rows: int, key: tuple[int, int]) -> dict[str, np.ndarray]:
        return draw_numbers(self._spec, self._recipe, rows, self._batch_size, key)

    def _run(self, arrays: Arrays, draws: dict[str, Any]) -> Arrays:
        arrays = super()._run(arrays, draws)
        if "share" not in draws:
            return arrays
        return tuple(_mix(array, draws["share"], draws["partner"]) for array in arrays)

    def _vary(self, rows: Any, draws: dict[str, Any]) -> Any:
        rows = super()._vary(rows, draws)
        for number, layer in enumerate(self._layers):
            rows = _run_seeded(layer, draws["seeds"][number], rows)
        return rows

    def _crop(self, rows: Any, draws: dict[str, Any], smooth: bool = True) -> Any:
        """Crops and moves each image by its random numbers; whole pixels change no value."""
        if "moves" not in draws:
            return super()._crop(rows, draws)
        size = (self._image.shape[0], self._image.shape[1])
        smooth = smooth and not self._spec.keeps_values
        return tensor_ops.resample(rows, draws["moves"], size, smooth)


def _build_layers(
    spec: AugmentSpec, flips: tuple[str, ...], value_range: tuple[float, float]
) -> list[Any]:
    """Builds Keras' layers in float32 in any session, as half precision has only 11 bits."""
    layers = runtime.keras().layers
    common = {"dtype": "float32", "data_format": "channels_last", "seed": spec.seed}
    made = [layers.RandomFlip(way, **common) for way in flips]
    if spec.brightness:
        made.append(layers.RandomBrightness(spec.brightness, value_range=value_range, **common))
    if spec.contrast:
        bounds = (spec.contrast, spec.contrast)
        made.append(layers.RandomContrast(bounds, value_range=value_range, **common))
    return made


def _run_seeded(layer: Any, seed: Any, rows: Any) -> Any:
    keras, state = runtime.keras(), layer.generator.state
    start = keras.ops.cast(keras.ops.stack([seed, 0]), state.dtype)
    with keras.StatelessScope(state_mapping=[(state, start)]):
        return layer(rows, training=True)


def _mix(values: Any, share: Any, partner: Any) -> Any:
    ops = runtime.keras().ops
    share = ops.reshape(share, [-1] + [1] * (len(values.shape) - 1))
    return share * values + (1.0 - share) * ops.take(values, partner, axis=0)
