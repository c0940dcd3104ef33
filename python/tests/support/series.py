"""Columns of time series, as R passes them."""

import numpy as np


def numbers(name, values, kind="numeric", **fields):
    return {"name": name, "kind": kind, "values": np.asarray(values, float), "levels": [], **fields}


def factor(name, values):
    levels = sorted(set(values))
    codes = np.array([levels.index(value) + 1 for value in values], np.int32)
    return {"name": name, "kind": "factor", "values": codes, "levels": levels}


def make_columns(rows=60, groups="AB"):
    """Returns days of several sites, in order: when, site, load, temp, day."""
    count, rng = rows * len(groups), np.random.default_rng(1)
    days = np.arange(rows) + 19000
    return [
        numbers("when", np.tile(days, len(groups)), "date"),
        factor("site", [group for group in groups for _ in range(rows)]),
        numbers("load", np.arange(count) + 0.5),
        numbers("temp", rng.normal(size=count)),
        factor("day", ["xy"[day % 2] for _ in groups for day in range(rows)]),
    ]


def take(columns, rows):
    """Returns some rows of the columns, in that order."""
    return [{**column, "values": column["values"][rows]} for column in columns]


def windows(columns, **options):
    """Returns the features of windows of 8 rows that predict 3 more."""
    given = {"window": 8, "horizon": 3, "time": "when", "group": "site", "targets": "load"}
    given = {name: value for name, value in {**given, **options}.items() if value is not None}
    return {"kind": "windows", "columns": columns, **given}
