"""Parses the user's checkpoint options: a folder, or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.checkpoint.store import KEEP
from gpukeras.core.options import A_FOLDER, Spec, check_count, check_number, check_text, option


@dataclass(frozen=True)
class CheckpointSpec(Spec):
    """Where and how often a training is saved.

    Args:
        folder: The folder; it is created if it is missing, its parent is not.
        every_s: Least number of seconds between saves within an epoch; each epoch's end is saved
            as well. None for 300, or more where a save takes long.
        keep: Number of undamaged checkpoints that are kept.
    """

    folder: str = option(
        "", check_text, A_FOLDER, 'Such as checkpoint = "run-1".', arg="checkpoint"
    )
    every_s: float | None = option(None, check_number, 0.0)
    keep: int = option(KEEP, check_count)


def parse_checkpoint(given: Any) -> CheckpointSpec | None:
    """Parses a folder's path or a mapping of options; returns None for None.

    Raises:
        SpecError: naming the option.
    """
    if given is None:
        return None
    return CheckpointSpec.from_dict(given if isinstance(given, Mapping) else {"folder": given})
