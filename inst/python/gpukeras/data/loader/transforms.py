"""Transforms a block's rows on the device, before the model takes them.

It casts, crops and augments images, applies the user's `map` function, and splits rows into several
inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.core.options import describe, refused_value
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.augmentation import (
    FLIPS,
    AugmentSpec,
    choose_value_range,
    draw_numbers,
    draws_moves,
)
from gpukeras.data.recipe.multi_output import each_place, each_weight_place
from gpukeras.data.recipe.recipe import ImageEncoding, Part, PixelEncoding, Recipe
from gpukeras.data.recipe.targets import SEVERAL, LabelRule
from gpukeras.data.stage_timer import end_stage

# Any block ---------------------------------------------------------------------------------------

# Transforms a block's rows on the device; the key of its random numbers is (epoch, block).
DeviceTransform = Callable[[tuple[Any, ...], tuple[int, int]], tuple[Any, ...]]


def as_data(arrays: tuple[Any, ...], wrapped: bool = False) -> Any:
    """Returns the `data` of Keras' train step: features alone are not a tuple, but `x` itself.

    Args:
        arrays: Features, labels and weights, without those that do not exist.
        wrapped: Whether features came as `(x,)` from a pipeline or a function; Keras keeps that.
    """
    return arrays if len(arrays) > 1 or wrapped else arrays[0]


def as_floats(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Casts features that are not floats, such as bytes and integers, to float32.

    Several inputs, which were split from float features, and texts are not cast.
    """
    features, *others = arrays
    keras = runtime.keras()
    if isinstance(features, (dict, list)):
        return arrays
    dtype = keras.backend.standardize_dtype(features.dtype)
    if dtype != "string" and "float" not in dtype:
        features = keras.ops.cast(features, "float32")
        end_stage("cast", (features,))
    return (features, *others)


# Images -------------------------------------------------------------------------------------------

Arrays = tuple[Any, ...]


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
    image = recipe.image
    cropped = isinstance(image, PixelEncoding) and image.crop is not None
    if isinstance(image, ImageEncoding) or cropped or recipe.mixes_classes:
        return _DeviceTransform(recipe)
    return None


class _DeviceTransform:
    """Cast, scaling and centre crop of a block; one graph for each block shape."""

    stage = "cast"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._image = recipe, recipe.image
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


# Inputs and outputs -------------------------------------------------------------------------------

Unpack = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def build_unpack(
    recipe: Recipe, texts: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Unpack | None:
    """Builds the function that splits a block's rows into inputs and outputs.

    Args:
        recipe: The rows' encoding.
        texts: The texts that codes stand for, see `RowSource`.

    Returns:
        `unpack((features, labels, weights)) -> arrays`: features become a dict of tensors by input
        name, labels a dict by output name, and so weights if outputs have their own; lists if they
        were given without names. None for one input and one output, which take rows as they are.
    """
    parts, label = recipe.parts, recipe.label
    several = label is not None and label.kind == SEVERAL
    if not parts and not several and not texts:
        return None
    spell = _build_spell(texts)

    def unpack(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        features, *others = arrays
        if parts:
            features = _unpack_features(parts, features)
        features = spell(features)
        if recipe.features.listed:
            features = list(features.values())
        if others and label is not None and several:
            unpacked = [_unpack_labels(label, others[0])]
            if label.weighed and len(others) > 1:
                unpacked.append(_unpack_weights(label, others[1]))
            named = [list(part.values()) if label.listed else part for part in unpacked]
            others = [*named, *others[len(named) :]]
        arrays = (features, *others)
        end_stage("unpack", arrays)
        return arrays

    return unpack


def _build_spell(texts: Mapping[str, Sequence[str]]) -> Callable[[Any], Any]:
    """Builds the function that replaces codes by their texts, in host memory."""
    if not texts:
        return lambda features: features
    tf = runtime.tensorflow()
    with runtime.on_device("CPU:0", soft=True):
        tables = {name: tf.constant(list(own), tf.string) for name, own in texts.items()}

    def spell(features: Any) -> Any:
        with tf.device("/CPU:0"):
            if "" in tables:
                return tf.gather(tables[""], tf.cast(features, tf.int32))
            spelled = {
                name: tf.gather(table, tf.cast(features[name], tf.int32))
                for name, table in tables.items()
            }
        return {**features, **spelled}

    return spell


def _unpack_features(parts: tuple[Part, ...], features: Any) -> dict[str, Any]:
    reshape = runtime.keras().ops.reshape
    return {part.name: reshape(features[:, part.columns], (-1, *part.shape)) for part in parts}


def _unpack_labels(label: LabelRule, labels: Any) -> dict[str, Any]:
    ops, parts = runtime.keras().ops, {}
    for output, columns in each_place(label):
        values = ops.reshape(labels[:, columns], (-1, *output.rule.row_shape))
        classes = output.rule.kind == "class"
        parts[output.name] = ops.cast(values, "int32") if classes else values
    return parts


def _unpack_weights(label: LabelRule, weights: Any) -> dict[str, Any]:
    reshape = runtime.keras().ops.reshape
    return {
        output.name: reshape(weights[:, columns], (-1, *output.weight_shape))
        for output, columns in each_weight_place(label)
    }


# Functions of users -------------------------------------------------------------------------------


def trace_map(function: Callable[[Any], Any], shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Traces a function into a graph, so that neither R nor Python is called again.

    Args:
        function: Maps a float32 tensor of rows to another; a Keras layer, a model, or a function.
        shape: Shape of one row, which must not change: models are checked against it.

    Returns:
        The graph, for any number of rows.

    Raises:
        SpecError: if `function` is not callable.
        DataError: if it cannot be traced, or changes the rows' number, shape or dtype.
    """
    if not callable(function):
        raise refused_value("map", function, "a Keras layer or a function")
    require_feature("map")
    tf = runtime.tensorflow()
    spec = tf.TensorSpec([None, *shape], tf.float32)
    try:
        graph = tf.function(function, autograph=False).get_concrete_function(spec)
    except Exception as error:  # the user's code or R may raise any error
        raise DataError(
            f"`map` cannot be traced: {find_reason(error)}.",
            hint="It must compute with tensors, by operations of TensorFlow or Keras.",
            arg="map",
        ) from error
    _check_output(graph.structured_outputs, shape)
    probed = graph(tf.zeros([2, *shape]))
    if len(probed) != 2:
        raise _changed(f"{len(probed)} of 2 rows", shape)
    return graph


def _check_output(output: Any, shape: tuple[int, ...]) -> None:
    output_shape = getattr(output, "shape", None)
    if output_shape is None or getattr(output.dtype, "as_numpy_dtype", None) is not np.float32:
        found = describe(output) if output_shape is None else f"{output.dtype.name} values"
        raise _changed(found, shape)
    if output_shape.rank != len(shape) + 1 or tuple(output_shape[1:]) != tuple(shape):
        raise _changed(f"rows of shape {tuple(output_shape[1:])}", shape)


def _changed(found: str, shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"`map` must give as many float32 rows of shape {tuple(shape)} as it takes, not {found}.",
        hint="What changes the shape belongs into the model, as its first layer.",
        arg="map",
    )


def unmapped(arg: str) -> DataError:
    """Returns the error for rows whose recipe needs a `map` function, which no recipe can hold."""
    return DataError(
        f"Training mapped its rows by a function: `{arg}` needs it too.",
        hint="Use gpu_dataset(recipe = , map = ) with the same function.",
        arg=arg,
    )


# Composition --------------------------------------------------------------------------------------

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
