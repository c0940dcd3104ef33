"""The progress of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.metric_values import Value
from gpukeras.models.state import Snapshot


@dataclass
class Progress:
    """The finished epochs, and the part of the next one that was done before this process began.

    Args:
        epoch: Epochs finished.
        history: Each metric's values so far.
        epoch_s: Seconds of each epoch.
        epoch_rows: Rows of each epoch.
        learning_rate: The rate of each epoch's last step.
        done: Batches done of the next epoch.
        spent_s: Seconds spent on them.
        resumed: Epochs that were finished when this process began.
        began: When the current epoch began, by `time.perf_counter()`.
        stopped: How the training ended, see `FitReport`.
        reason: Why it ended, or "".
        notes: Sentences for the user.
    """

    epoch: int = 0
    history: dict[str, list[Value]] = field(default_factory=dict)
    epoch_s: list[float] = field(default_factory=list)
    epoch_rows: list[int] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    done: int = 0
    spent_s: float = 0.0
    resumed: int = 0
    began: float = 0.0
    stopped: str = "completed"
    reason: str = ""
    notes: list[str] = field(default_factory=list)

    def resume(self, state: TrainingState) -> None:
        """Continues from a checkpoint's training, with a note."""
        self.epoch = self.resumed = state.epoch
        self.history = {name: list(values) for name, values in state.history.items()}
        self.epoch_s, self.epoch_rows = list(state.epoch_s), list(state.epoch_rows)
        self.learning_rate = list(state.learning_rate)
        self.done, self.spent_s = state.position, state.extra.get("spent_s", 0.0)
        self.notes.append(explain_resumption(state))

    def skip_to(self, epoch: int) -> None:
        """Moves to the epoch at which Keras' callback BackupAndRestore resumes, with a note."""
        if epoch > self.epoch:
            self.epoch = self.resumed = epoch
            self.notes.append(f"Resumed after epoch {epoch}, by the callback BackupAndRestore.")

    def to_state(self, snapshot: Snapshot, **more: Any) -> TrainingState:
        """Returns the state for a checkpoint; `more` are the fields that are unknown here."""
        return TrainingState(
            snapshot,
            epoch=self.epoch,
            history=self.history,
            epoch_s=self.epoch_s,
            epoch_rows=self.epoch_rows,
            learning_rate=self.learning_rate,
            **more,
        )

    def add(self, metrics: Mapping[str, Value], seconds: float, rows: int, rate: float) -> None:
        """Adds a finished epoch; a metric that is new to the history has no earlier values.

        Args:
            metrics: Each metric's value.
            seconds: Seconds of the epoch.
            rows: Rows of the epoch.
            rate: The rate of its last step.
        """
        recorded = len(self.epoch_s)
        for name in [*self.history, *metrics]:
            values = self.history.setdefault(name, [math.nan] * recorded)
            if len(values) == recorded:
                values.append(metrics.get(name, math.nan))
        self.epoch += 1
        self.epoch_s.append(self.spent_s + seconds)
        self.epoch_rows.append(rows)
        self.learning_rate.append(rate)
        self.done, self.spent_s = 0, 0.0


def explain_resumption(state: TrainingState) -> str:
    """Returns a note about where a training resumes."""
    where = f"batch {state.position:,} of epoch {state.epoch + 1}" if state.position else ""
    return f"Resumed after {where or f'epoch {state.epoch}'}, from its checkpoint."
