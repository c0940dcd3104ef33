"""Runs one worker's program, and ends it with the process that launched it.

    python -I -S worker_main.py PROGRAM ARGUMENTS...

It runs as a file, with the standard library alone, so that it starts in 20 ms. The launcher holds
the other end of standard input. That closes when the launcher stops the worker, and when the
launcher itself ends in any way: then this program ends the worker and all processes that it has
started. The worker's output goes to standard error, its log; a line of JSON about its end goes to
standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

END_S = 3.0  # seconds that a worker has to end by itself
LOOK_S = 0.5  # seconds between two checks whether the launcher still runs
CANNOT_START = 127  # a shell's exit status for a program that does not exist
PR_SET_PDEATHSIG = 1


def main(command: Sequence[str]) -> None:
    """Runs the program to its end; prints `{status, asked, seconds, ended}`.

    `status` is its exit status or minus a signal's number, `asked` whether it was asked to end,
    `ended` when, in seconds of the computer's monotonic clock, which all processes share.
    """
    launcher, began, asked = os.getppid(), time.monotonic(), False
    wake = _wake_by_children()
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,  # a process group of its own, which can be killed as a whole
            preexec_fn=_end_with_this if sys.platform == "linux" else None,
        )
    except OSError as error:
        print(f"Error: {command[0]} could not be started: {error}", file=sys.stderr)
        status = CANNOT_START
    else:
        asked = _await(child, launcher, wake)
        status = _end(child)
    ended = time.monotonic()
    told = {"status": status, "asked": asked, "seconds": ended - began, "ended": ended}
    with suppress(OSError):  # the launcher has ended
        os.write(1, json.dumps(told).encode() + b"\n")


def _wake_by_children() -> int:
    """Returns a pipe that becomes readable when a child ends, for an exact end time."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _end_with_this() -> None:
    # In case this process is killed. It has one thread, so calling Python after a fork is safe.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _await(child: subprocess.Popen[bytes], launcher: int, wake: int) -> bool:
    """Whether the launcher asked for the end, or has ended, before the child ended by itself."""
    while child.poll() is None:
        readable = select.select([0, wake], [], [], LOOK_S)[0]
        if wake in readable:
            os.read(wake, 4096)
        # A fork of the launcher may hold standard input open, so the parent's id is checked too.
        if (0 in readable and not os.read(0, 4096)) or os.getppid() != launcher:
            return child.poll() is None
    return False


def _end(child: subprocess.Popen[bytes]) -> int:
    """Ends the child, if it runs, and its process group; returns its exit status."""
    if child.poll() is None:
        _signal(child, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
    _signal(child, signal.SIGKILL)
    return child.wait()


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(OSError):  # none of its processes is left
        os.killpg(child.pid, number)


if __name__ == "__main__":
    main(sys.argv[1:])
