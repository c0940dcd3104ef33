"""What a family's parameters predict: the mean, or the parameters themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpukeras.core.errors import ModelError, SpecError
from gpukeras.core.options import check_choice, check_number
from gpukeras.models.families.labels import SURVIVAL
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family
from gpukeras.models.families.survival import mean_times, survival_curves

RESPONSE = "response"
CLASS = "class"
PARAMETERS = "parameters"
QUANTILE = "quantile"
CURVES, TIME = "survival", "time"
TYPES = (RESPONSE, CLASS, QUANTILE, PARAMETERS, CURVES, TIME)
OF_FAMILIES = (QUANTILE, PARAMETERS, CURVES, TIME)
# Whose quantiles R computes from the parameters; those of "quantile" are the parameters.
WITH_QUANTILES = ("gaussian", "quantile", "poisson", "negative_binomial", "gamma", "beta")
WITH_CLASSES = ("binomial", "multinomial", "multi_label", "ordinal")


def check_type(kind: str, family: Family | None) -> None:
    """Checks that a model has a type of prediction.

    Args:
        kind: The type.
        family: The model's family, or None.

    Raises:
        SpecError: for a type that is none of `TYPES`; naming the families that have it.
    """
    check_choice("type", kind, TYPES)
    if family is None and kind in OF_FAMILIES:
        raise SpecError(
            f'`type = "{kind}"` needs a model with a family, and `model` has none.',
            hint="Make it by gpu_mlp(family = ).",
            arg="type",
        )
    if family is None:
        return
    lists = {QUANTILE: WITH_QUANTILES, CLASS: WITH_CLASSES, CURVES: SURVIVAL, TIME: SURVIVAL}
    needed = lists.get(kind, (family.name,))
    lacks = kind == QUANTILE and family.name == "gaussian" and family.dispersion == "none"
    if family.name not in needed or lacks:
        listed = ", ".join(f'"{name}"' for name in needed)
        raise SpecError(
            f'`type = "{kind}"` is not known for a model of the family "{family.name}".',
            hint='A gaussian family has quantiles with dispersion = "constant" or "rows".'
            if lacks
            else f"The families {listed} have it.",
            arg="type",
        )


def read_survival(
    family: Family, output: np.ndarray, own: Mapping[str, np.ndarray], kind: str, times: Any
) -> dict[str, Any]:
    """Returns the probabilities of each row to survive times, or its mean survival time.

    Args:
        family: A family of survival.
        output: What the model gives, (n, parameters).
        own: The last layer's own weights.
        kind: "survival" or "time".
        times: Numbers of at least 0, or None for the model's own times; for "survival".

    Returns:
        See `read_output()`. For "survival" values are (n, times), with `times`.

    Raises:
        SpecError: for other times.
        ModelError: for a model of Cox that gpu_fit() has not trained.
    """
    if family.name == "cox" and not own["hazard"].any():
        raise ModelError(
            "`model` has no baseline hazard: gpu_fit() has not trained it on rows in memory or "
            "in files.",
            hint='type = "response" is the relative risk.',
            arg="model",
        )
    record = {"names": [], "levels": [], "logical": False}
    if kind == TIME:
        return {"values": mean_times(family, output, own), **record}
    asked = None if times is None else np.array([_check_time(each) for each in _several(times)])
    values, drawn_at = survival_curves(family, output, own, asked)
    return {"values": values, "times": drawn_at, **record}


def _several(times: Any) -> list[Any]:
    return list(times) if isinstance(times, (list, tuple)) else [times]


def _check_time(value: Any) -> float:
    return check_number("times", value, 0.0)


def read_output(family: Family, output: np.ndarray, kind: str) -> dict[str, Any]:
    """Returns predictions of a family from its parameters.

    Args:
        family: The family.
        output: What the model gives, (n, parameters).
        kind: "response", or another of `TYPES` besides "class".

    Returns:
        `{values, levels, names, logical, family}`: see `decoding.decode()`; `family` as plain data,
        by which R computes quantiles.
    """
    kin = likelihood(family)
    values = kin.mean(family, output) if kind == RESPONSE else output
    names = kin.names(family) if values.ndim == 2 else []
    return {
        "values": values,
        "levels": [],
        "names": names,
        "logical": False,
        "family": family.to_config(),
    }
