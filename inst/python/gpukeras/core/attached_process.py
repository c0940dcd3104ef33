"""Child processes that end with this process, or when they are stopped: servers and workers."""

from __future__ import annotations

import os
import subprocess
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from gpukeras.core.child_process import CORE, explain_status, own_library_first

_running: set[AttachedProcess] = set()  # those that run on where nobody refers to them


class Output:
    """A file that a child process writes while this process reads it.

    The child inherits the position of the handle that it writes by, so reading has a handle of its
    own. Writes never block on a missing reader, and nothing is left on disk when this process dies,
    but on Windows.

    Attributes:
        written: The handle for the child.
    """

    def __init__(self) -> None:
        """Creates the file."""
        handle, self._path = tempfile.mkstemp(prefix="gpukeras-")
        self.written = os.fdopen(handle, "wb")
        self._own = open(self._path, "rb", buffering=0)  # noqa: SIM115 (for the server's life)
        self._remove()

    def read(self, place: int = 0, size: int = -1) -> bytes:
        """Returns what was written from a place on, of at most a size."""
        self._own.seek(place)
        return self._own.read(size)

    def close(self) -> None:
        """Closes the file, which is gone then."""
        self.written.close()
        self._own.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):  # Windows removes no open file
            if self._path:
                os.unlink(self._path)
                self._path = ""


class AttachedProcess(ABC):
    """A Python program in a child process, which ends when its standard input closes.

    Args:
        python: The Python interpreter that runs it.
        arguments: Its command-line arguments.
        environment: Its environment.
        stop_s: Seconds that it may take to end when its standard input closes.

    Attributes:
        kept: Whether it runs on where nobody refers to it.
    """

    kept: ClassVar[bool] = True

    def __init__(
        self,
        python: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stop_s: float,
    ) -> None:
        """Starts the process and waits until it is ready."""
        self._out, self._err = Output(), Output()
        self._child = subprocess.Popen(
            [python, *arguments],
            cwd=CORE,
            env={**own_library_first(environment), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=self._out.written,
            stderr=self._err.written,
            start_new_session=True,  # Ctrl-C in a terminal or in R must not reach it
        )
        self._end = weakref.finalize(self, _end_child, self._child, stop_s, os.getpid())
        self._end.atexit = False  # its standard input closes then
        self._close = weakref.finalize(self, _close, self._out, self._err)
        try:
            self._await()
        except BaseException:  # an interrupt too
            self.stop()
            raise
        if self.kept:
            _running.difference_update([process for process in _running if not process.runs])
            _running.add(self)

    @abstractmethod
    def _await(self) -> None:
        """Returns once the process is ready; raises what is wrong if it will not be."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def runs(self) -> bool:
        """Whether the process is running."""
        return self._child.poll() is None

    def stop(self) -> None:
        """Stops the process; further calls do nothing."""
        self._end()
        self._close()
        _running.discard(self)

    def _explain_end(self, joint: str = ": ") -> str:
        """Describes the end of a process that has ended, with its last words."""
        return joint.join(filter(None, (self._status(), self._last_words())))

    def _last_words(self) -> str:
        """Returns the last line that a process which has ended wrote to standard error, or ""."""
        lines = self._err.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300].rstrip(".") if lines else ""

    def _status(self) -> str:
        """Describes the exit status of a process that has ended."""
        return explain_status(self._child.returncode) or "exit status 0"


def _end_child(child: subprocess.Popen[bytes], limit_s: float, owner: int) -> None:
    """Closes a program's standard input and kills it if it does not end in time."""
    if os.getpid() != owner:  # a fork of this process must not stop what its parent has started
        return
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):  # it has ended or hangs
        child.communicate(timeout=limit_s)
    if child.poll() is None:  # a driver can hang
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(limit_s)


def _close(*outputs: Output) -> None:
    for output in outputs:
        output.close()


# What R calls -------------------------------------------------------------------------------------


def stop_server(handle: AttachedProcess) -> None:
    """Stops a server; does nothing if it has already ended."""
    handle.stop()


def server_runs(handle: AttachedProcess) -> bool:
    """Whether a server is running."""
    return handle.runs
