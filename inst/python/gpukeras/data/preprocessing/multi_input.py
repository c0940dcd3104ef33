"""Maps several inputs to their numbers in one row, with NumPy only.

Inputs are flattened side by side into one row of numbers, so that plans, shuffles, scratch files,
saved datasets and streams handle a single array. An input is a group of a data frame's columns, an
element of a list (see `sources.multi_input`), or a window of rows beside what is known ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.data.preprocessing.multi_output import check_part_names
from gpukeras.data.preprocessing.recipe import Group, Recipe


@dataclass(frozen=True)
class Part:
    """One input and its place in the row.

    Args:
        name: The model's name for the input.
        shape: Shape of one row of the input, as the model takes it.
        columns: The input's columns in the row.
    """

    name: str
    shape: tuple[int, ...]
    columns: slice


def input_parts(recipe: Recipe) -> tuple[Part, ...]:
    """Returns the inputs in a row; none if the model has a single input, which takes the row."""
    shapes = {part.name: part.recipe.shape for part in recipe.inputs} or _group_shapes(recipe)
    shapes = shapes or _window_shapes(recipe)
    parts, start = [], 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        parts.append(Part(name, shape, slice(start, stop)))
        start = stop
    return tuple(parts)


def _group_shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    widths = {rule.name: len(rule.features) for rule in recipe.columns}
    return {
        group.name: (sum(widths[column] for column in group.columns),) for group in recipe.groups
    }


def _window_shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of windows and of what is known ahead; none without the latter."""
    rule = recipe.windows
    if rule is None or not rule.known:
        return {}
    ahead = sum(len(column.features) for column in recipe.columns if column.name in rule.known)
    return {"window": (rule.window, len(recipe.feature_names)), "known": (rule.horizon, ahead)}


def group_columns(recipe: Recipe, given: Any, arg: str) -> Recipe:
    """Returns the recipe with its columns grouped, one group for each of the model's inputs.

    Args:
        recipe: The recipe of a data frame's columns.
        given: `[{name, columns}]` as it comes from R, or None for one input with all columns.
        arg: The user's name for the rows, for messages.

    Raises:
        SpecError: if a column is in no group, in two groups, or unknown; names the column.
        DataError: if the groups lack names.
    """
    if not given:
        return recipe
    if recipe.kind != "columns":
        raise SpecError(
            f"`inputs` groups columns of data frames and tables, which `{arg}` does not have.",
            hint="Give several inputs as a named list, `list(image = , table = )`.",
            arg="inputs",
        )
    groups = parse_groups(given)
    rules = {rule.name: rule for rule in recipe.columns}
    _check_groups(groups, list(rules), arg)
    order = tuple(rules[name] for group in groups for name in group.columns)
    return replace(recipe, columns=order, groups=groups)


def parse_groups(given: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """Parses the groups that come from R."""
    check_part_names([group["name"] for group in given], "inputs")
    return tuple(Group(group["name"], _texts(group["columns"])) for group in given)


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


def check_settled(recipe: Recipe, given: Any) -> None:
    """Checks that groups given together with a recipe equal the recipe's groups.

    Raises:
        SpecError: if they differ.
    """
    if given and parse_groups(given) != recipe.groups:
        raise SpecError(
            "`inputs` is not what the `recipe` has.",
            hint="Leave it out: rows are grouped as in training.",
            arg="inputs",
        )
