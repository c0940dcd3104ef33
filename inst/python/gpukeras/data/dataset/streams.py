"""Builds datasets of rows that come in sequence, or keeps those rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError, SpecError, warn_ended_early
from gpukeras.core.memory import aligned_copy
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec
from gpukeras.core.progress import count_pass
from gpukeras.data.dataset.chunks import (
    Chunk,
    Generator,
    Materializer,
    Record,
    encode_first,
    learn_chunk,
    read_parts,
)
from gpukeras.data.dataset.iterable_dataset import GeneratorDataset, IterableDataset, Learned
from gpukeras.data.dataset.map_dataset import Dataset, Request, build_rows
from gpukeras.data.dataset.passthrough import UNBATCHED_ROWS, build_as_is, why_not_batchable
from gpukeras.data.dataset.tfdata import PipelineDataset, TfStream
from gpukeras.data.plan import StreamFacts
from gpukeras.data.reader.registry import open_features
from gpukeras.data.recipe.encoding import check_settled
from gpukeras.data.recipe.multi_output import Weights
from gpukeras.data.recipe.recipe import InputsEncoding, Recipe, check_array, check_kind

# Building -----------------------------------------------------------------------------------------

STREAM_KINDS = ("generator", "tfdata")


def build_stream(features: Mapping[str, Any], request: Request) -> Dataset:
    """Builds a dataset of rows in sequence, or with `cache = TRUE` collects them by number.

    Args:
        features: `{kind: "generator", call, steps}`, see `Generator`, or
            `{kind: "tfdata", dataset, steps, batched}`, see `TfStream`.
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
        head, recipe = encode_first(first, recipe, request.na, arg)
    except DataError as error:
        raise first.blame(error) from error
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
    encoding = recipe.features
    if stream.elements.x.several:
        check_plain(check_kind(encoding, InputsEncoding, "x"), spec.scale)
    else:
        check_array(encoding, stream.elements.x.shape, "x")
    head, recipe = encode_first(first, recipe, na, "x")
    plain_bytes = stream.elements.dtype == "uint8" and encoding.keeps_values
    if plain_bytes:  # they are sent to the device as bytes
        head = (aligned_copy(first.features["values"], np.uint8), *head[1:])
    chunk_rows = len(head[0])
    rows = _epoch_rows(stream, spec, chunk_rows)
    facts = StreamFacts(
        what="by the user's tf.data pipeline",
        chunk_rows=chunk_rows if stream.elements.batched else UNBATCHED_ROWS,
        rows=rows or stream.expect_rows(chunk_rows) or 0,
        row_bytes=sum(array[:1].nbytes for array in head),
        na=na,
        learned=_learned_text(recipe, chunk_rows),
        ahead=1,
    )
    return PipelineDataset(Learned(recipe, spec, head, facts), stream, rows)


def _open_tf(features: Mapping[str, Any], recipe: Recipe | None) -> TfStream:
    return TfStream(features["dataset"], features.get("steps"), features.get("batched"), recipe)


def _epoch_rows(stream: TfStream, spec: DatasetSpec, first: int) -> int | None:
    """Returns the rows of `steps` batches, of which the first has so many; None without `steps`."""
    if stream.steps is None:
        return None
    size = first if stream.elements.batched else UNBATCHED_ROWS
    return stream.steps * (size if spec.batch_size == "auto" else int(spec.batch_size))


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
    left = _epoch_rows(stream, spec, stream.elements.batch_rows or len(stream.peek()[0]))
    for number, arrays in enumerate(stream.batches(), 1):
        arrays = arrays if left is None else tuple(array[:left] for array in arrays)
        yield _as_chunk(stream, arrays, number)
        left = None if left is None else left - len(arrays[0])
        if left == 0:
            return
    if left:
        warn_ended_early("The tf.data dataset", number + 1, 1)
