"""Servers in child processes, which end with this process or when they are stopped."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpukeras.core.child_process import end_attached, explain_status, start_attached

_running: list[AttachedServer] = []  # a server ends when its pipe closes, so references are kept


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


class AttachedServer(ABC):
    """A server in a child process.

    Args:
        python: The Python interpreter that runs it.
        arguments: Its command-line arguments.
        environment: Its environment.
        stop_s: Seconds that it may take to end when its standard input closes.
    """

    def __init__(
        self,
        python: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stop_s: float,
    ) -> None:
        """Starts the server and waits until it answers."""
        self._stop_s = stop_s
        self._out, self._err = Output(), Output()
        written = self._out.written, self._err.written
        self._child = start_attached(python, arguments, environment, *written)
        try:
            self._await()
        except BaseException:  # an interrupt too
            self.stop()
            raise
        _running[:] = [*list_running(), self]

    @abstractmethod
    def _await(self) -> None:
        """Returns once the server answers; raises what is wrong if it will not."""

    @property
    def runs(self) -> bool:
        """Whether the server process is running."""
        return self._child.poll() is None

    def stop(self) -> None:
        """Stops the server; further calls do nothing."""
        end_attached(self._child, self._stop_s)
        self._out.close()
        self._err.close()
        if self in _running:
            _running.remove(self)

    def _last_words(self) -> str:
        """Returns the last line that a server which has ended wrote to standard error, or ""."""
        lines = self._err.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300].rstrip(".") if lines else ""

    def _status(self) -> str:
        """Describes the exit status of a server that has ended."""
        return explain_status(self._child.returncode) or "exit status 0"


def list_running() -> list[AttachedServer]:
    """Returns the servers of this process that run, the earliest first."""
    return [server for server in _running if server.runs]


# What R calls -------------------------------------------------------------------------------------


def stop_server(handle: AttachedServer) -> None:
    """Stops a server; does nothing if it has already ended."""
    handle.stop()


def server_runs(handle: AttachedServer) -> bool:
    """Whether a server is running."""
    return handle.runs
