"""Chunks of rows, as a function of the user's gives them: read, encoded, or collected.

A chunk is `{features, labels, weights}`, as `reader`, `targets` and R's `as_features()` describe
them. None marks the end of an epoch. A function that failed returns `{failed: True}`; R keeps the
condition and raises it again when Python has ended cleanly. An interrupt returns
`{interrupted: True}`.

The function may be an R function, so it is called only on R's main thread, the one that called
`api.invoke()`, and never inside a step. Batches of a tf.data pipeline become chunks too where the
recipe is learned, or rows are kept.

Rows are collected before encoding, so that the recipe is learned from all of them. Large arrays go
to a scratch file; the columns of data frames stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, GeneratorError, warn_ended_early
from gpukeras.core.messages import mib
from gpukeras.core.options import check_count
from gpukeras.data.arrays import EncodeOptions, check_features, order_columns
from gpukeras.data.dataset.map_dataset import Request, choose_rows
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import Features, MemoryRows
from gpukeras.data.reader.storage import MEMORY_BYTES, RowsWriter, check_disk, scratch_folder
from gpukeras.data.reader.table.columns import WholeColumn
from gpukeras.data.recipe.columns import Learning, kind_of
from gpukeras.data.recipe.encoding import group_columns
from gpukeras.data.recipe.imputation import check_labels, miss_labels
from gpukeras.data.recipe.multi_output import (
    Weights,
    check_counts,
    each_weights,
    encode_labels,
    learn_labels,
    measure_ranges,
    pack_weights,
    take_labels,
    weigh_outputs,
)
from gpukeras.data.recipe.recipe import Recipe, without_absent
from gpukeras.data.recipe.targets import SEVERAL
from gpukeras.system import host

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
        weights: The weights of each row, see `multi_output`, or None.
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

NONE = np.empty(0)
Arrays = tuple[Any, ...]  # features, labels, weights: rows first
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
    arg = request.arg
    opened = open_features(first.features, arg, request.spec, None, request.text)
    check_counts(opened.rows, first.labels, first.weights, arg)
    complete = choose_rows(opened, first.labels, request)
    keep = np.ones(opened.rows if complete is None else int(complete.sum()), dtype=bool)
    label = None
    if first.labels is not None:
        label = learn_labels(take_labels(first.labels, complete), keep)
    how = Learning(keep, request.spec, complete, whole=False)
    features = group_columns(opened.learn(how), groups, arg)
    return without_absent(
        Recipe(features, label=label, na=request.na)
    )  # later chunks may have them


def encode_first(first: Chunk, recipe: Recipe, na: str, arg: str) -> tuple[Arrays, Recipe]:
    """Encodes the first chunk; returns it, and the recipe with its labels' range and weights.

    Raises:
        DataError: as `encode_chunk()` raises, or if each row lacks a value.
    """
    if recipe.label is not None:
        recipe = replace(recipe, label=weigh_outputs(recipe.label, first.weights))
    head, _ = encode_chunk(first, recipe, na, arg)
    if not len(head[0]):
        raise DataError("Each row lacks a value.", arg=arg)
    if recipe.label is not None and len(head) > 1:
        recipe = replace(recipe, label=measure_ranges(recipe.label, head[1]))
    return head, recipe


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
    check_counts(rows, labels, chunk.weights, arg)
    complete = _find_complete(opened, labels, recipe.features.known) if na == "drop" else None
    if complete is not None and not complete.any():
        return tuple(np.empty((0, *shape)) for shape in (recipe.features.staged_shape, ())), rows
    if na == "impute" and labels is not None:
        check_labels(labels)
    arrays = [opened.encode(recipe.features, EncodeOptions(complete)).gather(slice(None))]
    if labels is not None:
        arrays.append(encode_labels(recipe.label, take_labels(labels, complete)))
    if chunk.weights is not None and recipe.label is not None:
        arrays.append(pack_weights(recipe.label, chunk.weights, complete))
    check_rows(*arrays[1:])
    return tuple(arrays), 0 if complete is None else int(rows - complete.sum())


def _find_complete(
    opened: Features, labels: Mapping[str, Any] | None, known: Collection[str]
) -> np.ndarray | None:
    """Returns a mask of the rows complete in the columns `known` and in `y`, or None for all."""
    complete = opened.find_complete(known)
    if labels is not None:
        complete &= ~miss_labels(labels)
    return None if complete.all() else complete


def check_rows(labels: Any = NONE, weights: Any = NONE) -> None:
    """Checks that encoded labels are finite, and that weights are finite and at least 0.

    Raises:
        DataError: if they are not.
    """
    if not np.isfinite(labels).all():
        raise DataError("`y` has missing or infinite values.", arg="y")
    if len(weights) and not (np.isfinite(weights).all() and weights.min() >= 0):
        raise DataError("`weights` must be finite and at least 0.", arg="weights")


# Collecting ---------------------------------------------------------------------------------------

Record = dict[str, Any]
ENDLESS = "Give `steps`, the calls of an epoch, if the function has no end."


class Materializer:
    """A collector of the chunks of one pass.

    Args:
        arg: The user's name for the features.

    Attributes:
        rows: Rows collected so far.
    """

    def __init__(self, arg: str) -> None:
        """Starts without rows."""
        self._arg = arg
        self._features: _Array | _Several | None = None
        self._labels: _Column | _Array | _Several | None = None
        self._weights: dict[str, list[np.ndarray]] = {}
        self._shown: Parts | None = None
        self.rows = 0

    def run(self, chunks: Iterable[Chunk]) -> tuple[Record, Record | None, Weights | None]:
        """Returns features, labels and weights of all chunks.

        Raises:
            DataError: for a chunk that does not fit the first one; names the chunk. Also for more
                rows than memory and disk can hold.
        """
        try:
            for chunk in chunks:
                self._add(chunk)
        except BaseException:
            self.close()
            raise
        if self._features is None:
            raise DataError("There are no rows.", arg=self._arg)
        labels = None if self._labels is None else self._labels.finish()
        return self._features.finish(), labels, self._finish_weights()

    def _finish_weights(self) -> Weights | None:
        weights = {name: np.concatenate(parts) for name, parts in self._weights.items()}
        outputs = [{"name": name, "values": values} for name, values in weights.items()]
        return weights.get("", {"outputs": outputs}) if weights else None

    def close(self) -> None:
        """Discards the rows collected, and removes scratch files."""
        if self._features is not None:
            self._features.close()

    def _add(self, chunk: Chunk) -> None:
        try:
            features = _dense(chunk.features, self._arg)
            rows = open_features(features, self._arg).rows
            check_counts(rows, chunk.labels, chunk.weights, self._arg)
            check_parts(self._shown, chunk)
            self._shown = read_parts(chunk)
            self._features = self._features or _collector(features, self._arg)
            self._features.add(features)
            if chunk.labels is not None:
                self._labels = self._labels or _label_collector(chunk.labels)
                self._labels.add(chunk.labels)
        except DataError as error:
            raise chunk.blame(error) from error
        for name, _, values in [] if chunk.weights is None else each_weights(chunk.weights):
            self._weights.setdefault(name, []).append(np.array(values, np.float64))
        self.rows += rows
        self._check_room(features)

    def _check_room(self, features: Mapping[str, Any]) -> None:
        held = self._features.held if self._features else 0
        if held < MEMORY_BYTES:
            return
        try:
            if features["kind"] != "columns":
                check_disk(scratch_folder(), MEMORY_BYTES, self._arg)
            else:
                _check_memory(held)
        except DataError as error:
            raise DataError(
                f"The first {self.rows:,} rows fill the place there is: {error.message}",
                hint=ENDLESS,
                arg="steps",
            ) from error


def _check_memory(held: int) -> None:
    free = host.read_free_memory()
    if free is not None and free < held:  # joining and encoding need more memory
        raise DataError(f"{mib(held)}, of {mib(free)} that are free.")


def _dense(features: Mapping[str, Any], arg: str) -> Mapping[str, Any]:
    """Converts a sparse matrix or a file to an array."""
    if features["kind"] in ("array", "columns"):
        return features
    if features["kind"] == "inputs":
        inputs = [
            {**part, "features": _dense(part["features"], f"{arg}${part['name']}")}
            for part in features["inputs"]
        ]
        return {**features, "inputs": inputs}
    opened = open_features(features, arg)
    values = opened.encode(opened.plain_encoding()).gather(slice(None))
    return {"kind": "array", "values": values, "names": features.get("names") or ()}


def _collector(features: Mapping[str, Any], arg: str) -> _Array | _Several:
    if features["kind"] == "array":
        return _Array(features, arg)
    if features["kind"] == "inputs":
        return _Several(features, arg, ("inputs", "features"), _collector)
    return _Several(features, arg, ("columns", ""), _Column)


def _label_collector(labels: Mapping[str, Any], arg: str = "y") -> _Array | _Column | _Several:
    if labels["kind"] == SEVERAL:
        return _Several(labels, arg, ("outputs", "labels"), _label_collector)
    return _Array(labels, arg, "memory") if labels["kind"] == "matrix" else _Column(labels, arg)


class _Several:
    """A collector of several inputs, of the labels of several outputs, or of a data frame.

    Args:
        first: The first chunk.
        arg: The user's name for them.
        fields: Key of the list of parts, and key of a part's data, "" if it is the part itself.
        make: Makes the collector of a part.
    """

    def __init__(
        self,
        first: Mapping[str, Any],
        arg: str,
        fields: tuple[str, str],
        make: Callable[[Mapping[str, Any], str], _Array | _Column | _Several],
    ) -> None:
        self._record = dict(first)
        self._arg = arg
        self._list, self._field = fields
        self._parts = {
            part["name"]: make(self._data(part), f"{arg}${part['name']}")
            for part in first[self._list]
        }

    def _data(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        return part[self._field] if self._field else part

    @property
    def held(self) -> int:
        """Bytes of all parts."""
        return sum(part.held for part in self._parts.values())

    def add(self, batch: Mapping[str, Any]) -> None:
        """Appends rows; the parts may be in another order."""
        if batch["kind"] != self._record["kind"]:
            raise _changed(self._arg, self._record["kind"], batch["kind"])
        parts = {part["name"]: self._data(part) for part in batch[self._list]}
        odd = sorted(set(parts) ^ set(self._parts))
        if odd or len(batch[self._list]) != len(self._parts):
            raise DataError(
                f"`{self._arg}` must have the {self._list} of the first batch"
                f"{f': `{odd[0]}` is one too many or lacks' if odd else ''}.",
                arg=self._arg,
                column=odd[0] if odd else next(iter(parts)),
            )
        for name, part in parts.items():
            self._parts[name].add(part)

    def finish(self) -> Record:
        """Returns all rows."""
        kept = {name: part.finish() for name, part in self._parts.items()}
        if not self._field:
            return {**self._record, self._list: list(kept.values())}
        parts = [{**part, self._field: kept[part["name"]]} for part in self._record[self._list]]
        return {**self._record, self._list: parts}

    def close(self) -> None:
        """Closes the parts, which removes their scratch files."""
        for part in self._parts.values():
            part.close()


class _Array:
    """A collector of an array."""

    def __init__(self, first: Mapping[str, Any], arg: str, keep: str = "auto") -> None:
        values = check_features(first["values"], arg)
        self._record = dict(first)
        self._arg = arg
        self.held = 0
        # Integers in R become doubles as soon as one of them is NA.
        exact = values.dtype if values.dtype in (np.float32, np.uint8) else np.dtype(np.float64)
        self._shape, self._dtype = values.shape[1:], exact
        self._writer = RowsWriter(self._shape, exact, keep, arg)

    def add(self, features: Mapping[str, Any]) -> None:
        """Appends rows."""
        if features["kind"] != self._record["kind"]:
            raise _changed(self._arg, self._record["kind"], features["kind"])
        features = order_columns(features, self._record.get("names") or (), self._arg)
        values = check_features(features["values"], self._arg)
        if values.shape[1:] != self._shape or not np.can_cast(values.dtype, self._dtype, "safe"):
            raise DataError(
                f"Each row of `{self._arg}` must have shape {self._shape} and type {self._dtype}, "
                f"as in the first batch, not {values.shape[1:]} and {values.dtype}.",
                arg=self._arg,
            )
        self._writer.write(values)
        self.held += len(values) * int(np.prod(self._shape)) * self._dtype.itemsize

    def finish(self) -> Record:
        """Returns all rows."""
        rows = self._writer.finish()
        values = rows.array if isinstance(rows, MemoryRows) else _map_whole(rows)
        return {**self._record, "values": values}

    def close(self) -> None:
        """Removes the scratch file."""
        self._writer.close()


class _Column(WholeColumn):
    """A collector of one column of a data frame, or of a vector of labels."""

    def __init__(self, first: Mapping[str, Any], arg: str) -> None:
        super().__init__({"name": arg, **first})

    def add(self, column: Mapping[str, Any]) -> None:
        """Appends values."""
        if column["kind"] in ("matrix", SEVERAL) or kind_of(column) != kind_of(self._first):
            raise _changed(self.name, self._first["kind"], column["kind"])
        super().add(column)

    finish = WholeColumn.take

    def close(self) -> None:
        """Does nothing, as all values are in memory."""


def _map_whole(rows: Any) -> np.ndarray:
    """Maps a scratch file's rows as an array; the file is removed with the array."""
    values = np.memmap(rows.reader.path, rows.dtype, "r", shape=rows.shape)
    values.owner = rows  # type: ignore[attr-defined] # arrays of a subclass take attributes
    return values


def _changed(name: str, before: str, now: str) -> DataError:
    kinds = {
        "columns": "a data frame",
        "array": "a matrix or array",
        "inputs": "a list of inputs",
        SEVERAL: "a list of outputs",
    }
    found, first = kinds.get(now, now), kinds.get(before, before)
    return DataError(f"`{name}` is {found}, in the first batch it was {first}.", arg=name)
