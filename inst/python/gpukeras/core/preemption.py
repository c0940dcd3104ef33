"""Notices that this process is asked to end: by SIGTERM, or by SIGUSR1.

Slurm, Kubernetes and the owners of spot instances send one of them, wait for a grace period, and
then kill the process. Python's handler runs in the main thread, between two calls of the engine.
R has a handler of its own for SIGUSR1, which saves the workspace and ends R: it is restored as it
was. SIGINT is left alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import PreemptedError

# EX_TEMPFAIL of BSD's sysexits.h: "a temporary failure; the user is invited to retry".
REQUEUE_STATUS = 75
SIGNALS = ("SIGTERM", "SIGUSR1")
ACTION_BYTES = 512  # more than a struct sigaction of any system has (152 on Linux)


@dataclass
class PreemptionNotice:
    """Whether this process is asked to end.

    Args:
        signal: The name of the first signal, or "".
        at: When it came, by `time.monotonic()`.
        heeded: Whether an error tells the caller of it.
    """

    signal: str = ""
    at: float = 0.0
    heeded: bool = False

    def receive(self, number: int, frame: Any = None) -> None:
        """Handles a signal; later ones change nothing."""
        if not self.signal:
            self.signal, self.at = signal.Signals(number).name, time.monotonic()

    def explain(self, what: str, folder: str) -> PreemptedError:
        """Returns the error that ends a call which is saved; another worker may have the signal.

        Args:
            what: What is saved, as a subject with its verb, such as "its search is".
            folder: Where.
        """
        passed = f", {time.monotonic() - self.at:.1f} s after {self.signal}" if self.signal else ""
        return PreemptedError(
            f"This process is asked to end, and {what} saved{passed}.",
            hint="Run the same script again: it goes on from there.",
            signal=self.signal,
            status=REQUEUE_STATUS,
            checkpoint=folder,
        )


_notices: list[PreemptionNotice] = []  # of the calls in progress, the innermost one last


@contextmanager
def catch_preemption(wanted: bool = True) -> Iterator[PreemptionNotice]:
    """Catches the signals; afterwards sends itself one that was not heeded.

    Outside of the main thread, and on Windows, nothing is caught; nor is a signal that the process
    ignores, such as a worker's, whose parent decides.

    Args:
        wanted: Whether to catch them. Where a caller does not, because it saves nothing, nor do the
            calls within: what they save would be lost with it. Where a caller does, calls within
            have its notice.
    """
    notice = PreemptionNotice()
    main = threading.current_thread() is threading.main_thread()
    if not main or os.name == "nt":
        yield notice
        return
    if _notices or not wanted:
        _notices.append(_notices[-1] if wanted else notice)
        try:
            yield _notices[-1]
        finally:
            _notices.pop()
        return
    known = [getattr(signal, name) for name in SIGNALS]
    numbers = [number for number in known if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: (signal.getsignal(number), _read_action(number)) for number in numbers}
    _notices.append(notice)
    try:
        for number in numbers:
            signal.signal(number, notice.receive)
        yield notice
    finally:
        _notices.clear()
        for number, (handler, action) in before.items():
            _restore(number, handler, action)
        if notice.signal and not notice.heeded:
            os.kill(os.getpid(), getattr(signal, notice.signal))


def ignore_preemption() -> None:
    """Leaves it to the parent of this process, which is asked too, when it ends."""
    if os.name != "nt":
        for name in SIGNALS:
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _read_action(number: int) -> Any:
    """Returns a signal's action as the system has it: Python knows none of R's handlers."""
    action = ctypes.create_string_buffer(ACTION_BYTES)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action


def _restore(number: int, handler: Any, action: Any) -> None:
    if handler is not None:  # Python's own table of handlers
        signal.signal(number, handler)
    ctypes.CDLL(None).sigaction(number, action, None)
