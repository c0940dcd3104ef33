"""Builds datasets of rows that come in sequence, or keeps those rows.

Rows are collected before encoding, so that the recipe is learned from all of them. Large arrays go
to a scratch file; the columns of data frames stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError, SpecError, warn_ended_early
from gpukeras.core.memory import aligned_copy
from gpukeras.core.messages import count_of, mib
from gpukeras.core.options import DatasetSpec
from gpukeras.core.progress import count_pass
from gpukeras.data.arrays import (
    check_features,
    order_columns,
)
from gpukeras.data.dataset.iterable_dataset import (
    Chunk,
    Generator,
    GeneratorDataset,
    IterableDataset,
    Learned,
    Parts,
    PipelineDataset,
    check_chunk,
    check_parts,
    encode_chunk,
    learn_chunk,
    measure_labels,
    read_parts,
    weigh_chunk,
)
from gpukeras.data.dataset.map_dataset import Dataset, Request, build_rows
from gpukeras.data.dataset.passthrough import build_as_is, why_not_batchable
from gpukeras.data.dataset.tfdata import TfStream
from gpukeras.data.files.scratch import check_disk, scratch_folder
from gpukeras.data.plan import StreamFacts
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.reader.storage import MEMORY_BYTES, RowsWriter
from gpukeras.data.reader.table.columns import WholeColumn
from gpukeras.data.recipe.columns import kind_of
from gpukeras.data.recipe.encoding import check_settled
from gpukeras.data.recipe.multi_output import Weights, each_weights
from gpukeras.data.recipe.recipe import InputsEncoding, Recipe, check_array, check_kind
from gpukeras.data.recipe.targets import SEVERAL
from gpukeras.system import host

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
            check_chunk(chunk, rows, self._arg)
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
        if isinstance(rows, MemoryRows):
            return {**self._record, "values": rows.array}
        return {**self._record, "kind": "stored", "values": _map_whole(rows)}

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


# Building -----------------------------------------------------------------------------------------

STREAM_KINDS = ("generator", "tfdata")


def build_stream(features: Mapping[str, Any], request: Request) -> Dataset:
    """Builds a dataset of rows in sequence, or with `cache = TRUE` collects them by number.

    Args:
        features: `{kind: "generator", call, steps}`, see `generator`, or
            `{kind: "tfdata", dataset, steps, batched}`, see `tfdata`.
        request: How the dataset is to be made; class weights need `cache = TRUE`.

    Raises:
        SpecError: for an option that needs all rows at once.
        DataError: for rows that cannot be trained on.
        GeneratorError: if the function failed.
    """
    data = _build(features, request)
    data.wrapped = features["kind"] == "generator" or isinstance(
        getattr(features["dataset"], "element_spec", None), (tuple, list)
    )
    return data


def _build(features: Mapping[str, Any], request: Request) -> Dataset:
    spec = request.spec
    if spec.cache not in ("auto", "none"):
        rows, labels, weights = _drain(features, spec, request.arg)
        rows = {**rows, "groups": features.get("groups")}
        options = {**request.options, "cache": "auto" if spec.cache == "keep" else spec.cache}
        return build_rows(
            rows, replace(request, options=options, labels=labels, weights=weights, formula="")
        )
    _check_options(spec)
    if request.class_weight is not None:
        raise _needs_rows("class_weight", "`class_weight`")
    if request.na == "impute" and request.recipe is None:
        raise _needs_rows("na", '`na` = "impute"')
    if features["kind"] == "tfdata":
        require_feature("pipeline")
        element_spec = getattr(features["dataset"], "element_spec", None)
        why = why_not_batchable(element_spec, features.get("batched"))
        if why:
            return build_as_is(features, spec, request.recipe, why)
        return _build_tfdata(features, replace(request, arg="x"))
    return _build_generator(features, request)


def _check_options(spec: DatasetSpec) -> None:
    if spec.validation > 0:
        raise _needs_rows("validation", "A share for `validation`")
    if tuple(spec.shard) != (1, 1):
        raise _needs_rows("shard", "`shard`")


def _needs_rows(arg: str, what: str) -> SpecError:
    return SpecError(
        f"{what} needs all rows at once: these come in sequence.",
        hint="Use `cache = TRUE`, which keeps them.",
        arg=arg,
    )


def _build_generator(features: Mapping[str, Any], request: Request) -> IterableDataset:
    spec = request.spec
    recipe = request.recipe
    arg = request.arg
    generator = Generator(features["call"], features.get("steps"))
    first = generator.peek()
    try:
        groups = features.get("groups")
        if recipe is None:
            recipe = learn_chunk(first, request, groups)
        else:
            check_settled(recipe.features, groups)
        recipe = weigh_chunk(recipe, first)
        head, _ = encode_chunk(first, recipe, request.na, arg)
        if not len(head[0]):
            raise DataError("Each row lacks a value.", arg=arg)
    except DataError as error:
        raise first.blame(error) from error
    recipe = measure_labels(recipe, head)
    rows = open_features(first.features, arg).rows
    facts = StreamFacts(
        what="a batch at a time from a function",
        chunk_rows=rows,
        rows=(generator.steps or 0) * rows,
        row_bytes=sum(array[:1].nbytes for array in head),
        na=request.na,
        learned=_learned_text(recipe, rows),
    )
    learned = Learned(recipe, spec, head, facts)
    return GeneratorDataset(learned, generator, read_parts(first), arg)


def _learned_text(recipe: Recipe, rows: int) -> str:
    if not recipe.features.standardises:
        return ""
    return f"means and deviations are those of the first {count_of(rows, 'row')}"


def _build_tfdata(features: Mapping[str, Any], request: Request) -> IterableDataset:
    spec = request.spec
    recipe = request.recipe
    na = request.na
    if na != "error":
        raise _needs_rows("na", f'`na` = "{na}"')
    stream = _open_tf(features, recipe)
    first = _as_chunk(stream, stream.peek(), 1)
    recipe = recipe or learn_chunk(first, request, features.get("groups"))
    recipe = weigh_chunk(recipe, first)
    encoding = recipe.features
    if stream.elements.x.several:
        check_plain(check_kind(encoding, InputsEncoding, "x"), spec.scale)
    else:
        check_array(encoding, stream.elements.x.shape, "x")
    head, _ = encode_chunk(first, recipe, na, "x")
    recipe = measure_labels(recipe, head)
    plain_bytes = stream.elements.dtype == "uint8" and encoding.keeps_values
    if plain_bytes:  # they are sent to the device as bytes
        head = (aligned_copy(first.features["values"], np.uint8), *head[1:])
    chunk_rows = len(head[0])
    size = chunk_rows if stream.elements.batched else 32
    size = size if spec.batch_size == "auto" else int(spec.batch_size)
    rows = None if stream.steps is None else stream.steps * size
    facts = StreamFacts(
        what="by the user's tf.data pipeline",
        chunk_rows=chunk_rows if stream.elements.batched else 32,
        rows=rows or stream.expect_rows(chunk_rows) or 0,
        row_bytes=sum(array[:1].nbytes for array in head),
        na=na,
        learned=_learned_text(recipe, chunk_rows),
        ahead=1,
    )
    return PipelineDataset(Learned(recipe, spec, head, facts), stream, rows)


def _open_tf(features: Mapping[str, Any], recipe: Recipe | None) -> TfStream:
    return TfStream(features["dataset"], features.get("steps"), features.get("batched"), recipe)


def _as_chunk(stream: TfStream, arrays: tuple[np.ndarray, ...], batch: int) -> Chunk:
    """Converts a batch of a tf.data dataset to a chunk, the form of a function's batches."""
    elements = stream.elements
    labels = elements.labels(arrays[1]) if len(arrays) > 1 else None
    weights = elements.weigh(arrays[2]) if len(arrays) > 2 else None
    return Chunk(elements.features(arrays[0]), labels, weights, 1, batch)


