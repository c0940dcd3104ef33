"""Builds the transform of a block's rows on the device, before the model takes them.

It augments images, applies the user's `map` function and splits rows into several inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.data.augmentation_transform import build_device_transform
from gpukeras.data.base import Dataset
from gpukeras.data.loading.block import DeviceTransform, as_floats
from gpukeras.data.loading.unpacking import build_unpack
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.stage_timer import end_stage

Map = Callable[[Any], Any]
Texts = Mapping[str, Sequence[str]]
NO_TEXTS: Texts = MappingProxyType({})


def open_device_transform(
    recipe: Recipe, rows: int, function: Map | None = None, texts: Texts = NO_TEXTS
) -> Map:
    """Builds the function that prepares encoded features for prediction, `rows` at a time.

    Args:
        recipe: The features' encoding.
        rows: Rows per batch.
        function: The user's `map` function, or None.
        texts: The texts that codes stand for, see `RowSource`.
    """
    device_transform = _compose(
        build_device_transform(recipe, None, False, rows), function, recipe, texts
    )

    def complete(features: np.ndarray) -> Any:
        if device_transform is None:
            return features if features.dtype.kind == "f" else features.astype(np.float32)
        return device_transform((runtime.keras().ops.convert_to_tensor(features),), (0, 0))[0]

    return complete


def device_transform_for(data: Dataset, training: bool, batch_size: int) -> DeviceTransform | None:
    """Builds the device transform of a dataset's blocks; None if there is nothing to do.

    Args:
        data: The dataset.
        training: Whether rows are augmented.
        batch_size: Rows per batch on one device.
    """
    varied = build_device_transform(data.recipe, data.augment, training, batch_size)
    texts = data.sources[0].texts if data.sources else NO_TEXTS
    return _compose(varied, data.map, data.recipe, texts)


def _compose(
    device_transform: DeviceTransform | None, function: Map | None, recipe: Recipe, texts: Texts
) -> DeviceTransform | None:
    """Composes augmentation, the user's `map` function and the split into inputs and outputs.

    The function takes the features that the model would take without it. The split comes last, as
    the steps before it work on whole rows.
    """
    unpack = build_unpack(recipe, texts)
    if function is None and unpack is None:
        return device_transform

    def both(arrays: tuple[Any, ...], key: tuple[int, int]) -> tuple[Any, ...]:
        features, *others = as_floats(
            arrays if device_transform is None else device_transform(arrays, key)
        )
        if function is not None:
            features = function(features)
            end_stage("map", (features,))
        arrays = (features, *others)
        return arrays if unpack is None else unpack(arrays)

    return both
