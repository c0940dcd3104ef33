"""Starts and stops the sampler, which runs as a separate process.

    start_monitor(interval) --> Monitor.finish() --> MonitorRecord

The sampler writes to an unnamed temporary file: writes never block on a missing reader, the samples
survive a crash of the sampler, and nothing is left on disk when this process dies.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from typing import Any

from gpukeras.core.attached_process import AttachedProcess
from gpukeras.core.errors import RuntimeMissingError
from gpukeras.core.options import check_number
from gpukeras.monitor.summary import MonitorRecord, make_record
from gpukeras.system import pip
from gpukeras.system.environment import current_variables

PROGRAM = "gpukeras.monitor.sampler"
INTERVAL_S = 0.2  # NVML averages the utilization over 0.17 to 1 s, depending on the card
SHORTEST_S, LONGEST_S = 0.01, 60.0
START_LIMIT_S = 30.0  # a driver without persistence mode takes seconds to wake its cards
STOP_LIMIT_S = 10.0


class Monitor(AttachedProcess):
    """A running sampler; it ends with `finish()`, with this process, and where it is forgotten.

    Args:
        interval_s: Seconds between two samples.

    Raises:
        RuntimeMissingError: if the sampler cannot be started.
    """

    kept = False

    def __init__(self, interval_s: float) -> None:
        """Starts the sampler and waits 0.1 to 0.3 s until it is ready."""
        self.interval_s = interval_s
        self._record: MonitorRecord | None = None
        arguments = ("-m", PROGRAM, str(os.getpid()), str(interval_s))
        super().__init__(sys.executable, arguments, current_variables(), STOP_LIMIT_S)
        self._began = time.monotonic()

    def finish(self) -> MonitorRecord:
        """Stops the sampler and returns its record; a second call returns the same record."""
        if self._record is None:
            seconds = time.monotonic() - self._began
            self._end()
            notes = []
            if self._child.returncode != 0:
                how = "it hangs" if self.runs else self._explain_end()
                notes = [f"The sampler failed, so samples may be missing ({how})."]
            text = self._out.read().decode(errors="replace")
            self._record = make_record(text, self.interval_s, seconds, notes)
            self.stop()
        return self._record

    def _await(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self._out.read(0, 1):
            if not self.runs and not self._out.read(0, 1):
                problem = self._explain_end()
                raise RuntimeMissingError(f"The sampler could not be started ({problem}).")
            if time.monotonic() > deadline:
                raise RuntimeMissingError(
                    f"The sampler was not ready within {START_LIMIT_S:.0f} s."
                )
            time.sleep(0.005)


def start_monitor(interval: Any = INTERVAL_S, arg: str = "interval") -> Monitor:
    """Starts sampling this process, its computer and its GPUs.

    Args:
        interval: Seconds between two samples, 0.01 to 60.
        arg: Name of the option in errors.

    Returns:
        The running monitor; `finish()` ends it.

    Raises:
        SpecError: if the interval is not a number or out of range.
        RuntimeMissingError: if psutil is not installed or the sampler cannot be started.
    """
    interval_s = check_number(arg, interval, SHORTEST_S, LONGEST_S)
    if importlib.util.find_spec("psutil") is None:
        raise RuntimeMissingError(
            "psutil is needed to watch what the computer does.",
            hint=f"Install it: {pip.install('psutil')}.",
        )
    return Monitor(interval_s)


def monitor_start(interval: Any = INTERVAL_S, arg: str = "interval") -> dict[str, Monitor]:
    """Starts a monitor for R and returns a handle for `monitor_stop()`."""
    return {"handle": start_monitor(interval, arg)}


def monitor_stop(handle: Monitor) -> MonitorRecord:
    """Stops a monitor for R and returns its record."""
    return handle.finish()
