"""Resamples: which rows a model trains on, and on which rows it is measured.

A resample is a split of a dataset's rows, as a fold of a cross-validation. Row numbers count from 1
where R gives them, and from 0 in a `Resample`.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import count_of, list_some
from gpukeras.core.options import check_count, describe, is_number
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset, weigh_classes
from gpukeras.data.reader.rows import MemoryRows, repeat_rows
from gpukeras.data.recipe.multi_output import relearn_labels
from gpukeras.data.recipe.recipe import SeriesEncoding
from gpukeras.data.recipe.targets import name_classes

EXPECTED = "a number of folds, or a list of the row numbers that each fold holds out"
FEW_VALUES = 5  # distinct whole numbers that are classes, as `nunique` of rsample's make_strata()
MOST_NOTES = 5
MOST_ROWS = 2**31 - 1
OWN = "validation"  # the name of the only resample if `data` keeps validation rows itself


@dataclass(frozen=True)
class Resample:
    """One split of a dataset's rows.

    Args:
        name: Its name, such as "Fold1".
        train: Row numbers to train on (int32, from 0); a bootstrap has some of them repeatedly.
        held_out: Row numbers to measure on (int32, from 0).
    """

    name: str
    train: np.ndarray
    held_out: np.ndarray


@dataclass(frozen=True)
class Classes:
    """The class of each row.

    Args:
        codes: Its place among the names, one a row.
        names: Names of the classes.
    """

    codes: np.ndarray
    names: tuple[str, ...]


def open_resamples(
    data: Dataset,
    resamples: Any = None,
    *,
    groups: Any = None,
    times: Any = None,
    seed: int = 0,
) -> tuple[Resample, ...]:
    """Returns the resamples of a dataset.

    Args:
        data: Rows with numbers.
        resamples: None for the split of `data` itself, or see `plan_resamples()`.
        groups: One group a row, see `plan_resamples()`.
        times: One time a row, see `plan_resamples()`.
        seed: Seed of folds that are drawn.

    Raises:
        SpecError: for resamples that cannot be, or that leak.
        DataError: for rows in sequence, or no rows to measure on.
    """
    if not isinstance(data, MapDataset):
        raise DataError(
            "`resamples` needs rows with numbers, and `data` gives its rows in sequence.",
            hint="Read them once into gpu_dataset_save(), or give `x` and `y` in memory.",
            arg="data",
        )
    if resamples is not None:
        _check_undivided(data)
        planned = plan_resamples(
            resamples,
            len(data),
            groups=groups,
            times=times,
            classes=read_classes(data),
            seed=seed,
        )
        _check_windows(data, resamples, times)
        return planned
    if not data.has_rows("validation"):
        raise DataError(
            "There are no rows to measure on: `data` keeps none apart for validation.",
            hint="Give `resamples`, such as 5 folds, or gpu_dataset(validation = 0.2).",
            arg="resamples",
        )
    split = Resample(OWN, data.train_rows, data.validation_rows)
    _check_leaks((split,), groups, times, len(data))
    return (split,)


def plan_resamples(
    resamples: Any,
    rows: int,
    *,
    groups: Any = None,
    times: Any = None,
    classes: Classes | None = None,
    seed: int = 0,
) -> tuple[Resample, ...]:
    """Returns resamples of rows.

    Args:
        resamples: A number of folds; or a list, or a mapping from names, of the row numbers (from
            1) that each holds out, or of mappings with `train` and `validation` row numbers.
        rows: Number of rows.
        groups: One number a row; rows of one group stay together. Folds by number take the largest
            groups first, each into the fold with the fewest rows, as scikit-learn's GroupKFold.
        times: One number a row; no row may train that is later than a row held out. Folds by
            number are blocks in time, and each trains on all earlier blocks, as scikit-learn's
            TimeSeriesSplit.
        classes: The rows' classes. Folds that are drawn at random hold out equally many rows of
            each, or one more, as scikit-learn's StratifiedKFold and the strata of R's rsample.
        seed: Seed of folds that are drawn.

    Raises:
        SpecError: naming what is wrong.
    """
    groups = _check_column(groups, "group", rows)
    times = _check_column(times, "time", rows)
    if groups is not None and times is not None and is_number(resamples):
        raise SpecError(
            "`group` and `time` cannot both shape folds by number.",
            hint="Give `resamples` as a list of row numbers: both are checked.",
            arg="resamples",
        )
    if is_number(resamples):
        planned = _draw_folds(resamples, rows, groups, times, classes, seed)
    elif isinstance(resamples, (Mapping, Sequence)) and not isinstance(resamples, str):
        planned = tuple(_read_folds(resamples, rows))
    else:
        raise SpecError(
            f"`resamples` must be {EXPECTED}, not {describe(resamples)}.", arg="resamples"
        )
    if not planned:
        raise SpecError(f"`resamples` must be {EXPECTED}, and is empty.", arg="resamples")
    _check_leaks(planned, groups, times, rows)
    return planned


def digest_numbers(rows: np.ndarray) -> str:
    """Returns how many row numbers there are, with a digest of them: "120 rows, 3f2a9c10"."""
    crc = zlib.crc32(np.ascontiguousarray(rows, np.int32).data)
    return f"{count_of(len(rows), 'row')}, {crc:08x}"


def split_dataset(
    data: MapDataset, train: np.ndarray, held_out: np.ndarray, seed: int | None = None
) -> MapDataset:
    """Returns a dataset of the same encoded rows with other training and validation rows.

    No features are copied. Their encoding stays that of `data`, which was learned from all its
    training rows. What is learned from labels is learned from those trained on: means and
    deviations, and class weights.

    Args:
        data: The rows.
        train: Numbers of the rows to train on.
        held_out: Numbers of the rows to validate on.
        seed: Seed of the rows' order; None for that of the dataset.
    """
    split = copy.copy(data)
    split.train_rows, split.validation_rows = train, held_out
    if seed is not None:
        split.spec = replace(data.spec, seed=seed)
    if data.recipe.label is not None and not np.array_equal(data.train_rows, train):
        labels = np.asarray(data.sources[1].gather(train))
        label = relearn_labels(data.recipe.label, labels)
        split.recipe = replace(data.recipe, label=label)
        split.sources = weigh_classes(data, train)
    return split


# Classes ----------------------------------------------------------------------------------------


def read_classes(data: MapDataset) -> Classes | None:
    """Returns the classes of the rows; None for labels that are none.

    Whole numbers of at most `FEW_VALUES` values count as classes, as for rsample's strata.
    """
    rule = data.recipe.label
    if rule is None or rule.outputs or rule.shape or not rule.whole or rule.kind == "matrix":
        return None
    values = np.asarray(data.sources[1].gather(slice(None))).reshape(-1)
    if rule.kind != "number":
        return Classes(values.astype(np.int64), name_classes(rule))
    levels = np.unique(values)
    if len(levels) > FEW_VALUES:
        return None
    return Classes(np.searchsorted(levels, values), tuple(f"{value:g}" for value in levels))


def note_absent(resamples: Sequence[Resample], classes: Classes | None) -> tuple[str, ...]:
    """Returns a sentence for each split in which a class has no row to train or to measure on.

    Classes without any row in the data are left to the dataset's own note.
    """
    if classes is None:
        return ()
    count = len(classes.names)
    known = np.bincount(classes.codes, minlength=count) > 0
    notes = []
    for each in resamples:
        for rows, verb in ((each.train, "trains on"), (each.held_out, "holds out")):
            absent = known & (np.bincount(classes.codes[rows], minlength=count) == 0)
            if len(rows) and absent.any():
                names = [f'"{classes.names[place]}"' for place in np.flatnonzero(absent)]
                notes.append(f"{each.name} {verb} no row of class {list_some(names)}.")
    rest = len(notes) - MOST_NOTES
    return (*notes[:MOST_NOTES], *([f"{rest} more splits lack a class."] if rest > 0 else []))


def join_parts(data: MapDataset, parts: Sequence[MapDataset]) -> tuple[MapDataset, list[int]]:
    """Returns rows on which the models of parts of a dataset train, and each part's first row.

    They are those of the dataset. Only where classes have weights, a row weighs differently in each
    part, and comes once a part.

    Args:
        data: The dataset.
        parts: What `split_dataset()` made of it.

    Raises:
        DataError: for more rows than can be numbered.
    """
    if data.class_weights is None:
        return data, [0] * len(parts)
    rows = len(parts) * len(data)
    if rows > MOST_ROWS:
        raise DataError(
            f"`class_weight` gives {len(parts)} splits weights of their own: "
            f"{count_of(rows, 'row')}, and {MOST_ROWS:,} can be numbered.",
            hint="Give `weights`, one a row, instead.",
            arg="data",
        )
    each = [part.sources[2].gather(slice(None)) for part in parts]
    weights = np.concatenate(each, out=aligned_empty((rows, *each[0].shape[1:])))
    first, second, *_ = (repeat_rows(source, len(parts)) for source in data.sources)
    joined = copy.copy(data)
    joined.class_weights = None
    joined.sources = (first, second, MemoryRows(weights))
    joined.train_rows = np.arange(rows, dtype=np.int32)
    return joined, [place * len(data) for place in range(len(parts))]


# Folds by number --------------------------------------------------------------------------------


def _draw_folds(
    number: Any,
    rows: int,
    groups: np.ndarray | None,
    times: np.ndarray | None,
    classes: Classes | None,
    seed: int,
) -> tuple[Resample, ...]:
    count = check_count("resamples", number, 2)
    units = rows if groups is None else len(np.unique(groups))
    most = units - 1 if times is not None else units
    if count > most:
        noun = "row" if groups is None else "group"
        raise SpecError(
            f"`resamples` asks for {count_of(count, 'fold')} of {count_of(units, noun)}.",
            hint="Use fewer folds.",
            arg="resamples",
        )
    if times is not None:
        return _forward(count, times)
    if groups is not None:
        held = _assign_groups(count, groups)
    else:
        order = np.random.default_rng(seed).permutation(rows)
        if classes is not None:  # dealt out like cards, one class after another
            order = order[np.argsort(classes.codes[order], kind="stable")]
        held = [np.sort(order[fold::count]) for fold in range(count)]
    return tuple(_hold_out(f"Fold{i}", part, rows) for i, part in enumerate(held, start=1))


def _assign_groups(count: int, groups: np.ndarray) -> list[np.ndarray]:
    """Returns each fold's rows; the largest group first, into the fold with the fewest rows."""
    _, of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    filled, fold_of = np.zeros(count, np.int64), np.zeros(len(sizes), np.int64)
    for group in np.argsort(sizes, kind="stable")[::-1]:
        fold_of[group] = np.argmin(filled)
        filled[fold_of[group]] += sizes[group]
    return [np.flatnonzero(fold_of[of_row] == fold) for fold in range(count)]


