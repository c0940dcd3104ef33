"""Keeps rows off XLA's programs whose checks of values XLA would drop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.program_graph import Graph
from gpukeras.data.loading.block import Block
from gpukeras.engine.value_ranges import UNKNOWN, Range, find_unchecked


@dataclass
class RowGuard:
    """Decides block by block whether XLA's program is right for the rows.

    Most programs check no values, or only those of labels: then nothing else is measured. Ranges
    that a program was proved for are kept, and grow with the rows.

    Args:
        graph: The program's graph, whose first inputs are the rows.
    """

    graph: Graph
    _proved: list[Range] | None = None
    _needed: list[int] = field(default_factory=list)
    _last: weakref.ref[Block] | None = None

    def refuse(self, block: Block) -> str:
        """Returns why XLA must not run a block, or ""."""
        if self._last is not None and self._last() is block:
            return ""
        arrays = runtime.tree().flatten(block.arrays)
        if self._proved is None and not self._find([UNKNOWN] * len(arrays)):
            self._proved = [UNKNOWN] * len(arrays)
        elif self._proved is None or self._needed:
            unchecked = self._prove(arrays)
            if unchecked:
                return f"XLA would drop a check of the rows ({unchecked})"
        self._last = weakref.ref(block)
        return ""

    def _prove(self, arrays: Sequence[Any]) -> str:
        """Extends the proof to the ranges of some rows; returns what it fails on."""
        first, proved = self._proved is None, self._proved or [UNKNOWN] * len(arrays)
        places = range(len(arrays)) if first else self._needed
        found = {place: measure(arrays[place]) for place in places}
        if not first and all(_contains(proved[place], one) for place, one in found.items()):
            return ""
        wider = [
            found.get(place, UNKNOWN) if first else _widen(known, found.get(place))
            for place, known in enumerate(proved)
        ]
        if not first:  # columns of no importance would go on growing
            open_ended = [
                _widen(known, found.get(place), ends=True) for place, known in enumerate(proved)
            ]
            if not self._find(open_ended):
                self._proved = open_ended
                return ""
        unchecked = self._find(wider)
        if unchecked:
            return unchecked
        if first:
            self._needed = [place for place in places if self._find(_without(wider, place))]
            wider = [one if place in self._needed else UNKNOWN for place, one in enumerate(wider)]
            if self._find(wider):  # two arrays, either of which would do
                self._needed, wider = list(places), [found[place] for place in places]
        self._proved = wider
        return ""

    def _find(self, ranges: Sequence[Range]) -> str:
        try:
            return find_unchecked(self.graph, ranges)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return "a program that cannot be followed"


def measure(values: Any) -> Range:
    """Returns the range of rows, by column; unknown for what is no number."""
    found = tensor_ops.extremes(values)
    return UNKNOWN if found is None else Range(True, *found)


def _contains(known: Range, found: Range) -> bool:
    if known.low.ndim and known.low.shape != found.low.shape:
        return False
    return bool((known.low <= found.low).all() and (found.high <= known.high).all())


def _widen(known: Range, found: Range | None, *, ends: bool = False) -> Range:
    """Returns a range with new rows; where `ends`, columns that they exceed have no end."""
    if found is None:
        return known
    if not ends:
        return known.join(found)
    low = np.where(found.low >= known.low, known.low, -np.inf)
    return Range(True, low, np.where(found.high <= known.high, known.high, np.inf))


def _without(ranges: Sequence[Range], place: int) -> list[Range]:
    return [UNKNOWN if at == place else one for at, one in enumerate(ranges)]
