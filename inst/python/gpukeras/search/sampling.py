"""Draws the settings of trials: at random, or as a Latin hypercube.

A Latin hypercube divides the range of each setting into as many equal parts as there are trials,
and takes a value of each part once (McKay, Beckman and Conover 1979, A comparison of three methods
for selecting values of input variables, Technometrics 21). Few trials cover each range evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukeras.search.space import Space

DESIGNS = ("latin", "random")
ATTEMPTS = 100  # draws for each trial that is still missing, before settings count as exhausted


def draw_settings(
    space: Space, count: int, design: str, seed: int, drawn: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Draws settings that differ from each other and from those drawn before.

    The same arguments give the same settings.

    Args:
        space: The settings.
        count: Number of trials to draw.
        design: "latin" or "random"; where values of few kinds repeat, more are drawn at random.
        seed: Seed of the draw.
        drawn: Settings of earlier draws.

    Returns:
        `count` settings, or fewer if there are no more that differ.
    """
    rng = np.random.default_rng([seed, len(drawn)])
    settings, size = list(drawn), len(space.varied)
    points = draw_latin(count, size, rng) if design == "latin" else rng.random((count, size))
    _extend(settings, space, points)
    for _ in range(ATTEMPTS):
        missing = len(drawn) + count - len(settings)
        if missing <= 0:
            break
        _extend(settings, space, rng.random((missing, size)))
    return settings[len(drawn) :]


def draw_latin(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a Latin hypercube: points of the unit cube (count x size, float64)."""
    parts = np.stack([rng.permutation(count) for _ in range(size)], axis=1) if size else 0
    return (parts + rng.random((count, size))) / count


def _extend(chosen: list[dict[str, Any]], space: Space, points: np.ndarray) -> None:
    for point in points:
        settings = space.place(point)
        if settings not in chosen:
            chosen.append(settings)