def _forward(count: int, times: np.ndarray) -> tuple[Resample, ...]:
    """Returns blocks in time; each trains on those before, and no two blocks share a time."""
    order = np.argsort(times, kind="stable")
    sizes = len(order) // (count + 1)
    cuts = len(order) - sizes * np.arange(count, -1, -1)
    cuts = np.searchsorted(times[order], times[order][cuts[:-1]], side="left")
    if cuts[0] == 0 or np.any(np.diff(cuts) == 0):
        raise SpecError(
            f"`time` has too few different times for {count_of(count, 'fold')}.",
            hint="Use fewer folds.",
            arg="resamples",
        )
    ends = [*cuts[1:], len(order)]
    return tuple(
        Resample(f"Fold{i}", _as_rows(order[:cut]), _as_rows(np.sort(order[cut:end])))
        for i, (cut, end) in enumerate(zip(cuts, ends, strict=True), start=1)
    )


# Folds that are given ---------------------------------------------------------------------------


def _read_folds(folds: Mapping[str, Any] | Sequence[Any], rows: int) -> Iterator[Resample]:
    named = folds if isinstance(folds, Mapping) else dict(enumerate(folds, start=1))
    for key, fold in named.items():
        name = key if isinstance(key, str) else f"Fold{key}"
        if not isinstance(fold, Mapping):
            yield _hold_out(name, _check_rows(fold, name, rows), rows)
            continue
        if set(fold) != {"train", "validation"}:
            raise SpecError(
                f"`{name}` of `resamples` has {', '.join(sorted(fold))}.",
                hint="It holds `train` and `validation`, or the rows held out alone.",
                arg="resamples",
            )
        train = _check_rows(fold["train"], name, rows, repeats=True)
        held = _check_rows(fold["validation"], name, rows)
        both = len(np.intersect1d(train, held))
        if both:
            raise SpecError(
                f"`{name}` of `resamples` trains on {count_of(both, 'row')} that it holds out.",
                arg="resamples",
            )
        yield Resample(name, _as_rows(train), _as_rows(held))


