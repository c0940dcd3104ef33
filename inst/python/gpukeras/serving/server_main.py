"""Serves a model: `python -m gpukeras serve MODEL.keras`, and the child process of `gpu_serve()`.

The first line of standard output is JSON: `{"url", "port", "terms"}` once the server listens, or
`{"code", "message", "hint", "details"}` of the error that ends it. SIGTERM and Ctrl-C let it finish
what is in flight; as a child it does so when standard input closes, which it does however the
parent ends. The token comes by the environment, because lists of processes show arguments.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpukeras.core.errors import GpuKerasError, RuntimeMissingError, SpecError
from gpukeras.core.messages import system_reason
from gpukeras.distributed.addresses import parse_ip
from gpukeras.serving.options import ServeSpec, read_options
from gpukeras.system import pip

PACKAGES = ("uvicorn", "starlette")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a model until the server is stopped; returns the exit status."""
    options = vars(_parse(arguments))
    path, attached = options.pop("model"), options.pop("attached")
    environment = dict(os.environ)
    os.environ.pop("GPUKERAS_TOKEN", None)  # no process of this one gets it
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = read_options(options, environment)
        serve(path, spec, attached)
    except GpuKerasError as error:
        _say_error(error, attached)
        return 1
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpukeras serve",
        description="Serves predictions of a model as JSON over HTTP. The environment variable "
        "GPUKERAS_TOKEN has the token that clients must send; an address other than a loopback "
        "one needs it.",
    )
    parser.add_argument("model", help="a .keras file")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-batch", type=int, help="rows that are predicted together")
    parser.add_argument("--max-wait", type=float, help="milliseconds to wait for others")
    parser.add_argument("--max-body", type=int, help="bytes of a request")
    parser.add_argument("--attached", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _say_error(error: GpuKerasError, attached: bool) -> None:
    told = {"code": error.code, "message": error.message, "hint": error.hint}
    details = {name: value for name, value in error.details.items() if isinstance(value, str)}
    print(json.dumps({**told, "details": details}) if attached else error, flush=True)


def serve(path: str, spec: ServeSpec, attached: bool = False) -> None:
    """Loads a model and serves it until the server is stopped.

    Args:
        path: A `.keras` file.
        spec: The options.
        attached: Whether it ends when standard input closes.

    Raises:
        RuntimeMissingError: if uvicorn or starlette is not installed.
        SpecError: if no port is free.
        GpuKerasError: as `service.load_served()`.
    """
    check_installed(sys.executable)
    from gpukeras.serving import http_server
    from gpukeras.serving.app import build_app
    from gpukeras.serving.service import find_terms, load_served

    with open_socket(spec) as listening:
        served = load_served(path, spec.max_batch)
        port = listening.getsockname()[1]
        told = {"url": spec.url(port), "port": port, "terms": find_terms(served.recipe)}
        announce = partial(print, json.dumps(told), flush=True)
        server = http_server.make_server(build_app(served, spec, announce))
        if attached:
            threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
        # uvicorn raises the signal again once it has stopped.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        server.run([listening])


def _end_with_parent(server: Any) -> None:
    while os.read(0, 4096):
        pass
    server.should_exit = True


def check_installed(python: str) -> None:
    """Checks that the packages of the server are installed.

    Args:
        python: The Python interpreter that runs the server.

    Raises:
        RuntimeMissingError: naming the command that installs them.
    """
    if not all(map(pip.is_installed, PACKAGES)):
        raise RuntimeMissingError(
            f"gpu_serve() needs the Python packages {' and '.join(PACKAGES)}.",
            hint=f"Install them: {pip.install_with(python, ' '.join(PACKAGES))}",
        )


def open_socket(spec: ServeSpec) -> socket.socket:
    """Returns a socket that listens on the first port that is free; connections wait in its queue.

    It listens at once: Linux lets two sockets that only are bound share a port, and the server that
    loads its model for longer would fail.

    Raises:
        SpecError: if none is, or the address is not this computer's.
    """
    ip = parse_ip(spec.host)
    family = socket.AF_INET6 if ip is not None and ip.version == 6 else socket.AF_INET
    for port in spec.ports:
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # ignores connections that have just closed
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((spec.host, port))
            opened.listen()
            return opened
        except OSError as error:
            opened.close()
            if error.errno != errno.EADDRINUSE:
                raise _refuse_address(spec, port, error) from error
    raise SpecError(
        f"`port` {spec.ports[0]} is in use."
        if spec.port
        else f"The ports from {spec.ports[0]} to {spec.ports[-1]} are all in use.",
        hint="Leave it out to get one that is free." if spec.port else "",
        arg="port",
    )


def _refuse_address(spec: ServeSpec, port: int, error: OSError) -> SpecError:
    reason = system_reason(error).lower()
    message = f"Nothing can listen on `host` {spec.host} with `port` {port}: {reason}."
    return SpecError(message, arg="host")


if __name__ == "__main__":
    sys.exit(main())
