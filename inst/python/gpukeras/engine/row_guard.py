"""Keeps rows off XLA's programs whose checks of values XLA would drop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.program_graph import Graph
from gpukeras.data.loader.loader import Block
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

    @property
    def measures(self) -> bool:
        """Whether other rows than those that were looked at may be refused."""
        return self._proved is None or bool(self._needed)

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
        if self._proved is None:
            return self._prove_first(arrays)
        measured = {place: measure(arrays[place]) for place in self._needed}
        if all(_contains(self._proved[place], rows) for place, rows in measured.items()):
            return ""
        known = list(enumerate(self._proved))
        # Columns of no importance would go on growing.
        ranges = [_widen(proved, measured.get(place), ends=True) for place, proved in known]
        if self._find(ranges):
            ranges = [_widen(proved, measured.get(place)) for place, proved in known]
            unchecked = self._find(ranges)
            if unchecked:
                return unchecked
        self._proved = ranges
        return ""

    def _prove_first(self, arrays: Sequence[Any]) -> str:
        """Proves the program for some rows, and finds which arrays the proof needs."""
        places = [place for place in range(len(arrays)) if place in self.graph.decisive]
        measured = {place: measure(arrays[place]) for place in places}
        ranges = [measured.get(place, UNKNOWN) for place in range(len(arrays))]
        unchecked = self._find(ranges)
        if unchecked:
            return unchecked
        needed = places
        if len(places) > 1:
            needed = [place for place in places if self._find(_without(ranges, place))]
            only = [rows if place in needed else UNKNOWN for place, rows in enumerate(ranges)]
            if self._find(only):  # two arrays, either of which would do
                needed = places
            else:
                ranges = only
        self._needed, self._proved = needed, ranges
        return ""

    def _find(self, ranges: Sequence[Range]) -> str:
        try:
            return find_unchecked(self.graph, ranges)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return "a program that cannot be followed"


def measure(values: Any) -> Range:
    """Returns the range of rows, by column; unknown for what is no number."""
    extremes = tensor_ops.extremes(values)
    return UNKNOWN if extremes is None else Range(True, *extremes)


def _contains(known: Range, rows: Range) -> bool:
    if known.low.ndim and known.low.shape != rows.low.shape:
        return False
    return bool((known.low <= rows.low).all() and (rows.high <= known.high).all())


def _widen(known: Range, rows: Range | None, *, ends: bool = False) -> Range:
    """Returns a range with new rows; where `ends`, columns that they exceed have no end."""
    if rows is None:
        return known
    if not ends:
        return known.join(rows)
    low = np.where(rows.low >= known.low, known.low, -np.inf)
    return Range(True, low, np.where(rows.high <= known.high, known.high, np.inf))


def _without(ranges: Sequence[Range], place: int) -> list[Range]:
    return [UNKNOWN if at == place else known for at, known in enumerate(ranges)]
