"""Standardises the numbers of each group's rows by the group itself, where it has its own model.

The rows of a dataset are encoded by means and deviations of all groups. What is learned here
changes them to those of the group, as if the group had been encoded alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.core.keras_types import Model
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import list_some
from gpukeras.data.arrays import divisors, moments
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.reader.rows import MemoryRows, Rows, RowSource, row_numbers
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe, TableEncoding
from gpukeras.many.members import Groups
from gpukeras.models.tabular.statistics import describe_numbers

EXACT = 1e-3  # of a group's deviation: a float32 that is known no better is worth a word


@dataclass(frozen=True)
class GroupScaling:
    """Means and deviations of encoded numbers by group.

    Args:
        places: The numbers' places in an encoded row.
        center: Means, (groups, places).
        scale: Deviations, (groups, places), see `arrays.divisors()`.
        names: Names of the groups.
    """

    places: tuple[int, ...]
    center: np.ndarray
    scale: np.ndarray
    names: tuple[str, ...]

    def apply(self, rows: RowSource, codes: np.ndarray) -> RowSource:
        """Returns encoded rows by their groups; those in memory are copied once."""
        scaled = ScaledRows(rows, self, codes)
        return scaled if rows.streamed else MemoryRows(scaled.gather(slice(None)))

    def recipe(self, recipe: Recipe, group: str) -> Recipe:
        """Returns the encoding of a group's rows."""
        code = self.names.index(group)
        center = dict(zip(self.places, self.center[code].tolist(), strict=True))
        scale = dict(zip(self.places, self.scale[code].tolist(), strict=True))
        features = recipe.features
        if isinstance(features, TableEncoding):
            columns, place = [], 0
            for rule in features.columns:
                if place in center:
                    rule_center = rule.center + rule.scale * center[place]
                    rule_scale = rule.scale * scale[place]
                    columns.append(replace(rule, center=rule_center, scale=rule_scale))
                else:
                    columns.append(rule)
                place += len(rule.features)
            return replace(recipe, features=replace(features, columns=tuple(columns)))
        assert isinstance(features, ArrayEncoding)  # as `scaled_places()` found
        assert features.center is not None
        assert features.scale is not None
        pairs = list(zip(features.center, features.scale, strict=True))
        moved = zip(pairs, self.places, strict=True)
        scaled = replace(
            features,
            center=tuple(mean + sd * center[place] for (mean, sd), place in moved),
            scale=tuple(sd * scale[at] for (_, sd), at in zip(pairs, self.places, strict=True)),
        )
        return replace(recipe, features=scaled)

    def note(self) -> tuple[str, ...]:
        """Returns a sentence if groups vary too little beside others for single precision."""
        error = np.finfo(np.float32).eps * np.abs(self.center) / divisors(self.scale)
        rough = [f'"{self.names[code]}"' for code in np.flatnonzero((error > EXACT).any(axis=1))]
        if not rough:
            return ()
        verb = "varies" if len(rough) == 1 else "vary"
        return (
            f"{list_some(rough)} {verb} so little beside other groups that numbers lost digits: "
            "train such groups by gpu_fit(), each on a dataset of its own.",
        )


class ScaledRows(RowSource):
    """Encoded rows, scaled by their groups when they are read.

    Args:
        base: The rows.
        scaling: The groups' means and deviations.
        codes: The place of each row's group.
    """

    def __init__(self, base: RowSource, scaling: GroupScaling, codes: np.ndarray) -> None:
        """Gathers nothing."""
        super().__init__(base.shape, base.dtype, base.streamed)
        self.movable = base.movable
        self._base = base
        self._scaling = scaling
        self._codes = codes

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows."""
        numbers, scaling = row_numbers(rows, len(self)), self._scaling
        gathered, codes = self._base.gather(numbers), self._codes[numbers]
        out = aligned_empty(gathered.shape)
        out[...] = gathered
        for column, place in enumerate(scaling.places):
            values = gathered[:, place].astype(np.float64)
            spread = divisors(scaling.scale[codes, column])
            out[:, place] = (values - scaling.center[codes, column]) / spread
        return out


def learn_scaling(data: MapDataset, groups: Groups) -> GroupScaling | None:
    """Returns means and deviations of each group's training rows; None if none are scaled."""
    places = tuple(scaled_places(data.recipe))
    if not places:
        return None
    return _learn_each(
        data, groups, places, lambda values: moments(values, np.ones(len(values), bool))
    )


def _learn_each(
    data: MapDataset,
    groups: Groups,
    places: Sequence[int],
    learn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> GroupScaling:
    """Returns what `learn` makes of the numbers of each group's training rows: center, scale."""
    count = len(groups.names)
    center = np.zeros((count, len(places)))
    scale = np.ones((count, len(places)))
    codes = groups.codes[data.train_rows]
    for code in range(count):
        rows = data.train_rows[codes == code]
        if len(rows):
            values = data.sources[0].gather(rows)[:, list(places)]
            center[code], scale[code] = learn(values)
    return GroupScaling(tuple(places), center, scale, groups.names)


def scaled_places(recipe: Recipe) -> Iterator[int]:
    """Yields the places of the numbers in an encoded row that were standardised."""
    features, place = recipe.features, 0
    if isinstance(features, TableEncoding):
        for rule in features.columns:
            if (rule.center, rule.scale) != (0.0, 1.0) and not rule.offset:
                yield place
            place += len(rule.features)
    elif isinstance(features, ArrayEncoding) and len(features.shape) == 1 and features.center:
        for column in range(features.row_shape[-1]):
            yield place
            place += 1 + (column in features.marked)


def learn_quantiles(data: MapDataset, groups: Groups, table: Any) -> GroupScaling | None:
    """Returns a scaling after which a group has the medians and quartiles of all rows.

    A network for tables that scales by those of all rows then scales by those of the group.

    Args:
        data: The dataset.
        groups: The groups of its rows.
        table: The layer that scales, see `find_table()`.
    """
    known = set(scaled_places(data.recipe))
    every = zip(table.places, table.centers, table.scales, strict=True)
    facts = [fact for fact in every if fact[0] in known]
    if not facts:
        return None
    places, centers, scales = (np.array(each) for each in zip(*facts, strict=True))

    def learn(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = values.astype(np.float64)
        numbers = describe_numbers(values, 1)
        scale = np.array(numbers.scales) / scales
        middle = np.where(np.ptp(values, axis=0) > 0, numbers.centers, values[0])
        return middle - scale * centers, scale

    return _learn_each(data, groups, places.tolist(), learn)


def find_table(model: Model) -> Any:
    """Returns the layer of `gpu_tabular()` that scales numbers by quantiles, or None."""
    layers = keras_private.list_layers(model)
    return next((layer for layer in layers if type(layer).__name__ == "TableNumbers"), None)


def choose_scaling(
    data: MapDataset, groups: Groups, models: Sequence[Model]
) -> GroupScaling | None:
    """Returns how the rows of groups are scaled for models; None if they cannot be for all."""
    tables = [find_table(model) for model in models]
    if not any(tables):
        return learn_scaling(data, groups)
    facts = {
        None if table is None else (*table.places, *table.centers, *table.scales)
        for table in tables
    }
    return learn_quantiles(data, groups, tables[0]) if len(facts) == 1 else None
