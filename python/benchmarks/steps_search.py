"""Finds the `steps_per_execution` with which Keras trains a model fastest: an expert's setting.

A search of a few powers of two on the first rows: each candidate trains them once, which traces and
compiles, and then for a few epochs, of which the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

STEPS = (1, 8, 16, 32, 128)
CALLS = 3  # of the longest candidate, in an epoch of the search
EPOCHS = 2  # that are timed


def list_steps(batches: int) -> tuple[int, ...]:
    """Returns the candidates for an epoch of so many batches; Keras' default is always one."""
    return tuple(steps for steps in STEPS if steps <= max(1, batches))


def choose_best(seconds: Mapping[int, float]) -> int:
    """Returns the fastest candidate; the smallest of equally fast ones.

    Args:
        seconds: Of an epoch, by candidate.

    Raises:
        ValueError: if there is none.
    """
    if not seconds:
        raise ValueError("a search needs at least one candidate")
    return min(sorted(seconds), key=lambda steps: seconds[steps])


def set_steps(model: Any, steps: int) -> Any:
    """Returns the compiled model, which from now on trains so many steps per execution."""
    model.steps_per_execution = steps
    model.train_function = None
    return model


def time_steps(
    train: Callable[[int, int], Sequence[float]],
    batches: int,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[int, float]:
    """Returns the seconds of a warm epoch by candidate.

    Args:
        train: Called with candidate and number of epochs; returns the seconds of each.
        batches: Of an epoch.
        is_over: Whether no further candidate may be tried.
    """
    found: dict[int, float] = {}
    for steps in list_steps(batches):
        if found and is_over():
            break
        train(steps, 1)
        found[steps] = min(train(steps, EPOCHS))
    return found


def search(make: Callable[[], Any], x: np.ndarray, y: np.ndarray, batch: int) -> dict[str, float]:
    """Returns the seconds of a warm epoch on the first rows, by candidate as text.

    Args:
        make: Makes a compiled model.
        x: Features.
        y: Labels.
        batch: Rows a batch.
    """
    import keras
    from bench_models import EpochClock

    rows = min(len(x), batch * STEPS[-1] * CALLS)
    part = np.ascontiguousarray(x[:rows]), np.ascontiguousarray(y[:rows])
    models: dict[int, Any] = {}

    def train(steps: int, epochs: int) -> list[float]:
        if steps not in models:
            models[steps] = set_steps(make(), steps)
        clock = EpochClock()
        options = {"batch_size": batch, "epochs": epochs, "verbose": 0, "callbacks": [clock]}
        models[steps].fit(*part, **options)
        return clock.epoch_s

    found = time_steps(train, max(1, rows // batch))
    keras.backend.clear_session()
    return {str(steps): seconds for steps, seconds in found.items()}


def best_of(seconds: Mapping[str, float]) -> int:
    """Returns `choose_best()` of what `search()` found."""
    return choose_best({int(steps): value for steps, value in seconds.items()})
