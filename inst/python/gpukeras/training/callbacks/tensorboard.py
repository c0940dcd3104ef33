"""Writes TensorBoard files for a training: metrics, histograms of the weights, a trace.

The files are those of Keras' own `TensorBoard` callback, so runs of both can be compared: the runs
"train" and "validation", tags such as "epoch_loss", epochs counted from 0. TensorFlow writes them;
the package tensorboard is only needed to view them.

    folder/train/events.out.tfevents.*         epoch_<metric>, epoch_learning_rate,
                                               epoch_samples_per_s, epoch_input_share,
                                               <path of a weight>/histogram
    folder/validation/events.out.tfevents.*    epoch_<metric>
    folder/plugins/profile/<time>/*.xplane.pb  a trace
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tracing
from gpukeras.backend.features import require_feature
from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.core.metric_values import split_components
from gpukeras.core.options import (
    A_FOLDER,
    FitSpec,
    Spec,
    check_count,
    check_flag,
    check_text,
    option,
)
from gpukeras.core.safe_files import private_folder
from gpukeras.data.loader.loader import DataLoader
from gpukeras.training.callbacks.keras_class import as_callback
from gpukeras.training.progress import Progress

BUCKETS = 30  # of a histogram, as in TensorBoard's own
BLOCK = 2**20  # weights that are counted at a time
PROFILE_S = 2.0  # longest trace, in seconds: xprof is slow on much more


def _check_histograms(arg: str, value: Any) -> int:
    return int(value) if isinstance(value, bool) else check_count(arg, value, 0)


@dataclass(frozen=True)
class BoardSpec(Spec):
    """The options of the TensorBoard files.

    Args:
        folder: The folder; it is created if it is missing. Each training needs its own: files of
            an earlier one stay, and TensorBoard would show both as one curve.
        histograms: Epochs from one histogram of each weight to the next; 0 (or false) for none,
            true for 1. The host counts them: about 20 ms for a million weights.
        profile: Whether to trace the first two seconds of the second epoch, or of the only one.
    """

    folder: str = option(
        "", check_text, A_FOLDER, 'Such as tensorboard = "logs/run-1".', arg="tensorboard"
    )
    histograms: int = option(0, _check_histograms)
    profile: bool = option(False, check_flag)


# Events ------------------------------------------------------------------------------------------


class EventFiles:
    """The event files of the runs in a folder, each created when it is first written to.

    Args:
        folder: The folder of the runs.
    """

    def __init__(self, folder: str) -> None:
        """Keeps the folder; opens no file yet."""
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def open(self, run: str) -> Any:
        """Returns TensorFlow's writer of a run."""
        if run not in self._writers:
            with runtime.on_device("CPU:0", soft=True):  # also inside with_device("GPU:0", )
                writer = runtime.reader().summary.create_file_writer(
                    os.path.join(self._folder, run),
                    # An attacker cannot put a link at a name that cannot be guessed.
                    filename_suffix=f".{secrets.token_hex(8)}.v2",
                )
            self._writers[run] = writer
        return self._writers[run]

    def add(self, run: str, plugin: str, values: Mapping[str, Any], step: int) -> None:
        """Writes values by tag and flushes the file.

        Args:
            run: For example "train".
            plugin: The TensorBoard plugin that shows them: "scalars" (float32, no dimension) or
                "histograms" (float64, see `count_buckets()`).
            values: An array or number for each tag.
            step: Their position on the time axis: the epoch, counted from 0.
        """
        summary = runtime.reader().summary
        writer, metadata = self.open(run), _metadata(plugin)
        with runtime.on_device("CPU:0", soft=True), writer.as_default():
            for tag, value in values.items():
                summary.write(tag, value, step=step, metadata=metadata)
            writer.flush()

    def close(self) -> None:
        """Closes all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _metadata(plugin: str) -> Any:
    """Returns metadata with the plugin's name; the plugin's own message, version 0, is empty."""
    metadata = runtime.reader().compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    metadata.data_class = 1 if plugin == "scalars" else 2  # DATA_CLASS_SCALAR, _TENSOR
    return metadata


def count_buckets(values: np.ndarray) -> np.ndarray:
    """Returns a histogram in TensorBoard's format.

    Args:
        values: Numbers of any shape; those that are not finite are left out.

    Returns:
        Shape (30, 3), float64: left edge, right edge and count of each bucket.
    """
    values = np.asarray(values, dtype=np.float32).reshape(-1)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if low == high:
        around = max(0.5, abs(low) / 1000)
        low, high = low - around, high + around
    edges = np.linspace(low, high, BUCKETS + 1)
    counts = np.zeros(BUCKETS)
    for start in range(0, values.size, BLOCK):  # in float64, as a range of float32 may overflow
        block = values[start : start + BLOCK].astype(np.float64)
        counts += np.histogram(block, BUCKETS, (low, high))[0]
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


# A trace -----------------------------------------------------------------------------------------


class TraceWindow:
    """A short trace; it ends after a time limit, even during a call.

    Args:
        folder: The folder that gets `plugins/profile/<time>/`.
        seconds: Longest duration.

    Attributes:
        problem: Why there is no trace, or "".
    """

    def __init__(self, folder: str, seconds: float = PROFILE_S) -> None:
        """Keeps the arguments; the trace starts with `open()`."""
        self._folder, self._seconds = folder, seconds
        self._held, self._lock = ExitStack(), threading.Lock()
        self._timer: threading.Timer | None = None
        self.problem = ""

    def open(self) -> None:
        """Starts the trace, unless another profile is running, which is not disturbed."""
        try:
            self._held.enter_context(self._trace())
        except (runtime.reader().errors.OpError, OSError) as error:
            self.problem = find_reason(error)
            return
        self._timer = threading.Timer(self._seconds, self.close)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """Ends and writes the trace, if it is running."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            try:
                self._held.close()
            except (runtime.reader().errors.OpError, OSError) as error:
                self.problem = find_reason(error)

    @contextmanager
    def _trace(self) -> Iterator[None]:
        """Traces into a folder that only this user can open, as the files' names can be guessed."""
        target = Path(self._folder, "plugins", "profile")
        os.makedirs(self._folder, exist_ok=True)
        with private_folder(Path(self._folder, "trace")) as folder:
            with tracing.profile(str(folder)):
                yield
            target.mkdir(parents=True, exist_ok=True)
            for made in folder.glob("plugins/profile/*"):
                made.rename(target / made.name)


