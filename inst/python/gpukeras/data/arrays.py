"""Checks, splits and stages arrays, with NumPy only.

R's matrices arrive without a copy, as read-only float64 views in column-major order. Staging
copies them once to float32, row-major, 64-byte aligned memory, which TensorFlow adopts without
another copy. Gathering shuffled batches from R's column-major order would take 3 to 26 times as
long (measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of, list_some

# Arrays -------------------------------------------------------------------------------------------

BLOCK_BYTES = 4 * 2**20  # staging works in blocks of this size, which bounds its extra memory
MAX_RANK = 5
FLOAT32_MAX = float(np.finfo(np.float32).max)
EXACT_FLOAT32 = 2**24  # float32 holds every whole number up to this one exactly
EXACT_FLOAT64 = 2**53  # and float64 up to this one


def check_features(x: Any, arg: str = "x") -> np.ndarray:
    """Returns `x` as an array of rank 2 to 5; a vector becomes one column.

    Raises:
        DataError: if `x` is not numeric, has another rank or has no columns. The message names
            `arg` and the type or shape found.
    """
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiub":
        found = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise DataError(f"`{arg}` must be numeric, not {found}.", arg=arg)
    if x.ndim == 1:
        x = x.reshape(-1, 1)
    if not 2 <= x.ndim <= MAX_RANK:
        raise DataError(f"`{arg}` must have 2 to {MAX_RANK} dimensions, not {x.ndim}.", arg=arg)
    if 0 in x.shape[1:]:
        raise DataError(f"`{arg}` has no columns: its shape is {x.shape}.", arg=arg)
    return x


def check_some(rows: int, arg: str = "x") -> None:
    """Refuses training data without rows; prediction accepts zero rows.

    Raises:
        DataError: if `rows` is 0; names `arg`.
    """
    if rows == 0:
        raise DataError(f"`{arg}` has no rows.", arg=arg)


# R drops the dimensions of one row, and of one column.
KEEP_ROW = "One row of a matrix stays a matrix by x[1, , drop = FALSE]."


def check_lengths(rows: int, other: int, arg: str, of: str = "x", row: bool = False) -> None:
    """Checks that two arguments with one entry per row agree in length.

    Args:
        rows: Rows of `of`.
        other: Entries of `arg`.
        arg: The name of the argument that is checked, for messages.
        of: The name of the argument that it is compared with, for messages.
        row: Whether `of` is a vector, which may have been one row.

    Raises:
        DataError: if the lengths differ.
    """
    if rows != other:
        raise DataError(
            f"`{arg}` has {count_of(other, 'row')} where `{of}` has {rows}.",
            hint=KEEP_ROW if row and other == 1 else "They need one entry for each row.",
            arg=arg,
        )


def row_blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Yields slices that cover `rows` rows in blocks of about `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


# What a model cannot have learned: of a number that stays as it is, of one that is encoded as 0
# because its deviation is 0, and of a level.
UNLEARNED = {
    "number": "{was} the same in all training rows: the model has not learned what {its} other "
    "values do.",
    "zero": "{was} the same in all training rows: {its} other values do not count.",
    "level": "{has} levels without a training row: the model has not learned what they do.",
}


class Notes:
    """Values that encoding could not keep exactly, or of which a model has learned nothing.

    No value is refused; `sentences` tells the user of the columns.
    """

    def __init__(self) -> None:
        """Starts without columns."""
        self._counts: dict[tuple[str, str, bool], int] = {}
        self._unlearned: dict[tuple[str, str], dict[str, None]] = {}

    def look(self, values: np.ndarray, names: Sequence[str], arg: str, scaled: bool) -> None:
        """Adds the counts of some rows.

        Args:
            values: The rows before any cast; a vector is one column.
            names: Column names; a column of the same name as `arg` is `arg` itself.
            arg: The user's name for the data.
            scaled: Whether the values are standardised in float64 before the cast to float32.
        """
        inexact = find_inexact(values, scaled)
        if inexact is None:
            return
        columns = inexact.reshape(-1, inexact.shape[-1] if inexact.ndim > 1 else 1).sum(axis=0)
        for column in np.flatnonzero(columns):
            key = (arg, column_name(names, int(column)), scaled)
            self._counts[key] = self._counts.get(key, 0) + int(columns[column])

    def add(self, other: Notes) -> None:
        """Adds the counts of other rows."""
        for key, count in other._counts.items():
            self._counts[key] = self._counts.get(key, 0) + count
        for (arg, kind), names in other._unlearned.items():
            self.add_unlearned(kind, names, arg)

    def add_unlearned(self, kind: str, names: Iterable[str], arg: str) -> None:
        """Adds columns with values of which a model has learned nothing.

        Args:
            kind: A key of `UNLEARNED`.
            names: Column names.
            arg: The user's name for the data.
        """
        known = self._unlearned.setdefault((arg, kind), {})
        known.update(dict.fromkeys(names))

    @property
    def unlearned(self) -> tuple[str, ...]:
        """A sentence for each kind of values of which a model has learned nothing."""
        found = self._unlearned.items()
        said = (_note_unlearned(kind, list(names), arg) for (arg, kind), names in found if names)
        return tuple(said)

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each column with inexact values, and those of `unlearned`."""
        return (*(_note(*key, count) for key, count in self._counts.items()), *self.unlearned)


