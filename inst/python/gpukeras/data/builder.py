"""Builds the dataset that a call of `gpu_dataset()` asks for.

    files --build_sharded()--> this worker's rows --exchange of their number--> ShardedDataset

Rows are numbered over all workers. Each batch takes equally many rows of each worker, in the order
in which `BatchSharding` divides it, so that no worker needs rows of another one. An epoch ends with
the rows of the smallest shard: each worker leaves out as many as it has more, others in each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import epoch_order, side_by_side
from gpukeras.data.dataset.map_dataset import (
    Dataset,
    MapDataset,
    Request,
    build_rows,
    build_windows,
)
from gpukeras.data.dataset.streams import STREAM_KINDS, build_stream
from gpukeras.data.loader.transforms import trace_map, unmapped
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.reader.rows import RenumberedRows, RowSource
from gpukeras.data.recipe.augmentation import AugmentSpec, choose_augmented
from gpukeras.data.recipe.multi_output import Weights
from gpukeras.data.recipe.recipe import BatchesEncoding, Encoding, Recipe
from gpukeras.data.saved.reader import build_saved

# Shards of workers --------------------------------------------------------------------------------

MOST_ROWS = 2**31 - 1
LEARNED = "Each worker would learn another encoding from its own files."


@dataclass(frozen=True)
class WorkerShard:
    """The place of this worker among those that share the files.

    Args:
        index: Number of this worker, from 0.
        count: Number of workers.
        exchange: Sends a record to all workers, and returns those of all in their order.
    """

    index: int
    count: int
    exchange: Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]


def number_rows(own: RowSource, first: int, total: int) -> RenumberedRows:
    """Returns a worker's own rows under their numbers over all workers, which begin at `first`.

    Reading others is an error, as this worker does not have them.
    """

    def find(numbers: np.ndarray) -> np.ndarray:
        local = numbers - first
        if local.size and not 0 <= local.min() <= local.max() < len(own):
            raise DataError(
                "This worker has read its own shard, and not the rows of the other workers.",
                hint="Train on all workers, and evaluate data that each worker reads as a whole.",
            )
        return local

    return RenumberedRows(own, total, find)


class ShardedDataset(MapDataset):
    """The rows of all workers, of which this one has its own.

    Args:
        own: This worker's dataset.
        index: Number of this worker, from 0.
        counts: Rows of each worker.
    """

    def __init__(self, own: MapDataset, index: int, counts: Sequence[int]) -> None:
        """Numbers the rows over all workers."""
        firsts = np.cumsum([0, *counts])
        self._index = index
        self._counts = tuple(counts)
        self._firsts = firsts
        sources = tuple(number_rows(each, int(firsts[index]), sum(counts)) for each in own.sources)
        super().__init__(
            sources,
            own.recipe,
            replace(own.spec, drop_last=True),
            np.arange(len(counts) * min(counts), dtype=np.int32),  # as many as an epoch takes
            np.empty(0, np.int32),
            na=own.na,
            dropped=own.dropped,
            skipped=own.skipped,
            notes=own.notes,
        )
        self.share = own.share

    def rows(self, part: str) -> np.ndarray:
        """Returns the row numbers of a part; "all" are this worker's rows."""
        if part != "all":
            return super().rows(part)
        first = int(self._firsts[self._index])
        return np.arange(first, first + self._counts[self._index], dtype=np.int32)

    def batch(self, rows: int | np.ndarray) -> tuple[Any, ...]:
        """Returns rows of every source by their numbers, or so many of this worker's first ones."""
        return super().batch(self.rows("all")[:rows] if isinstance(rows, int) else rows)

    def order(self, epoch: int, batch_size: int = 0) -> np.ndarray:
        """Returns an epoch's full batches, of which each worker gets rows of its own.

        Args:
            epoch: Number of the epoch, from 0.
            batch_size: Rows of a batch on all workers, a multiple of their number.
        """
        workers = len(self._counts)
        size = batch_size or workers
        steps, part = len(self.train_rows) // size, size // workers
        order = np.empty((steps, workers, part), np.int32)
        for worker, count in enumerate(self._counts):
            order[:, worker] = self._firsts[worker]  # not gathered here, so any will do
            if worker == self._index:
                own = np.arange(count, dtype=np.int32) + np.int32(self._firsts[worker])
                own = epoch_order(own, self.spec.shuffle, self.spec.seed, epoch)
                order[:, worker] = own[: steps * part].reshape(steps, part)
        return order.reshape(-1)

    def identity(self) -> dict[str, Any]:
        """Returns the numbers of rows, and those of each worker's shard."""
        return {**super().identity(), "shards": list(self._counts)}

    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options, with what this worker has read."""
        most = self._counts[self._index]
        share = f"worker {self._index + 1} of {len(self._counts)} reads {self.share}, "
        share += count_of(most, "row")
        if most > min(self._counts):
            share += f"; an epoch takes {min(self._counts):,} of them, as the smallest shard has"
        return replace(super().make_plan(device, spec), share=share)


def build_sharded(
    features: Mapping[str, Any], request: Request, shard: WorkerShard
) -> ShardedDataset:
    """Builds the dataset of a worker from its part of the files; all workers call it together.

    Args:
        features: Of kind "table", with paths.
        request: How the dataset is to be made, with a recipe.
        shard: The place of this worker.

    Raises:
        SpecError: for other rows, or an option that needs the rows of all workers.
        DataError: for data that cannot be trained on, or fewer files than workers.
    """
    _check_options(features, request)
    place = shard.index, shard.count
    own = build_rows({**features, "shard": place}, request)
    counts = _check_counts(shard.exchange("shard", {"rows": len(own.train_rows)}), request.arg)
    return ShardedDataset(own, shard.index, counts)


def _check_counts(records: Sequence[Mapping[str, Any]], arg: str) -> list[int]:
    """Returns each worker's number of rows, which all together have numbers of 32 bits."""
    counts = [record.get("rows") for record in records]
    known = [count for count in counts if type(count) is int and count > 0]
    if len(known) < len(counts) or sum(known) > MOST_ROWS:
        raise DataError(f"The workers' rows of `{arg}` cannot be numbered.", arg=arg)
    return known