def check_plain(encoding: InputsEncoding, scale: bool) -> None:
    """Checks that several inputs of a pipeline are not encoded.

    Raises:
        SpecError: if one is to be scaled or imputed, which needs `cache = TRUE`.
    """
    if scale or not encoding.keeps_values or encoding.has_texts:
        raise SpecError(
            "Several inputs of a tf.data dataset are taken as they are, not scaled or imputed.",
            hint="Use `cache = TRUE`, which keeps the rows.",
            arg="scale",
        )


# Draining ----------------------------------------------------------------------------------------


def _drain(
    features: Mapping[str, Any], spec: DatasetSpec, arg: str
) -> tuple[Record, Record | None, Weights | None]:
    """Collects the rows, labels and weights of one pass."""
    if features["kind"] == "generator":
        chunks = Generator(features["call"], features.get("steps")).chunks(1)
    else:
        chunks = _tf_chunks(features, spec)
    steps = features.get("steps")
    return Materializer(arg).run(count_pass(chunks, "keeping", steps, lambda _: 1, "batches"))


def _tf_chunks(features: Mapping[str, Any], spec: DatasetSpec) -> Iterator[Chunk]:
    require_feature("pipeline")
    stream = _open_tf(features, None)
    size = stream.elements.batch_rows or len(stream.peek()[0])
    size = size if stream.elements.batched else 32
    size = size if spec.batch_size == "auto" else int(spec.batch_size)
    left = None if stream.steps is None else stream.steps * size
    for number, arrays in enumerate(stream.batches(), 1):
        arrays = arrays if left is None else tuple(array[:left] for array in arrays)
        yield _as_chunk(stream, arrays, number)
        left = None if left is None else left - len(arrays[0])
        if left == 0:
            return
    if left:
        warn_ended_early("The tf.data dataset", number + 1, 1)
