"""Packed rows taken apart on the device: a tensor for each of the model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import runtime
from .groups import Part, input_parts
from .labels import SEVERAL, LabelRule
from .outputs import each_place
from .recipes import Recipe
from .stages import end_stage

Unpack = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def build_unpack(recipe: Recipe) -> Unpack | None:
    """What takes a block's rows apart.

    Args:
        recipe: Their encoding.

    Returns:
        `unpack((features, labels, weights)) -> arrays`: features become a dict of tensors by the
        inputs' names, labels one by the outputs' names; weights stay one a row. None where there
        is one input and one output, which take rows as they are.
    """
    parts, label = input_parts(recipe), recipe.label
    several = label is not None and label.kind == SEVERAL
    if not parts and not several:
        return None

    def unpack(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        features, *others = arrays
        if parts:
            features = _unpack_features(parts, features)
        if others and several:
            others[0] = _unpack_labels(label, others[0])
        arrays = (features, *others)
        end_stage("unpack", arrays)
        return arrays

    return unpack


def _unpack_features(parts: tuple[Part, ...], features: Any) -> dict[str, Any]:
    tf = runtime.tensorflow()
    return {part.name: tf.reshape(features[:, part.columns], (-1, *part.shape)) for part in parts}


def _unpack_labels(label: LabelRule, labels: Any) -> dict[str, Any]:
    tf = runtime.tensorflow()
    parts = {}
    for output, columns in each_place(label):
        values = tf.reshape(labels[:, columns], (-1, *output.rule.row_shape))
        classes = output.rule.kind == "class"
        parts[output.name] = tf.cast(values, tf.int32) if classes else values
    return parts
