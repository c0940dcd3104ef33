"""Tracks a training from outside: a Keras callback, a thread, and what went wrong.

    open_tracking() --> Tracking.callback --> gpu_fit() --> close_tracking()

The tracker runs in a thread of its own, so a slow server does not slow the training. What it raises
ends the tracking, not the training, and is told once at the end.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import warn_not_saved
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason, hide_credentials
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.distributed import session
from gpukeras.engine.optimizer import read_rate
from gpukeras.export.archive import save_archive
from gpukeras.tracking.folder import FolderTracker
from gpukeras.tracking.mlflow_run import MlflowTracker
from gpukeras.tracking.options import Parameter, Tracker, TrackSpec

WAIT_S = 120.0  # for a tracker after the training: a model of a gigabyte at 100 Mbit/s takes 80 s


class Tracking:
    """The tracking of one training.

    Args:
        tracker: What records it.
        keeps_model: Whether the model is kept.

    Attributes:
        fault: What ended the tracking, as a sentence without a period, or "".
    """

    def __init__(self, tracker: Tracker, keeps_model: bool = True) -> None:
        """Starts the thread."""
        self.fault = ""
        self._tracker, self._keeps_model = tracker, keeps_model
        self._jobs: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="gpukeras-track", daemon=True)
        self._thread.start()

    @property
    def where(self) -> str:
        """The place of the record."""
        return self._tracker.where

    def start(self, parameters: Mapping[str, Parameter]) -> None:
        """Begins the record."""
        known = keep_whole(parameters)
        self._add("its start", lambda: self._tracker.start(known))

    def epoch(self, number: int, logs: Mapping[str, Any]) -> None:
        """Adds the metrics of an epoch, counted from 1."""
        metrics = split_components(read_metrics(logs))
        self._add(f"epoch {number}", lambda: self._tracker.epoch(number, metrics))

    def end(
        self, status: str, results: Mapping[str, Parameter], files: Sequence[Path], wait_s: float
    ) -> None:
        """Ends the record, and waits for that."""
        known = keep_whole(results)
        self._add("its end", lambda: self._tracker.end(status, known, files))
        self._jobs.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self.fault = self.fault or f"it did not answer for {wait_s:g} s after the training"

    @property
    def callback(self) -> Any:
        """A Keras callback; it has no batch hooks, so it costs no engine its calls of many steps.

        `model` of a Keras callback is set by Keras.
        """
        tracking = self

        class TrackCallback(runtime.keras().callbacks.Callback):  # type: ignore[misc] # imported late
            def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
                rate = read_rate(self.model, -1)
                tracking.epoch(epoch + 1, {**(logs or {}), "learning_rate": rate})

        return TrackCallback()

    def save_model(self, model: Model, folder: Path) -> list[Path]:
        """Writes the model for `end()`, unless it is not kept, or the tracking has failed."""
        path = folder / "model.keras"
        if self.fault or not self._keeps_model:
            return []
        try:
            save_archive(model, str(path))
        except Exception as error:
            self._fail("the model", error)
            return []
        return [path]

    def _add(self, what: str, job: Callable[[], None]) -> None:
        self._jobs.put((what, job))

    def _work(self) -> None:
        while (task := self._jobs.get()) is not None:
            what, job = task
            if not self.fault or what == "its end":
                self._try(what, job)

    def _try(self, what: str, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # also SystemExit of a library: it ends a thread unseen
            self._fail(what, error)

    def _fail(self, what: str, error: BaseException) -> None:
        told = error.strerror if isinstance(error, OSError) else ""
        reason = hide_credentials(told or find_reason(error))
        if not self.fault:
            self.fault = f"{what} failed: {type(error).__name__}: {reason}"
            warn_not_saved(f"The training is not tracked any more, and goes on: {self.fault}.")


def open_tracking(
    options: Mapping[str, Any], model: Model, parameters: Mapping[str, Parameter]
) -> Tracking | None:
    """Opens the tracking of a training.

    Args:
        options: Fields of `TrackSpec`.
        model: A Keras model.
        parameters: What R knows of the training, by name.

    Returns:
        The tracking; None on a worker of a cluster other than the first, which alone records.

    Raises:
        SpecError: for a wrong option.
        DataError: if the folder exists or cannot be made.
        RuntimeMissingError: if MLflow is not installed.
    """
    spec = TrackSpec.from_dict(options)
    cluster = session.current()
    if cluster is not None and cluster.spec.index != 0:
        return None
    tracking = Tracking(open_tracker(spec), spec.model)
    tracking.start({**read_parameters(model), **parameters})
    return tracking


def open_tracker(spec: TrackSpec) -> Tracker:
    """Returns the tracker of a kind."""
    if spec.kind == "csv":
        return FolderTracker(str(spec.path), spec.run)
    return MlflowTracker(spec.uri, spec.experiment, spec.run)


def close_tracking(
    tracking: Tracking,
    model: Model,
    status: str,
    results: Mapping[str, Parameter] | None = None,
    *,
    files: Sequence[str] = (),
    wait_s: float = WAIT_S,
) -> dict[str, str]:
    """Ends the tracking of a training; it raises nothing that the tracker does.

    Args:
        tracking: The tracking.
        model: The trained model.
        status: See `Tracker.end()`; after "failed" the model is not kept.
        results: What is known after the training, by name.
        files: Paths of further files, such as plots.
        wait_s: How long the tracker is waited for, in seconds.

    Returns:
        `{where, fault}`: the place of the record, and what ended it too early, or "".
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kept = [] if status == "failed" else tracking.save_model(model, Path(folder))
        kept += [Path(file) for file in files]
        tracking.end(status, results or {}, kept, wait_s)
    return {"where": tracking.where, "fault": tracking.fault}


def keep_whole(values: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Returns the values with whole numbers as integers: R's 10 is 10.0."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in values.items()
    }


def read_parameters(model: Model) -> dict[str, Parameter]:
    """Returns what is known of a model before its training, by name."""
    keras = runtime.keras()
    parameters: dict[str, Parameter] = {
        "model": model.name,
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
    }
    if model.built:
        parameters["weights"] = int(model.count_params())
    if getattr(model, "optimizer", None) is not None:
        parameters["optimizer"] = type(model.optimizer).__name__
        parameters["initial_learning_rate"] = read_rate(model)
    loss = getattr(model, "loss", None)
    if loss is not None:
        parameters["loss"] = (
            loss if isinstance(loss, str) else getattr(loss, "name", str(type(loss)))
        )
    return parameters
