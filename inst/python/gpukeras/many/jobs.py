"""Trains one model by itself on some of the rows, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.checkpoint.store import CheckpointStore, InUseError, UnusableError
from gpukeras.core.errors import PreemptedError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.reader.rows import SelectedRows
from gpukeras.engine.predict import predict_rows
from gpukeras.many.fits import Fitted, ModelHistory
from gpukeras.many.resamples import split_dataset
from gpukeras.many.stack import read_state
from gpukeras.training.fit import fit
from gpukeras.training.model_guard import kept_model

# Seconds that a folder's checkpoints may be in use, and between two looks: a worker ends soon after
# the process that started it was killed.
FREE_S, POLL_S = 10.0, 0.2


@dataclass(frozen=True)
class Job:
    """A training of one model on some of the rows.

    Args:
        number: A number that tells it from others.
        model: A compiled and built model.
        train: Row numbers to train on.
        held_out: Row numbers to validate on.
        options: Fields of `FitSpec`.
        batch_size: Rows per step, or None for those of the dataset.
        seed: Seed of the rows' order; None for that of the dataset.
        keeps_state: Whether the model's state after the training is wanted.
        predicts: Whether its outputs for the rows that it held out are.
    """

    number: int
    model: Model
    train: np.ndarray
    held_out: np.ndarray
    options: Mapping[str, Any]
    batch_size: int | str | None = None
    seed: int | None = None
    keeps_state: bool = False
    predicts: bool = False


@dataclass(frozen=True)
class JobResult:
    """What came of a training.

    Args:
        fitted: What the model has become; None if the training failed.
        error: Why it failed, a sentence without its period, or "".
        seconds: Seconds that it took.
        crossed: Whether the model could cross to the process that was to train it; if not, `error`
            says why, and nothing was trained.
    """

    fitted: Fitted | None
    error: str = ""
    seconds: float = 0.0
    crossed: bool = True


def try_job(run: Callable[[], Fitted]) -> JobResult:
    """Returns what comes of a training: where one fails, the others go on.

    Args:
        run: Trains the model.

    Raises:
        PreemptedError: if the process is asked to end.
    """
    began = time.monotonic()
    fitted, why = None, ""
    try:
        fitted = run()
    except PreemptedError:
        raise
    except Exception as error:  # whatever Keras refuses of a user's model
        why = find_reason(error)
    return JobResult(fitted, why, time.monotonic() - began)


def run_job(job: Job, data: MapDataset, on_event: OnEvent | None = None) -> Fitted:
    """Trains a model as `fit()` does, and leaves it as it was.

    Checkpoints that are damaged, or of a model that its builder does not give again, are deleted:
    the training begins anew. Other files in their folder stay.

    Args:
        job: The training.
        data: The rows.
        on_event: See `fit()`.

    Raises:
        CheckpointError: if the folder of the checkpoints cannot be used.
    """
    rows = split_dataset(data, job.train, job.held_out, job.seed)
    until = time.monotonic() + FREE_S
    while True:
        try:
            return _run(job, rows, on_event)
        except UnusableError:
            with CheckpointStore(job.options["checkpoint"]["folder"]) as store:
                store.clear()
        except InUseError:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)


def _run(job: Job, rows: MapDataset, on_event: OnEvent | None) -> Fitted:
    model = job.model
    with kept_model(model):
        report = fit(model, rows, job.options, batch_size=job.batch_size, on_event=on_event)
        outputs = None
        if job.predicts and len(job.held_out) and report.epochs:
            held_out = SelectedRows(rows.sources[0], job.held_out)
            outputs = predict_rows(model, held_out, rows.recipe, rows.map)
        state = read_state(model) if job.keeps_state else {}
    history = ModelHistory(report.history, report.stopped, report.best_epoch)
    return Fitted(history, state, outputs)
