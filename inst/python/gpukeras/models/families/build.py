"""Settles a family by a dataset: its labels' classes, mean and spread, and the offset's mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.recipe.recipe import Part, Recipe
from gpukeras.data.recipe.targets import LabelRule, name_label
from gpukeras.models.families.labels import SURVIVAL, check_label, explain_choice
from gpukeras.models.families.spec import MOST_STRATA, Family, FamilySpec, parse_family

OFFSET = "offset"  # name of the last input if it is an offset
STRATA = "strata"  # name of the last input, after an offset, if it is the number of a stratum
LOOKED = 10_000  # first training rows of which means are taken
INTERVALS = 10  # of discrete times, by default: each has a tenth of the events


@dataclass(frozen=True)
class Extras:
    """The last inputs, which belong to the family's layer; None where there is none.

    Args:
        offset: Added to the linear predictor.
        stratum: The number of the row's stratum.
        strata: How many strata there are.
    """

    offset: Part | None = None
    stratum: Part | None = None
    strata: int = 0

    @property
    def count(self) -> int:
        """How many there are; each has one number a row."""
        return (self.offset is not None) + (self.stratum is not None)


def find_extras(recipe: Recipe) -> Extras:
    """Returns a recipe's inputs that belong to the family's layer."""
    parts, rules = list(recipe.parts), list(recipe.features.columns)
    stratum, strata = None, 0
    if parts and parts[-1].name == STRATA and rules and rules[-1].strata:
        stratum, strata = parts.pop(), rules.pop().strata
    # The user's own input may have that name: the column tells.
    has_offset = bool(parts) and parts[-1].name == OFFSET and bool(rules) and rules[-1].offset
    return Extras(parts[-1] if has_offset else None, stratum, strata)


def find_offset(data: Dataset) -> Part | None:
    """Returns the input that is an offset; None if there is none."""
    return offset_of(data.recipe)


def offset_of(recipe: Recipe) -> Part | None:
    """Returns the input of a recipe's rows that is an offset; None if there is none."""
    return find_extras(recipe).offset


def settle_family(data: Dataset, family: Any) -> Family | None:
    """Returns the family of a model for a dataset; None for a model without one.

    Args:
        data: A dataset with labels.
        family: A name, a mapping of options, or None: survival times then have "cox", and
            data with an offset the Gaussian one for numbers and the binomial one for two classes.

    Raises:
        SpecError: for a family that is unknown, or has no use for the data's offset, strata or
            mixup.
        DataError: for labels that the family does not take.
    """
    recipe, extras = data.recipe, find_extras(data.recipe)
    offset = extras.offset
    label = recipe.label
    assert label is not None  # checked by the builder
    family = _default_family(recipe) if family is None else family
    if family is None:
        return None
    spec = parse_family(family)
    check_label(spec, label, name_label(recipe.formula))
    if recipe.mixes_classes:
        raise SpecError("`family` and `mixup` cannot be combined.", arg="family")
    if offset is not None and spec.name == "multinomial":
        raise SpecError(
            'An offset has no effect in the family "multinomial": all classes share it.',
            hint="Leave the offset out.",
            arg="family",
        )
    _check_strata(spec, extras)
    return _settle(data, spec)


def relearn_family(family: Family, data: MapDataset, part: MapDataset) -> Family | None:
    """Returns a family as a part of the rows gives it; None if it stays as it is.

    It stays unless the dataset gave it: the user may have built the model for other rows.

    Breaks that the user gave stay. Others stay as many, as each has a unit of the model.

    Args:
        family: The family of a model.
        data: The dataset that the model may have been built for.
        part: Some of its rows.
    """
    spec = FamilySpec(
        name=family.name,
        link=family.link,
        dispersion=family.dispersion,
        quantiles=family.quantiles,
        ties=family.ties or None,
        proportional=family.proportional,
    )
    if _settle(data, spec).breaks != family.breaks:
        spec = replace(spec, breaks=family.breaks)
    if _settle(data, spec) != family:
        return None
    learned = _settle(part, spec, len(family.breaks))
    return learned if learned != family else None


def _settle(data: Dataset, spec: FamilySpec, intervals: int = 0) -> Family:
    """Returns the family by the training rows; `intervals` is the number of breaks, if known."""
    label, offset = data.recipe.label, find_offset(data)
    assert label is not None  # checked by the builder
    return Family(
        name=spec.name,
        link=spec.link,
        dispersion=spec.dispersion,
        quantiles=spec.quantiles,
        ties=spec.ties or "",
        proportional=spec.proportional,
        **_read_label(data, label, spec, intervals),
        shift=0.0 if offset is None else _mean(data, 0, offset.columns),
        strata=find_extras(data.recipe).strata,
    )


