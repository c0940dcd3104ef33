"""Columns of data frames as R gives them: learned from, and encoded."""

import numpy as np

from gpukeras.core.options import DatasetSpec
from gpukeras.data.recipe import columns, encoding
from gpukeras.data.recipe.text_vectorization import TextSpec

NAN = np.nan


def column(values, kind="numeric", levels=(), name="size", **more):
    column = {"name": name, "kind": kind, "values": np.array(values), "levels": list(levels)}
    return {**column, **more}


def frame(*columns):
    return {"kind": "columns", "columns": list(columns)}


def learning(keep, scale, encode="onehot", impute=False, **more):
    """What encodings are learned by, for options one by one."""
    options = {name: more.pop(name) for name in ("hash_bins", "new_levels") if name in more}
    na = "impute" if impute else "error"
    return columns.Learning(keep, DatasetSpec(scale=scale, encode=encode, na=na, **options), **more)


def learn(given, keep=None, scale=True, onehot=True, impute=True, complete=None):
    keep = np.ones(len(given["values"]), bool) if keep is None else np.array(keep)
    encode = "onehot" if onehot else "codes"
    return columns.learn_column(given, learning(keep, scale, encode, impute, complete=complete))


def transform(rule, given):
    out = np.full((len(given["values"]), len(rule.features)), NAN, np.float32)
    columns.transform_column(rule, given, out, "newdata")
    return out


def date(*days):
    return column([float(day) for day in days], "date", name="day")


def learn_columns(given, keep, scale=False, encode="onehot", **more):
    """The encoding of a data frame's columns, for options one by one."""
    if isinstance(more.get("text"), dict):
        more["text"] = TextSpec.from_dict(more["text"])
    return encoding.learn_columns(given, learning(keep, scale, encode, **more))


def learn_array(x, keep, scale, names, impute=False):
    return encoding.learn_array(x, names, learning(keep, scale, impute=impute))
