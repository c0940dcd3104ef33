"""Images varied by each option of `augment`, on the backend of the process."""

import numpy as np
from rules import label_rule

from gpukeras.backend import runtime
from gpukeras.data.loader.transforms import build_device_transform
from gpukeras.data.recipe.augmentation import AugmentSpec, choose_augmented
from gpukeras.data.recipe.recipe import ImageEncoding, Recipe

CASES = {
    "crop": {"crop": (7, 5)},
    "crop and flip": {"crop": (7, 5), "flip": "both"},
    "rotation": {"rotation": 0.4},
    "zoom": {"zoom": 0.7},
    "translation": {"translation": 0.9},
    "moves": {"flip": "both", "rotation": 0.2, "zoom": 0.3, "translation": 0.3, "crop": (9, 8)},
    "mixup": {"mixup": 0.4},
    # Keras' own layers, whose random numbers are the backend's.
    "flip": {"flip": "horizontal"},
    "flip both": {"flip": "both"},
    "brightness": {"brightness": 0.3},
    "contrast": {"contrast": 0.5},
}


FEW = ("crop and flip", "moves", "mixup", "flip both", "brightness", "contrast")


def rows(count=24):
    return np.random.default_rng(0).integers(0, 256, (count, 12, 10, 3)).astype(np.uint8)


def vary(name, epoch=1):
    """Returns the images of a case."""
    label = label_rule("class", units=3, levels=("a", "b", "c"))
    recipe = Recipe(ImageEncoding((12, 10, 3)), label=label)
    spec = AugmentSpec.from_dict({"seed": 3, **CASES[name]})
    apply = build_device_transform(choose_augmented(recipe, spec), spec, True, 8)
    arrays = rows(), np.arange(24, dtype=np.int32) % 3
    convert = runtime.keras().ops.convert_to_tensor
    return np.asarray(apply(tuple(map(convert, arrays)), (epoch, 0))[0])
