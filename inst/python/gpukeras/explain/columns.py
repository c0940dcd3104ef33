"""Finds where the columns of a user's rows lie in encoded rows, and encodes values of a column.

A column may have several numbers in an encoded row: a factor has one for each level, a column of a
time series one for each step. They are replaced together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import list_some
from gpukeras.core.options import check_names
from gpukeras.data.arrays import column_name, standardise
from gpukeras.data.recipe.columns import ColumnRule, transform_column
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    InputsEncoding,
    Recipe,
    SeriesEncoding,
    TableEncoding,
)


@dataclass(frozen=True)
class Feature:
    """A column as the user names it, and its place in an encoded row.

    Args:
        name: The column's name; its number from 1 if it has none; `<input>$<column>` in an input.
        places: Indices along the last axis of an encoded row.
        rule: Its encoding, for a column of a data frame.
        center: Subtracted from its numbers, for a column of an array.
        scale: Divides them after that.
        plain: Whether values of the column can be encoded: not for a window or an input of images.
    """

    name: str
    places: np.ndarray
    rule: ColumnRule | None = None
    center: float = 0.0
    scale: float = 1.0
    plain: bool = True

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of a factor; none for numbers."""
        return () if self.rule is None else self.rule.levels

    @property
    def numeric(self) -> bool:
        """Whether the column holds plain numbers, of which a grid can be made."""
        return self.plain and (self.rule is None or self.rule.kind == "number")

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        """Returns the numbers (float64) that were encoded as the column's first number."""
        known = self if self.rule is None else self.rule
        return encoded.astype(np.float64) * known.scale + known.center

    def encode(self, values: np.ndarray | None = None) -> np.ndarray:
        """Encodes values as float32: a row for each of them, or for each level if it is None."""
        count = len(self.levels) if values is None else len(values)
        out = np.zeros((count, len(self.places)), np.float32)
        if self.rule is None:
            assert values is not None  # columns of arrays have no levels
            middle, spread = np.array([self.center]), np.array([self.scale])
            out[:, 0] = standardise(values.reshape(-1, 1), middle, spread)[:, 0]
            return out
        column: dict[str, Any] = {"name": self.name, "kind": "numeric", "values": values}
        if values is None:
            codes = np.arange(1, count + 1, dtype=np.int32)
            column |= {"kind": "factor", "values": codes, "levels": list(self.levels)}
        transform_column(self.rule, column, out, "data")
        return out


def find_features(recipe: Recipe) -> dict[str, Feature]:
    """Returns the columns of the rows that a recipe encodes, by name, in their order.

    Columns of a matrix may share a name: the later ones are "u.1", "u.2", as by R's make.unique().

    Raises:
        DataError: for rows without columns, such as images, texts and batches of a pipeline.
    """
    features = dict[str, Feature]()
    repeats = Counter[str]()
    for feature in _list_features(recipe.features):
        name = feature.name
        while name in features:
            repeats[feature.name] += 1
            name = f"{feature.name}.{repeats[feature.name]}"
        features[name] = replace(feature, name=name)
    if not features:
        raise DataError(
            f"Rows of {recipe.features.kind} have no columns that can be replaced.",
            hint="Give a data frame or a matrix; gpu_attributions() explains images.",
            arg="data",
        )
    return features


def _list_features(encoding: Encoding) -> Iterator[Feature]:
    match encoding:
        case InputsEncoding():
            yield from _list_inputs(encoding)
        case SeriesEncoding():
            yield from _list_series(encoding)
        case TableEncoding():
            yield from _list_table(encoding)
        case ArrayEncoding():
            yield from _list_array(encoding)


def _list_table(encoding: TableEncoding) -> Iterator[Feature]:
    start = 0
    for rule in encoding.columns:
        stop = start + len(rule.features)
        yield Feature(rule.name, np.arange(start, stop), rule)
        start = stop


