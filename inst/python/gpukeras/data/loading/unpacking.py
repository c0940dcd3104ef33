"""Splits packed rows on the device into a tensor for each of the model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gpukeras.backend import runtime
from gpukeras.data.preprocessing.multi_output import each_place
from gpukeras.data.preprocessing.recipe import Part, Recipe
from gpukeras.data.preprocessing.targets import SEVERAL, LabelRule
from gpukeras.data.preprocessing.weights import each_weight_place
from gpukeras.data.stage_timer import end_stage

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
            found = [_unpack_labels(label, others[0])]
            if label.weighed and len(others) > 1:
                found.append(_unpack_weights(label, others[1]))
            named = [list(part.values()) if label.listed else part for part in found]
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
