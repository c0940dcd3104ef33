"""The options of augmentation, the recipe of augmented rows, and the random numbers of a block.

The random numbers depend only on the seed, the epoch and the block's number: each epoch varies the
images anew, and a training run can be repeated. `loader.transforms` applies them.

NumPy draws the numbers of the resampling and of mixup, so both are the same on TensorFlow and JAX;
Keras' layers draw theirs by the backend's own generator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.options import (
    MOST_SEED,
    Spec,
    check_choice,
    check_count,
    check_counts,
    check_number,
    option,
)
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    ImageEncoding,
    InputsEncoding,
    PixelEncoding,
    Recipe,
)
from gpukeras.data.recipe.targets import BinaryLabel, NumberLabel

# Matrices of moved images -------------------------------------------------------------------------


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


FLIPS = {
    "none": (),
    "horizontal": ("horizontal",),
    "vertical": ("vertical",),
    "both": ("horizontal", "vertical"),
}
MAX_ALPHA = 100.0  # beyond it every image is half and half
USES = ("layers", "crop", "flip", "rotation", "zoom", "translation", "share", "partner")


# Options -----------------------------------------------------------------------------------------


def check_pair(arg: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns `values`, or raises SpecError if they are not two."""
    if len(values) != 2:
        raise SpecError(f"`{arg}` must be two numbers, not {len(values)}.", arg=arg)
    return values


def _check_crop(arg: str, value: Any) -> tuple[Any, ...]:
    return check_pair(arg, check_counts(arg, value))


def _check_range(arg: str, value: Any) -> tuple[float, float]:
    values = tuple(value) if isinstance(value, (list, tuple, np.ndarray)) else (value,)
    low, high = check_pair(arg, values)
    low = check_number(arg, low)
    high = check_number(arg, high)
    if low >= high:
        message = f"`{arg}` must be the lowest, then the highest value."
        raise SpecError(message, arg=arg)
    return low, high


@dataclass(frozen=True)
class AugmentSpec(Spec):
    """The options of augmentation, applied in this order, with random numbers for each row.

    Args:
        crop: Height and width of a crop at a random place (at the centre in evaluation), or None.
            The model then takes rows of that size.
        flip: "none", "horizontal", "vertical" or "both" (independently), each in half of the rows.
        rotation: Largest rotation in either direction, as a share of a full turn, in [0, 1].
        zoom: Largest zoom in or out, as a share of the size, in [0, 1).
        translation: Largest shift along each axis, as a share of the size, in [0, 1].
        brightness: Largest change of brightness, as a share of the value range, in [0, 1].
        contrast: Largest change of contrast, as a share, in [0, 1].
        mixup: The alpha of mixup (Zhang et al. 2018), 0 for none: each row is mixed with another
            row of its batch, lambda ~ Beta(alpha, alpha). Labels and weights are mixed too;
            classes become one-hot columns, for the loss categorical_crossentropy.
        value_range: Lowest and highest value after brightness and contrast, or None: 0 to 255 for
            image files, 0 to 1 if these are scaled. Arrays need it.
        seed: Seed of all random numbers.

    Rotation, zoom and translation fill uncovered pixels with the pixels outside of the crop, and
    beyond the image by reflection, as Keras does.
    """

    crop: tuple[int, int] | None = option(None, _check_crop)
    flip: str = option("none", check_choice, tuple(FLIPS))
    rotation: float = option(0.0, check_number, 0.0, 1.0)
    zoom: float = option(0.0, check_number, 0.0, 0.99)
    translation: float = option(0.0, check_number, 0.0, 1.0)
    brightness: float = option(0.0, check_number, 0.0, 1.0)
    contrast: float = option(0.0, check_number, 0.0, 1.0)
    mixup: float = option(0.0, check_number, 0.0, MAX_ALPHA)
    value_range: tuple[float, float] | None = option(None, _check_range)
    seed: int = option(0, check_count, 0, MOST_SEED)

    @property
    def moves(self) -> bool:
        """Whether an option is set that needs rows with height and width: any but `mixup`."""
        factors = (self.rotation, self.zoom, self.translation, self.brightness, self.contrast)
        return self.crop is not None or self.flip != "none" or any(factors)

    @property
    def keeps_values(self) -> bool:
        """Whether pixels move by whole pixels only, so that no value is interpolated."""
        return not (self.rotation or self.zoom or self.translation)

    @property
    def resamples(self) -> bool:
        """Whether rows are resampled; a flip alone is faster as a layer, see `draws_moves()`."""
        return self.crop is not None or not self.keeps_values


def choose_augmented(recipe: Recipe, spec: AugmentSpec | None) -> Recipe:
    """Returns the recipe of augmented rows, with their shape after the crop and mixed labels.

    Of several inputs, the one of image files is cropped. Masks are cropped as their images.

    Args:
        recipe: The learned recipe, without augmentation.
        spec: The options of augmentation, or None.

    Raises:
        SpecError: if the rows are not images, are smaller than the crop, or have no labels to mix.
    """
    if spec is None:
        return recipe
    _check_rows(recipe, spec)
    choose_value_range(recipe, spec)
    mixed = recipe.mixed or spec.mixup > 0
    if spec.crop is None:
        return replace(recipe, mixed=mixed)
    image = recipe.image
    assert isinstance(image, PixelEncoding)  # as `_check_rows()` found
    whole = image.row_shape
    if spec.crop[0] > whole[0] or spec.crop[1] > whole[1]:
        raise SpecError(
            f"`crop` is {spec.crop[0]} x {spec.crop[1]}, more than the images' "
            f"{whole[0]} x {whole[1]}.",
            arg="augment",
        )
    features, label = _replace_images(recipe.features, replace(image, crop=spec.crop)), recipe.label
    if isinstance(label, (BinaryLabel, NumberLabel)) and label.pixels:
        label = replace(label, shape=spec.crop)
    return replace(recipe, features=features, mixed=mixed, label=label)


