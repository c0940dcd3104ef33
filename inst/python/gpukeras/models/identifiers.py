"""Checks the names of losses and metrics that a model was compiled with, and suggests valid ones.

Keras looks names up when the first batch comes, and its error does not list the valid names.
"""

from __future__ import annotations

import difflib
import inspect
from types import ModuleType
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.models.losses import losses_of

SHORT = ("mse", "mae", "mape", "msle")
# Names besides those of functions and classes; Keras resolves some by the kind of labels.
MORE = {"losses": ("crossentropy", "ce", *SHORT), "metrics": ("accuracy", "acc", *SHORT)}
UTILITIES = (
    *("get", "serialize", "deserialize"),
    *("Loss", "Metric", "MeanMetricWrapper", "Optimizer", "OptimizerMap"),
)
NOUNS = {"losses": "loss", "metrics": "metric", "optimizers": "optimizer"}


def check_names(model: Model) -> None:
    """Checks that the losses and metrics that a model was compiled with by name exist.

    Raises:
        ModelError: for the first one that does not.
    """
    _check("losses", getattr(model, "loss", None))
    for metrics in keras_private.given_metrics(keras_private.compiled_metrics(model)):
        _check("metrics", metrics)


def _check(kind: str, value: Any) -> None:
    names = [each for each in losses_of(value) if isinstance(each, str)]
    for name in names:
        if name.lower() in MORE[kind]:
            continue
        try:
            getattr(runtime.keras(), kind).get(name)
        except ValueError as error:
            raise ModelError(
                f'`model` has the {NOUNS[kind]} "{name}", which Keras does not know.',
                hint=suggest(kind, name),
                arg="model",
            ) from error


def suggest(kind: str, name: str) -> str:
    """Returns the likely meaning of a wrong name, and all valid names.

    Args:
        kind: "losses", "metrics" or "optimizers".
        name: The wrong one.
    """
    known = list_names(getattr(runtime.keras(), kind))
    known = sorted({*known, *MORE.get(kind, ())}, key=lambda name: (name.lower(), name))
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    meant = f'Did you mean "{lower[close[0]]}"? ' if close else ""
    return f"{meant}Names are {', '.join(known)}."


def list_names(module: ModuleType) -> list[str]:
    """Returns names that a module's `get()` takes: functions, and classes without a function."""
    named = {name: value for name, value in vars(module).items() if name not in UTILITIES}
    functions = [name for name, value in named.items() if inspect.isfunction(value)]
    plain = {name.replace("_", "").lower() for name in functions}
    classes = [
        name
        for name, value in named.items()
        if inspect.isclass(value) and name.lower() not in plain and not name.startswith("_")
    ]
    return [name for name in (*functions, *classes) if _takes(module, name)]


def _takes(module: ModuleType, name: str) -> bool:
    try:
        module.get(name)
    except (ValueError, TypeError, KeyError):  # an unknown name, or a class that needs arguments
        return False
    return True
