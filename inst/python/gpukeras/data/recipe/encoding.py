"""Learns how to encode features as numbers from the training rows, and encodes others alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.data.arrays import (
    ALL_ROWS,
    EXACT_FLOAT32,
    BadValues,
    EncodeOptions,
    Notes,
    check_features,
    column_name,
    find_other,
    moments,
    row_blocks,
    standardise,
)
from gpukeras.data.recipe.columns import (
    CategoryRule,
    ColumnRule,
    Learning,
    learn_column,
    take_rows,
    transform_column,
)
from gpukeras.data.recipe.imputation import learn_fill, observed
from gpukeras.data.recipe.multi_output import check_part_names
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    ColumnsEncoding,
    Encoding,
    Group,
    TableEncoding,
    check_columns,
    check_form,
    check_kind,
    check_names,
)

# Groups of columns --------------------------------------------------------------------------------


def group_columns(encoding: Encoding, given: Any, arg: str) -> Encoding:
    """Returns the encoding with its columns grouped, one group for each of the model's inputs.

    Args:
        encoding: The encoding of a data frame's columns.
        given: `[{name, columns}]` as it comes from R, or None for one input with all columns.
        arg: The user's name for the rows, for messages.

    Raises:
        SpecError: if a column is in no group, in two groups, or unknown; names the column.
        DataError: if the groups lack names.
    """
    if not given:
        return encoding
    if not isinstance(encoding, TableEncoding):
        raise SpecError(
            f"`inputs` groups columns of data frames and tables, which `{arg}` does not have.",
            hint="Give several inputs as a named list, `list(image = , table = )`.",
            arg="inputs",
        )
    groups = parse_groups(given)
    rules = {rule.name: rule for rule in encoding.columns}
    _check_groups(groups, list(rules), arg)
    order = tuple(rules[name] for group in groups for name in group.columns)
    return replace(encoding, columns=order, groups=groups)


def parse_groups(groups: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """Parses the groups that come from R."""
    check_part_names([group["name"] for group in groups], "inputs")
    return tuple(Group(group["name"], _texts(group["columns"])) for group in groups)


def _texts(columns: Any) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(map(str, columns))


def _check_groups(groups: Sequence[Group], names: Sequence[str], arg: str) -> None:
    grouped = [name for group in groups for name in group.columns]
    for group in groups:
        if not group.columns:
            raise _refuse(f"`inputs` has no columns for `{group.name}`.", group.name)
    for place, name in enumerate(grouped):
        if name not in names:
            raise _refuse(
                f"`inputs` names the column `{name}`, which is no feature of `{arg}`.", name
            )
        if name in grouped[:place]:
            raise _refuse(f"`inputs` names the column `{name}` more than once.", name)
    left = [name for name in names if name not in grouped]
    if left:
        raise _refuse(f"The feature `{left[0]}` of `{arg}` is in no group of `inputs`.", left[0])


def _refuse(message: str, column: str) -> SpecError:
    hint = "Each feature column must be in exactly one group."
    return SpecError(message, hint=hint, arg="inputs", column=column)


def check_settled(encoding: Encoding, inputs: Any) -> None:
    """Checks that groups given together with a recipe equal the recipe's groups.

    Raises:
        SpecError: if they differ.
    """
    groups = encoding.groups if isinstance(encoding, TableEncoding) else ()
    if inputs and parse_groups(inputs) != groups:
        raise SpecError(
            "`inputs` is not what the `recipe` has.",
            hint="Leave it out: rows are grouped as in training.",
            arg="inputs",
        )


# Encoding -----------------------------------------------------------------------------------------


def learn_array(x: np.ndarray, names: Sequence[str], how: Learning) -> ArrayEncoding:
    """Learns the encoding of an array.

    Args:
        x: The array.
        names: Column names, or none.
        how: The rows to learn from, and the dataset's options.

    Raises:
        DataError: for a column without a value to impute from.
    """
    shape, names = tuple(x.shape[1:]), tuple(names)
    keep = how.among()
    if how.impute:
        return _learn_imputing(x, keep, names, how)
    if not how.spec.scale:
        return ArrayEncoding(shape, names=names)
    center, deviation = moments(x, keep)
    return ArrayEncoding(shape, how.scales(deviation), center=tuple(center), names=names)


def _learn_imputing(
    x: np.ndarray, keep: np.ndarray, names: tuple[str, ...], how: Learning
) -> ArrayEncoding:
    """Learns column by column, which needs extra memory for one column only."""
    kind = {"kind": "logical" if x.dtype == bool else "numeric"}
    whole = int(keep.sum()) * (x[0].size // x.shape[-1])
    fill, marked = [], []
    moved: list[tuple[float, float]] = []
    for column in range(x.shape[-1]):
        there = observed(x[..., column], keep, column_name(names, column), how.arg)
        fill.append(learn_fill(kind, there))
        marked += [column] if len(there) < whole else []
        if how.spec.scale:
            center, scale = moments(there.reshape(-1, 1), np.ones(len(there), dtype=bool))
            moved.append((float(center[0]), how.scales(scale)[0]))
    return ArrayEncoding(
        tuple(x.shape[1:]),
        center=tuple(center for center, _ in moved) if moved else None,
        scale=tuple(scale for _, scale in moved) if moved else None,
        fill=tuple(fill),
        marked=tuple(marked),
        names=names,
    )


def learn_each(columns: Sequence[Mapping[str, Any]], how: Learning) -> list[ColumnRule]:
    """Learns the rules of columns in memory, one by one."""
    return [learn_column(column, how) for column in columns]


def learn_columns(
    columns: Sequence[Mapping[str, Any]],
    how: Learning,
    learn: Callable[[Sequence[Mapping[str, Any]], Learning], Sequence[ColumnRule]] = learn_each,
) -> TableEncoding:
    """Learns the encoding of a data frame.

    Args:
        columns: The columns.
        how: The options and rows to learn from.
        learn: Learns the rules of all columns.

    Raises:
        SpecError: if `encode` or `text` does not fit the columns; names the column.
        DataError: if there are no columns, if two share a name, or for a column that cannot be a
            feature; names the column.
    """
    if not columns:
        raise DataError(f"`{how.arg}` has no feature columns.", arg=how.arg)
    check_names([column["name"] for column in columns], how.arg)
    how.check(columns)
    rules = tuple(learn(columns, how))
    if how.spec.new_levels == "own":
        rules = tuple(
            replace(rule, new_levels=bool(rule.levels)) if isinstance(rule, CategoryRule) else rule
            for rule in rules
        )
    return TableEncoding(rules)


def transform(
    encoding: Encoding,
    features: Mapping[str, Any],
    arg: str = "x",
    how: EncodeOptions = ALL_ROWS,
) -> np.ndarray:
    """Encodes features into aligned float32, rows first.

    Args:
        encoding: The learned encoding.
        features: The rows.
        arg: The user's name for the rows, for messages.
        how: The rows to take, and where to note whole numbers that lose digits.

    Raises:
        DataError: for a missing column, a new level, a changed type or shape, or values that are
            missing or infinite; names the column.
    """
    if features["kind"] == "array":
        x = check_features(features["values"], arg)
        array = check_form(encoding, ArrayEncoding, x.shape[1:], arg, len(x))
        return stage_float32(x, array, arg, how)
    table = check_kind(encoding, TableEncoding, arg)
    return _transform_columns(table, features["columns"], arg, how)


def count_rows(features: Mapping[str, Any], arg: str = "x") -> int:
    """Checks features and returns their number of rows; refuses features without columns."""
    if features["kind"] == "array":
        return len(check_features(features["values"], arg))
    if not features["columns"]:
        raise DataError(f"`{arg}` has no columns.", arg=arg)
    return len(features["columns"][0]["values"])


def stage_float32(
    x: np.ndarray, rule: ArrayEncoding, arg: str = "x", how: EncodeOptions = ALL_ROWS
) -> np.ndarray:
    """Encodes an array once into aligned, row-major float32 memory.

    Args:
        x: Numeric array, rows first, any memory order.
        rule: What is subtracted, divided by, filled in and marked; in float64, before the cast.
        arg: The argument's name for error messages.
        how: The rows to take, and where to note whole numbers that lose digits.

    Raises:
        DataError: if a value is missing, infinite, or too large for float32; names the column.
    """
    complete, notes = how.complete, how.notes
    parts = (rule.center, rule.scale, rule.fill)
    learned = [None if part is None else np.array(part) for part in parts]
    staged, start = aligned_empty((how.count(len(x)), *rule.staged_shape)), 0
    scaled = rule.center is not None or rule.scale is not None
    with np.errstate(over="ignore", invalid="ignore"):
        for part in row_blocks(len(x), staged.itemsize * int(np.prod(staged.shape[1:]))):
            block = x[part] if complete is None else x[part][complete[part]]
            out = staged[start : start + len(block)]
            _encode_block(block, out, learned, rule.marked)
            largest = max(out.max(initial=0), -out.min(initial=0))  # NaN if the block has one
            if not np.isfinite(largest):
                raise _not_finite(x if complete is None else x[complete], rule, arg)
            if notes is not None and (scaled or largest >= EXACT_FLOAT32):
                notes.look(block, rule.names, arg, scaled)
                look_unlearned(block, rule, arg, notes)
            start += len(block)
    return staged


def look_unlearned(x: np.ndarray, rule: ArrayEncoding, arg: str, notes: Notes) -> None:
    """Notes columns that were the same in all training rows, and are not here."""
    zero = np.flatnonzero(np.equal(rule.scale, 0.0)) if rule.scale else np.empty(0, int)
    if len(zero) and rule.center:
        other = find_other(x[..., zero], np.array(rule.center)[zero])
        found = zero[other.reshape(-1, len(zero)).any(axis=0)]
        notes.add_unlearned("zero", (column_name(rule.names, place) for place in found), arg)


def _encode_block(
    block: np.ndarray,
    out: np.ndarray,
    learned: Sequence[np.ndarray | None],
    marked: Sequence[int],
) -> None:
    missing, (center, scale, fill) = None, learned
    if fill is not None:
        missing = np.isnan(block)
        block = np.where(missing, fill, block)
    values = standardise(block, center, scale)
    if missing is None or not marked:
        out[...] = values
        return
    order = np.insert(np.arange(block.shape[-1]), np.array(marked) + 1, -1)
    out[..., order >= 0] = values
    out[..., order < 0] = missing[..., list(marked)]


def _not_finite(x: np.ndarray, rule: ArrayEncoding, arg: str) -> DataError:
    """Returns the error for the first column with a missing, infinite or huge value."""
    for column in range(x.shape[-1]):
        bad = BadValues(impute=rule.fill is not None)
        bad.add(x[..., column].astype(np.float64))
        if error := bad.find_error(column_name(rule.names, column), arg):
            return error
    return DataError(f"`{arg}` is not finite after scaling.", arg=arg)


def _transform_columns(
    encoding: ColumnsEncoding, columns: Sequence[Mapping[str, Any]], arg: str, how: EncodeOptions
) -> np.ndarray:
    by_name = {column["name"]: column for column in columns}
    check_columns(encoding, by_name, arg)
    rows = how.count(len(columns[0]["values"]))
    staged = aligned_empty((rows, *encoding.shape))
    for rule, place in encoding.places:
        column = take_rows(by_name[rule.name], how.complete)
        transform_column(rule, column, staged[:, place], arg, how.notes)
    return staged
