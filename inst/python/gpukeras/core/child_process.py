"""Child processes that may hang, crash or print anything: their end is a value, no exception."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CORE = Path(__file__).parents[2]  # where `-m gpukeras...` is found
OUTPUT_LIMIT = 4 * 2**20  # bytes kept of each stream: what prints without end must not fill memory
DRAIN_S = 2.0  # how long a dead child's grandchildren may hold its pipes


@dataclass(frozen=True)
class ChildEnd:
    """How a child process ended.

    Args:
        status: Its exit status, minus a signal's number, or None where there is none.
        stdout: What it printed, cut at 4 MiB.
        stderr: What it printed as errors, cut at 4 MiB.
        seconds: How long it ran.
        problem: "" for exit status 0, else what happened, such as "killed by SIGABRT".
    """

    status: int | None
    stdout: str
    stderr: str
    seconds: float
    problem: str


def run_child(
    python: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    folder: str | Path = CORE,
) -> ChildEnd:
    """Runs a Python program to its end or its time limit; kills it with all that it started.

    Args:
        python: The Python to run.
        arguments: Its arguments, such as ("-m", "gpukeras.diagnostics.probes.listing").
        environment: All of its environment.
        limit_s: Seconds until it is killed.
        folder: Where it runs.
    """
    began = time.monotonic()
    try:
        child = subprocess.Popen(
            [python, *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own, to be killed whole
        )
    except (OSError, ValueError) as error:
        problem = f"could not be started: {type(error).__name__}: {error}"
        return ChildEnd(None, "", "", time.monotonic() - began, problem)
    stdout, stderr = _Drain(child.stdout), _Drain(child.stderr)
    try:
        child.wait(limit_s)
        problem = explain_status(child.returncode)
    except subprocess.TimeoutExpired:
        problem = f"did not end within {limit_s:.0f} s"
    finally:  # after an interrupt too
        _kill(child)
    status = None if problem.startswith("did not end") else child.returncode
    return ChildEnd(status, stdout.text(), stderr.text(), time.monotonic() - began, problem)


def explain_status(status: int) -> str:
    """An exit status in words; "" for success."""
    if status >= 0:
        return f"exit status {status}" if status else ""
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # it has ended
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: a bad driver can do that
        child.wait(DRAIN_S)


class _Drain:
    """Reads a pipe to its end in a thread, and keeps the beginning."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None  # made with subprocess.PIPE
        self._kept = bytearray()
        self._pipe = pipe
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):  # closed under it
            while chunk := os.read(self._pipe.fileno(), 65536):
                self._kept += chunk[: OUTPUT_LIMIT - len(self._kept)]

    def text(self) -> str:
        self._thread.join(DRAIN_S)
        if not self._thread.is_alive():
            self._pipe.close()
        return bytes(self._kept).decode(errors="replace")
