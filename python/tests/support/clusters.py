"""Clusters of real workers, processes of this computer, for tests; see `worker_child`."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from children import PATHS
from keras_forks import Fork

TESTS = Path(__file__).parent
SECRET = "what these workers share"
PATIENCE_S = 600  # what a test waits before it fails


def free_ports(count):
    """Ports of loopback that nothing uses, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class WorkerProcess:
    """A worker's process and what it has told."""

    def __init__(self, options, before=()):
        quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        threads = {"PYTHONDONTWRITEBYTECODE": "1", "GRPC_VERBOSITY": "NONE"}
        environment = {**os.environ, "PYTHONPATH": PATHS, **quiet, **threads}
        arguments = [str(TESTS / "worker_child.py"), json.dumps(options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = (
            subprocess.Popen([*before, sys.executable, *arguments], env=environment, **pipes)
            if before
            else Fork(arguments, environment)
        )
        self.events, self.errors, self.ended = [], [], None
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._hear)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))
        self.ended = time.monotonic()

    def _hear(self):
        self.errors.extend(self.process.stderr)

    def told(self, event):
        return [one for one in list(self.events) if one["event"] == event]

    def cases(self):
        """What each case found, by its place."""
        return [one["found"] for one in self.told("case")]

    def wait_for(self, event, count=1, patience_s=PATIENCE_S):
        deadline = time.monotonic() + patience_s
        while len(self.told(event)) < count:
            assert self.ended is None, self.explain()
            assert time.monotonic() < deadline, self.explain()
            time.sleep(0.01)
        return self.told(event)[count - 1]

    def finish(self, patience_s=PATIENCE_S):
        """Its exit status."""
        try:
            status = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs: {self.explain()}") from None
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return status

    def explain(self):
        short = [{**one, "found": str(one.get("found"))[:300]} for one in self.events[-3:]]
        return f"{short}\n{''.join(self.errors[-30:])}"

    def remove(self):
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.process.stdout.close()
        self.process.stderr.close()


def plan_workers(size, cases, timeout_s=20.0, addresses=None, **more):
    """The options of each worker of a cluster; `more` may hold lists, an entry for each."""
    ports = free_ports(size + 1)
    workers = addresses or [f"127.0.0.1:{port}" for port in ports[:size]]
    control = workers[0].rpartition(":")[0] + f":{ports[-1]}"
    return [
        {
            "cluster": {
                "workers": workers,
                "index": index + 1,
                "timeout_s": timeout_s,
                "control": control,
                "secret": SECRET,
            },
            "cases": cases,
            "join_s": 120,
            **{name: value[index] for name, value in more.items() if value[index] is not None},
        }
        for index in range(size)
    ]


@contextmanager
def started(plans, before=()):
    """Workers that run; all have ended afterwards."""
    workers = []
    try:
        for place, plan in enumerate(plans):
            workers.append(WorkerProcess(plan, before[place] if before else ()))
        yield workers
    finally:
        for worker in workers:
            worker.remove()


def run_all(plans):
    """What the workers of a cluster told, which all must have ended well."""
    with started(plans) as workers:
        for worker in workers:
            assert worker.finish() == 0, worker.explain()
        return workers