def _list_array(encoding: ArrayEncoding) -> Iterator[Feature]:
    """Yields the columns of an array's last axis; an indicator of missing values goes with one."""
    start = 0
    for column in range(encoding.row_shape[-1]):
        stop = start + 1 + (column in encoding.marked)
        yield Feature(
            column_name(encoding.names, column),
            np.arange(start, stop),
            center=0.0 if encoding.center is None else encoding.center[column],
            scale=1.0 if encoding.scale is None else encoding.scale[column],
            plain=len(encoding.shape) == 1,
        )
        start = stop


def _list_series(encoding: SeriesEncoding) -> Iterator[Feature]:
    """Yields the columns of windows, each with all of its steps."""
    rule, widths = (
        encoding.windows,
        {column.name: len(column.features) for column in encoding.columns},
    )
    known = [column.name for column in encoding.columns if column.name in rule.known]
    places_by_name: dict[str, list[int]] = {name: [] for name in widths}
    flat = bool(encoding.parts)  # the window and what is known ahead, one after the other
    steps = [list(widths)] * (rule.window if flat else 1) + [known] * (rule.horizon if flat else 0)
    start = 0
    for name in (name for step in steps for name in step):
        places_by_name[name] += range(start, start + widths[name])
        start += widths[name]
    yield from (
        Feature(name, np.array(places), plain=False) for name, places in places_by_name.items()
    )


def _list_inputs(encoding: InputsEncoding) -> Iterator[Feature]:
    """Yields the columns of several inputs, which lie flat one after the other in a row."""
    for part, place in zip(encoding.inputs, encoding.parts, strict=True):
        start, width = place.columns.start, part.encoding.staged_shape[-1]
        own = list(_list_features(part.encoding))
        if not own:  # an image or a text: all of it
            yield Feature(part.name, np.arange(start, place.columns.stop), plain=False)
        for feature in own:
            repeats = math.prod(part.encoding.staged_shape[:-1])
            places = start + (np.arange(repeats)[:, None] * width + feature.places).reshape(-1)
            yield replace(feature, name=f"{part.name}${feature.name}", places=places)


def choose_groups(
    features: Mapping[str, Feature],
    columns: Sequence[str] | None,
    groups: Mapping[str, Sequence[str]] | None,
) -> dict[str, np.ndarray]:
    """Returns what is permuted together, by name: places in an encoded row.

    Args:
        features: All columns.
        columns: Names of columns that are permuted one by one; None is all that are in no group.
        groups: Columns that are permuted together, by the group's name.

    Raises:
        SpecError: for an unknown column, or a group without columns or with the name of a column
            that is permuted alone; names it.
    """
    groups = groups or {}
    members = {name: check_names("groups", group, "columns") for name, group in groups.items()}
    grouped = {column for group in members.values() for column in group}
    if columns is None:
        columns = [name for name in features if name not in grouped]
    chosen = {name: (name,) for name in check_names("columns", columns, "columns")}
    twice = [name for name in members if name in chosen]
    if twice:
        raise SpecError(
            f"The group `{twice[0]}` of `groups` has the name of a column that is permuted alone.",
            hint="Give the group another name.",
            arg="groups",
        )
    if not chosen and not members:
        raise no_columns()
    places = {}
    for name, group in [*members.items(), *chosen.items()]:
        if not group:
            raise SpecError(f"The group `{name}` of `groups` has no columns.", arg="groups")
        of = "groups" if name in members else "columns"
        places[name] = np.concatenate(
            [pick_feature(features, column, of).places for column in group]
        )
    return places


def no_columns() -> SpecError:
    """Returns the error of a call that is asked for no columns."""
    return SpecError(
        "`columns` names no column.", hint="Leave it out for all of them.", arg="columns"
    )


def pick_feature(features: Mapping[str, Feature], name: str, arg: str) -> Feature:
    """Returns a column by its name.

    Raises:
        SpecError: if there is none of that name; lists those that there are.
    """
    if name not in features:
        raise SpecError(
            f"`{arg}` names `{name}`, which is no column that `model` was trained on.",
            hint=f"Columns are {list_some(list(features))}.",
            arg=arg,
            column=name,
        )
    return features[name]
