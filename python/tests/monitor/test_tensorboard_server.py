"""The server is started, found again and ended; a small stand-in serves where TensorBoard is not.

What is tested is how the child process is run. TensorBoard itself is tried too, where it is there.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from children import PATIENCE_S

from gpukeras import DataError, RuntimeMissingError, SpecError
from gpukeras.core.attached_process import list_running, server_runs, stop_server
from gpukeras.monitor import tensorboard_server
from gpukeras.monitor.tensorboard_server import find_port, install_command, start_board

CORE = Path(tensorboard_server.__file__).parents[2]
STAND_IN = """
import http.server, json, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/data/environment" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"gpus": os.environ["CUDA_VISIBLE_DEVICES"]}).encode())

    def log_message(self, *args):
        pass

def run_main():
    given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    address = given["--host"], int(given["--port"])
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
"""
BROKEN = "raise ImportError('No module named pkg_resources')"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package of one module in front of all others, here and in child processes."""
    folder = tmp_path / "packages"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    if "tensorboard" in sys.modules:
        monkeypatch.delitem(sys.modules, "tensorboard")

    def put(package, main=""):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        (folder / package / "main.py").write_text(main)

    return put


@pytest.fixture
def stand_in(install):
    install("tensorboard", STAND_IN)


@pytest.fixture(autouse=True)
def stop_all():
    yield
    for server in list_running():
        server.stop()


def get(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def is_open(port, host="127.0.0.1"):
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, port)) == 0


def wait_until(condition, seconds=PATIENCE_S):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.usefixtures("stand_in")
def test_it_is_started_found_again_and_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    logs.mkdir()
    board = start_board(str(logs))
    port = board["port"]
    assert board["folder"] == str(logs)
    assert board["url"] == f"http://127.0.0.1:{port}/"
    assert board["notes"] == []
    assert server_runs(board["handle"])
    again = start_board("logs")
    assert again["handle"] is board["handle"]
    assert start_board("logs", port)["handle"] is board["handle"]
    stop_server(board["handle"])
    assert not server_runs(board["handle"])
    assert not is_open(port)
    stop_server(board["handle"])
    new = start_board("logs", port)
    assert new["port"] == port
    assert new["handle"] is not board["handle"]


@pytest.mark.usefixtures("stand_in")
def test_another_folder_gets_a_server_of_its_own(tmp_path):
    one, two = (start_board(str(tmp_path / name)) for name in ("one", "two"))
    assert one["port"] != two["port"]
    stop_server(one["handle"])
    assert server_runs(two["handle"])


@pytest.mark.usefixtures("stand_in")
def test_it_sees_no_gpu(tmp_path):
    board = start_board(str(tmp_path))
    assert get(board["url"] + "data/environment") == {"gpus": "-1"}


@pytest.mark.skipif(sys.platform != "linux", reason="any loopback address answers on Linux only")
@pytest.mark.usefixtures("stand_in")
def test_it_listens_on_one_loopback_address_only(tmp_path):
    port = start_board(str(tmp_path))["port"]
    assert is_open(port)
    assert not is_open(port, "127.0.0.2")
    assert listening(port) == {"0100007F"}


def listening(port):
    """The addresses that are listened to on a port, as the kernel writes them."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            address, number = line.split()[1].split(":")
            if int(number, 16) == port and line.split()[3] == "0A":
                found.add(address)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="a process is killed outright")
@pytest.mark.usefixtures("stand_in")
def test_it_ends_with_a_parent_that_is_killed(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from gpukeras.monitor.tensorboard_server import start_board\n"
        "print(start_board(sys.argv[1])['port'], flush=True)\n"
        "sys.stdin.read()"
    )
    paths = os.pathsep.join([os.environ["PYTHONPATH"], str(CORE)])
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with parent:
        port = int(parent.stdout.readline())
        assert is_open(port)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_open(port))


# What is missing ---------------------------------------------------------------------------------


def test_without_tensorboard_the_command_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(CORE)])  # where nothing is installed
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    with pytest.raises(RuntimeMissingError, match="TensorBoard is not installed") as caught:
        start_board(str(tmp_path), python="/a path/python")
    assert caught.value.hint == "Install it: '/a path/python' -m pip install tensorboard"


def test_a_folder_of_the_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    assert not tensorboard_server.is_installed("tensorboard")


def test_a_tensorboard_that_does_not_start_says_why(tmp_path, install):
    install("tensorboard", BROKEN)
    with pytest.raises(RuntimeMissingError, match="No module named pkg_resources") as caught:
        start_board(str(tmp_path / "logs"))
    assert "pip install --upgrade tensorboard" in caught.value.hint
    assert list_running() == []


def test_a_tensorboard_that_never_answers_is_ended(tmp_path, install, monkeypatch):
    install("tensorboard", "def run_main():\n    import time\n    time.sleep(3600)")
    monkeypatch.setattr(tensorboard_server, "START_S", 0.5)
    with pytest.raises(RuntimeMissingError, match="did not answer"):
        start_board(str(tmp_path))
    assert list_running() == []


@pytest.mark.usefixtures("stand_in")
def test_what_is_not_to_be_seen_is_told(tmp_path, install, monkeypatch):
    monkeypatch.setattr(tensorboard_server, "PROFILE_PLUGINS", ("a_profile_plugin",))
    folder = tmp_path / "logs"
    assert "not there yet" in start_board(str(folder))["notes"][0]
    trace = folder / "run-1" / "plugins" / "profile" / "2026_01_01_00_00_00" / "host.xplane.pb"
    trace.parent.mkdir(parents=True)
    assert start_board(str(folder))["notes"] == []
    trace.touch()
    (note,) = start_board(str(folder))["notes"]
    assert "xprof, which shows the traces that are there, is not installed: " in note
    assert install_command(sys.executable, "xprof") in note
    install("a_profile_plugin")
    assert start_board(str(folder))["notes"] == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="`log_dir` must be a folder"):
        start_board(str(tmp_path / "file"))


@pytest.mark.parametrize("port", [0, 65536, 1.5, "6006", True])
def test_a_port_is_a_number_in_range(tmp_path, port):
    with pytest.raises(SpecError, match="`port` must be a whole number"):
        start_board(str(tmp_path), port)


@pytest.mark.usefixtures("stand_in")
def test_a_port_in_use_is_refused_or_passed_over(tmp_path, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SpecError, match=f"`port` {port} cannot be used") as caught:
            start_board(str(tmp_path), port)
        assert caught.value.details["arg"] == "port"
        monkeypatch.setattr(tensorboard_server, "PORTS", range(port, port + 20))
        assert find_port() in range(port + 1, port + 20)
        monkeypatch.setattr(tensorboard_server, "PORTS", range(port, port + 1))
        with pytest.raises(SpecError, match="all in use"):
            find_port()


# TensorBoard itself ------------------------------------------------------------------------------


@pytest.mark.tf
def test_tensorboard_shows_what_was_written(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="TensorBoard is not installed: pip install tensorboard"
    )
    from gpukeras.training.callbacks.tensorboard import EventFiles

    files = EventFiles(str(tmp_path / "run-1"))
    files.add("train", "scalars", {"epoch_loss": 0.5}, 3)
    files.close()
    board = start_board(str(tmp_path))
    run = "run-1%2Ftrain"
    shown = board["url"] + f"data/plugin/scalars/scalars?run={run}&tag=epoch_loss"
    assert wait_until(lambda: "run-1/train" in get(board["url"] + "data/runs"), 30)
    ((_, step, value),) = get(shown)
    assert (step, value) == (3, 0.5)
    if sys.platform == "linux":
        assert listening(board["port"]) == {"0100007F"}
