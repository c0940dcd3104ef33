"""Reports the progress of a training, and receives the request to stop it."""

from __future__ import annotations

import time

from gpukeras.core.preemption import PreemptionNotice
from gpukeras.core.progress import EVENT_S, OnEvent


class ProgressReporter:
    """Calls a user's function at intervals.

    Args:
        on_event: Called with `{kind, epoch, epochs, step, steps, metrics}`; returns true to end the
            training. None for no function.
        epochs: Epochs of the training.
        notice: Asks for the end too, where the process is asked to end; None for no such.

    Attributes:
        stopped: Whether the end was asked for.
    """

    def __init__(
        self, on_event: OnEvent | None, epochs: int, notice: PreemptionNotice | None = None
    ) -> None:
        """Starts without events."""
        self._on_event, self._epochs = on_event, epochs
        self._notice = notice or PreemptionNotice()
        self._last = 0.0
        self.stopped = False

    @property
    def due(self) -> bool:
        """Whether the interval between events has passed."""
        return time.perf_counter() - self._last > EVENT_S

    def emit(
        self, kind: str, epoch: int, step: int, steps: int | None, metrics: dict[str, float]
    ) -> bool:
        """Reports an event; returns whether the training is to end.

        Args:
            kind: "progress", "waiting" (for rows) or "epoch" (its end).
            epoch: The number of the epoch, counted from 1.
            step: Number of its batches that are done.
            steps: Batches per epoch, or None if unknown.
            metrics: The metrics known so far.
        """
        self._last = time.perf_counter()
        event = {"kind": kind, "epoch": epoch, "epochs": self._epochs, "step": step}
        event.update(steps=steps, metrics=metrics)
        asked = self._on_event is not None and self._on_event(event) is True
        self.stopped = self.stopped or asked or bool(self._notice.signal)
        return self.stopped
