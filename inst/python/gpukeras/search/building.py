"""Builds the models of trials by the user's function, and checks them before they train."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import GeneratorError
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.base import Dataset
from gpukeras.data.dataset.generator import GeneratorInterrupt
from gpukeras.distributed import session
from gpukeras.models import model_checks
from gpukeras.search.trials import Trial
from gpukeras.training.keras_functions import build_on

# Called with settings and a seed; returns `{model}`, `{failed, message}` or `{interrupted}`.
Build = Callable[[dict[str, Any], int], Mapping[str, Any]]


def build_model(build: Build, trial: Trial, data: Dataset) -> Model:
    """Returns a trial's model, built on the rows; the same trial gives the same initial weights.

    Args:
        build: The user's function.
        trial: The trial.
        data: The rows that the model must fit.

    Raises:
        GeneratorError: if the function failed, with its message.
        GeneratorInterrupt: if it was interrupted.
        ModelError, DataError: if the model is not compiled, or does not fit the rows.
    """
    with _seeded(trial.seed), session.resting():
        answer = build(dict(trial.settings), trial.seed)
    if answer.get("interrupted"):
        raise GeneratorInterrupt("Interrupted in `builder`.")
    if answer.get("failed"):
        raise GeneratorError(f"`builder` failed: {answer.get('message', '')}")
    model = answer["model"]
    model_checks.check_model(model, arg="builder()")
    model_checks.check_rows(model, data, fits=True)
    model_checks.check_rows(model, data, "data", step="test", fits=True)
    build_on(model, data)
    return model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds Python's generator, from which Keras 3 draws the seeds of layers, and restores it."""
    runtime.keras()  # its first import draws from the generator
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
