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


@contextmanager
def catch_preemption(wanted: bool = True) -> Iterator[PreemptionNotice]:
    """Catches the signals; afterwards sends itself one that was not heeded.

    Outside of the main thread, and on Windows, nothing is caught.

    Args:
        wanted: Whether to catch them.
    """
    notice = PreemptionNotice()
    main = threading.current_thread() is threading.main_thread()
    if not wanted or not main or os.name == "nt":
        yield notice
        return
    numbers = [getattr(signal, name) for name in SIGNALS]
    before = {number: (signal.getsignal(number), _read_action(number)) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, notice.receive)
        yield notice
    finally:
        for number, (handler, action) in before.items():
            _restore(number, handler, action)
        if notice.signal and not notice.heeded:
            os.kill(os.getpid(), getattr(signal, notice.signal))


def _read_action(number: int) -> Any:
    """Returns a signal's action as the system has it: Python knows none of R's handlers."""
    action = ctypes.create_string_buffer(ACTION_BYTES)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action


def _restore(number: int, handler: Any, action: Any) -> None:
    if handler is not None:  # Python's own table of handlers
        signal.signal(number, handler)
    ctypes.CDLL(None).sigaction(number, action, None)
