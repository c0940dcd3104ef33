"""Measures the cost of each stage of a dataset's pipeline on some of its blocks.

A stage is measured separately if it ends before the next one begins, and reported only if it has
work to do. Work that runs as one unit is one stage: a `tf.data` pipeline ("pull"), whose parts
overlap on several threads; casting, scaling and augmentation, which are one graph.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.core.errors import SpecError
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import DataLoader, open_loader
from gpukeras.data.stage_timer import Clock

MOST_S = 1.0  # the duration of a measurement
WHAT = {  # in the order in which rows pass through the stages
    "read": "rows out of files, or what the function gives",
    "decode": "what was read, as numbers: pixels, dense rows, encoded columns",
    "gather": "rows put together to a block, in the epoch's order",
    "pull": "batches from the tf.data pipeline, put together to blocks",
    "send": "a block to the device",
    "cast": "features as floats, scaled and cropped as in training",
    "augment": "features as floats, and each row varied",
    "map": "the function given as `map`",
    "unpack": "a tensor for each input and output",
}


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage of the pipeline.

    Args:
        stage: One of `WHAT`.
        row_s: Seconds per row.
        what: Description of the stage for users.
    """

    stage: str
    row_s: float
    what: str


class StageClock(Clock):
    """A clock that sums the seconds of each stage, including the device's work.

    Attributes:
        spent_s: Seconds by stage.
        rows: Rows sent to the device, including padding.
    """

    looks = True

    def __init__(self) -> None:
        """Starts at 0."""
        self.spent_s: dict[str, float] = {}
        self.rows = 0
        self._last = 0.0

    def start(self) -> None:
        """Marks the start of a block."""
        self._last = time.perf_counter()

    def stop(self, stage: str, arrays: Sequence[Any]) -> None:
        """Waits until the arrays are computed, and adds the stage's time."""
        rows = _wait(arrays) if arrays else 0
        now = time.perf_counter()
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + now - self._last
        self._last = now
        self.rows += rows if stage == "send" else 0  # the one stage that each block passes once


def _wait(arrays: Sequence[Any]) -> int:
    """Waits for the features, and returns their number of rows."""
    first = runtime.tree().flatten(arrays)[0]
    tensor_ops.wait(first[:1])
    return len(first)


def order_stages(spent_s: Mapping[str, float]) -> dict[str, float]:
    """Returns seconds by stage, in the order in which rows pass through the stages."""
    return {stage: spent_s[stage] for stage in WHAT if stage in spent_s}


def measure_costs(data: Dataset) -> list[StageCost]:
    """Loads blocks of an epoch for about a second, and times their stages.

    Args:
        data: A dataset.

    Returns:
        The stages in order.

    Raises:
        SpecError: for a function that is called in each epoch, as the next epoch would lack the
            batches that the measurement used; or for batches that are trained as they come.
    """
    if data.source_kind == "function":
        raise SpecError(
            "`cost` cannot be measured for a function that is called in each epoch.",
            hint="Use `cache = TRUE`, or system.time() around the function.",
            arg="cost",
        )
    if data.obstacle:
        raise SpecError(
            f"`cost` cannot be measured: the tf.data dataset gives {data.obstacle}.",
            hint="Its stages are its own.",
            arg="cost",
        )
    loader = open_loader(data, data.plan(devices.current().device))
    loader.clock = StageClock()  # discarded: the first block traces graphs and starts pipelines
    _draw(loader, 0.0)
    clock = loader.clock = StageClock()
    _draw(loader, MOST_S)
    spent_s, rows = order_stages(clock.spent_s), max(1, clock.rows)
    return [StageCost(stage, spent / rows, WHAT[stage]) for stage, spent in spent_s.items()]


def _draw(loader: DataLoader, most_s: float) -> None:
    """Loads at least one block, and more until `most_s` seconds have passed."""
    began, blocks = time.perf_counter(), loader.epoch(0)
    for _ in blocks:
        if time.perf_counter() - began >= most_s:
            break
    blocks.close()
