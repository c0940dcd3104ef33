"""Starts and ends the sampler, which is a process of its own.

    start_monitor(interval) --> Monitor.stop() --> MonitorRecord

Samples go to a temporary file that has no name: nothing blocks when nobody reads, what was sampled
is there even when the sampler has died, and nothing is left behind when this process dies.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from typing import IO, Any

from gpukeras.backend.env_vars import child_environment
from gpukeras.core.child_process import CORE, explain_status
from gpukeras.core.errors import RuntimeMissingError
from gpukeras.core.options import check_number
from gpukeras.monitor.summary import MonitorRecord, make_record

PROGRAM = "gpukeras.monitor.sampler"
INTERVAL_S = 0.2  # NVML itself averages the utilization over 0.17 to 1 s, by card
SHORTEST_S, LONGEST_S = 0.01, 60.0
START_LIMIT_S = 30.0  # a driver without persistence mode takes seconds to wake its cards
STOP_LIMIT_S = 10.0


class Monitor:
    """A running sampler; it ends by `stop()`, and with this process.

    Args:
        interval_s: Seconds between two samples.
    """

    def __init__(self, interval_s: float) -> None:
        """Starts the sampler and waits until it is ready, 0.1 to 0.3 s.

        Raises:
            RuntimeMissingError: It could not be started.
        """
        self.interval_s = interval_s
        self._out, self._err = _open_file(self), _open_file(self)
        self._child = _start_child(interval_s, self._out, self._err)
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
        """The sampler's process."""
        return self._child.pid

    def stop(self) -> MonitorRecord:
        """Ends the sampler; what it has seen. Called again it gives the same."""
        if self._record is None:
            seconds = time.monotonic() - self._began
            self._end()
            problem = _explain_end(self._child.returncode, self._err)
            notes = [f"The sampler failed, so samples may be missing ({problem})."]
            text = _read_text(self._out)
            self._record = make_record(text, self.interval_s, seconds, notes if problem else [])
        return self._record


def start_monitor(interval: Any = INTERVAL_S, arg: str = "interval") -> Monitor:
    """Starts to sample this process, its computer and its GPUs.

    Args:
        interval: Seconds between two samples, 0.01 to 60.
        arg: The user's name for the interval, for messages.

    Returns:
        What `stop()` ends.

    Raises:
        SpecError: The interval is no number, or out of range.
        RuntimeMissingError: psutil is not installed, or the sampler could not be started.
    """
    interval_s = check_number(arg, interval, SHORTEST_S, LONGEST_S)
    if importlib.util.find_spec("psutil") is None:
        raise RuntimeMissingError(
            "psutil is needed to watch what the computer does.", hint="pip install psutil"
        )
    return Monitor(interval_s)


def monitor_start(interval: Any = INTERVAL_S, arg: str = "interval") -> dict[str, Monitor]:
    """For R: a handle that `monitor_stop()` takes."""
    return {"handle": start_monitor(interval, arg)}


def monitor_stop(handle: Monitor) -> MonitorRecord:
    """For R: ends a monitor; what it has seen."""
    return handle.stop()


# The child ----------------------------------------------------------------------------------------


def _open_file(owner: Monitor) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with its owner)
    weakref.finalize(owner, file.close)
    return file


def _start_child(interval_s: float, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", PROGRAM, str(os.getpid()), str(interval_s)],
        cwd=CORE,
        env={**child_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=err,
        start_new_session=True,  # Ctrl-C in a terminal is for the training, not for the sampler
    )


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
    if os.getpid() != owner:  # a fork of R's, which ends by itself
        return
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):  # it has ended, or hangs
        child.communicate(b"\n", timeout=STOP_LIMIT_S)
    if child.poll() is None:  # a driver can hang
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_LIMIT_S)


def _explain_end(status: int | None, err: IO[bytes]) -> str:
    """How the sampler ended and what it said last; "" for a good end."""
    if status == 0:
        return ""
    how = "it hangs" if status is None else explain_status(status)
    return ": ".join([how, *_read_text(err).strip().splitlines()[-1:]])


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
