"""Learns again, from other rows, what a model of `gpu_mlp()` or `gpu_tabular()` knows of labels.

Its output layers hold numbers of the training labels: their mean and standard deviation, and those
with which a family starts. A model that trains on a part of the rows, as in a fold, must have those
of that part: otherwise it knows labels that it is measured on.

A layer is known by its numbers, which are those of the dataset that the model was built for. A
model that has trained already keeps them, as its weights fit no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.recipe.targets import LabelRule
from gpukeras.models.families.build import relearn_family
from gpukeras.models.families.keras_classes import family_layer, is_ours
from gpukeras.models.families.spec import Family


@dataclass(frozen=True)
class LabelNumbers:
    """What the labels of some rows give, in the place of what a model has.

    Args:
        scales: `scale` and `offset` of layers that rescale an output, by the layer's name.
        family: The family, or None.
    """

    scales: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    family: Family | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to change."""
        return bool(self.scales) or self.family is not None


NOTHING = LabelNumbers()


def learn_numbers(
    model: Model, data: MapDataset, part: MapDataset, *, begins_anew: bool = False
) -> LabelNumbers:
    """Returns what the training rows of a part give, for a model built for a dataset.

    Args:
        model: The model.
        data: The dataset.
        part: Some of its rows, see `resamples.split_dataset()`.
        begins_anew: Whether the weights are drawn again, so that earlier training does not count.
    """
    if np.array_equal(data.train_rows, part.train_rows):
        return NOTHING
    # Not its `iterations`: under gradient accumulation that is a computed number.
    optimizer = keras_private.without_scaling(model.optimizer)
    if not begins_anew and int(keras_private.step_count(optimizer).numpy()):
        return NOTHING
    before, after = _list_numbers(data.recipe.label), _list_numbers(part.recipe.label)
    scales = {}
    for layer in keras_private.list_layers(model):
        if type(layer).__name__ != "Rescaling":
            continue
        for output, rule in before.items():
            known = (layer.scale, layer.offset) == (rule.scale, rule.center)
            if known and output in ("", layer.name):
                new = after[output]
                scales[layer.name] = {"scale": new.scale, "offset": new.center}
    own = family_layer(model)
    family = None if own is None else relearn_family(own.family, data, part)
    return LabelNumbers(scales, family)


def _list_numbers(rule: LabelRule | None) -> dict[str, LabelRule]:
    """Returns the rules of labels that are numbers, by output; "" for a single one."""
    outputs = {output.name: output.rule for output in rule.outputs} if rule is not None else {}
    if rule is not None and not outputs:
        outputs = {"": rule}
    return {name: own for name, own in outputs.items() if own.kind == "number"}


def apply_numbers(model: Any, numbers: LabelNumbers) -> None:
    """Puts numbers into a model that is nobody else's, and was not traced yet."""
    for layer in keras_private.list_layers(model):
        for name, value in numbers.scales.get(layer.name, {}).items():
            setattr(layer, name, value)
    if numbers.family is not None:
        family_layer(model).settle(numbers.family)
        if is_ours(type(model.loss)):
            model.loss.settle(numbers.family)
