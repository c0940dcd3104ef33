"""The causes of an unused GPU as data: a record a cause, its rule a pure function of facts.

One module a family. `CAUSES` holds them in the order of `STAGES`, in which they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpukeras.diagnostics.rules import (
    driver,
    driver_start,
    first_use,
    hardware,
    libraries,
    packages,
    session,
    shared_gpus,
    usage,
    visibility,
)
from gpukeras.diagnostics.rules.rule import STAGES, Cause, fill_fix

__all__ = ["CAUSES", "Cause", "fill_fix"]

_FAMILIES = (
    *(hardware, driver, shared_gpus, driver_start, packages),
    *(libraries, visibility, session, first_use, usage),
)

CAUSES: Sequence[Cause] = sorted(
    (cause for family in _FAMILIES for cause in family.CAUSES),
    key=lambda cause: STAGES.index(cause.stage),
)
