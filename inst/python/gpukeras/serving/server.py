"""Starts and stops the server of predictions in a child process, for `gpu_serve()`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpukeras.core.attached_process import AttachedProcess
from gpukeras.core.errors import GpuKerasError, ServiceError
from gpukeras.export import archive
from gpukeras.serving.options import ServeSpec, pass_options, read_options
from gpukeras.serving.server_main import check_installed
from gpukeras.system.environment import current_variables

PROGRAM = "gpukeras.serving.server_main"
START_S = 180.0  # TensorFlow takes 3 to 10 s, a model's programs up to a minute
POLL_S = 0.05
SAID_BYTES = 2**20
STOP_S = 30.0  # longer than the server lets requests in flight finish


class PredictionServer(AttachedProcess):
    """A server of predictions in a child process.

    Args:
        path: A `.keras` file.
        spec: The options.
        python: The Python interpreter that runs it.
        folder: The temporary folder that holds the file, or None; it goes with the server.

    Attributes:
        told: What it said once it listened: its `url` and `port`, and the `terms` of the formula
            whose values clients send.

    Raises:
        GpuKerasError: what ends the server before it listens.
        ServiceError: if it ends without a word, or does not listen within 180 s.
    """

    def __init__(
        self,
        path: str,
        spec: ServeSpec,
        python: str,
        folder: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        """Starts the server and waits until it listens."""
        self._folder = folder
        arguments, secret = pass_options(spec)
        environment = {**current_variables(), **secret}
        super().__init__(
            python, ("-m", PROGRAM, path, "--attached", *arguments), environment, STOP_S
        )

    def stop(self) -> None:
        """Stops the server once it has answered what is in flight; further calls do nothing."""
        super().stop()
        if self._folder is not None:
            self._folder.cleanup()

    def _await(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            runs = self.runs
            self.told = read_told(self._out.read(0, SAID_BYTES))
            if self.told:
                return
            if not runs:
                raise ServiceError(
                    f"The server ended before it listened: {self._explain_end(', ')}."
                )
            time.sleep(POLL_S)
        raise ServiceError(f"The server did not listen within {START_S:.0f} s.")


def read_told(said: bytes) -> dict[str, Any]:
    """Returns what a server said once it listens; nothing before that.

    Args:
        said: Its standard output so far.

    Raises:
        GpuKerasError: of the class that the server says, if it could not start.
    """
    line, end, _ = said.partition(b"\n")
    told: dict[str, Any] = json.loads(line) if end else {}
    if "code" not in told:
        return told
    kinds = {kind.code: kind for kind in GpuKerasError.__subclasses__()}
    kind = kinds.get(told["code"], ServiceError)
    raise kind(told["message"], hint=told["hint"], **told["details"])


# What R calls -------------------------------------------------------------------------------------


def start_server(
    model: Any = None,
    path: str | None = None,
    options: Mapping[str, Any] | None = None,
    python: str = "",
) -> dict[str, Any]:
    """Starts a server of predictions.

    Args:
        model: A Keras model, which is saved to a temporary folder for the server; or None.
        path: Alternatively a `.keras` file, which must stay only until the server has started.
        options: Fields of `ServeSpec`.
        python: The Python interpreter that runs the server; the running one by default.

    Returns:
        `handle`, `url`, `port`, `host`, `token` (whether clients need one), `terms`, `max_batch`,
        `max_wait` and `max_body`.

    Raises:
        SpecError: for a wrong option, a port that cannot be used, an address that others can reach
            without a token.
        RuntimeMissingError: if uvicorn or starlette is not installed.
        ModelError: for a file that is refused, or a model that cannot be served.
        ServiceError: if the server does not start.
    """
    spec = read_options(options or {}, os.environ)
    python = python or sys.executable
    check_installed(python)
    folder = None
    if path is None:
        folder = tempfile.TemporaryDirectory(prefix="gpukeras-serve-")
        path = str(Path(folder.name) / "model.keras")
        archive.save_archive(model, path)
    server = PredictionServer(path, spec, python, folder)
    return {
        "handle": server,
        **server.told,
        "host": spec.host,
        "token": spec.token is not None,
        "max_batch": spec.max_batch,
        "max_wait": spec.max_wait,
        "max_body": spec.max_body,
    }
