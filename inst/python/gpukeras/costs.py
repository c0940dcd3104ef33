"""What each stage of a dataset's pipeline costs, measured on some of its blocks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from . import devices, runtime
from .blocks import AnyFeed, Clock
from .errors import SpecError
from .feeding import open_feed
from .pipeline import Dataset
from .streams.dataset import GeneratorStream, StreamDataset

MOST_S = 1.0  # of measuring
WHAT = {
    "pull": "batches from the function or pipeline, put together to blocks",
    "gather": "rows of a block, in the epoch's order",
    "send": "a block to the device",
    "finish": "as the model takes it: cast, augmented, mapped",
}


@dataclass(frozen=True)
class StageCost:
    """A stage of the pipeline.

    Args:
        stage: "pull" or "gather", "send", "finish".
        row_s: Seconds a row.
        what: What it does, for users.
    """

    stage: str
    row_s: float
    what: str


class StageClock(Clock):
    """Adds up the seconds of each stage, the device's work included.

    Attributes:
        spent_s: Seconds by stage.
        rows: Rows that have gone through all stages.
    """

    def __init__(self) -> None:
        """Nothing measured yet."""
        self.spent_s: dict[str, float] = {}
        self.rows = 0
        self._last = 0.0

    def start(self) -> None:
        """A block begins."""
        self._last = time.perf_counter()

    def stop(self, stage: str, arrays: tuple[Any, ...]) -> None:
        """Waits until the arrays are there, and adds their time."""
        first = runtime.tensorflow().nest.flatten(arrays)[0]
        first[:1].numpy()
        now = time.perf_counter()
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + now - self._last
        self._last = now
        self.rows += len(first) if stage == "finish" else 0


def measure_costs(data: Dataset | StreamDataset) -> list[StageCost]:
    """Draws blocks of an epoch, for about a second, and times their stages.

    Args:
        data: A dataset.

    Returns:
        The stages in their order.

    Raises:
        SpecError: for a function that is called in each epoch: calls for a measurement would be
            missing in the next epoch.
    """
    if isinstance(data, StreamDataset) and isinstance(data.stream, GeneratorStream):
        raise SpecError(
            "`cost` cannot be measured for a function that is called in each epoch.",
            hint="Use `cache = TRUE`, or system.time() around the function.",
            arg="cost",
        )
    feed = open_feed(data, data.plan(devices.current().device))
    _draw(feed, 0.0)  # one block, which traces and starts what the others need
    clock = feed.clock = StageClock()
    _draw(feed, MOST_S)
    found = clock.spent_s
    return [StageCost(stage, found[stage] / max(1, clock.rows), WHAT[stage]) for stage in found]


def _draw(feed: AnyFeed, most_s: float) -> None:
    """Draws blocks until the time is over, one at least."""
    began, blocks = time.perf_counter(), feed.epoch(0)
    for _ in blocks:
        if time.perf_counter() - began >= most_s:
            break
    blocks.close()
