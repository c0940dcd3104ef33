"""Learns the rules of a table's columns from blocks of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gpukeras.data.preprocessing.columns import ColumnRule, Learning, kind_of, learn_column
from gpukeras.data.sources.table.summaries import NumberSummary, find_medians

Columns = dict[str, Mapping[str, Any]]


class Table(Protocol):
    """Interface of a table that `TableLearner` reads."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the feature columns."""

    def empty(self, name: str) -> Mapping[str, Any]:
        """Returns a column without rows."""

    def early(self, name: str, how: Learning) -> NumberSummary | None:
        """Returns the statistics of a numeric column that are already known, or None."""

    def category(self, name: str) -> Mapping[str, Any]:
        """Returns a whole category column."""

    def blocks(
        self,
        names: Sequence[str],
        complete: np.ndarray | None = None,
        keep: np.ndarray | None = None,
    ) -> Iterator[tuple[Columns, np.ndarray | None, int]]:
        """Yields blocks of rows: columns, mask of the training rows, number of rows.

        Args:
            names: Names of the columns.
            complete: Mask of the rows to use, or None for all rows.
            keep: Mask of the training rows among them, or None for all.
        """


class TableLearner:
    """Learns the rules of a table's columns; reads the rows needed for all of them once.

    Args:
        table: The table.
    """

    def __init__(self, table: Table) -> None:
        """Stores the arguments; reads no data."""
        self._table = table
        self._summaries: dict[str, NumberSummary] | None = None

    def rule(self, column: Mapping[str, Any], how: Learning) -> ColumnRule:
        """Returns the rule of a column, which is passed without rows.

        Raises:
            DataError: as `columns.learn_column()` raises.
        """
        if kind_of(column) == "category":
            return learn_column(self._table.category(column["name"]), how)
        if self._summaries is None:
            self._summaries = self._summarise(how)
        summary = self._summaries.get(column["name"])
        if summary is None:
            return NumberSummary(column, how).rule()
        summary.check()
        return summary.rule()

    def _summarise(self, how: Learning) -> dict[str, NumberSummary]:
        """Returns the statistics of all numeric columns that need any."""
        table = self._table
        found: dict[str, NumberSummary] = {}
        late: dict[str, NumberSummary] = {}
        for column in map(table.empty, table.columns):
            name, summary = column["name"], NumberSummary(column, how)
            if kind_of(column) != "category" and summary.needed:
                early = table.early(name, how)
                found[name] = early or summary
                late |= {} if early else {name: summary}
        read = self._reader(how)
        for columns, keep in read(list(late)) if late else ():
            for name, summary in late.items():
                summary.add(columns[name], keep)
        find_medians(list(found.values()), read)
        return found

    def _reader(
        self, how: Learning
    ) -> Callable[[Sequence[str]], Iterator[tuple[Columns, np.ndarray | None]]]:
        """Returns a function that yields blocks of columns with masks of the training rows."""
        keep = None if how.keep.all() else how.keep

        def read(names: Sequence[str]) -> Iterator[tuple[Columns, np.ndarray | None]]:
            for columns, kept, _ in self._table.blocks(names, how.complete, keep):
                yield columns, kept

        return read
