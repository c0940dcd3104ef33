"""Builds a dataset of windows of time series, split by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.data.arrays import Notes
from gpukeras.data.dataset.map_dataset import MapDataset, Request, take_shard
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.reader.windows import Span, WindowFeatures, WindowRows
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.targets import (
    LabelRule,
    MatrixLabel,
    NumberLabel,
    encode_label,
    learn_label,
    measure_range,
)
from gpukeras.data.recipe.windows import (
    WindowRule,
    find_windows,
    note_short,
    split_windows,
    training_rows,
)


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
