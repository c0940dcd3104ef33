"""Measures a server of predictions: `make bench-serve`, or `bench_serve.py --seconds 10`.

64 clients ask for one row each, as fast as they are answered, for some seconds; each answer is
compared with `predict()` of that row. Meanwhile others are killed in the middle of a request, and
others send nonsense. It prints requests a second and percentiles of the time that a client waits;
a wrong answer ends it with status 1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.attached_process import stop_server
from gpukeras.data.dataset import map_dataset
from gpukeras.export import archive
from gpukeras.models import mlp
from gpukeras.serving.server import start_server
from gpukeras.training import fit, predict

COLUMNS, ROWS, TOLERANCE = 20, 512, 1e-5
NONSENSE = (b"{", b"[]", b'{"x": [["a"]]}', b'{"x": [[1]]}', b"\xff" * 100)


def make_model() -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns a trained network of 20 columns, rows, and what it predicts for each."""
    x = np.random.default_rng(1).normal(size=(ROWS, COLUMNS))
    labels = {"kind": "numeric", "values": x[:, 0] - x[:, 1]}
    data = map_dataset.build_dataset({"kind": "array", "values": x}, {"batch_size": 64}, labels)
    model = mlp.build_mlp(data, {"units": [64, 64]})
    fit.fit(model, data, {"epochs": 1})
    return model, x, predict.predict(model, {"kind": "array", "values": x})["values"]


class Clients:
    """Clients in threads, and what they saw.

    Args:
        port: The server's port.
        x: Rows, (n, columns).
        expected: What is predicted for each.
        seconds: How long they ask.
    """

    def __init__(self, port: int, x: np.ndarray, expected: np.ndarray, seconds: float) -> None:
        """Starts nothing."""
        self.port, self.expected = port, expected
        self.bodies = [json.dumps({"x": [row]}).encode() for row in x.tolist()]
        self.end = time.monotonic() + seconds
        self.waits: list[float] = []
        self.wrong, self.failed, self.refused, self.killed = 0, 0, 0, 0

    def ask(self, number: int) -> None:
        """Asks for one row after the other on one connection."""
        client, place = self._connect(), number
        while time.monotonic() < self.end:
            place = (place + 64) % len(self.bodies)
            began = time.perf_counter()
            status, answer = self._post(client, self.bodies[place])
            self.waits.append(time.perf_counter() - began)
            if status != 200:
                self.failed += 1
            elif not np.isclose(answer["predictions"][0], self.expected[place], rtol=TOLERANCE):
                self.wrong += 1

    def disturb(self, number: int) -> None:
        """Sends nonsense, and dies in the middle of requests."""
        while time.monotonic() < self.end:
            status, _ = self._post(self._connect(), NONSENSE[number % len(NONSENSE)])
            self.refused += 400 <= status < 500
            with socket.create_connection(("127.0.0.1", self.port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Le")
                self.killed += 1
            number += 1
            time.sleep(0.05)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def _post(self, client: http.client.HTTPConnection, body: bytes) -> tuple[int, Any]:
        client.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


def run(clients: int, seconds: float) -> dict[str, Any]:
    """Returns the figures of one run."""
    model, x, expected = make_model()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        archive.save_archive(model, path)
        record = start_server(path=path)
        try:
            asking = Clients(record["port"], x, expected, seconds)
            works = [(asking.ask, number) for number in range(clients)]
            works += [(asking.disturb, number) for number in range(4)]
            threads = [threading.Thread(target=work, args=(number,)) for work, number in works]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stop_server(record["handle"])
    p50, p99 = np.percentile(asking.waits, [50, 99]) * 1000
    return {
        "clients": clients,
        "requests": len(asking.waits),
        "requests_per_s": round(len(asking.waits) / seconds, 1),
        "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1),
        "wrong": asking.wrong,
        "failed": asking.failed,
        "refused_nonsense": asking.refused,
        "killed_clients": asking.killed,
        "load": [round(one, 1) for one in os.getloadavg()],
        "cores": os.cpu_count(),
    }


def main() -> int:
    """Runs one measurement; returns 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    found = run(options.clients, options.seconds)
    print(json.dumps(found, indent=2))
    return int(bool(found["wrong"] or found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
