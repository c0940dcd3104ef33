"""Datasets whose rows come in sequence: from a function of the user's, or from tf.data.

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

    the user's function --------chunks--> encode --> Rebatcher --> blocks of batches
    the user's tf.data.Dataset -----------------------TensorFlow--> blocks of batches

The recipe is learned from the first chunk. With `cache = TRUE` all chunks are collected once into
a dataset of rows by number, with a full shuffle and every plan; the user's code is not called
again.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gpukeras.core.errors import DataError, GeneratorError, SpecError, warn_ended_early
from gpukeras.core.memory import aligned_copy
from gpukeras.core.options import DatasetSpec, check_count
from gpukeras.data.arrays import EncodeOptions, check_some
from gpukeras.data.dataset.map_dataset import Dataset, Request
from gpukeras.data.dataset.rebatch import (
    Arrays,
    BlockOptions,
    HostBlock,
    Pass,
    Rebatcher,
    shuffle_rows,
)
from gpukeras.data.dataset.tfdata import TfStream
from gpukeras.data.plan import PipelinePlan, StreamFacts, plan_stream
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import Features, MemoryRows
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import group_columns
from gpukeras.data.recipe.imputation import check_labels, miss_labels
from gpukeras.data.recipe.multi_output import (
    Weights,
    check_label_rows,
    check_weights,
    each_weights,
    encode_labels,
    learn_labels,
    measure_ranges,
    pack_weights,
    take_labels,
    weigh_outputs,
    widen_labels,
)
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.stage_timer import end_stage

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
    check_chunk(first, opened.rows, arg)
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
    check_chunk(chunk, rows, arg)
    complete = _find_complete(opened, labels, recipe.features.known) if na == "drop" else None
    if complete is not None and not complete.any():
        return tuple(np.empty((0, *shape)) for shape in (recipe.features.staged_shape, ())), rows
    if na == "impute" and labels is not None:
        check_labels(labels)
    arrays = [opened.encode(recipe.features, EncodeOptions(complete)).gather(slice(None))]
    if labels is not None:
        arrays.append(_encode_labels(recipe, labels, complete))
    if chunk.weights is not None and recipe.label is not None:
        arrays.append(pack_weights(recipe.label, chunk.weights, complete))
    check_rows(*(*arrays[1:], np.empty(0), np.empty(0))[:2])
    return tuple(arrays), 0 if complete is None else int(rows - complete.sum())


def check_chunk(chunk: Chunk, rows: int, arg: str) -> None:
    """Checks that a chunk has rows, and a label and a weight for each of them, if any."""
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


# Rows in sequence ---------------------------------------------------------------------------------

BUFFER_BYTES = 64 * 2**20  # the most for a shuffle buffer


class CodeCheck(Protocol):
    """Checks the codes that a model looks up, block by block."""

    def add(self, features: Any) -> None:
        """Takes the features of a block; raises an error for a code that the model lacks."""

    def finish(self) -> None:
        """Checks what is not checked yet, at the end of an epoch."""


@dataclass(frozen=True)
class Learned:
    """What is known of rows in sequence once their first chunk was read.

    Args:
        recipe: The encoding, learned from the first chunk or given.
        spec: The dataset's options.
        head: The first chunk, encoded: features, labels and weights.
        facts: The facts from which the plan is made.
    """

    recipe: Recipe
    spec: DatasetSpec
    head: Arrays
    facts: StreamFacts


class IterableDataset(Dataset):
    """A dataset of rows in sequence, made by a function or a pipeline.

    Args:
        learned: What the first chunk has told.

    Attributes:
        code_check: Checks the codes that the model looks up; None where it has nothing to check.
    """

    source_kind = "pipeline"
    size = None
    code_check: CodeCheck | None = None

    def __init__(self, learned: Learned) -> None:
        """Stores the parts."""
        sources = tuple(map(MemoryRows, learned.head))
        super().__init__(sources, learned.recipe, learned.spec, learned.facts.na)
        self.facts = learned.facts

    def open_pass(self, size: int, capacity: int, training: bool) -> Pass:
        """Opens a pass over successive epochs, which ends with their rows.

        Args:
            size: Rows per batch.
            capacity: Batches per block.
            training: Whether rows are shuffled, and the short last batch may be left out.
        """
        drop_last, buffer = training and self.spec.drop_last, self.buffer if training else None
        return self.open_blocks(BlockOptions(size, capacity, drop_last, buffer, self.spec.seed))

    @abstractmethod
    def open_blocks(self, how: BlockOptions) -> Pass:
        """Opens a pass whose rows become blocks in a given way."""

    @property
    def epoch_rows(self) -> int:
        """Rows per epoch if all chunks are like the first; 0 if the end is unknown."""
        return self.facts.rows

    def count(self, part: str) -> int | None:
        """Rows of a part: 0 for "validation", as there is no split; else None, for unknown."""
        return 0 if part == "validation" else None

    def identity(self) -> dict[str, Any]:
        """Returns how the rows are made; the rows may differ each time and are not compared."""
        return {"source": self.facts.what, "rows": self.facts.rows, "buffer": self.buffer}

    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options."""
        return plan_stream(replace(self.facts, device=device), spec)

    def widen_label(self, labels: np.ndarray) -> bool:
        """Extends the recipe's range to more labels; returns whether that changed it."""
        rule = self.recipe.label
        if rule is None or not len(labels):
            return False
        wider = widen_labels(rule, labels)
        self.recipe = replace(self.recipe, label=wider)
        return wider != rule

    @property
    def buffer(self) -> int | None:
        """Rows of the shuffle buffer, or None to keep the user's order."""
        if not self.spec.shuffle or self.spec.buffer == "auto":
            return None
        return max(1, min(int(self.spec.buffer), BUFFER_BYTES // max(1, self.row_bytes)))


# Datasets of functions ----------------------------------------------------------------------------


class GeneratorDataset(IterableDataset):
    """The encoded chunks of a function.

    Args:
        learned: See `IterableDataset`.
        generator: The function.
        parts: The labels and weights that chunks have, see `read_parts()`.
        arg: The user's name for the features.
    """

    source_kind = "function"

    def __init__(self, learned: Learned, generator: Generator, parts: Parts, arg: str) -> None:
        """Stores the parts."""
        super().__init__(learned)
        self.generator = generator
        self._parts = parts
        self._arg = arg

    def open_blocks(self, how: BlockOptions) -> Pass:
        """Opens a pass over the function's chunks."""
        return GeneratorPass(self, how)

    def encode(self, chunk: Chunk) -> tuple[Arrays, int]:
        """Encodes a chunk, and counts the rows that were dropped.

        Raises:
            DataError: for a chunk that does not fit; names the batch.
        """
        recipe = self._fit_shape(chunk.features)
        try:
            check_parts(self._parts, chunk)
            return encode_chunk(chunk, recipe, self.na, self._arg)
        except DataError as error:
            raise chunk.blame(error) from error

    def _fit_shape(self, features: Mapping[str, Any]) -> Recipe:
        """Returns the recipe for rows whose shape may differ along the model's open axes.

        Raises:
            SpecError: for such rows, if `batch_size` or `buffer` regroups them.
        """
        shape = self.recipe.shape
        row_shape = np.shape(features["values"])[1:] if features["kind"] == "array" else shape
        axes = {
            a
            for a, (length, other) in enumerate(zip(row_shape, shape, strict=False))
            if length != other
        }
        same_rank = len(row_shape) == len(shape) and self.recipe.keeps_values
        if not axes or not same_rank or not axes <= self.variable_axes:
            return self.recipe
        asked = "batch_size" if self.spec.batch_size != "auto" else "buffer"
        if asked == "batch_size" or self.buffer is not None:
            raise SpecError(
                f"`{asked}` needs rows of one shape: those of the function vary.",
                hint="Leave it out: batches are then taken as they come.",
                arg=asked,
            )
        return self.recipe.with_row_shape(row_shape)


class GeneratorPass(Pass):
    """Successive epochs of a function, which is called between blocks.

    Args:
        data: The dataset of the function.
        how: How its rows become blocks.
    """

    stage = "gather"

    def __init__(self, data: GeneratorDataset, how: BlockOptions) -> None:
        """Stores the parts without calling the function."""
        super().__init__()
        self._data, self._how = data, how
        self._rebatcher = Rebatcher(how.batch_size, how.capacity, how.drop_last)

    def blocks(self, epoch: int) -> abc.Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1; the function is called between them."""
        self.dropped = 0
        chunks = self._encoded(epoch)
        if self._how.buffer is not None:
            chunks = shuffle_rows(chunks, self._how.buffer, [self._how.seed, epoch])
        odd: list[Arrays] = []
        yield from self._rebatcher.blocks(self._alike(chunks, odd))
        for arrays in itertools.chain(odd, chunks):  # of other row shapes: each is one batch
            self.whole = "rows vary in shape, so each batch is trained as it comes"
            yield tuple(aligned_copy(array, array.dtype) for array in arrays), 1, True

    def _alike(self, chunks: Iterator[Arrays], odd: list[Arrays]) -> Iterator[Arrays]:
        """Yields chunks up to the first one of another row shape, which is appended to `odd`."""
        if self.whole:
            return
        first: Arrays = ()
        for arrays in chunks:
            first = first or arrays
            if arrays[0].shape[1:] != first[0].shape[1:]:
                odd.append(arrays)
                return
            yield arrays

    def _encoded(self, epoch: int) -> Iterator[Arrays]:
        for chunk in self._data.generator.chunks(epoch):
            end_stage("read")
            arrays, dropped = self._data.encode(chunk)
            self.dropped += dropped
            end_stage("decode")
            if len(arrays[0]):
                yield arrays
                end_stage("gather")  # into a block, or first into the shuffle buffer


# Datasets of pipelines ----------------------------------------------------------------------------


class PipelineDataset(IterableDataset):
    """The encoded rows of a `tf.data.Dataset`.

    Args:
        learned: See `IterableDataset`.
        stream: The user's dataset.
        rows: Rows per epoch if `steps` is given, or None.
    """

    def __init__(self, learned: Learned, stream: TfStream, rows: int | None) -> None:
        """Stores the parts."""
        super().__init__(learned)
        self._stream, self._rows = stream, rows

    def open_blocks(self, how: BlockOptions) -> Pass:
        """Opens a pass of blocks that TensorFlow assembles."""
        return self._stream.open(self.recipe.features, self._rows, how)