def _hold_out(name: str, held: np.ndarray, rows: int) -> Resample:
    train = np.ones(rows, dtype=bool)
    train[held] = False
    if not train.any():
        raise SpecError(
            f"`{name}` of `resamples` holds out all rows: none is left to train on.",
            arg="resamples",
        )
    return Resample(name, _as_rows(np.flatnonzero(train)), _as_rows(held))


def _check_rows(value: Any, name: str, rows: int, repeats: bool = False) -> np.ndarray:
    """Returns row numbers from 0 (int64)."""
    try:
        numbers = np.atleast_1d(np.asarray(value, np.float64)).ravel()
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if len(numbers) == 0:
        raise SpecError(f"`{name}` of `resamples` has no rows.", arg="resamples")
    if not np.all(np.isfinite(numbers)) or np.any(numbers != np.floor(numbers)):
        raise SpecError(
            f"`{name}` of `resamples` must hold row numbers: whole numbers from 1.",
            arg="resamples",
        )
    if numbers.min() < 1 or numbers.max() > rows:
        wrong = numbers.min() if numbers.min() < 1 else numbers.max()
        raise SpecError(
            f"`{name}` of `resamples` has row {wrong:,.0f}, and `data` has {count_of(rows, 'row')}"
            ", numbered from 1.",
            arg="resamples",
        )
    if not repeats and len(np.unique(numbers)) < len(numbers):
        raise SpecError(f"`{name}` of `resamples` holds out a row twice.", arg="resamples")
    return numbers.astype(np.int64) - 1


