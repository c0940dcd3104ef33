"""What a user says about checkpoints: a folder, or a few options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import SpecError
from ..specs import Spec, check_count, check_number, describe
from .store import KEEP


@dataclass(frozen=True)
class CheckpointSpec(Spec):
    """Where and how often a training is saved.

    Args:
        folder: Made if it is not there; the folder it is in must be.
        every_s: Seconds between saves within an epoch, at least; each epoch's end is saved as
            well. None for 300, or more where a save takes long.
        keep: Good checkpoints that stay.
    """

    folder: str = ""
    every_s: float | None = None
    keep: int = KEEP

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        if not isinstance(self.folder, str) or not self.folder:
            raise SpecError(
                f"`checkpoint` must be the path of a folder, not {describe(self.folder)}.",
                hint='Such as checkpoint = "run-1".',
                arg="checkpoint",
            )
        if self.every_s is not None:
            self._set(every_s=check_number("every_s", self.every_s, 0.0))
        self._set(keep=check_count("keep", self.keep))


def parse_checkpoint(given: Any) -> CheckpointSpec | None:
    """The options from a folder's path or a mapping; None for None.

    Raises:
        SpecError: naming the option.
    """
    if given is None:
        return None
    return CheckpointSpec.from_dict(given if isinstance(given, Mapping) else {"folder": given})
