"""Decodes a model's output into values of the labels: numbers, or the classes that they mean.

How an output is read as classes, `models.targets.choose_reading()` says by its loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.recipe.targets import LabelRule

HIGHEST = "highest"  # the class is the place of the largest value of the last axis
HALF, ZERO = "above 0.5", "above 0"  # each value is a class of its own: a probability, or a logit


def decode(rule: LabelRule | None, output: np.ndarray, reading: str = "") -> dict[str, Any]:
    """Decodes a model's output into values of the labels.

    Args:
        rule: The labels' rule, or None for a model without a recipe.
        output: Float array, rows first.
        reading: How classes are read: `HIGHEST`, `HALF` or `ZERO`; "" returns the numbers.

    Returns:
        `{values, levels, names, logical}`: `values` are 1-based codes of `levels` for a class,
        otherwise classes as the labels number them. `ordered` is there and true if the levels are.
    """
    single = output.ndim == 2 and output.shape[1] == 1
    if not reading:
        values = output[:, 0] if single else output
        names = name_columns(rule, output.shape)
        return {"values": values, "levels": [], "names": names, "logical": False}
    levels = [] if rule is None else list(rule.levels)
    codes = _read_codes(output, reading).astype(np.int32) + (1 if levels else 0)
    names = [] if reading == HIGHEST else name_columns(rule, output.shape)
    logical = rule is not None and rule.logical
    ordered = {"ordered": True} if rule is not None and rule.ordered else {}
    return {
        "values": _as_given(rule, codes),
        "levels": levels,
        "names": names,
        "logical": logical,
        **ordered,
    }


def _read_codes(output: np.ndarray, reading: str) -> np.ndarray:
    if reading == HIGHEST:
        return output.argmax(axis=-1)
    return output > (0.5 if reading == HALF else 0.0)


def _as_given(rule: LabelRule | None, codes: np.ndarray) -> np.ndarray:
    """Returns classes in the shape of the labels, which may lack a last axis of 1 or have one.

    Classes of mask images are the values of their pixels.
    """
    if rule is not None and codes.max(initial=0) < len(rule.pixels):
        codes = np.asarray(rule.pixels, np.int32)[codes]
    shape = codes.shape[1:] if rule is None else rule.row_shape
    shape = shape if math.prod(shape) == math.prod(codes.shape[1:]) else codes.shape[1:]
    return codes.reshape(-1, *(shape if math.prod(shape) > 1 else ()))


def name_columns(rule: LabelRule | None, shape: Sequence[int]) -> list[str]:
    """Returns names for the columns of a model's output: the classes, or the labels' columns."""
    if rule is None:
        return []
    single = len(shape) == 2 and shape[1] == 1
    return list(rule.levels if not single and len(rule.levels) == shape[-1] else rule.names)


def decode_outputs(
    rules: Mapping[str, LabelRule], outputs: Mapping[str, np.ndarray], readings: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Decodes each output of a model into values of its labels.

    Args:
        rules: The rules of the outputs' labels by name.
        outputs: Float arrays by output name, rows first; a list holds the array of each batch.
        readings: How classes are read from each output, see `decode()`.

    Returns:
        `{name, ...}` for each output, see `decode()`, or `{name, batches}`; in the order of
        `rules`, then the others.
    """
    order = sorted(outputs, key=lambda name: [*rules, name].index(name))
    return [
        {"name": name, **_decode_batches(rules.get(name), outputs[name], readings.get(name, ""))}
        for name in order
    ]


def _decode_batches(rule: LabelRule | None, output: Any, reading: str) -> dict[str, Any]:
    """Decodes an output; if its rows vary in shape by batch, returns `{batches}`, one of each."""
    if isinstance(output, np.ndarray):
        return decode(rule, output, reading)
    return {"batches": [decode(rule, part, reading) for part in output]}


def refuse_classes(rules: Sequence[LabelRule]) -> DataError:
    """Returns the error for a model that gives no classes: it says what its labels were."""
    kinds = {rule.kind for rule in rules}
    found = "its loss does not tell them apart, and its labels are unknown"
    if kinds:
        found = "`y` held numbers" + (" of several columns" if kinds == {"matrix"} else "")
    return DataError(
        f'`type = "class"` needs a model trained on classes: {found}.',
        hint='Use `type = "response"`, which returns the output itself.',
        arg="type",
    )