def _as_rows(numbers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(numbers, np.int32)


# What would leak --------------------------------------------------------------------------------


def _check_column(values: Any, arg: str, rows: int) -> np.ndarray | None:
    if values is None:
        return None
    column = np.atleast_1d(np.asarray(values, np.float64)).ravel()
    if len(column) != rows:
        raise SpecError(
            f"`{arg}` has {count_of(len(column), 'value')}, and `data` has "
            f"{count_of(rows, 'row')}.",
            hint="Give one value a row, such as a column of the data frame.",
            arg=arg,
        )
    if not np.all(np.isfinite(column)):
        raise SpecError(f"`{arg}` has missing values.", arg=arg)
    return column


def _check_leaks(planned: Sequence[Resample], groups: Any, times: Any, rows: int) -> None:
    groups, times = _check_column(groups, "group", rows), _check_column(times, "time", rows)
    leaking: dict[float, str] = {}
    for each in planned:
        if groups is not None:
            both = np.intersect1d(groups[each.train], groups[each.held_out])
            leaking |= {group: each.name for group in both.tolist() if group not in leaking}
        if times is not None and times[each.train].max() > times[each.held_out].min():
            later = int((times[each.train] > times[each.held_out].min()).sum())
            raise SpecError(
                f"`{each.name}` of `resamples` trains on {count_of(later, 'row')} later in `time` "
                "than the first that it holds out.",
                hint="Train on earlier rows alone: give `train` and `validation` of each fold.",
                arg="resamples",
            )
    if leaking:
        raise SpecError(
            f"`resamples` splits {count_of(len(leaking), 'group')} of `group`: rows of one "
            f"both train and are held out, first in `{next(iter(leaking.values()))}`.",
            hint="Hold whole groups out, or give a number of folds with `group`.",
            arg="resamples",
        )


def _check_undivided(data: MapDataset) -> None:
    """Refuses rows that have been divided already, and rows without the user's numbers."""
    kept = len(data.validation_rows)
    if kept:
        raise SpecError(
            f"`data` keeps {count_of(kept, 'row')} apart for validation, and `resamples` says which"
            " are held out.",
            hint="Make the dataset with validation = 0.",
            arg="resamples",
        )
    if data.dropped or data.skipped:
        raise SpecError(
            "Rows of `data` were left out, so that numbers of `resamples` would mean other rows.",
            hint='Leave out incomplete rows before gpu_dataset(), or use na = "impute".',
            arg="resamples",
        )
    if len(data.train_rows) != len(data):
        raise SpecError("`data` is one worker's share of the rows.", arg="resamples")


def _check_windows(data: MapDataset, resamples: Any, times: Any) -> None:
    if isinstance(data.recipe.features, SeriesEncoding) and is_number(resamples) and times is None:
        raise SpecError(
            "Windows share rows of the series, so that folds drawn at random would leak.",
            hint="Give `time`, one value a window, or `resamples` as a list.",
            arg="resamples",
        )