def _check_options(features: Mapping[str, Any], request: Request) -> None:
    if features["kind"] != "table" or features.get("stream") is not None:
        raise SpecError(
            '`shard` = "workers" divides files: CSV, Parquet or Feather.',
            hint="Use `shard = c(1, 1)`: each worker then reads all rows, and trains its part.",
            arg="shard",
        )
    refused = {
        "validation": (request.spec.validation > 0, "Give gpu_fit(validation = ) other files."),
        "class_weight": (request.class_weight is not None, "Give `weights`."),
        "recipe": (
            request.recipe is None,
            "Learn it from one file: recipe = gpu_recipe(gpu_dataset(files[1], ...)).",
        ),
    }
    for name, (wrong, hint) in refused.items():
        if wrong:
            needs = "needs a `recipe`" if name == "recipe" else f"does not go with `{name}`"
            message = f'`shard` = "workers" {needs}. {LEARNED}'
            raise SpecError(message, hint=hint, arg=name)


# Building -----------------------------------------------------------------------------------------

Builder = Callable[[Mapping[str, Any], Request], MapDataset]
BUILDERS: dict[str, Builder] = {"saved": build_saved, "windows": build_windows}
# `build_saved()` refuses `text`.
TEXT_KINDS = ("columns", "windows", "table", "records", "generator", "saved")


def assemble(
    features: Mapping[str, Any],
    options: Mapping[str, Any],
    labels: Mapping[str, Any] | None = None,
    *,
    weights: Weights | None = None,
    class_weight: str | Mapping[str, float] | None = None,
    recipe: Recipe | None = None,
    formula: str = "",
    arg: str = "x",
    augment: Mapping[str, Any] | None = None,
    map: Callable[[Any], Any] | None = None,  # noqa: A002 (R's name for it)
    text: Mapping[str, Any] | None = None,
    shard: WorkerShard | None = None,
) -> Dataset:
    """Builds a dataset for training.

    Args:
        features: A mapping with a `kind`; see `registry.open_features()`, `saved.reader` and
            `streams.build_stream()`.
        options: Fields of `DatasetSpec`.
        labels: See `map_dataset.Request`, as for the next five.
        weights: As the user gave them.
        class_weight: As the user gave them.
        recipe: An encoding to apply instead of learning one.
        formula: R's formula as text.
        arg: The user's name for the features, for messages.
        augment: Fields of `AugmentSpec`, or None.
        map: The user's function on a block's features on the device, see `map_fn`.
        text: The text columns and their encoding, see `text_vectorization.TextSpec`.
        shard: The place of this worker among those that share the files, or None.

    Raises:
        SpecError: for a bad option.
        DataError: for data that cannot be trained on.
    """
    kind = features["kind"]
    _check_text(text, kind, arg)
    request = Request(options, labels, weights, class_weight, recipe, formula, arg, text)
    if shard is not None:
        data: Dataset = build_sharded(features, request, shard)
    elif kind in STREAM_KINDS:
        _check_own(request)
        data = build_stream(features, request)
    else:
        data = BUILDERS.get(kind, build_rows)(features, request)
    data.applied = recipe is not None
    return _vary(data, augment, map)


def _check_text(text: Mapping[str, Any] | None, kind: str, arg: str) -> None:
    if text is not None and kind not in TEXT_KINDS:
        raise SpecError(
            "`text` names columns, which `" + arg + "` does not have.",
            hint="Put the texts into a data frame.",
            arg="text",
        )


def _check_own(request: Request) -> None:
    for name, value in (("weights", request.weights), ("y", request.labels)):
        if value is not None:
            raise SpecError(
                f"`{name}` cannot be given beside `{request.arg}`, which makes its rows itself.",
                hint="Give list(x, y, weights) for each batch.",
                arg=name,
            )


