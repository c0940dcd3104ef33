"""Groups a data frame's columns as the model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.data.preprocessing.multi_output import check_part_names
from gpukeras.data.preprocessing.recipe import Encoding, Group, TableEncoding


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


def check_settled(encoding: Encoding, given: Any) -> None:
    """Checks that groups given together with a recipe equal the recipe's groups.

    Raises:
        SpecError: if they differ.
    """
    groups = encoding.groups if isinstance(encoding, TableEncoding) else ()
    if given and parse_groups(given) != groups:
        raise SpecError(
            "`inputs` is not what the `recipe` has.",
            hint="Leave it out: rows are grouped as in training.",
            arg="inputs",
        )
