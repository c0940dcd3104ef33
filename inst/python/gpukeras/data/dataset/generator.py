"""Rows in chunks, as a user's function makes them: each is encoded by the first one's recipe.

The function may be an R function, so it is called only on R's main thread, the one that called
`api.invoke()`, and never inside a step: the loader requests chunks between two calls of the engine,
until a block of batches is full. That block is the bounded queue between the function and the
device. On a GPU an engine's call returns before the device is done, so the next block's chunks are
made while the device works on the previous block; on a CPU a call uses the cores until it returns,
and the two take turns.

A chunk is `{features, labels, weights}`, as `reader`, `targets` and R's `as_features()` describe
them. None marks the end of an epoch. A function that failed returns `{failed: True}`; R keeps the
condition and raises it again when Python has ended cleanly. An interrupt returns
`{interrupted: True}`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, GeneratorError, warn_ended_early
from gpukeras.core.options import check_count
from gpukeras.data.arrays import check_some
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.rebatch import Arrays
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import Features
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import group_columns
from gpukeras.data.recipe.imputation import check_labels, miss_labels
from gpukeras.data.recipe.multi_output import (
    check_label_rows,
    encode_labels,
    learn_labels,
    measure_ranges,
    take_labels,
)
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.weights import (
    Weights,
    check_weights,
    each_weights,
    pack_weights,
    weigh_outputs,
)

# Functions ----------------------------------------------------------------------------------------

Call = Callable[[int, int], Mapping[str, Any] | None]


class GeneratorInterrupt(GeneratorError, KeyboardInterrupt):
    """An interrupt of the function by the user.

    A training run stops cleanly; elsewhere R raises the interrupt.
    """


@dataclass(frozen=True)
class Chunk:
    """The result of one call of the function.

    Args:
        features: The features as they come from R.
        labels: The labels as they come from R, or None.
        weights: The weights of each row, see `preprocessing.weights`, or None.
        epoch: The number of the epoch, from 1.
        batch: The number of the call in its epoch, from 1.
    """

    features: Mapping[str, Any]
    labels: Mapping[str, Any] | None
    weights: Weights | None
    epoch: int
    batch: int

    def blame(self, error: DataError) -> DataError:
        """Returns the error with the numbers of batch and epoch added."""
        return DataError(
            f"Batch {self.batch} of epoch {self.epoch}: {error.message}",
            hint=error.hint,
            **{**error.details, "batch": self.batch, "epoch": self.epoch},
        )


class Generator:
    """A user's function that makes the batches of successive epochs.

    Args:
        call: Called with the numbers, from 1, of the epoch and of the batch in it.
        steps: Calls per epoch, or None to call until the function returns None.
    """

    def __init__(self, call: Call, steps: Any = None) -> None:
        """Stores the function without calling it."""
        self._call = call
        self.steps = None if steps is None else check_count("steps", steps)
        self._first: Chunk | None = None

    def peek(self) -> Chunk:
        """Returns the first chunk, which the first epoch yields too, so that no chunk is lost.

        Raises:
            DataError: if the function returns none.
        """
        if self._first is None:
            self._first = self._next(1, 1)
        if self._first is None:
            raise _nothing(1)
        return self._first

    def chunks(self, epoch: int) -> Iterator[Chunk]:
        """Yields the chunks of an epoch, counted from 1; each is made on demand.

        Raises:
            DataError: if there is none.
            GeneratorError: if the function failed.
            GeneratorInterrupt: if the user interrupted it.
        """
        batch = 0
        while self.steps is None or batch < self.steps:
            batch += 1
            first, self._first = self._first, None
            chunk = first or self._next(epoch, batch)
            if chunk is None:
                self._check_end(epoch, batch)
                return
            yield chunk

    def _next(self, epoch: int, batch: int) -> Chunk | None:
        made = self._call(epoch, batch)
        if made is None:
            return None
        if made.get("failed"):
            raise GeneratorError(f"The function failed at batch {batch} of epoch {epoch}.")
        if made.get("interrupted"):
            raise GeneratorInterrupt(f"Interrupted at batch {batch} of epoch {epoch}.")
        _refuse_text(made["features"], epoch, batch)
        return Chunk(made["features"], made.get("labels"), made.get("weights"), epoch, batch)

    def _check_end(self, epoch: int, batch: int) -> None:
        if batch == 1:
            raise _nothing(epoch)
        if self.steps is not None:
            warn_ended_early("The function", batch, epoch)


def _refuse_text(features: Mapping[str, Any], epoch: int, batch: int) -> None:
    """Refuses texts, whose codes need all rows at once."""
    parts = [part["features"] for part in features.get("inputs") or ()] or [features]
    if any(part["kind"] == "strings" for part in parts):
        raise DataError(
            f"Batch {batch} of epoch {epoch}: a function's batches cannot hold text.",
            hint="Give a tf.data pipeline, or a data frame whose text columns `text` names.",
            arg="x",
            batch=batch,
            epoch=epoch,
        )


def _nothing(epoch: int) -> DataError:
    if epoch == 1:
        return DataError(
            "The function gave no batch.",
            hint="It must give list(x, y) at its first call.",
            arg="x",
        )
    return DataError(
        f"The function gave no batch in epoch {epoch}.",
        hint="After its end it must start again; or use `cache = TRUE`, which needs one pass.",
        arg="x",
        epoch=epoch,
        batch=1,
    )


# Encoding -----------------------------------------------------------------------------------------

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


def learn_chunk(first: Chunk, request: Request, groups: Any = None) -> Recipe:
    """Learns the recipe from the first chunk.

    Args:
        first: The first chunk.
        request: How the dataset is to be made.
        groups: See `encoding.group_columns()`.

    Raises:
        DataError: for rows that cannot be trained on.
    """
    spec = request.spec
    na = request.na
    arg = request.arg
    opened = open_features(first.features, arg, spec, None, request.text)
    opened.check_policy(na)
    _check_chunk(first, opened.rows, arg)
    complete = None
    if na == "drop":
        names = [column["name"] for column in first.features.get("columns", ())]
        complete = _find_complete(opened, first.labels, names)
    keep = np.ones(opened.rows if complete is None else int(complete.sum()), dtype=bool)
    if not keep.any():
        raise DataError("Each row lacks a value.", arg=arg)
    label = None
    if first.labels is not None:
        label = learn_labels(take_labels(first.labels, complete), keep)
    features = group_columns(opened.learn(Learning(keep, spec, complete)), groups, arg)
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
    opened = open_features(chunk.features, arg, None, recipe.features)
    rows, labels = opened.rows, chunk.labels
    _check_chunk(chunk, rows, arg)
    complete = _find_complete(opened, labels, recipe.features.known) if na == "drop" else None
    if complete is not None and not complete.any():
        return tuple(np.empty((0, *shape)) for shape in (recipe.features.staged_shape, ())), rows
    if na == "impute" and labels is not None:
        check_labels(labels)
    arrays = [opened.encode(recipe.features, complete).gather(slice(None))]
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
    opened: Features, labels: Mapping[str, Any] | None, known: Collection[str]
) -> np.ndarray | None:
    """Returns a mask of the rows complete in the columns `known` and in `y`, or None for all."""
    complete = opened.find_complete(known)
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