def _vary(
    data: Dataset,
    augment: Mapping[str, Any] | None,
    function: Callable[[Any], Any] | None,
) -> Dataset:
    """Adds augmentation and `map` to the dataset and to its recipe."""
    if isinstance(data.recipe.features, BatchesEncoding) and (augment or function is not None):
        arg = "augment" if augment else "map"
        raise SpecError(
            f"`{arg}` needs rows of numbers of one shape: the batches are taken as they come.",
            hint="Apply it in the tf.data pipeline, by its own map().",
            arg=arg,
        )
    recipe = data.recipe
    if augment:
        data.augment = AugmentSpec.from_dict({"seed": data.spec.seed, **augment})
        _check_displaced(data)
        recipe = choose_augmented(recipe, data.augment)
    if recipe.mixed and recipe.label is not None and recipe.label.outputs:
        raise SpecError(
            "`mixup` mixes the labels of a single output.",
            hint="Leave it out, or train a model for each output.",
            arg="augment",
        )
    if function is not None and recipe.parts:
        raise SpecError(
            "`map` takes the features of a single input.",
            hint="Put what it does into the model, as layers of the input.",
            arg="map",
        )
    if recipe.mapped and function is None:
        raise unmapped("x")
    if function is not None:
        data.map = trace_map(function, recipe.shape)
        recipe = replace(recipe, mapped=True)
    data.recipe = recipe
    return data


def _check_displaced(data: Dataset) -> None:
    """Refuses to move the pixels of `x` if the labels are images too."""
    spec, label = data.augment, data.recipe.label
    assert spec is not None  # called for augmented data only
    stays = spec.crop is None and spec.flip == "none" and spec.keeps_values
    if stays or label is None:
        return
    rules = [output.rule for output in label.outputs] or [label]
    if label.pixels:  # masks are moved as their images
        _check_pixel_weights(data)
        return
    if any(len(rule.row_shape) > 1 for rule in rules):
        raise SpecError(
            "`augment` moves the pixels of `x`, but not those of `y`.",
            hint="Vary both alike in a function that gives list(x, y), or in a tf.data pipeline.",
            arg="augment",
        )


def _check_pixel_weights(data: Dataset) -> None:
    if len(data.sources) > 2 and math.prod(data.sources[2].shape[1:]) > 1:
        raise SpecError(
            "`augment` moves the pixels of masks, but not their `weights`.",
            hint="Give one weight for each row, as an array with dimensions of 1.",
            arg="augment",
        )


def explain_varied(data: Dataset) -> str:
    """Describes in words what the device does to a block's rows; "" for nothing."""
    spec, plain = data.augment, AugmentSpec()
    parts = [] if data.map is None else ["a function of one's own"]
    for field in fields(plain):
        value = getattr(spec, field.name, None)
        if spec is not None and field.name != "seed" and value != getattr(plain, field.name):
            parts.append(f"{field.name} {_as_text(value)}")
    return ", ".join(parts)


def _as_text(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def take_rows(data: MapDataset, rows: Sequence[float]) -> dict[str, Any]:
    """Returns some rows as the model gets them, before the device transforms them.

    Args:
        data: The dataset; its rows have numbers.
        rows: Row numbers in the user's order, from 1.

    Returns:
        `{inputs, y, weights}`, without `y` or `weights` if the dataset has none. Each of `inputs`
        is `{name, values, names}`: "" for a single one, the array and the names of its columns.
        Texts are `{name, texts, dim, names}`, the first axis fastest.
    """
    places = np.asarray(rows, np.int64) - 1
    first, *others = (source.gather(places) for source in data.sources)
    texts = data.sources[0].texts
    inputs = [
        {"name": name, "names": names, **_as_texts(values, texts.get(name))}
        for name, values, names in _split_inputs(data.recipe.features, first)
    ]
    return {"inputs": inputs, **dict(zip(("y", "weights"), others, strict=False))}


def _split_inputs(
    features: Encoding, rows: np.ndarray
) -> Iterator[tuple[str, np.ndarray, Sequence[str]]]:
    """Yields the name, the rows and the columns' names of each input; "" for a single one."""
    shapes = {each.name: each.encoding.staged_shape for each in features.inputs}
    shapes = shapes or {part.name: part.shape for part in features.parts}
    known = {each.name: each.encoding for each in features.inputs}
    all_names = features.feature_names or features.names
    places = side_by_side(map(math.prod, shapes.values()))
    if not shapes or rows.ndim != 2 or rows.shape[1] != places[-1].stop:
        yield "", rows, all_names if rows.shape[-1] == len(all_names) else ()
        return
    for (name, shape), here in zip(shapes.items(), places, strict=True):
        names = all_names[here] if len(all_names) == rows.shape[1] else ()
        if name in known:
            names = known[name].feature_names or known[name].names
        values = rows[:, here].reshape(-1, *shape)
        yield name, values, names if values.ndim > 1 and len(names) == values.shape[-1] else ()


def _as_texts(values: np.ndarray, texts: Sequence[str] | None) -> dict[str, Any]:
    """Returns values, or the texts that they are codes of.

    R's reticulate mixes up the axes of text arrays.
    """
    if texts is None:
        return {"values": values}
    read = np.asarray(texts)[values.astype(np.int64)]
    return {"texts": read.ravel(order="F").tolist(), "dim": list(read.shape)}