# A training --------------------------------------------------------------------------------------


class Board:
    """Writes the TensorBoard files of one training; a failure never ends the training.

    Args:
        spec: The options.
        model: The model, of whose weights histograms are made.
        epochs: Epochs of the whole training.
        progress: The progress; it has each epoch's figures when `on_epoch_end()` is called.
        loader: The data loader, with the time spent waiting for rows.
    """

    def __init__(
        self, spec: BoardSpec, model: Model, epochs: int, progress: Progress, loader: DataLoader
    ) -> None:
        """Creates the folder and the first file.

        Args:
            spec: The options.
            model: The model.
            epochs: Epochs of the whole training.
            progress: The progress of the training.
            loader: The data loader.

        Raises:
            SpecError: if the folder cannot be written.
        """
        require_feature("tensorboard")
        self.spec = spec
        self._model = model
        self._progress = progress
        self._loader = loader
        self._traced = min(progress.epoch + 1, epochs - 1)
        self._files, self._window = EventFiles(spec.folder), TraceWindow(spec.folder)
        self._began = 0.0
        self._waited_s = 0.0
        self._failure = ""
        try:
            self._files.open("train")
        except runtime.reader().errors.OpError as error:
            raise SpecError(
                f"The folder of `tensorboard` cannot be written: {find_reason(error)}.",
                hint="Give a folder that is there or can be made.",
                arg="tensorboard",
                path=spec.folder,
            ) from error

    @property
    def notes(self) -> list[str]:
        """What could not be written, as sentences."""
        notes = []
        if self._failure:
            notes.append(f"TensorBoard's files are not whole: {self._failure}.")
        if self._window.problem:
            notes.append(f"There is no trace for TensorBoard: {self._window.problem}.")
        return notes

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Handles the start of an epoch, counted from 0."""
        self._began, self._waited_s = time.perf_counter(), self._loader.wait_s
        if self.spec.profile and epoch == self._traced:
            self._window.open()

    def on_test_begin(self, logs: Any = None) -> None:
        """Ends the trace before the validation, which is not traced."""
        self._window.close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the values of an epoch, counted from 0."""
        self._window.close()
        if self._failure:
            return
        try:
            self._write(epoch, logs)
        except (runtime.reader().errors.OpError, OSError) as error:
            self._failure = f"{find_reason(error)} (epoch {epoch + 1})"

    def close(self) -> None:
        """Closes the files, after errors too."""
        self._window.close()
        try:
            self._files.close()
        except (runtime.reader().errors.OpError, OSError) as error:
            self._failure = self._failure or find_reason(error)

    def _write(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        history = self._progress.history
        # An epoch that is not validated has no such metrics: NaN in the history, and no point here.
        last = {name: values[-1] for name, values in history.items() if name in (logs or history)}
        train, validation = split_runs(split_components(last))
        self._files.add("train", "scalars", {**train, **self._figures()}, epoch)
        if validation:
            self._files.add("validation", "scalars", validation, epoch)
        every = self.spec.histograms
        if every and epoch % every == 0:
            weights = {f"{weight.path}/histogram": weight for weight in self._model.weights}
            counted = {tag: count_buckets(weight.numpy()) for tag, weight in weights.items()}
            self._files.add("train", "histograms", counted, epoch)

    def _figures(self) -> dict[str, np.float32]:
        """Returns the figures of the last epoch besides its metrics."""
        done, elapsed_s = self._progress, time.perf_counter() - self._began
        figures = {
            "epoch_learning_rate": done.learning_rate[-1],
            "epoch_samples_per_s": done.epoch_rows[-1] / max(done.epoch_s[-1], 1e-9),
            "epoch_input_share": min(1.0, (self._loader.wait_s - self._waited_s) / elapsed_s),
        }
        return {tag: np.float32(value) for tag, value in figures.items()}


def split_runs(
    metrics: Mapping[str, float],
) -> tuple[dict[str, np.float32], dict[str, np.float32]]:
    """Returns the metrics by tag of the runs "train" and "validation", as in Keras' callback."""
    runs: tuple[dict[str, np.float32], dict[str, np.float32]] = ({}, {})
    for name, value in metrics.items():
        plain = name.removeprefix("val_")
        runs[plain != name][f"epoch_{plain}"] = np.float32(value)
    return runs


@contextmanager
def open_board(
    model: Model, spec: FitSpec, progress: Progress, loader: DataLoader
) -> Iterator[Board | None]:
    """Opens the board that a training asked for, or yields None; closes its files afterwards.

    Args:
        model: A model whose variables exist.
        spec: The options; `spec.tensorboard` is a folder, or fields of `BoardSpec`.
        progress: The progress of the training.
        loader: The data loader.

    Raises:
        SpecError: for bad options, or a folder that cannot be written.
    """
    if spec.tensorboard is None:
        yield None
        return
    requested = BoardSpec.parse(spec.tensorboard)
    board = as_callback(Board, requested, model, spec.epochs, progress, loader)
    try:
        yield board
    finally:
        board.close()
