"""Learns the recipe from the first chunk of rows in sequence, and encodes each chunk."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import check_some
from gpukeras.data.preprocessing.imputation import check_labels, miss_labels
from gpukeras.data.preprocessing.multi_input import group_columns
from gpukeras.data.preprocessing.multi_output import (
    check_label_rows,
    encode_labels,
    learn_labels,
    measure_ranges,
    take_labels,
)
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.preprocessing.weights import (
    check_weights,
    each_weights,
    pack_weights,
    weigh_outputs,
)
from gpukeras.data.sources.base import Features
from gpukeras.data.sources.registry import open_features
from gpukeras.data.streams.generator import Chunk
from gpukeras.data.streams.rebatch import Arrays

# Whether there are labels; the shapes of a row's weights by the user's name for them.
Parts = tuple[bool, dict[str, tuple[int, ...]]]


def read_parts(chunk: Chunk) -> Parts:
    """Returns whether a chunk has labels, and the shapes of its rows' weights."""
    weights = [] if chunk.weights is None else each_weights(chunk.weights)
    return chunk.labels is not None, {arg: values.shape[1:] for _, arg, values in weights}


def check_parts(before: Parts | None, chunk: Chunk) -> None:
    """Checks that a chunk has labels and weights if, and only if, the first one had them.

    Raises:
        DataError: if it differs from the first one.
    """
    if before is None:
        return
    now = read_parts(chunk)
    shown = zip(("labels", "weights"), map(bool, before), strict=True)
    for (name, had), has in zip(shown, map(bool, now), strict=True):
        if had != has:
            found, requested = ("no ", "some") if had else ("", "none")
            raise DataError(f"There are {found}{name}, the first batch had {requested}.", arg="x")
    if now != before:
        raise DataError(
            f"`weights` has {_say_shapes(now)}, in the first batch it had {_say_shapes(before)}.",
            arg="weights",
        )


def _say_shapes(parts: Parts) -> str:
    shapes = [f"{shape}" + f" of `{arg}`" * (arg != "weights") for arg, shape in parts[1].items()]
    return f"the shape {', '.join(shapes)} a row"


def learn_chunk(
    first: Chunk,
    spec: DatasetSpec,
    na: str,
    arg: str,
    *,
    text: Mapping[str, Any] | None,
    groups: Any = None,
) -> Recipe:
    """Learns the recipe from the first chunk.

    Args:
        first: The first chunk.
        spec: The dataset's options.
        na: The policy for missing values.
        arg: The user's name for the features, for messages.
        text: The text columns and their encoding, or None.
        groups: See `multi_input.group_columns()`.

    Raises:
        DataError: for rows that cannot be trained on.
    """
    given = open_features(first.features, arg, spec, None, text)
    given.check_policy(na)
    _check_chunk(first, given.rows, arg)
    complete = None
    if na == "drop":
        names = [column["name"] for column in first.features.get("columns", ())]
        complete = _find_complete(given, first.labels, names)
    keep = np.ones(given.rows if complete is None else int(complete.sum()), dtype=bool)
    if not keep.any():
        raise DataError("Each row lacks a value.", arg=arg)
    label = None
    if first.labels is not None:
        label = learn_labels(take_labels(first.labels, complete), keep)
    features = group_columns(given.learn(keep, spec, complete), groups, arg)
    return Recipe(features, label=label, na=na)


def measure_labels(recipe: Recipe, head: Arrays) -> Recipe:
    """Returns the recipe with the range of the labels in an encoded chunk."""
    if recipe.label is None or len(head) < 2:
        return recipe
    return replace(recipe, label=measure_ranges(recipe.label, head[1]))


def weigh_chunk(recipe: Recipe, first: Chunk) -> Recipe:
    """Returns the recipe with the shape of each output's weights in the first chunk."""
    if recipe.label is None:
        return recipe
    return replace(recipe, label=weigh_outputs(recipe.label, first.weights))


def encode_chunk(chunk: Chunk, recipe: Recipe, na: str, arg: str) -> tuple[Arrays, int]:
    """Encodes features, labels and weights of a chunk, and counts the rows that were dropped.

    Args:
        chunk: The chunk.
        recipe: The encoding.
        na: The policy for missing values; "drop" drops rows that lack a value.
        arg: The user's name for the features, for messages.

    Raises:
        DataError: for rows that the recipe does not fit, or that cannot be trained on.
    """
    given = open_features(chunk.features, arg, None, recipe.features)
    rows, labels = given.rows, chunk.labels
    _check_chunk(chunk, rows, arg)
    complete = _find_complete(given, labels, recipe.features.known) if na == "drop" else None
    if complete is not None and not complete.any():
        return tuple(np.empty((0, *shape)) for shape in (recipe.features.staged_shape, ())), rows
    if na == "impute" and labels is not None:
        check_labels(labels)
    arrays = [given.encode(recipe.features, complete).gather(slice(None))]
    if labels is not None:
        arrays.append(_encode_labels(recipe, labels, complete))
    if chunk.weights is not None and recipe.label is not None:
        arrays.append(pack_weights(recipe.label, chunk.weights, complete))
    check_rows(*(*arrays[1:], np.empty(0), np.empty(0))[:2])
    return tuple(arrays), 0 if complete is None else int(rows - complete.sum())


def _check_chunk(chunk: Chunk, rows: int, arg: str) -> None:
    check_some(rows, arg)
    if chunk.labels is not None:
        check_label_rows(chunk.labels, rows, arg)
    if chunk.weights is not None:
        if chunk.labels is None:
            raise DataError("`weights` needs labels to weigh.", hint="Give `y`.", arg="weights")
        check_weights(chunk.weights, rows, arg)


def _find_complete(
    given: Features, labels: Mapping[str, Any] | None, known: Collection[str]
) -> np.ndarray | None:
    """Returns a mask of the rows complete in the columns `known` and in `y`, or None for all."""
    complete = given.find_complete(known)
    if labels is not None:
        complete &= ~miss_labels(labels)
    return None if complete.all() else complete


def _encode_labels(
    recipe: Recipe, labels: Mapping[str, Any], complete: np.ndarray | None
) -> np.ndarray:
    if recipe.label is None:
        raise DataError("`y` was given, but training had no labels.", arg="y")
    return encode_labels(recipe.label, take_labels(labels, complete))


def check_rows(labels: np.ndarray, weights: np.ndarray) -> None:
    """Checks that encoded labels are finite, and that weights are finite and at least 0.

    Raises:
        DataError: if they are not.
    """
    if not np.isfinite(labels).all():
        raise DataError("`y` has missing or infinite values.", arg="y")
    if len(weights) and not (np.isfinite(weights).all() and weights.min() >= 0):
        raise DataError("`weights` must be finite and at least 0.", arg="weights")