def _check_strata(spec: FamilySpec, extras: Extras) -> None:
    if extras.strata and spec.name != "cox":
        raise SpecError(
            f'strata() of the formula has no meaning for the family "{spec.name}": it gives each '
            "stratum a baseline hazard of its own.",
            hint='Use the family "cox", or the column itself as a feature.',
            arg="family",
        )
    if extras.strata > MOST_STRATA:
        raise SpecError(
            f"strata() of the formula makes {extras.strata:,} strata; gpukeras takes up to "
            f"{MOST_STRATA:,}.",
            hint="Merge rare levels first.",
            arg="family",
        )


def explain_labels(data: Dataset, family: Any = None) -> str:
    """Says what a model makes of labels that could mean something else, for R; else "".

    Args:
        data: A dataset with labels.
        family: What the model was made with, see `settle_family()`.
    """
    recipe = data.recipe
    if recipe.label is None:
        return ""
    name = _default_family(recipe) if family is None else parse_family(family).name
    return explain_choice(recipe.label, name, name_label(recipe.formula))


def _default_family(recipe: Recipe) -> str | None:
    """Returns the family that rows imply; None for a model without one."""
    label, extras = recipe.label, find_extras(recipe)
    assert label is not None  # checked by the builder
    if label.survival or extras.stratum is not None:
        return "cox"
    if extras.offset is None:
        return None
    two = label.kind == "binary" or (label.kind == "class" and label.units == 2)
    if not two and label.kind != "number":
        raise SpecError(
            "`family` must be given for labels of this kind with an offset.",
            hint='An offset is added to one linear predictor, as of "ordinal" or "poisson".',
            arg="family",
        )
    return "binomial" if two else "gaussian"


def _read_label(
    data: Dataset, label: LabelRule, spec: FamilySpec, intervals: int
) -> Mapping[str, Any]:
    """Returns number, mean and spread of the labels, and the names of their columns."""
    if spec.name in SURVIVAL:
        return _read_times(data, spec, intervals)
    columns = label.units if label.kind in ("class", "matrix") else 1
    if label.kind == "class":
        two = spec.name == "binomial"
        center = _mean(data, 1) if two else 0.0
        return {"columns": 1 if two else columns, "center": center, "names": label.levels}
    if label.kind == "matrix":
        names = label.names if len(label.names) == columns else ()
        center = _share(data) if spec.name == "binomial" else 0.0
        return {"columns": columns, "center": center, "names": names}
    known = label.kind == "number"
    center = label.center if known else _mean(data, 1)
    scale = label.scale if known else float(np.sqrt(center * (1 - center))) or 1.0
    return {"columns": 1, "center": center, "scale": scale}


def _read_times(data: Dataset, spec: FamilySpec, intervals: int) -> Mapping[str, Any]:
    """Returns the breaks of "discrete_time", and the mean hazard in an interval."""
    values = _first_rows(data, 1).astype(np.float64)
    time, event = values[:, 0], values[:, 1]
    if spec.name == "cox":
        return {"columns": 2}
    breaks = spec.breaks
    if not breaks and event.any():
        count = intervals or INTERVALS
        ends = np.quantile(time[event > 0], np.arange(1, count + 1) / count)
        breaks = tuple(float(end) for end in np.unique(ends))
    breaks = breaks or (float(time.max()),)
    breaks = divide_gaps(breaks, intervals)
    lived = sum(float((time > end).sum()) for end in breaks)
    died = float(event[time <= breaks[-1]].sum())
    center = min(max(died / max(lived + died, 1.0), 0.001), 0.999)
    return {"columns": 2, "center": center, "breaks": breaks}


def divide_gaps(breaks: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Returns at least so many breaks: if events share their times, wide intervals are halved."""
    ends = [0.0, *breaks]
    while len(ends) - 1 < count:
        widest = int(np.argmax(np.diff(ends)))
        ends.insert(widest + 1, (ends[widest] + ends[widest + 1]) / 2)
    return tuple(ends[1:])


def _first_rows(data: Dataset, source: int) -> np.ndarray:
    """Returns a source's values for the first training rows."""
    rows = data.train_rows[:LOOKED] if isinstance(data, MapDataset) else slice(LOOKED)
    return np.asarray(data.sources[source].gather(rows))


def _mean(data: Dataset, source: int, columns: slice = slice(None)) -> float:
    """Returns the mean of columns of a source over the first training rows."""
    values = _first_rows(data, source)
    return float(np.mean(values.reshape(len(values), -1)[:, columns]))


def _share(data: Dataset) -> float:
    """Returns the share of the first column in the sum of all; 0.5 where it is 0 or 1."""
    values = _first_rows(data, 1)
    total, first = float(values.sum()), float(values[:, 0].sum())
    return first / total if 0 < first < total else 0.5
