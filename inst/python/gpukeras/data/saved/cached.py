"""Builds datasets whose encoded rows later sessions find again, for `cache = "disk"`.

    files --read_fingerprint()--> entry of the cache | build_dataset() --> a new entry --> dataset

Rows that cannot be kept stay in a scratch file, and the plan says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.messages import mib
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset.base import Dataset
from gpukeras.data.dataset.map_dataset import MapDataset, build_dataset, take_shard
from gpukeras.data.plan import choose_batch_size
from gpukeras.data.reader.registry import place_rows
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.saved.cache import Cache, open_cache
from gpukeras.data.saved.fingerprint import (
    Fingerprint,
    NotKeptError,
    explain_unknown,
    read_fingerprint,
)

KEPT = "kept for later sessions"
FOUND = "as an earlier call kept them"


def build_cached(
    features: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    recipe: Recipe | None = None,
    arg: str = "x",
    **given: Any,
) -> MapDataset:
    """Builds a dataset; with `cache = "disk"` from the cache, if it has these rows.

    Args:
        features: See `dataset.build_dataset()`.
        options: See `dataset.build_dataset()`.
        recipe: See `dataset.build_dataset()`.
        arg: See `dataset.build_dataset()`.
        **given: Its other arguments.

    Raises:
        SpecError, DataError: as `build_dataset()` raises.
    """
    spec = DatasetSpec.from_dict(options)
    if spec.cache != "disk":
        return build_dataset(features, options, recipe=recipe, arg=arg, **given)
    try:
        made_from = _identify(features, spec, recipe, given)
        cache = open_cache()
        data, lost = _find(cache, made_from.key, spec, arg)
    except NotKeptError as why:
        data = build_dataset(features, options, recipe=recipe, arg=arg, **given)
        return explain_scratch(data, str(why))
    if data is not None:
        data.recipe = replace(data.recipe, formula=given.get("formula") or data.recipe.formula)
        return _explain(data, FOUND)
    whole = {**options, "cache": "auto", "shard": (1, 1)}
    data = build_dataset(features, whole, recipe=recipe, arg=arg, **given)
    try:
        if _identify(features, spec, recipe, given) != made_from:
            raise NotKeptError("its files changed while they were read")
        kept = _keep(cache, data, made_from, spec, arg)
    except NotKeptError as why:
        return explain_scratch(_take_scratch(data, spec, arg), str(why))
    kept.notes = (*kept.notes, *lost)
    return _explain(kept, KEPT)


def explain_scratch(data: Dataset, why: str) -> Any:
    """Adds to a dataset's plan why its rows are not kept for later sessions; returns it."""
    source = data.sources[0]
    if source.streamed:
        source.streamed += f", of this session only: {why}"
    return data


def explain_sequence(data: Dataset, features: Mapping[str, Any], cache: Any) -> Dataset:
    """Adds to the plan of rows in sequence that they are not kept, if they were to be."""
    return explain_scratch(data, explain_unknown(features)) if cache == "disk" else data


def _identify(
    features: Mapping[str, Any],
    spec: DatasetSpec,
    recipe: Recipe | None,
    given: Mapping[str, Any],
) -> Fingerprint:
    try:
        return read_fingerprint(features, spec, recipe, given)
    except (DataError, OSError) as error:  # building the dataset says what is wrong
        raise NotKeptError("its files cannot be found") from error


def _find(
    cache: Cache, key: str, spec: DatasetSpec, arg: str
) -> tuple[MapDataset | None, tuple[str, ...]]:
    """Returns the dataset of an entry, if there is one, and what to say if it was damaged."""
    try:
        return cache.find(key, spec, arg), ()
    except DataError as error:
        return None, (f"{error.message[:-1]}, and has been made anew.",)


def _keep(
    cache: Cache, data: MapDataset, made_from: Fingerprint, spec: DatasetSpec, arg: str
) -> MapDataset:
    """Returns the dataset as later sessions will find it."""
    cache.store(data, made_from)
    try:
        kept = cache.find(made_from.key, spec, arg)
    except DataError as error:
        raise NotKeptError("its entry in the cache could not be read") from error
    if kept is None:
        raise NotKeptError("its entry in the cache was removed at once")
    kept.recipe = data.recipe
    return kept


def _take_scratch(data: MapDataset, spec: DatasetSpec, arg: str) -> MapDataset:
    """Returns the same dataset with its features in a scratch file."""
    data.sources = (place_rows(data.sources[0], "disk", arg), *data.sources[1:])
    data.train_rows = take_shard(data.train_rows, spec.shard)
    data.validation_rows = take_shard(data.validation_rows, spec.shard)
    choose_batch_size(len(data.train_rows), spec.batch_size)
    data.spec = spec
    return data


def _explain(data: MapDataset, how: str) -> MapDataset:
    source = data.sources[0]
    source.streamed = f"a block at a time from the cache, {mib(source.stored_bytes, 1)}, {how}"
    return data
