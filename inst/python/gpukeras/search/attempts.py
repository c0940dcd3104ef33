"""Runs parts of trials: what fails becomes a trial's outcome, and the search goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gpukeras.core.errors import GpuKerasError, PreemptedError
from gpukeras.core.messages import find_reason
from gpukeras.search.stopper import Stopper
from gpukeras.search.trials import Outcome, Trial

T = TypeVar("T")


class StoppedError(Exception):
    """The search ends before the trial has."""


class FailedError(Exception):
    """The trial failed; the message says why."""


def attempt(
    trial: Trial, epochs: int, stopper: Stopper, run: Callable[[], T]
) -> T | Outcome | None:
    """Returns what a function returns; the trial's outcome if it fails, None if the search ends.

    A process that is asked to end is no failure of the trial: its error passes.

    Args:
        trial: The trial.
        epochs: Epochs that it was to have trained in all.
        stopper: The clock of the search.
        run: The function.
    """
    began = time.monotonic()
    try:
        return run()
    except KeyboardInterrupt:
        stopper.interrupt()
        return None
    except StoppedError:
        return None
    except PreemptedError:
        raise
    except FailedError as error:
        why = str(error)
    except GpuKerasError as error:
        why = error.message.rstrip(".")
    except Exception as error:  # whatever Keras refuses of a user's model
        why = find_reason(error)
    return Outcome(trial.number, epochs, seconds=time.monotonic() - began, error=why)
