"""Collects the causes of an unused GPU: one record per cause, with a pure function as its rule.

Each module of this package defines a family of causes. `CAUSES` lists all in the order of `STAGES`,
in which `diagnose()` evaluates them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpukeras.diagnostics.rules import (
    driver,
    hardware,
    imports,
    jax,
    libraries,
    packages,
    session,
    shared_gpus,
    unexplained,
    usage,
    visibility,
)
from gpukeras.diagnostics.rules.rule import STAGES, Cause

_FAMILIES = (
    *(hardware, driver, shared_gpus, packages),
    *(libraries, visibility, imports, session, jax, unexplained, usage),
)

CAUSES: Sequence[Cause] = sorted(
    (cause for family in _FAMILIES for cause in family.CAUSES),
    key=lambda cause: list(STAGES).index(cause.stage),
)
