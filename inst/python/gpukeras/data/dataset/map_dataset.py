"""Datasets of rows by number: what all datasets have, how they are built, windows of series.

    features, labels --recipe--> row sources --plan_pipeline()--> resident | staged | streamed

`loader.loader` sends them to the device, a block of batches at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpukeras.backend import devices
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_copy, aligned_empty
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import EncodeOptions, Notes, epoch_order, split_rows
from gpukeras.data.plan import PipelineFacts, PipelinePlan, plan_pipeline
from gpukeras.data.reader.image.source import read_masks, refuse_without_images
from gpukeras.data.reader.registry import open_features, open_labels
from gpukeras.data.reader.rows import Features, MemoryRows, RowSource
from gpukeras.data.reader.storage import place_rows
from gpukeras.data.reader.windows import Span, WindowFeatures, WindowRows
from gpukeras.data.recipe.augmentation import AugmentSpec
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import check_settled, group_columns
from gpukeras.data.recipe.imputation import check_labels, choose_complete
from gpukeras.data.recipe.multi_output import (
    ClassWeights,
    Weights,
    check_counts,
    encode_labels,
    learn_labels,
    measure_ranges,
    note_empty_classes,
    pack_weights,
    row_weights,
    take_labels,
    weigh_outputs,
)
from gpukeras.data.recipe.recipe import Encoding, Recipe
from gpukeras.data.recipe.targets import (
    MASKS,
    LabelRule,
    MatrixLabel,
    NumberLabel,
    describe_label,
    encode_label,
    learn_label,
    measure_range,
    note_number_labels,
)
from gpukeras.data.recipe.windows import (
    WindowRule,
    find_windows,
    note_short,
    split_windows,
    training_rows,
)

# All datasets -------------------------------------------------------------------------------------


class Dataset(ABC):
    """Rows with their recipe; R holds a handle to it.

    Args:
        sources: Features, labels and (optional) weights; of rows in sequence, the first chunk.
        recipe: The encoding that made them.
        spec: The dataset's options.
        na: The policy for missing values: "error", "impute" or "drop".

    Attributes:
        augment: The options of augmentation in training, or None.
        map: The user's function on a block's features on the device, or None.
        wrapped: Whether rows without labels came as `(x,)`, see `transforms.as_data()`.
        variable_axes: Axes of a row along which the model takes any length.
        dropped: Rows that were dropped for missing values; they have no number.
        skipped: Text on what `on_error = "skip"` left out, or "".
        notes: Sentences about the data that the user may not expect.
        variable_batch_size: Whether steps are traced for batches of any size, and the losses of
            several outputs are means over batches, as in Keras where the last batch is short.
        obstacle: Why rows are not numbers of one shape, see `why_not_batchable()`, or "".
        applied: Whether the recipe was given, and not learned from these rows.
    """

    applied = False
    wrapped = False
    variable_axes: frozenset[int] = frozenset()
    dropped = 0
    skipped = ""
    notes: tuple[str, ...] = ()
    variable_batch_size = False
    obstacle = ""

    def __init__(
        self, sources: tuple[RowSource, ...], recipe: Recipe, spec: DatasetSpec, na: str = "error"
    ) -> None:
        """Stores the parts; tensors are made on first use."""
        self.sources = sources
        self.recipe = recipe
        self.spec = spec
        self.na = na
        self.augment: AugmentSpec | None = None
        self.map: Callable[[Any], Any] | None = None

    @property
    @abstractmethod
    def source_kind(self) -> str:
        """The kind of source: "rows" (by number), "function" or "pipeline" (in sequence)."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Rows of all parts and all workers; None if unknown before the end."""

    @property
    @abstractmethod
    def epoch_rows(self) -> int:
        """Rows per epoch, or 0 if they are unknown before its end."""

    @abstractmethod
    def count(self, part: str) -> int | None:
        """Rows of a part ("train", "validation" or "all"); None if unknown before the end."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Returns what must agree about the source of the rows when a training run resumes."""

    @abstractmethod
    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options."""

    def plan(self, device: str, batch_size: int | str | None = None) -> PipelinePlan:
        """Returns the plan for a device; `batch_size` replaces that of the dataset's options."""
        return self.make_plan(device, self.spec_of(batch_size))

    def spec_of(self, batch_size: int | str | None) -> DatasetSpec:
        """Returns the dataset's options with another batch size, unless that is None."""
        return self.spec if batch_size is None else replace(self.spec, batch_size=batch_size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with label and weight."""
        return sum(source.row_bytes for source in self.sources)

    def has_rows(self, part: str) -> bool:
        """Whether a part ("train", "validation" or "all") has rows."""
        return self.count(part) != 0

    def batch(self, rows: int | np.ndarray) -> tuple[Any, ...]:
        """Returns rows of every source, by their numbers; or so many first ones."""
        taken = slice(rows) if isinstance(rows, int) else rows
        return tuple(source.gather(taken) for source in self.sources)


# Rows by number -----------------------------------------------------------------------------------


class MapDataset(Dataset):
    """Rows with numbers, split into a training and a validation part.

    Args:
        sources: Features, labels and (optional) weights.
        recipe: The encoding that made them.
        spec: The dataset's options.
        train_rows: Row numbers to train on (int32).
        validation_rows: Row numbers to validate on (int32).
        na: The policy for missing values: "error", "impute" or "drop".
        dropped: Rows that were dropped for missing values; they have no number.
        skipped: Text on what `on_error = "skip"` left out, or "".
        notes: Sentences about the data that the user may not expect.

    Attributes:
        draw: Returns places of the training rows (integers from 0) in the order of the next epoch;
            None for the order that seed and epoch give.
        class_weights: What the weights of rows were made of, if classes have weights.
        share: A phrase for the part of the files that this worker has read, or "".
    """

    source_kind = "rows"

    def __init__(
        self,
        sources: tuple[RowSource, ...],
        recipe: Recipe,
        spec: DatasetSpec,
        train_rows: np.ndarray,
        validation_rows: np.ndarray,
        *,
        na: str = "error",
        dropped: int = 0,
        skipped: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        """Stores the parts; tensors are made on first use."""
        super().__init__(sources, recipe, spec, na)
        self.train_rows, self.validation_rows = train_rows, validation_rows
        self.dropped = dropped
        self.skipped = skipped
        self.notes = notes
        self.draw: Callable[[], np.ndarray] | None = None
        self.class_weights: ClassWeights | None = None
        self.share = ""
        self._drawn: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """Rows of all parts."""
        return len(self.sources[0])

    @property
    def size(self) -> int:
        """Rows of all parts and all workers."""
        return len(self)

    @property
    def epoch_rows(self) -> int:
        """Rows per epoch: the training rows."""
        return len(self.train_rows)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All rows in host memory; rows that are elsewhere are copied."""
        return self.batch(len(self))

    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options."""
        memory = devices.free_bytes(device), devices.gpu_bytes(device)
        return plan_pipeline(self.read_facts(device, *memory), spec)

    def read_facts(
        self, device: str, free_bytes: float | None, memory_bytes: float | None
    ) -> PipelineFacts:
        """Returns the facts that decide the plan.

        Args:
            device: The device.
            free_bytes: Its free memory, or None if unknown.
            memory_bytes: All memory of a GPU, or None.
        """
        return PipelineFacts(
            rows=len(self.train_rows),
            validation_rows=len(self.validation_rows),
            row_bytes=-(-sum(source.stored_bytes for source in self.sources) // max(1, len(self))),
            device=device,
            free_bytes=free_bytes,
            memory_bytes=memory_bytes,
            varied=self.augment is not None or self.map is not None,
            na=self.na,
            dropped=self.dropped,
            indicators=self.recipe.features.indicators,
            streamed="; ".join(source.streamed for source in self.sources if source.streamed),
            resident_bytes=sum(source.resident_bytes for source in self.sources),
            movable=all(source.movable for source in self.sources),
            skipped=self.skipped,
        )

    def rows(self, part: str) -> np.ndarray:
        """Returns the row numbers of a part: "train", "validation" or "all" (in the user's order).

        With several workers, these are the rows of this worker's shard.
        """
        if part == "all" and not len(self.validation_rows):
            return self.train_rows
        if part == "all":
            return np.sort(np.concatenate([self.train_rows, self.validation_rows]))
        return self.train_rows if part == "train" else self.validation_rows

    def count(self, part: str) -> int:
        """Rows of a part in this worker's shard."""
        return len(self.rows(part))

    def identity(self) -> dict[str, Any]:
        """Returns the numbers of training and of validation rows."""
        rows, held = len(self.train_rows), len(self.validation_rows)
        return {"source": "rows by number", "rows": rows, "validation_rows": held}

    def order(self, epoch: int, batch_size: int = 0) -> np.ndarray:
        """Returns the training rows in an epoch's order, whatever the batch size."""
        if self.draw is None:
            return epoch_order(self.train_rows, self.spec.shuffle, self.spec.seed, epoch)
        if self._drawn is None or self._drawn[0] != epoch:  # an epoch may begin again
            self._drawn = epoch, self.train_rows[self.draw()]
        return self._drawn[1]


@dataclass(frozen=True)
class Request:
    """How a dataset is to be made of features.

    Args:
        options: Fields of `DatasetSpec`.
        labels: `{kind, values, levels}`, see `targets`, `{kind: "npy", path}`, or several outputs
            of these; None also if the features hold them.
        weights: An array of weights, rows first, or one for each output, see `weights`.
        class_weight: "balanced", or a weight for each level; training rows only, as in Keras.
        recipe: An encoding to apply instead of learning one.
        formula: R's formula as text.
        arg: The user's name for the features, for messages.
        text: The text columns and their encoding, see `text_vectorization.TextSpec`.
    """

    options: Mapping[str, Any]
    labels: Mapping[str, Any] | None = None
    weights: Weights | None = None
    class_weight: str | Mapping[str, float] | None = None
    recipe: Recipe | None = None
    formula: str = ""
    arg: str = "x"
    text: Mapping[str, Any] | None = None

    @cached_property
    def spec(self) -> DatasetSpec:
        """The options, checked."""
        return DatasetSpec.from_dict(self.options)

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of the features, or None to learn it."""
        return None if self.recipe is None else self.recipe.features

    @property
    def na(self) -> str:
        """The policy for missing values, see `choose_policy()`."""
        return choose_policy(self.spec.na, None if self.recipe is None else self.recipe.na)


def choose_policy(asked: str, learned: str | None) -> str:
    """Returns the policy for missing values: `asked`, or that of the applied recipe.

    "drop" overrides any recipe. "error" is the default, so the recipe's policy overrides it.

    Raises:
        SpecError: if `asked` is "impute" and the recipe learned no values to impute.
    """
    if learned is None or asked == "drop":
        return asked
    if asked == "impute" and learned != "impute":
        raise SpecError(
            f'`na` = "impute" needs a `recipe` that was learned so, not with "{learned}".',
            hint='Make that dataset with `na = "impute"`, or use `na = "drop"`.',
            arg="na",
        )
    return learned


@dataclass(frozen=True)
class Weighing:
    """What the user gave to weigh rows by.

    Args:
        weights: One a row, or an array for each output, or None.
        complete: Mask of the rows to use, or None for all.
        class_weight: Weights of classes, or None.
    """

    weights: Weights | None
    complete: np.ndarray | None
    class_weight: str | Mapping[str, float] | None

    def pack(self, label: LabelRule) -> np.ndarray | None:
        """Returns the weights of the rows to use, all outputs side by side, if there are any."""
        return None if self.weights is None else pack_weights(label, self.weights, self.complete)

    def pack_pixels(self, label: LabelRule) -> np.ndarray | None:
        """Returns the weights of the rows or pixels of masks, if there are any."""
        if self.class_weight is not None:
            raise SpecError(
                "`class_weight` weighs rows, and a mask has a class for each pixel.",
                hint="Give `weights`: an array of one for each pixel, rows first.",
                arg="class_weight",
            )
        return self.pack(label)


def build_dataset(
    features: Mapping[str, Any],
    options: Mapping[str, Any],
    labels: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    **others: Any,
) -> MapDataset:
    """Builds a dataset of rows by number, see `build_rows()`; for the arguments see `Request`."""
    return build_rows(features, Request(options, labels, weights, **others))


def build_rows(features: Mapping[str, Any], request: Request) -> MapDataset:
    """Builds a dataset: splits the rows, learns the recipe from the training rows, and encodes.

    Args:
        features: See `registry.open_features()`; with `groups` if the columns are several inputs,
            see `encoding.group_columns()`.
        request: How the dataset is to be made.

    Raises:
        SpecError: for a bad option.
        DataError: for data that cannot be trained on.
    """
    spec = request.spec
    arg = request.arg
    recipe = request.recipe
    opened = open_features(features, arg, spec, request.encoding, request.text)
    labels = opened.labels() if request.labels is None else open_labels(request.labels)
    weights = opened.weights() if request.weights is None else request.weights
    vector = features["kind"] == "array" and np.ndim(features["values"]) == 1
    if labels is None and weights is None and request.class_weight is not None:
        problem = "`class_weight` needs labels to weigh."
        raise DataError(problem, hint="Give `y`.", arg="class_weight")
    check_counts(opened.rows, labels, weights, arg, vector=vector)
    complete = choose_rows(opened, labels, request)
    labels = _take_labels(labels, opened, complete, request)
    rows = opened.rows if complete is None else int(complete.sum())
    parts = split_rows(rows, spec.validation, spec.seed)
    groups, keep = features.get("groups"), np.zeros(rows, dtype=bool)
    keep[parts[0]] = True
    remarks: tuple[str, ...] = ()
    if recipe is None:
        encoding = opened.learn(Learning(keep, spec, complete))
        remarks = opened.remarks(encoding, spec)
        recipe = Recipe(
            group_columns(encoding, groups, arg),
            label=None if labels is None else learn_labels(labels, keep),
            formula=request.formula or opened.formula,
            na=request.na,
        )
    else:
        check_settled(recipe.features, groups)
    weighing, notes = Weighing(weights, complete, request.class_weight), Notes()
    recipe, arrays = _encode_labels(recipe, labels, weighing, keep, notes)
    if request.recipe is None and labels is not None:
        remarks += _note_labels(labels, recipe, arrays, keep)
    class_weights = None
    if request.class_weight is not None and recipe.label is not None:
        class_weights = ClassWeights(request.class_weight, weighing.pack(recipe.label))
    del labels, weights, weighing, keep  # a large file's need more memory than what follows
    shares = [take_shard(part, spec.shard) for part in parts]
    encoded = opened.encode(recipe.features, EncodeOptions(complete, notes))
    sources = (place_rows(encoded, spec.cache, arg), *map(_as_rows, arrays))
    dropped, said = opened.rows - rows, (*opened.notes, *remarks, *notes.sentences)
    data = MapDataset(
        sources,
        recipe,
        spec,
        *shares,
        na=request.na,
        dropped=dropped,
        skipped=opened.skipped,
        notes=said,
    )
    data.class_weights, data.share = class_weights, opened.share
    return data


def _note_labels(
    labels: Mapping[str, Any],
    recipe: Recipe,
    arrays: Sequence[np.ndarray | RowSource],
    keep: np.ndarray,
) -> tuple[str, ...]:
    """Returns sentences about labels that training rows hold, or lack."""
    said = note_number_labels(labels)
    if recipe.label is not None and isinstance(arrays[0], np.ndarray):
        said += note_empty_classes(recipe.label, arrays[0], keep, recipe.formula)
    return said


def weigh_classes(data: MapDataset, rows: np.ndarray) -> tuple[RowSource, ...]:
    """Returns the sources of a dataset with class weights for these training rows alone.

    Balanced weights are those of the rows' labels. Other rows keep the weights that the user gave
    them.
    """
    own, label = data.class_weights, data.recipe.label
    if own is None or label is None:
        return data.sources
    keep = np.zeros(len(data), dtype=bool)
    keep[rows] = True
    codes = np.asarray(data.sources[1].gather(slice(None)))
    own_weights = None if own.weights is None else aligned_copy(own.weights)
    weights = row_weights(own_weights, own.requested, label, codes, keep)
    assert weights is not None  # classes have weights
    return (*data.sources[:2], MemoryRows(weights))


def _as_rows(values: np.ndarray | RowSource) -> RowSource:
    return values if isinstance(values, RowSource) else MemoryRows(values)


def _take_labels(
    labels: Mapping[str, Any] | None,
    opened: Features,
    complete: np.ndarray | None,
    request: Request,
) -> Mapping[str, Any] | None:
    """Returns the labels of the rows to take; masks are read as large as their images."""
    if labels is None:
        return None
    labels = take_labels(labels, complete)
    if labels["kind"] != MASKS:
        return labels
    images = opened.images(complete)
    rule = None if request.recipe is None else request.recipe.label
    if images is None:
        raise refuse_without_images(labels, opened.arg)
    if rule is not None and not rule.pixels:
        raise DataError(
            f"`{labels['arg']}` has mask images where training had {describe_label(rule)}.",
            arg=labels["arg"],
        )
    return read_masks(labels, images, rule, request.spec.cache)


def take_shard(rows: np.ndarray, shard: tuple[int, int]) -> np.ndarray:
    """Returns a worker's shard of the rows: every n-th row for n workers.

    Args:
        rows: Row numbers of a part; the same for all workers.
        shard: This worker's number, from 1, and the number of workers.
    """
    index, count = shard
    return rows if count == 1 else rows[index - 1 :: count].copy()


def choose_rows(
    opened: Features, labels: Mapping[str, Any] | None, request: Request
) -> np.ndarray | None:
    """Returns a mask of the rows to take, or None for all, which avoids a copy.

    Raises:
        SpecError: if these rows do not take the policy for missing values.
        DataError: if each row lacks a value.
    """
    opened.check_policy(request.na)
    if request.na == "impute" and labels is not None:
        check_labels(labels)
    if request.na != "drop":
        return None
    known = None if request.encoding is None else request.encoding.known
    complete = choose_complete(*opened.count_missing(known), labels, opened.arg)
    return None if complete.all() else complete


def _encode_labels(
    recipe: Recipe,
    labels: Mapping[str, Any] | None,
    weighing: Weighing,
    keep: np.ndarray,
    notes: Notes,
) -> tuple[Recipe, list[np.ndarray | RowSource]]:
    """Returns the recipe with the labels' range, and the labels and weights that exist."""
    if labels is None:
        return recipe, []
    if recipe.label is None:
        raise DataError("`y` was given, but training had no labels.", arg="y")
    if labels["kind"] == MASKS:
        label = weigh_outputs(recipe.label, weighing.weights)
        encoded, weight = labels["values"], weighing.pack_pixels(label)
    else:
        encoded = encode_labels(recipe.label, labels, notes)
        label = weigh_outputs(measure_ranges(recipe.label, encoded), weighing.weights)
        packed = weighing.pack(label)
        weight = row_weights(packed, weighing.class_weight, label, encoded, keep)
    return replace(recipe, label=label), [encoded] if weight is None else [encoded, weight]


# Windows of time series ---------------------------------------------------------------------------


def build_windows(features: Mapping[str, Any], request: Request) -> MapDataset:
    """Builds a dataset of windows: orders the rows, learns the recipe, and encodes each row once.

    A window's features are (window, columns), its labels the targets of the rows after it:
    (horizon, targets), without dimensions of 1. Validation is the last share of each group's rows,
    and the recipe learns from the rows before.

    Args:
        features: See `WindowFeatures`; labels are columns of these.
        request: How the dataset is to be made; neither labels, weights nor class weights are taken.

    Raises:
        SpecError: for a bad option, or one that windows do not take.
        DataError: for data that cannot be trained on.
    """
    spec, recipe = request.spec, request.recipe
    _refuse_others(
        {
            "y": request.labels,
            "weights": request.weights,
            "class_weight": request.class_weight,
            "inputs": features.get("groups"),
            "cache": spec.cache if spec.cache == "disk" else None,
        }
    )
    opened = open_features(features, request.arg, spec, request.encoding, request.text)
    assert isinstance(opened, WindowFeatures)
    opened.check_policy(request.na)
    rule, notes = opened.rule, Notes()
    starts = find_windows(opened.series, rule)
    parts = split_windows(opened.series, rule, starts, spec.validation)
    shares = [take_shard(part, spec.shard) for part in parts]
    keep = training_rows(opened.series, spec.validation, opened.rows)
    remarks = note_short(opened.series, rule)
    if recipe is None:
        recipe = Recipe(
            opened.learn(Learning(keep, spec)), label=_learn_label(opened, keep), na=spec.na
        )
        remarks = (*remarks, *opened.remarks(recipe.features, spec))
    sources = [opened.windows(recipe.features, starts, notes)]
    if recipe.label is not None:
        targets = _encode_targets(opened, notes)
        recipe = replace(recipe, label=measure_range(recipe.label, targets))
        sources.append(WindowRows(MemoryRows(targets), starts, [_label_span(rule)]))
    said = (*remarks, *notes.sentences)
    return MapDataset(tuple(sources), recipe, spec, *shares, na=recipe.na, notes=said)


def _refuse_others(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value is not None:
            said = '`cache` = "disk"' if name == "cache" else f"`{name}`"
            raise SpecError(
                f"{said} does not apply to windows of time series.",
                hint="Name the columns to predict: `y`." if name == "y" else "",
                arg=name,
            )


def _learn_label(opened: WindowFeatures, keep: np.ndarray) -> LabelRule | None:
    """Returns the rule of a window's labels: of one number, or of several."""
    rule = opened.rule
    if not rule.targets:
        return None
    if not rule.label_shape:
        return learn_label(opened.columns[rule.targets[0]], keep, rule.targets[0])
    shape = rule.label_shape
    names = rule.targets if shape == (len(rule.targets),) and rule.horizon == 1 else ()
    return MatrixLabel(shape, names)


def _encode_targets(opened: WindowFeatures, notes: Notes) -> np.ndarray:
    """Returns the targets of each row of the series: a column for each, a vector for one."""
    names = opened.rule.targets
    targets = aligned_empty((opened.series.rows, len(names)))
    for place, name in enumerate(names):
        if name not in opened.columns:
            raise DataError(f"`{opened.arg}` lacks the column `{name}` to predict.", arg=opened.arg)
        column, plain = opened.take(name), NumberLabel()
        targets[:, place] = encode_label(plain, column, notes, name)
    return targets if len(names) > 1 else targets[:, 0]


def _label_span(rule: WindowRule) -> Span:
    ahead = np.arange(rule.window, rule.span)
    return Span(ahead if rule.horizon > 1 else ahead[0])
