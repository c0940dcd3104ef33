"""Servers in child processes: started, counted, stopped, and their last words."""

import os
import sys
import time

import pytest
from children import PATIENCE_S

from gpukeras.core.attached_server import AttachedServer, list_running, server_runs, stop_server

pytestmark = pytest.mark.process
WAITS = "import sys; print('listens', flush=True); sys.stdin.read()"
FAILS = "import sys; sys.exit('the last of\\nmany words.')"


class Server(AttachedServer):
    def __init__(self, code):
        super().__init__(sys.executable, ("-c", code), os.environ, 5.0)

    def _await(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.runs and time.monotonic() < deadline:
            if os.pread(self._out.fileno(), 100, 0):
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self._status()}: {self._last_words()}")


def test_servers_run_until_they_are_stopped():
    one, other = Server(WAITS), Server(WAITS)
    assert list_running() == [one, other]
    stop_server(one)
    stop_server(one)  # again does nothing
    assert (server_runs(one), server_runs(other)) == (False, True)
    assert list_running() == [other]
    stop_server(other)
    assert list_running() == []


def test_a_server_that_ends_at_once_is_not_kept_and_leaves_its_last_words():
    with pytest.raises(RuntimeError, match="^exit status 1: many words$"):
        Server(FAILS)
    assert list_running() == []
