"""Starts and stops TensorBoard on this computer's loopback address.

TensorBoard has no password, so it never listens on the network. It gets no GPU, so that training
has the whole card.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

from gpukeras.core.attached_process import AttachedProcess, list_running
from gpukeras.core.errors import DataError, RuntimeMissingError, SpecError
from gpukeras.core.options import check_count
from gpukeras.system import pip
from gpukeras.system.environment import current_variables

PROGRAM = "gpukeras.monitor.tensorboard_main"
HOST = "127.0.0.1"
PORTS = range(6006, 6106)  # TensorBoard's default port and the next ones it tries
START_S = 60.0  # it takes 2 to 10 s, longer on a busy computer
POLL_S = 0.1
STOP_S = 5.0
PROFILE_PLUGINS = ("xprof", "tensorboard_plugin_profile")
TRACES = [f"{'*/' * depth}plugins/profile/*/*.xplane.pb" for depth in range(4)]


class BoardServer(AttachedProcess):
    """A TensorBoard server in a child process.

    Args:
        folder: Absolute path of the folder for event files; it may not exist yet.
        port: A free port.
        python: The Python interpreter that has TensorBoard.

    Raises:
        RuntimeMissingError: if it ends before it answers, or does not answer within 60 s.
    """

    def __init__(self, folder: Path, port: int, python: str) -> None:
        """Starts the server and waits until it answers."""
        self.folder, self.port, self.url = folder, port, f"http://{HOST}:{port}/"
        self._python = python
        # Without the data server, a second process that listens on another port.
        more = ["--load_fast", "false", "--reload_multifile", "true"]
        arguments = ["--logdir", str(folder), "--host", HOST, "--port", str(port), *more]
        hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environment = {**current_variables(), **hidden}
        super().__init__(python, ("-m", PROGRAM, *arguments), environment, STOP_S)

    def _await(self) -> None:
        deadline = time.monotonic() + START_S
        while not answers(self.port):
            if not self.runs:
                raise RuntimeMissingError(
                    f"TensorBoard could not be started: {self._last_words() or self._status()}.",
                    hint=f"Mend it: {install_command(self._python, '--upgrade tensorboard')}",
                )
            if time.monotonic() > deadline:
                raise RuntimeMissingError(f"TensorBoard did not answer within {START_S:.0f} s.")
            time.sleep(POLL_S)


def answers(port: int) -> bool:
    """Whether TensorBoard answers on a port of the loopback address."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2)  # ignores proxy settings
    try:
        connection.request("GET", "/data/environment")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# What R calls ------------------------------------------------------------------------------------


def start_board(folder: str, port: int | None = None, python: str = "") -> dict[str, Any]:
    """Starts TensorBoard for a folder, or returns the server that already runs for it.

    Args:
        folder: Folder for event files; it may not exist yet.
        port: Port from 1 to 65535; None for the first free one from 6006.
        python: The Python interpreter that has TensorBoard; the running one by default.

    Returns:
        `handle`, `url`, `port`, `folder` (absolute path) and `notes` (sentences).

    Raises:
        RuntimeMissingError: if TensorBoard is not installed or cannot be started.
        DataError: if the folder is a file.
        SpecError: for a port that cannot be used.
    """
    python = python or sys.executable
    port = None if port is None else check_count("port", port, 1, 65535)
    path = Path(os.path.abspath(folder))
    if path.exists() and not path.is_dir():
        message = "`log_dir` must be a folder, and this is a file."
        raise DataError(message, hint="Give the folder that it is in.", arg="log_dir", path=folder)
    server = _find_server(path, port)
    if server is None:
        _check_installed(python)
        server = BoardServer(path, find_port() if port is None else check_port(port), python)
    return {
        "handle": server,
        "url": server.url,
        "port": server.port,
        "folder": str(path),
        "notes": read_notes(path, python),
    }


def _find_server(folder: Path, port: int | None) -> BoardServer | None:
    boards = [server for server in list_running() if isinstance(server, BoardServer)]
    known = [one for one in boards if one.folder == folder and port in (None, one.port)]
    return known[0] if known else None


# Facts -------------------------------------------------------------------------------------------


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a plain folder of that name does not count."""
    importlib.invalidate_caches()  # finds a package installed since start
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _check_installed(python: str) -> None:
    if not is_installed("tensorboard"):
        raise RuntimeMissingError(
            "TensorBoard is not installed for the Python in use.",
            hint=f"Install it: {install_command(python, 'tensorboard')}",
        )


def install_command(python: str, package: str) -> str:
    """Returns the pip command that installs a package."""
    if pip.is_managed():
        return pip.install(package)
    return f"{shlex.quote(python)} -m pip install {package}"


def read_notes(folder: Path, python: str) -> list[str]:
    """Returns sentences on what TensorBoard cannot show: a missing folder, traces without xprof."""
    if not folder.is_dir():
        return ["The folder is not there yet: TensorBoard shows what is written there later."]
    traced = any(next(folder.glob(pattern), None) for pattern in TRACES)
    if traced and not any(map(is_installed, PROFILE_PLUGINS)):
        command = install_command(python, "xprof")
        return [f"xprof, which shows the traces that are there, is not installed: {command}"]
    return []


def find_port() -> int:
    """Returns the first free port from 6006.

    Raises:
        SpecError: if all hundred ports are in use.
    """
    for port in PORTS:
        if not _refusal(port):
            return port
    raise SpecError(f"The ports from {PORTS[0]} to {PORTS[-1]} are all in use.", arg="port")


def check_port(port: int) -> int:
    """Returns a requested port if a server can listen on it.

    Raises:
        SpecError: if it is in use or not permitted.
    """
    refusal = _refusal(port)
    if refusal:
        message = f"`port` {port} cannot be used: {refusal}."
        raise SpecError(message, hint="Leave it out to get one that is free.", arg="port")
    return port


def _refusal(port: int) -> str:
    """Returns why a server cannot listen on a port of the loopback address, or ""."""
    with socket.socket() as probe:
        if os.name == "posix":  # ignores connections that have just closed
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return os.strerror(error.errno or 0).lower()
    return ""
