"""From a user's rows to blocks of batches on the device.

    features, labels --recipe--> row sources --plan_pipeline()--> resident | staged | streamed
    epoch's order of rows --> Feed --> Block (many batches) --> engine

Rows are gathered a block at a time outside the training program, by TensorFlow's own multi-threaded
gather: inside XLA on a CPU a gather becomes a loop over rows (28 us a row, measured). Where rows
are staged or streamed, a thread makes and sends the next block while the device works on this one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import devices, runtime
from .arrays import aligned_empty, check_lengths, epoch_order, split_rows
from .columns import take_rows
from .errors import DataError, SpecError
from .labels import LabelRule, encode_label, learn_label, measure_range
from .missing import check_labels, choose_policy, complete_rows
from .plans import (
    PipelineFacts,
    PipelinePlan,
    balanced_weights,
    choose_batch_size,
    choose_capacity,
    plan_pipeline,
)
from .recipes import Recipe
from .rows import MemoryRows, RowSource
from .sources import STREAMED, Features, open_features, open_labels, place_rows
from .specs import DatasetSpec, check_number

# The dataset -------------------------------------------------------------------------------------


class Dataset:
    """Rows with their recipe: the handle that R holds.

    Args:
        sources: Features, labels and (optional) weights.
        recipe: The encoding that made them.
        spec: The options given.
        train_rows: Row numbers to train on (int32).
        validation_rows: Row numbers to validate on (int32).
        na: What happened to missing values: "error", "impute" or "drop".
        dropped: Rows that were left out for them; they are not numbered.
    """

    def __init__(
        self,
        sources: tuple[RowSource, ...],
        recipe: Recipe,
        spec: DatasetSpec,
        train_rows: np.ndarray,
        validation_rows: np.ndarray,
        na: str = "error",
        dropped: int = 0,
    ) -> None:
        """Keeps the parts; tensors are made on first use."""
        self.sources = sources
        self.recipe = recipe
        self.spec = spec
        self.train_rows = train_rows
        self.validation_rows = validation_rows
        self.na = na
        self.dropped = dropped

    def __len__(self) -> int:
        """Rows of all parts."""
        return len(self.sources[0])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in all sources."""
        return sum(source.row_bytes for source in self.sources)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All rows in host memory: no copy of rows that lie there, a whole one of others."""
        return self.batch(len(self))

    def plan(self, device: str, batch_size: int | str | None = None) -> PipelinePlan:
        """The plan for a device; `batch_size` replaces the dataset's own."""
        facts = PipelineFacts(
            rows=len(self.train_rows),
            validation_rows=len(self.validation_rows),
            row_bytes=self.row_bytes,
            device=device,
            free_bytes=devices.free_bytes(device),
            na=self.na,
            dropped=self.dropped,
            indicators=self.recipe.indicators,
            streamed="; ".join(source.streamed for source in self.sources if source.streamed),
            resident_bytes=sum(source.resident_bytes for source in self.sources),
        )
        spec = self.spec
        if batch_size is not None:
            spec = replace(spec, batch_size=batch_size)
        return plan_pipeline(facts, spec)

    def rows(self, part: str) -> np.ndarray:
        """Row numbers of a part: "train", "validation" or "all" (in the user's order)."""
        if part == "all":
            return np.sort(np.concatenate([self.train_rows, self.validation_rows]))
        return self.train_rows if part == "train" else self.validation_rows

    def order(self, epoch: int) -> np.ndarray:
        """The training rows in an epoch's order."""
        return epoch_order(self.train_rows, self.spec.shuffle, self.spec.seed, epoch)

    def batch(self, rows: int) -> tuple[np.ndarray, ...]:
        """The first rows of every source, to build a model's variables from."""
        return tuple(source.gather(slice(rows)) for source in self.sources)


