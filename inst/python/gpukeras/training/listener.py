"""What a training tells while it goes on, and hears back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

EVENT_S = 0.2  # seconds between events: smooth for eyes, free for the device

OnEvent = Callable[[dict[str, Any]], Any]


class ProgressReporter:
    """Calls a function of the user's, R's for one, now and then.

    Args:
        on_event: Called with `{kind, epoch, epochs, step, steps, metrics}`; a true answer asks for
            the training's end. None is never called.
        epochs: Epochs of the training.

    Attributes:
        stopped: Whether it asked for the end.
    """

    def __init__(self, on_event: OnEvent | None, epochs: int) -> None:
        """Has told nothing yet."""
        self._on_event, self._epochs = on_event, epochs
        self._last = 0.0
        self.stopped = False

    @property
    def due(self) -> bool:
        """Whether it is time for another event."""
        return time.perf_counter() - self._last > EVENT_S

    def tell(
        self, kind: str, epoch: int, step: int, steps: int | None, metrics: dict[str, float]
    ) -> bool:
        """Tells an event; true when the training is to end.

        Args:
            kind: "progress", "waiting" (for rows) or "epoch" (its end).
            epoch: Its number, counted from 1.
            step: Batches done of it.
            steps: Batches that it has, or None if that is not known.
            metrics: What is known of them.
        """
        self._last = time.perf_counter()
        event = {"kind": kind, "epoch": epoch, "epochs": self._epochs, "step": step}
        event.update(steps=steps, metrics=metrics)
        if self._on_event is not None and self._on_event(event) is True:
            self.stopped = True
        return self.stopped
