"""The ways to train a model that `gpu_evidence.py` compares, behind one interface.

    way.warm(limit_s)      everything that is done once: tracing, compiling, choosing an engine
    way.train(epochs)      seconds of each epoch, seen from inside
    way.describe()         what gpukeras chose, and why

All train the same model on the same rows in batches of the same size, and shuffle them anew each
epoch, but for the limit: the same step again and again on one batch that is on the device already.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_models import EpochClock
from evidence_cases import Case
from evidence_models import Rows, make_model

from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.data.dataset import map_dataset
from gpukeras.data.loader.loader import Block
from gpukeras.engine import engine_cache
from gpukeras.engine.epoch_loop import wait_for
from gpukeras.training import fit

# Epochs that gpukeras is asked for when it chooses its engine: a long training, unless it is quick.
ENDLESS = {True: 20, False: 100_000}
PLACES = {"auto": "gpukeras", "host": "gpukeras, staged", "disk": "gpukeras, streamed"}


@dataclass(frozen=True)
class Given:
    """What all ways of a case are made from.

    Args:
        case: The case.
        rows: Features and classes, in host memory.
        device: Where the model is to be, such as "GPU:0".
        quick: Whether models are small.
        folder: For files.
    """

    case: Case
    rows: Rows
    device: str
    quick: bool
    folder: Path

    def make_model(self) -> Any:
        """A new model, compiled by XLA as the case wants."""
        model = make_model(self.case.model, self.rows[0].shape[1:], self.quick)
        if self.case.jit is not None:
            model.jit_compile = self.case.jit
        return model


class Way(ABC):
    """One way to train; makes its model when it is made.

    Args:
        given: What it is made from.

    Attributes:
        engine: The engine of gpukeras that trains, or "".
    """

    engine = ""

    def __init__(self, given: Given) -> None:
        """Makes the model."""
        self.given, self.model = given, given.make_model()

    @abstractmethod
    def warm(self, limit_s: float) -> None:
        """Does what is done once, in some `limit_s` seconds where that is up to it."""

    @abstractmethod
    def train(self, epochs: int) -> list[float]:
        """Seconds of each of so many epochs."""

    def describe(self) -> dict[str, str]:
        """What was chosen, and why."""
        return {}


class KerasWay(Way):
    """Plain `model.fit()`."""

    def warm(self, limit_s: float) -> None:
        """Traces and compiles."""
        self.train(1)

    def train(self, epochs: int) -> list[float]:
        """By Keras alone."""
        clock = EpochClock()
        self._fit(epochs=epochs, verbose=0, callbacks=[clock])
        return clock.epoch_s

    def _fit(self, **options: Any) -> None:
        x, y = self.given.rows
        self.model.fit(x, y, batch_size=self.given.case.batch, **options)


class OurWay(Way):
    """`training.fit()`, which is `gpu_fit()`.

    Args:
        given: What it is made from.
        place: Where the rows are kept: "auto", "host" or "disk".
        engine: What trains; "" for what the case wants, which may be gpukeras' own choice.
    """

    def __init__(self, given: Given, place: str = "auto", engine: str = "") -> None:
        """Makes the dataset."""
        super().__init__(given)
        x, y = given.rows
        features = {"kind": "array", "values": x}
        if place == "disk":
            path = given.folder / f"{given.case.name}.npy"
            np.save(path, x)
            features = {"kind": "npy", "path": str(path)}
        labels = {"kind": "integer", "values": y, "levels": []}
        options = {"batch_size": given.case.batch, "cache": place}
        self._data = map_dataset.build_dataset(features, options, labels)
        wanted = {None: "auto", True: "compiled", False: "graph_loop"}
        self.engine = engine or wanted[given.case.jit]

    def warm(self, limit_s: float) -> None:
        """Trains until an engine was chosen, as for a training that lasts long."""
        stop = StopWhenChosen(limit_s)
        self._report, self._late = self._fit(ENDLESS[self.given.quick], [stop]), stop.late
        self.engine = self._report.engine.engine

    def train(self, epochs: int) -> list[float]:
        """By the engine that was chosen."""
        return self._fit(epochs, []).epoch_s

    def _fit(self, epochs: int, callbacks: list[Any]) -> Any:
        options = {"epochs": epochs, "engine": self.engine}
        return fit.fit(self.model, self._data, options, callbacks=callbacks)

    def describe(self) -> dict[str, str]:
        """Mode of the plan and engine, each with its reason."""
        plan, engine = self._report.plan, self._report.engine
        late = "; the evidence's time for choosing was over" if self._late else ""
        return {
            "mode": plan.mode,
            "mode_reason": plan.reason,
            "engine": engine.engine,
            "engine_reason": engine.reason + late,
            "trained_on": self._report.device,
            "precision": self._report.precision,
        }


class LoopWay(Way):
    """The engine "compiled" alone, on rows that are on the device already.

    Args:
        given: What it is made from.
        static: Whether XLA knows the trip counts of its programs.
    """

    engine = "compiled"

    def __init__(self, given: Given, static: bool) -> None:
        """Puts the rows on the device."""
        super().__init__(given)
        case, arrays = given.case, put_rows(given, given.case.rows)
        tensor_ops.build_state(self.model, tuple(array[: case.batch] for array in arrays))
        self._block = Block(arrays, case.steps, case.batch)
        engines = engine_cache.ENGINES[runtime.backend()]
        self._engines = engines(self.model, "train", case.batch, given.device, static=static)

    def warm(self, limit_s: float) -> None:
        """Traces and compiles the program of a call as long as the epoch."""
        self._run(1)
        self._engines.warm(self._block, self.engine, self.given.case.steps)
        self.train(1)

    def train(self, epochs: int) -> list[float]:
        """Calls as long as the epoch."""
        return [self._run(self.given.case.steps) for _ in range(epochs)]

    def _run(self, count: int) -> float:
        began = time.perf_counter()
        wait_for(self._engines.run(self.engine, self._block, 0, count))
        return time.perf_counter() - began

    def describe(self) -> dict[str, str]:
        """The engine."""
        return {"engine": self.engine}


class StopWhenChosen(runtime.keras().callbacks.Callback):
    """Ends a training some time after its engine was chosen.

    Args:
        limit_s: Seconds after which it ends in any case, with the epoch.

    Attributes:
        late: Whether it ended so.
    """

    def __init__(self, limit_s: float) -> None:
        """The time runs from here."""
        super().__init__()
        self._end, self.late = time.perf_counter() + limit_s, False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends the training, or not."""
        engines = vars(self.model)[engine_cache.ATTRIBUTE]["train"][1]
        self.late = not engines.chosen and time.perf_counter() > self._end
        self.model.stop_training = bool(engines.chosen) or self.late


def put_rows(given: Given, count: int) -> tuple[Any, ...]:
    """The first rows on the device; labels as floats, as TensorFlow keeps int32 in host memory."""
    return tuple(
        tensor_ops.put(part[:count].astype("float32"), given.device) for part in given.rows
    )


def hold_memory(device: str) -> tuple[float, float] | None:
    """Bytes that the backend holds of a GPU's memory, and their peak, counted anew if possible."""
    if device.startswith("CPU"):
        return None
    devices.reset_peak(device)
    found = runtime.memory_info(device)
    return float(found["current"]), float(found["peak"])


def added_memory(before: tuple[float, float] | None, device: str) -> float | None:
    """The most bytes that were added since; None where an earlier peak, which JAX keeps, hides it.

    Args:
        before: Of `hold_memory()`.
        device: The device.
    """
    if before is None:
        return None
    peak = float(runtime.memory_info(device)["peak"])
    return peak - before[0] if peak > before[1] else None
