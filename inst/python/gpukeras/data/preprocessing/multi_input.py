"""Several inputs in one row: which of its numbers each of them takes.

A row stays one row of numbers, so that whatever moves rows (plans, shuffles, scratch files, saved
datasets, streams) knows of one array. Inputs lie in it side by side, flattened. They are groups of
a data frame's columns, or what was given as a list (see `sources.multi_input`). NumPy only.
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
    """One input in a row.

    Args:
        name: The model's name for it.
        shape: Of one row of it, as the model takes it.
        columns: Where it lies in the row.
    """

    name: str
    shape: tuple[int, ...]
    columns: slice


def input_parts(recipe: Recipe) -> tuple[Part, ...]:
    """The inputs of a row; none where the model has one, which takes the row as it is."""
    shapes = {part.name: part.recipe.shape for part in recipe.inputs} or _group_shapes(recipe)
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


def group_columns(recipe: Recipe, given: Any, arg: str) -> Recipe:
    """The recipe with its columns put into groups, one for each of the model's inputs.

    Args:
        recipe: Of a data frame's columns.
        given: `[{name, columns}]`, as it comes from R, or None: one input takes all columns.
        arg: The user's name for the rows, for messages.

    Raises:
        SpecError: if a column is in no group, in two, or not there; names it.
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
    """Groups as they come from R."""
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
    """Groups that are given beside a recipe are its own.

    Raises:
        SpecError: if they are not.
    """
    if given and parse_groups(given) != recipe.groups:
        raise SpecError(
            "`inputs` is not what the `recipe` has.",
            hint="Leave it out: rows are grouped as in training.",
            arg="inputs",
        )
