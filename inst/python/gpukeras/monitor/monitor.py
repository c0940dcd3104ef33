"""Starts and stops the sampler, which runs as a separate process.

    start_monitor(interval) --> Monitor.stop() --> MonitorRecord

The sampler writes to an unnamed temporary file: writes never block on a missing reader, the samples
survive a crash of the sampler, and nothing is left on disk when this process dies.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import weakref
from typing import IO, Any

from gpukeras.core.child_process import end_attached, explain_status, start_attached
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


class Monitor:
    """A running sampler; it ends with `stop()` or with this process.

    Args:
        interval_s: Seconds between two samples.
    """

    def __init__(self, interval_s: float) -> None:
        """Starts the sampler and waits 0.1 to 0.3 s until it is ready.

        Raises:
            RuntimeMissingError: if the sampler cannot be started.
        """
        self.interval_s = interval_s
        self._out, self._err = _open_file(self), _open_file(self)
        arguments = ("-m", PROGRAM, str(os.getpid()), str(interval_s))
        environment = current_variables()
        self._child = start_attached(sys.executable, arguments, environment, self._out, self._err)
        self._end = weakref.finalize(self, _end_child, self._child, os.getpid())
        self._record: MonitorRecord | None = None
        try:
            _await_ready(self._child, self._out, self._err)
        except BaseException:  # an interrupt too
            self._end()
            raise
        self._began = time.monotonic()

    @property
    def pid(self) -> int:
        """The id of the sampler's process."""
        return self._child.pid

    def stop(self) -> MonitorRecord:
        """Stops the sampler and returns its record; a second call returns the same record."""
        if self._record is None:
            seconds = time.monotonic() - self._began
            self._end()
            problem = _explain_end(self._child.returncode, self._err)
            notes = [f"The sampler failed, so samples may be missing ({problem})."]
            text = _read_text(self._out)
            self._record = make_record(text, self.interval_s, seconds, notes if problem else [])
        return self._record


def start_monitor(interval: Any = INTERVAL_S, arg: str = "interval") -> Monitor:
    """Starts sampling this process, its computer and its GPUs.

    Args:
        interval: Seconds between two samples, 0.01 to 60.
        arg: Name of the option in errors.

    Returns:
        The running monitor; `stop()` ends it.

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
    return handle.stop()


# The child ----------------------------------------------------------------------------------------


def _open_file(owner: Monitor) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with its owner)
    weakref.finalize(owner, file.close)
    return file


def _await_ready(child: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not os.fstat(out.fileno()).st_size:
        if child.poll() is not None and not os.fstat(out.fileno()).st_size:
            problem = _explain_end(child.returncode, err)
            raise RuntimeMissingError(f"The sampler could not be started ({problem}).")
        if time.monotonic() > deadline:
            raise RuntimeMissingError(f"The sampler was not ready within {START_LIMIT_S:.0f} s.")
        time.sleep(0.005)


def _end_child(child: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:  # a fork of the R process must not stop its parent's sampler
        end_attached(child, STOP_LIMIT_S)


def _explain_end(status: int | None, err: IO[bytes]) -> str:
    """Describes the sampler's exit with its last error line; "" for success."""
    if status == 0:
        return ""
    how = "it hangs" if status is None else explain_status(status)
    return ": ".join([how, *_read_text(err).strip().splitlines()[-1:]])


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
