"""Labels into numbers, and a model's output back into the labels' own terms.

Labels come as dicts `{kind, values, levels}`: `kind` is "numeric", "integer", "logical", "factor",
"character" (the last two hold R's 1-based codes in `values`, 0 for NA) or "matrix".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .arrays import aligned_empty, column_error, column_name, moments
from .errors import DataError

CATEGORIES = ("factor", "character")


@dataclass(frozen=True)
class LabelRule:
    """How labels become numbers, and predictions become values again.

    Args:
        kind: "number", "binary" (0/1 or logical), "class" (levels) or "matrix".
        units: Output units that fit: 1, the number of levels, or the matrix's columns.
        levels: Levels of a "class".
        names: Column names of a "matrix".
        logical: Whether a "binary" was R's logical.
        center: Mean of the training rows' numbers.
        scale: Their standard deviation.
        minimum: Smallest number seen.
        maximum: Largest number seen.
        whole: Whether all numbers seen are whole.
    """

    kind: str
    units: int = 1
    levels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    logical: bool = False
    center: float = 0.0
    scale: float = 1.0
    minimum: float = 0.0
    maximum: float = 0.0
    whole: bool = True


def learn_label(y: Mapping[str, Any], keep: np.ndarray) -> LabelRule:
    """The rule of labels: `y` as it comes from R; statistics from the rows kept for training."""
    if y["kind"] in CATEGORIES:
        levels = tuple(y["levels"])
        if len(levels) < 2:
            raise DataError(f"`y` needs at least two levels, not {len(levels)}.", arg="y")
        return LabelRule("class", units=len(levels), levels=levels)
    values = _label_numbers(y)
    if y["kind"] == "matrix":
        return LabelRule("matrix", units=values.shape[1], names=tuple(y.get("names") or ()))
    if y["kind"] == "logical" or set(np.unique(values[:10_000])) <= {0.0, 1.0}:
        distinct = set(np.unique(values).tolist())
        if y["kind"] == "logical" or distinct == {0.0, 1.0}:
            return LabelRule("binary", logical=y["kind"] == "logical", maximum=1.0)
    center, deviation = moments(values.reshape(-1, 1), keep)
    return LabelRule(
        "number",
        center=float(center[0]),
        scale=float(deviation[0]),
    )


def measure_range(rule: LabelRule, encoded: np.ndarray) -> LabelRule:
    """The rule with the range of these labels: what a loss can take is checked against it."""
    if rule.kind != "number":
        return rule
    whole = bool((encoded % 1 == 0).all())
    return replace(rule, minimum=float(encoded.min()), maximum=float(encoded.max()), whole=whole)


def encode_label(rule: LabelRule, y: Mapping[str, Any]) -> np.ndarray:
    """Labels as aligned memory: int32 codes for a class, else float32."""
    if (rule.kind == "class") != (y["kind"] in CATEGORIES):
        raise DataError(f"`y` is {y['kind']} where training had {rule.kind} labels.", arg="y")
    if rule.kind == "class":
        codes = recode({**y, "name": "y"}, rule.levels, "y")
        return _aligned(codes, np.int32)
    values = _label_numbers(y)
    if rule.kind == "matrix" and values.shape[1:] != (rule.units,):
        raise DataError(f"`y` must have {rule.units} columns.", arg="y")
    return _aligned(values, np.float32)


def _label_numbers(y: Mapping[str, Any]) -> np.ndarray:
    values = np.asarray(y["values"], dtype=np.float64)
    values = values if y["kind"] == "matrix" else values.reshape(-1)
    for column, part in enumerate(np.atleast_2d(values.T)):
        missing, infinite = int(np.isnan(part).sum()), int(np.isinf(part).sum())
        if missing or infinite:
            name = column_name(y.get("names") or (), column) if values.ndim > 1 else "y"
            raise column_error(name, "y", missing=missing, infinite=infinite)
    return values


def _aligned(values: np.ndarray, dtype: Any) -> np.ndarray:
    out = aligned_empty(values.shape, dtype)
    out[...] = values
    return out


def decode(rule: LabelRule | None, output: np.ndarray, as_class: bool) -> dict[str, Any]:
    """A model's output in the labels' own terms.

    Args:
        rule: The labels' rule, or None for a model without a recipe.
        output: Float array, rows first.
        as_class: The most probable class instead of probabilities.

    Returns:
        `{values, levels, names, logical}`: `values` are 1-based codes of `levels` for a class.

    Raises:
        DataError: if classes are asked of labels that have none.
    """
    levels = [] if rule is None else list(rule.levels)
    names = [] if rule is None else list(rule.names)
    logical = rule is not None and rule.logical
    single = output.ndim == 2 and output.shape[1] == 1
    if as_class:
        if rule is None or rule.kind not in ("class", "binary"):
            raise DataError('`type = "class"` needs a model trained on classes.', arg="type")
        codes = (output[:, 0] > 0.5).astype(np.int32) if single else output.argmax(axis=-1)
        values = codes if rule.kind == "binary" else codes.astype(np.int32) + 1
        return {"values": values, "levels": levels, "names": [], "logical": logical}
    values = output[:, 0] if single else output
    names = levels if not single and len(levels) == output.shape[-1] else names
    return {"values": values, "levels": [], "names": names, "logical": False}


def recode(
    column: Mapping[str, Any], levels: Sequence[str], arg: str, fill: str | None = None
) -> np.ndarray:
    """0-based codes in the order of `levels`, from R's 1-based codes in the column's own order.

    A code of 0 is a missing value: it becomes the level `fill`, or is an error without one.
    """
    own = list(column["levels"])
    position = {level: code for code, level in enumerate(levels)}
    used = np.asarray(column["values"]).reshape(-1).astype(np.int64) - 1
    if len(used) and not -1 <= used.min() <= used.max() < len(own):
        raise DataError(
            f"Column `{column['name']}` of `{arg}` has codes outside its {len(own)} levels.",
            arg=arg,
            column=column["name"],
        )
    missing = int((used < 0).sum())
    if missing and fill is None:
        raise column_error(column["name"], arg, missing=missing)
    # A missing value's -1 is the last entry.
    mapping = np.array([position.get(level, -1) for level in [*own, fill]], dtype=np.int32)
    codes = mapping[used]
    new = sorted({own[code] for code in np.unique(used[codes < 0])})
    if new:
        where = f"`{arg}`" if column["name"] == arg else f"Column `{column['name']}` of `{arg}`"
        raise DataError(
            f"{where} has levels that training did not see: "
            f"{', '.join(new[:5])}{', ...' if len(new) > 5 else ''}.",
            hint="Drop those rows, or train with data that has them.",
            arg=arg,
            column=column["name"],
            levels=new,
        )
    return codes