def build_dataset(
    features: Mapping[str, Any],
    options: Mapping[str, Any],
    labels: Mapping[str, Any] | None = None,
    weights: np.ndarray | None = None,
    class_weight: str | Mapping[str, float] | None = None,
    recipe: Recipe | None = None,
    formula: str = "",
    arg: str = "x",
) -> Dataset:
    """Rows for training: split, learn the recipe on the training rows, encode.

    Args:
        features: See `sources.open_features()`.
        options: Fields of `DatasetSpec`.
        labels: `{kind, values, levels}`, see `labels`, or `{kind: "npy", path}`.
        weights: One weight a row, at least 0.
        class_weight: "balanced", or a weight for each level; training rows only, as in Keras.
        recipe: An encoding to apply instead of learning one.
        formula: R's formula as text.
        arg: The user's name for the features, for messages.

    Raises:
        SpecError: for a bad option.
        DataError: for data that cannot be trained on.
    """
    spec = DatasetSpec.from_dict(options)
    given, labels = open_features(features, arg), open_labels(labels)
    _check_counts(given.rows, labels, weights, class_weight, arg)
    na = choose_policy(spec.na, None if recipe is None else recipe.na)
    complete = _choose_rows(na, features, labels, given.rows, recipe, arg)
    labels = None if labels is None else take_rows(labels, complete)
    rows = given.rows if complete is None else int(complete.sum())
    train_rows, validation_rows = split_rows(rows, spec.validation, spec.seed)
    keep = np.zeros(rows, dtype=bool)
    keep[train_rows] = True
    recipe = recipe or _learn(given, labels, keep, complete, spec, formula)
    encoded = given.encode(recipe, complete)
    arrays: list[np.ndarray] = []
    if labels is not None:
        if recipe.label is None:
            raise DataError("`y` was given, but training had no labels.", arg="y")
        arrays.append(encode_label(recipe.label, labels))
        recipe = replace(recipe, label=measure_range(recipe.label, arrays[0]))
        weights = _take_weights(weights, given.rows, complete)
        weight = _row_weights(weights, class_weight, recipe.label, arrays[0], keep)
        arrays.extend([] if weight is None else [weight])
    choose_batch_size(len(train_rows), spec.batch_size)
    encoded = place_rows(encoded, spec.cache, arg)
    sources = (encoded, *(MemoryRows(array) for array in arrays))
    dropped = given.rows - rows
    return Dataset(sources, recipe, spec, train_rows, validation_rows, na, dropped)


def _check_counts(
    rows: int,
    labels: Mapping[str, Any] | None,
    weights: np.ndarray | None,
    class_weight: str | Mapping[str, float] | None,
    arg: str,
) -> None:
    if labels is not None:
        check_lengths(rows, len(labels["values"]), "y", arg)
    elif weights is not None or class_weight is not None:
        name = "weights" if weights is not None else "class_weight"
        raise DataError(f"`{name}` needs labels to weigh.", hint="Give `y`.", arg=name)


def _choose_rows(
    na: str,
    features: Mapping[str, Any],
    labels: Mapping[str, Any] | None,
    rows: int,
    recipe: Recipe | None,
    arg: str,
) -> np.ndarray | None:
    """Which rows are taken, or None for all: then nothing is copied."""
    if na != "error" and features["kind"] in STREAMED:
        raise SpecError(
            f'`na` = "{na}" needs rows in memory: `{arg}` is {STREAMED[features["kind"]]}.',
            hint="Drop or impute the missing values first.",
            arg="na",
        )
    if na == "impute" and labels is not None:
        check_labels(labels)
    if na != "drop":
        return None
    complete = complete_rows(features, labels, rows, recipe and recipe.known, arg)
    return None if complete.all() else complete


def _take_weights(
    weights: np.ndarray | None, rows: int, complete: np.ndarray | None
) -> np.ndarray | None:
    if weights is None:
        return None
    checked = _check_weights(weights, rows)
    return checked if complete is None else checked[complete]


def _learn(
    given: Features,
    labels: Mapping[str, Any] | None,
    keep: np.ndarray,
    complete: np.ndarray | None,
    spec: DatasetSpec,
    formula: str,
) -> Recipe:
    label = None if labels is None else learn_label(labels, keep)
    return replace(given.learn(keep, spec, complete), label=label, formula=formula)


def _row_weights(
    weights: np.ndarray | None,
    class_weight: str | Mapping[str, float] | None,
    label: LabelRule,
    codes: np.ndarray,
    keep: np.ndarray,
) -> np.ndarray | None:
    if weights is None and class_weight is None:
        return None
    out = aligned_empty((len(codes),))
    out[...] = 1.0 if weights is None else weights
    if class_weight is not None:
        by_class = _class_weights(class_weight, label, codes[keep])
        out[keep] *= by_class[codes[keep].astype(np.int64)]
    return out