@dataclass(frozen=True)
class EncodeOptions:
    """Which rows are encoded, and where their surprising values are noted.

    Args:
        complete: Mask of the rows to use, or None for all rows.
        notes: Collects notes on integers that lose digits in float32, or None.
    """

    complete: np.ndarray | None = None
    notes: Notes | None = None

    def count(self, rows: int) -> int:
        """Returns how many of the rows are used."""
        return rows if self.complete is None else int(self.complete.sum())


ALL_ROWS = EncodeOptions()


def _note(arg: str, name: str, scaled: bool, count: int) -> str:
    power, cast = (53, "float64") if scaled else (24, "float32")
    numbers = count_of(count, "whole number")
    where = describe_column(name, arg)
    return f"{where} has {numbers} beyond 2^{power} that {cast} cannot hold exactly."


def find_other(values: np.ndarray, expected: float | np.ndarray) -> np.ndarray:
    """Returns a mask of the values that are neither missing nor what training rows had."""
    other: np.ndarray = (values != expected) & (values == values)
    return other


def _note_unlearned(kind: str, names: Sequence[str], arg: str) -> str:
    if len(names) == 1:
        said = UNLEARNED[kind].format(was="was", its="its", has="has")
        return f"{describe_column(names[0], arg)} {said}"
    listed = list_some([f"`{name}`" for name in names])
    said = UNLEARNED[kind].format(was="were", its="their", has="have")
    return f"Columns {listed} of `{arg}` {said}"


