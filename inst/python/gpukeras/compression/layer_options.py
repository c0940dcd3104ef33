"""Checks options that name layers, and options of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.options import refused_value


def check_excluded(names: Sequence[str], paths: Sequence[str]) -> None:
    """Checks that each name is a layer's: its own name, or its path through nested models.

    Args:
        names: The names given.
        paths: The layers' paths; a layer of a nested model has the model's name and a slash in
            front.

    Raises:
        SpecError: for the first name that matches no layer.
    """
    for name in names:
        if not any(is_named(path, (name,)) for path in paths):
            raise SpecError(
                f'`exclude` names "{name}", which no layer has.',
                hint=f"Layers are {', '.join(paths[:12])}{', ...' if paths[12:] else ''}.",
                arg="exclude",
            )


def is_named(path: str, names: Sequence[str]) -> bool:
    """Whether a layer, or a model around it, has one of the names."""
    parts = path.split("/")
    above = {"/".join(parts[: place + 1]) for place in range(len(parts))}
    return any(name in parts or name in above for name in names)


def check_options(options: Any) -> dict[str, Any]:
    """Returns options of a training by name; R's empty list arrives as a list."""
    named = options or {}
    if not isinstance(named, Mapping):
        raise refused_value("fit", named, "options by name")
    return dict(named)