def _replace_images(encoding: Encoding, images: Encoding) -> Encoding:
    """Returns the encoding with another one for its images."""
    if not isinstance(encoding, InputsEncoding):
        return images
    inputs = tuple(
        replace(part, encoding=images) if part is encoding.images else part
        for part in encoding.inputs
    )
    return replace(encoding, inputs=inputs)


def draws_moves(spec: AugmentSpec, recipe: Recipe) -> bool:
    """Whether rows are resampled by matrices, which masks need to be flipped as their images."""
    masks = recipe.label is not None and bool(recipe.label.pixels)
    return spec.resamples or (masks and spec.flip != "none")


def _check_rows(recipe: Recipe, spec: AugmentSpec) -> None:
    image = recipe.image
    if spec.moves and not (isinstance(image, PixelEncoding) and len(image.shape) == 3):
        raise SpecError(
            f"`augment` needs image files or an array of 4 dimensions, not rows of {recipe.shape}.",
            hint="Only `mixup` takes any rows.",
            arg="augment",
        )
    if spec.moves and isinstance(image, ArrayEncoding) and image.marked:
        raise SpecError(
            "`augment` takes no images with indicators of missing values.",
            hint='Use `na = "error"` or `na = "drop"`.',
            arg="augment",
        )
    if spec.mixup and recipe.label is not None and recipe.label.pixels:
        raise SpecError(
            "`mixup` mixes a number or a class for each row, not the pixels of masks.",
            hint="Leave it out.",
            arg="augment",
        )
    if spec.mixup and recipe.label is None:
        raise SpecError("`mixup` needs labels to mix.", hint="Give `y`.", arg="augment")


def choose_value_range(recipe: Recipe, spec: AugmentSpec) -> tuple[float, float]:
    """Returns the lowest and the highest value of the rows.

    Raises:
        SpecError: if `spec` varies brightness or contrast of an array without a `value_range`.
    """
    if spec.value_range is not None:
        return spec.value_range
    image = recipe.image
    if not isinstance(image, ImageEncoding) and (spec.brightness or spec.contrast):
        name = "brightness" if spec.brightness else "contrast"
        raise SpecError(
            f"`{name}` of an array needs `value_range`, the lowest and the highest value.",
            hint="Such as augment = list(brightness = 0.2, value_range = c(0, 1)).",
            arg="augment",
        )
    return (0.0, 1.0) if image.standardises else (0.0, 255.0)


# Random numbers ----------------------------------------------------------------------------------


def draw_numbers(
    spec: AugmentSpec, recipe: Recipe, rows: int, batch_size: int, key: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Draws the random numbers of a block, and a seed for each of Keras' layers.

    NumPy draws them on the host: images are the same on every device, and Beta variates are
    correct for a small alpha, where float32 underflows. Each use draws from a separate stream, so
    that one more use does not change the others.

    Args:
        spec: The options of augmentation.
        recipe: The rows' recipe.
        rows: Rows of the block: full batches, or one shorter batch.
        batch_size: Rows per batch.
        key: The epoch's and the block's number.

    Returns:
        `seeds` (int32) for Keras' layers; if rows are resampled, `moves` (float32, 8 per row, see
        `flatten()`); with mixup, `share` (float32, the weight of the row itself) and
        `partner` (int32, row numbers).
    """
    streams = {
        use: np.random.default_rng([spec.seed, *key, number]) for number, use in enumerate(USES)
    }
    draws = {"seeds": streams["layers"].integers(2**31 - 1, size=8, dtype=np.int32)}
    if draws_moves(spec, recipe):
        image = recipe.image
        assert isinstance(image, PixelEncoding)  # as `_check_rows()` found
        moves = _draw_moves(spec, image, rows, streams)
        draws["moves"] = flatten(moves)
    if spec.mixup:
        draws["share"] = streams["share"].beta(spec.mixup, spec.mixup, rows).astype(np.float32)
        own = np.arange(rows, dtype=np.int32).reshape(-1, min(rows, batch_size))
        draws["partner"] = streams["partner"].permuted(own, axis=1).reshape(-1)
    return draws


def _draw_moves(
    spec: AugmentSpec, image: PixelEncoding, rows: int, streams: dict[str, np.random.Generator]
) -> np.ndarray:
    size = spec.crop or (image.shape[0], image.shape[1])
    whole = image.row_shape[:2]
    spare = [whole[axis] - size[axis] for axis in (1, 0)]
    if spec.crop is None:  # the encoding may crop even so: at the centre
        moves = shift(*np.tile(np.floor_divide(spare, 2), (rows, 1)).T)
    else:
        moves = shift(*streams["crop"].integers(np.add(spare, 1), size=(rows, 2)).T)
    ways = [way in FLIPS[spec.flip] for way in ("horizontal", "vertical")]
    flipped = streams["flip"].integers(2, size=(rows, 2)).astype(bool) & ways
    moves @= flip(flipped[:, 0], flipped[:, 1], size)
    if spec.rotation:
        turns = streams["rotation"].uniform(-spec.rotation, spec.rotation, rows)
        moves @= rotate(turns, size)
    if spec.zoom:
        factors = streams["zoom"].uniform(1 - spec.zoom, 1 + spec.zoom, rows)
        moves @= zoom(factors, size)
    if spec.translation:
        shares = streams["translation"].uniform(-spec.translation, spec.translation, (rows, 2))
        moves @= shift(*(shares * [size[1], size[0]]).T)
    return moves