def find_inexact(values: np.ndarray, scaled: bool) -> np.ndarray | None:
    """Returns a mask of the whole numbers that the cast cannot hold, or None if it must hold all.

    Standardised values pass through float64, whose exact range only 64-bit integers exceed; other
    values are cast to float32 directly.
    """
    kind, bits = values.dtype.kind, 8 * values.dtype.itemsize
    narrow = kind == "b" or bits <= 16 or (kind == "f" and bits <= 32)
    if not values.size or narrow or (scaled and (kind == "f" or bits <= 32)):
        return None
    limit, to = (EXACT_FLOAT64, np.float64) if scaled else (EXACT_FLOAT32, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind != "f" and values.max() <= limit and values.min() >= -limit:
            return None
        large = np.abs(values) > limit if kind == "f" else None
        if large is not None and not large.any():
            return None
        cast: np.ndarray = values.astype(to)
        if large is not None:
            return large & (cast != values) & (np.floor(values) == values) & np.isfinite(values)
        # A value that was rounded up beyond the type's largest integer cannot be cast back.
        return (cast.astype(values.dtype) != values) | (cast >= 2.0 ** (bits - (kind == "i")))


def side_by_side(widths: Iterable[int]) -> list[slice]:
    """Returns the columns that parts of these widths take in one row."""
    return [slice(*ends) for ends in pairwise(accumulate(widths, initial=0))]


def standardise(x: np.ndarray, center: np.ndarray | None, scale: np.ndarray | None) -> np.ndarray:
    """Returns `(x - center) / scale` along the last axis, in float64.

    Args:
        x: The values.
        center: Subtracted first, or None.
        scale: Divides the difference, or None; see `divisors()`.
    """
    x = x if center is None else x - center
    return x if scale is None else x / divisors(scale)


def divisors(scale: Any) -> np.ndarray:
    """Returns deviations as divisors: one of 0 makes each number 0.

    Rows that are all the same teach no weight, so that no other number may reach it.
    """
    return np.where(np.equal(scale, 0.0), np.inf, scale)


def moments(
    x: np.ndarray | Iterable[np.ndarray], keep: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation along the last axis over the rows where `keep` is true.

    Args:
        x: The rows, or blocks of them.
        keep: Mask of the rows to use.
    """
    if isinstance(x, np.ndarray):
        x = map(x.__getitem__, row_blocks(len(x), 8 * x[0].size))
    statistics, start = RunningStats(), 0
    for block in x:
        kept = block[keep[start : start + len(block)]]
        statistics.add(kept.reshape(-1, block.shape[-1]))
        start += len(block)
    return statistics.mean, statistics.deviation


def split_rows(rows: int, validation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns row numbers (int32, ascending) for training and for validation.

    The split is random because tables are often sorted; Keras takes the last rows for validation.

    Args:
        rows: The number of rows.
        validation: The share of the rows for validation.
        seed: Seed of the split.

    Raises:
        DataError: if either part would be empty.
    """
    count = round(rows * validation)
    if validation > 0 and not 0 < count < rows:
        raise DataError(
            f"`validation` = {validation:g} of {count_of(rows, 'row')} leaves no row to "
            f"{'validate' if count == 0 else 'train'} on.",
            arg="validation",
        )
    if count == 0:
        return np.arange(rows, dtype=np.int32), np.empty(0, dtype=np.int32)
    shuffled = np.arange(rows, dtype=np.int32)
    np.random.default_rng(seed).shuffle(shuffled)
    shuffled[count:].sort()
    shuffled[:count].sort()
    return shuffled[count:], shuffled[:count]


def epoch_order(rows: np.ndarray, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """Returns the rows in an epoch's order: a full shuffle that depends on seed and epoch only.

    Args:
        rows: Row numbers.
        shuffle: Whether to shuffle; otherwise `rows` is returned unchanged.
        seed: Seed of the shuffle.
        epoch: The epoch's number.
    """
    return np.random.default_rng([seed, epoch]).permutation(rows) if shuffle else rows


def column_name(names: Sequence[str], column: int) -> str:
    """Returns a column's name, or its 1-based number if it has no name."""
    return names[column] if column < len(names) else str(column + 1)


class BadValues:
    """Counts values that cannot be trained on, block by block, and finds the first row of them.

    Args:
        impute: Whether missing values are none of them.
        limit: The largest number that is none of them.

    Attributes:
        counts: How many are `missing`, `infinite` and too `large` for float32.
        row: The first row that has one, from 1; None without any.
    """

    def __init__(self, impute: bool = False, limit: float = FLOAT32_MAX) -> None:
        """Starts without rows."""
        self.counts = {"missing": 0, "infinite": 0, "large": 0}
        self.row: int | None = None
        self._impute, self._limit = impute, limit
        self._rows = 0

    def add(self, values: np.ndarray, encoded: np.ndarray | None = None) -> bool:
        """Adds a block of rows; returns whether there is a value that is not plain.

        Args:
            values: The values.
            encoded: What must not be too large: the values after scaling, or None for themselves.
        """
        start, self._rows = self._rows, self._rows + len(values)
        encoded = values if encoded is None else encoded
        with np.errstate(invalid="ignore"):
            largest = max(encoded.max(initial=0), -encoded.min(initial=0))  # NaN if one is NaN
            if np.isfinite(largest) and largest <= self._limit:
                return False
            infinite = np.isinf(values)
            large = (np.abs(encoded) > self._limit) & ~infinite
        missing = np.zeros(values.shape, bool) if self._impute else np.isnan(values)
        bad = missing | infinite | large
        if self.row is None and bad.any():
            self.row = start + int(bad.reshape(len(bad), -1).any(axis=1).argmax()) + 1
        for what, mask in (("missing", missing), ("infinite", infinite), ("large", large)):
            self.counts[what] += int(mask.sum())
        return True

    def find_error(self, name: str, arg: str, hint: str = "") -> DataError | None:
        """Returns the error for a column with such values, with the first row; None without any."""
        if self.row is None:
            return None
        counts = dict(self.counts)
        if counts["missing"] or counts["infinite"]:  # which are to be mended first
            counts["large"] = 0
        error = column_error(name, arg, hint, **counts)
        error.details["row"] = self.row
        return error


def column_error(name: str, arg: str, hint: str = "", **counts: int) -> DataError:
    """Returns the error for a column with values that cannot be trained on, with their counts.

    Args:
        name: The column's name.
        arg: The user's name for the data.
        hint: Replaces the usual hint, if not "".
        **counts: How many values are `missing`, `infinite` and too `large`.
    """
    words = {"missing": "missing", "infinite": "infinite", "large": "too large for float32"}
    kinds = [f"{count} {words[key]}" for key, count in counts.items() if count]
    if set(key for key, count in counts.items() if count) == {"missing"}:
        found = count_of(counts["missing"], "missing value")
        usual = missing_hint(label=name == arg)
    else:
        found = f"values that cannot be trained on: {' and '.join(kinds)}"
        usual = "Remove those rows, or correct them, first."
    return column_fault(name, arg, f"has {found}.", hint or usual, **counts)


def column_fault(name: str, arg: str, problem: str, hint: str = "", **details: Any) -> DataError:
    """Returns an error about a column.

    Args:
        name: The column's name.
        arg: The user's name for the data.
        problem: What is wrong, as the rest of a sentence.
        hint: What to do about it, or "".
        **details: Further fields of the error.
    """
    message = f"{describe_column(name, arg)} {problem}"
    return DataError(message, hint=hint, arg=arg, column=name, **details)


def describe_column(name: str, arg: str) -> str:
    """Returns a column's name for messages; that of the data, if they are the same."""
    return f"`{arg}`" if name == arg else f"Column `{name}` of `{arg}`"


def missing_hint(label: bool) -> str:
    """Returns the hint for missing values; labels are never imputed."""
    ways = '`na = "drop"`' if label else '`na = "impute"` or `na = "drop"`'
    return f"Remove those rows, or use {ways} in gpu_dataset()."


# Columns by name ----------------------------------------------------------------------------------


def order_names(expected: Sequence[str], given: Sequence[str], arg: str) -> tuple[int, ...] | None:
    """Returns the positions of the expected columns among those given.

    Args:
        expected: The names in training, or none.
        given: The names of the new rows' columns, or none.
        arg: The user's name for the rows, for messages.

    Returns:
        Their positions, or None to take the columns as they are: the names are equal, or one side
        has no names, or names that are not unique.

    Raises:
        DataError: if an expected name is missing or occurs twice.
    """
    expected, given = tuple(expected), tuple(given)
    if not given or expected == given or not _tell_apart(expected):
        return None
    for name in expected:
        if given.count(name) != 1:
            found = "has more than one" if name in given else "lacks the"
            trained = "" if name in given else " that the model was trained on"
            raise DataError(
                f"`{arg}` {found} column `{name}`{trained}.",
                hint="A matrix without column names is taken by position.",
                arg=arg,
                column=name,
            )
    return tuple(given.index(name) for name in expected)


def order_columns(
    features: Mapping[str, Any], expected: Sequence[str], arg: str
) -> Mapping[str, Any]:
    """Returns an array, or labels, with the expected columns of its last axis only, in order.

    Args:
        features: Features or labels with `values` and perhaps `names`.
        expected: See `order_names()`.
        arg: See `order_names()`.
    """
    order = order_names(expected, features.get("names") or (), arg)
    values = features["values"]
    if order is None or not isinstance(values, np.ndarray) or values.ndim < 2:
        return features
    leading = order == tuple(range(len(order)))  # a view is enough
    columns = slice(len(order)) if leading else list(order)
    return {**features, "values": values[..., columns], "names": list(expected)}


def check_same_names(expected: Sequence[str], names: Sequence[str], arg: str) -> None:
    """Checks that encoded rows, which cannot be reordered, have the columns of training.

    Args:
        expected: The names in training, or none.
        names: The names of the encoded rows' columns, or none.
        arg: The user's name for the rows, for messages.

    Raises:
        DataError: if both sides have names, and these differ.
    """
    if names and _tell_apart(expected) and tuple(expected) != tuple(names):
        pairs = zip(expected, names, strict=False)
        one, other = next((pair for pair in pairs if pair[0] != pair[1]), (expected[-1], names[-1]))
        raise DataError(
            f"`{arg}` has the column `{other}` where training had `{one}`.",
            hint="Pass the matrix itself, or use gpu_dataset(recipe = ): columns are then found "
            "by their names.",
            arg=arg,
            column=one,
        )


def _tell_apart(names: Sequence[str]) -> bool:
    return bool(names) and all(names) and len(set(names)) == len(names)


# Running statistics -------------------------------------------------------------------------------


class RunningStats:
    """Mean and deviation of columns in float64, merged block by block (Chan et al. 1979).

    Each value has the first one subtracted, so values far from 0 lose no digits, and a constant
    column has a deviation of exactly 0. A vector has one mean, a matrix one per column.
    """

    def __init__(self) -> None:
        """Starts without rows."""
        self.count = 0
        self._origin: Any = 0.0
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, block: np.ndarray) -> None:
        """Adds a block of rows, which may be empty."""
        if len(block) == 0:
            return
        if self.count == 0:
            self._origin = np.array(block[0], np.float64)
        total = self.count + len(block)
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused elsewhere
            away = np.subtract(block, self._origin, dtype=np.float64)
            mean = away.mean(axis=0)
            shift = mean - self._mean
            away -= mean
            np.square(away, out=away)
            self._squares += away.sum(axis=0) + shift**2 * (self.count * len(block) / total)
            self._mean, self.count = self._mean + shift * (len(block) / total), total

    @property
    def mean(self) -> Any:
        """The mean."""
        with np.errstate(invalid="ignore"):  # a signalling NaN, which R's missing values are
            return self._origin + self._mean

    @property
    def constant(self) -> float | None:
        """The value that all rows of a vector have, or None."""
        return float(self._origin) if self.count and self._squares == 0 else None

    @property
    def deviation(self) -> Any:
        """The standard deviation."""
        deviation = np.sqrt(self._squares / max(1, self.count))
        return np.where(deviation > 0, deviation, 0.0)  # of values that are refused, not NaN
