"""Servers in child processes: started, counted, stopped, and their last words."""

import gc
import os
import subprocess
import sys
import time

import pytest
from children import PATIENCE_S

from gpukeras.core import attached_process
from gpukeras.core.attached_process import (
    AttachedProcess,
    Output,
    server_runs,
    stop_server,
)

pytestmark = pytest.mark.process
WAITS = "import sys; print('listens', flush=True); sys.stdin.read()"
FAILS = "import sys; sys.exit('the last of\\nmany words.')"


class Server(AttachedProcess):
    def __init__(self, code):
        super().__init__(sys.executable, ("-c", code), os.environ, 5.0)

    def _await(self):
        deadline = time.monotonic() + PATIENCE_S
        while self.runs and time.monotonic() < deadline:
            if self._out.read():
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self._status()}: {self._last_words()}")


def test_servers_run_until_they_are_stopped():
    one, other = Server(WAITS), Server(WAITS)
    stop_server(one)
    stop_server(one)  # again does nothing
    assert (server_runs(one), server_runs(other)) == (False, True)
    stop_server(other)


def test_a_server_runs_on_where_nobody_refers_to_it_and_what_is_not_kept_ends():
    kinds = Server, type("Forgotten", (Server,), {"kept": False})
    kept, forgotten = [kind(WAITS)._child for kind in kinds]
    gc.collect()
    assert (kept.poll(), forgotten.poll()) == (None, 0)
    for process in list(attached_process._running):
        stop_server(process)
    assert kept.poll() == 0
    assert not attached_process._running


def test_a_server_that_ends_at_once_is_not_kept_and_leaves_its_last_words():
    with pytest.raises(RuntimeError, match="^exit status 1: many words$"):
        Server(FAILS)


def test_an_output_is_read_while_a_child_writes_it():
    output = Output()
    writes = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    command = [sys.executable, "-c", writes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output.written) as child:
        for whole in (b"one\n", b"one\ntwo\n", b"one\ntwo\nthree\n"):
            child.stdin.write(whole.splitlines(True)[-1])
            child.stdin.flush()
            deadline = time.monotonic() + PATIENCE_S
            while len(output.read()) < len(whole) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert output.read() == whole
            assert output.read(4, 4) == whole[4:8]
        child.stdin.close()
    output.close()


def test_an_output_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Output().close()

    def refuse(path):
        raise PermissionError(path)  # as Windows does where a file is open

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        output = Output()
    assert len(list(tmp_path.iterdir())) == 1
    output.close()
    assert list(tmp_path.iterdir()) == []