def _check_weights(weights: np.ndarray, rows: int) -> np.ndarray:
    values = np.asarray(weights, dtype=np.float64).reshape(-1)
    check_lengths(rows, len(values), "weights")
    if not np.isfinite(values).all() or values.min() < 0:
        raise DataError(
            "`weights` must be finite and at least 0.",
            hint="Remove rows with missing or negative weights.",
            arg="weights",
        )
    return values


def _class_weights(
    wanted: str | Mapping[str, float], label: LabelRule, codes: np.ndarray
) -> np.ndarray:
    if label.kind not in ("class", "binary"):
        raise SpecError(
            f"`class_weight` needs labels that are classes, not a {label.kind}.",
            arg="class_weight",
        )
    levels = label.levels or (("FALSE", "TRUE") if label.logical else ("0", "1"))
    if wanted == "balanced":
        return balanced_weights(np.bincount(codes.astype(np.int64), minlength=len(levels)))
    if not isinstance(wanted, Mapping) or set(wanted) != set(levels):
        raise SpecError(
            '`class_weight` must be "balanced" or one number named after each level.',
            hint=f"Levels are {', '.join(levels[:10])}.",
            arg="class_weight",
        )
    return np.array([check_number("class_weight", wanted[level], 0.0) for level in levels])


# Feeding -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Some batches' rows on the device.

    Args:
        arrays: Features, labels and weights; `capacity * batch_size` rows, or fewer in a tail.
        batches: Full batches that may be trained; the rest is padding of a fixed shape.
        tail: Whether it is the short last batch instead.
    """

    arrays: tuple[Any, ...]
    batches: int
    tail: bool = False


Piece = tuple[np.ndarray, int, bool]  # row numbers, batches, whether it is the tail


class Feed:
    """Gathers blocks of batches; one block ahead of the device where rows are not there yet.

    Args:
        dataset: Where the rows are.
        plan: Its plan.
        batch_size: Rows a batch; evaluation uses larger ones than training.
        steps: Batches an epoch, so that a small dataset gets a small block.
    """

    def __init__(self, dataset: Dataset, plan: PipelinePlan, batch_size: int, steps: int) -> None:
        """Places the rows."""
        self.batch_size = batch_size
        self.capacity = choose_capacity(batch_size * dataset.row_bytes, steps)
        self.wait_s = 0.0
        self._device = plan.device
        self._place = plan.device if plan.mode == "resident" else "CPU:0"
        self._ahead = self._place != self._device or plan.mode == "streamed"
        self._gatherers = tuple(source.gatherer(self._place) for source in dataset.sources)

    def blocks(self, order: np.ndarray) -> Iterator[Block]:
        """The rows of `order` as blocks of full batches, then the short last batch."""
        pieces = self._pieces(order)
        if self._ahead:
            yield from self._blocks_ahead(list(pieces))
            return
        for piece in pieces:  # a gather where the data is costs less than a second block in memory
            began = time.perf_counter()
            block = self._gather(*piece)
            self.wait_s += time.perf_counter() - began
            yield block
            del block

    def _blocks_ahead(self, pieces: list[Piece]) -> Iterator[Block]:
        with ThreadPoolExecutor(1) as ahead:
            waiting = ahead.submit(self._gather, *pieces[0])
            for piece in [*pieces[1:], None]:
                block = self._wait(waiting)
                if piece is not None:
                    waiting = ahead.submit(self._gather, *piece)
                yield block
                del block  # before the next is gathered: two blocks are in memory, never three

    def _pieces(self, order: np.ndarray) -> Iterator[Piece]:
        full = len(order) // self.batch_size
        room = self.capacity * self.batch_size
        for first in range(0, full, self.capacity):
            batches = min(self.capacity, full - first)
            rows = order[first * self.batch_size : (first + batches) * self.batch_size]
            yield np.pad(rows, (0, room - len(rows)), mode="edge"), batches, False
        if len(order) % self.batch_size:
            yield order[full * self.batch_size :], 1, True

    def _gather(self, rows: np.ndarray, batches: int, tail: bool) -> Block:
        tf = runtime.tensorflow()
        with tf.device(f"/{self._place}"):
            arrays = tuple(gather(rows) for gather in self._gatherers)
        if self._place != self._device:
            with tf.device(f"/{self._device}"):
                arrays = tuple(tf.identity(array) for array in arrays)
        return Block(arrays, batches, tail)

    def _wait(self, waiting: Future[Block]) -> Block:
        began = time.perf_counter()
        block = waiting.result()
        self.wait_s += time.perf_counter() - began
        return block
