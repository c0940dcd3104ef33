"""Servers in child processes, which end with this process or when they are stopped."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from gpukeras.core.child_process import end_attached, explain_status, start_attached

_running: list[AttachedServer] = []  # a server ends when its pipe closes, so references are kept


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
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 (for the server's life)
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = start_attached(python, arguments, environment, self._out, self._err)
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
        self._err.seek(0)
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
