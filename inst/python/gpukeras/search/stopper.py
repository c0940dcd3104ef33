"""Reports what a search does, and ends it: its time is over, the user or a queue asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpukeras.core.errors import PreemptedError
from gpukeras.core.messages import find_reason
from gpukeras.core.preemption import PreemptionNotice
from gpukeras.core.progress import OnEvent
from gpukeras.search.trials import Outcome, Trial

T = TypeVar("T")


@dataclass
class Stopper:
    """The clock and the listener of a search.

    Args:
        seconds: Seconds after which the search ends, or None.
        on_event: Called with a plain dict; true ends the search.
        notice: Whether the process is asked to end.

    Attributes:
        stopped: "time", "interrupted" or "preempted" once the search is to end, or "".
    """

    seconds: float | None = None
    on_event: OnEvent | None = None
    notice: PreemptionNotice = field(default_factory=PreemptionNotice)
    stopped: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, or None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed_s)

    def emit(self, event: Mapping[str, Any]) -> bool:
        """Passes an event on; returns whether the search is to end."""
        if self.on_event is not None and self.on_event(dict(event)) is True:
            self.stopped = self.stopped or "interrupted"
        return self.look()

    def look(self) -> bool:
        """Whether the search is to end."""
        if self.notice.signal:
            self.stopped = self.stopped or "preempted"
        if not self.stopped and self.seconds is not None and self.elapsed_s >= self.seconds:
            self.stopped = "time"
        return bool(self.stopped)

    def attempt(self, trial: Trial, epochs: int, run: Callable[[], T]) -> T | Outcome | None:
        """Returns what a function returns; the trial's outcome if it fails, None at an interrupt.

        Args:
            trial: The trial.
            epochs: Epochs that it was to have trained in all.
            run: The function.

        Raises:
            PreemptedError: if the process is asked to end, which is no failure of the trial.
        """
        began = time.monotonic()
        try:
            return run()
        except KeyboardInterrupt:
            self.interrupt()
            return None
        except PreemptedError:
            raise
        except Exception as error:  # whatever Keras refuses of a user's model
            why = find_reason(error)
        return Outcome(trial.number, epochs, seconds=time.monotonic() - began, error=why)

    def interrupt(self) -> None:
        """Ends the search because the user interrupted one of its functions."""
        self.stopped = self.stopped or "interrupted"
