"""Clusters for tests: workers as threads of this process, or as processes of their own."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpukeras.distributed.channel.channel import open_channel
from gpukeras.distributed.channel.protocol import (
    BEAT,
    HEADER,
    HELLO,
    LIMIT,
    WORKER,
    AuthenticationError,
    Message,
    MessageReader,
    Seal,
    pack_message,
)
from gpukeras.distributed.credentials import Credentials

SECRET = b"what the tests' workers share"
PATIENCE_S = 600  # what a test waits before it fails


@dataclass(frozen=True)
class Spec:
    workers: tuple
    index: int
    control: str
    timeout_s: float
    credentials: Credentials = field(default_factory=Credentials)


def make_spec(control, size, index, timeout_s=5.0, credentials=None):
    workers = tuple(f"127.0.0.1:{2001 + i}" for i in range(size))
    return Spec(workers, index, control, timeout_s, credentials or Credentials(SECRET))


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def run_threads(size, work, descriptions=None, indices=None, **options):
    """What `work(channel)` returns or raises on each of `size` workers, by threads."""
    control = options.get("control") or free_address()
    outcomes = [None] * len(indices or range(size))

    def run(place, index):
        try:
            known = options.get("credentials")
            spec = make_spec(control, size, index, options.get("timeout_s", 5.0), known)
            description = (descriptions or [{}] * size)[place]
            with open_channel(spec, description, options.get("on_loss"), 10) as channel:
                outcomes[place] = work(channel)
        except Exception as error:
            outcomes[place] = error

    threads = [
        threading.Thread(target=run, args=pair) for pair in enumerate(indices or range(size))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return outcomes


def connect(control):
    """A connection to the chief, as soon as it listens."""
    host, _, port = control.rpartition(":")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, int(port)), 5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


class Peer:
    """One end of a connection in a test's hands."""

    def __init__(self, connection, secret=SECRET, side=WORKER):
        self.connection = connection
        self.seal = Seal(secret, side)
        self._heard = deque()
        self._reader = MessageReader(self.seal, self._heard.append, LIMIT)
        self._ended = False
        connection.sendall(self.seal.greeting)

    def greet(self, place, size, **more):
        """Says what a worker says when it comes."""
        workers = list(make_spec("127.0.0.1:1", size, 1).workers)
        hello = {"index": place, "description": {"workers": workers}}
        self.send(HELLO, {**hello, **more})

    def send(self, kind, values=None, parts=()):
        """Sends a message, after the other side's greeting; a record's text goes as it is."""
        while not self.seal.ready and not self._ended:
            self._read(PATIENCE_S)
        with suppress(OSError):  # the other side has ended already
            if isinstance(values, bytes):
                record = b'{"kind": "%s", "lengths": [], "values": %s}' % (kind.encode(), values)
                self.send_record(record)
            else:
                for piece in pack_message(self.seal, kind, values or {}, parts):
                    self.connection.sendall(piece)

    def send_record(self, record, parts=b"", announced=None):
        """Sends the bytes of a record and its parts with valid tags."""
        header = HEADER.pack(len(record), len(parts) if announced is None else announced)
        self.connection.sendall(header + self.seal.sign(header) + record + parts)
        if announced is None:
            self.connection.sendall(self.seal.sign(record, parts))

    def hear(self, limit_s=PATIENCE_S, beats=False) -> Message | None:
        """The next message, heartbeats or not, or None at the end of the connection."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            while self._heard:
                if (message := self._heard.popleft()).kind != BEAT or beats:
                    return message
            if self._ended:
                return None
            self._read(max(0.01, deadline - time.monotonic()))
        raise AssertionError("nothing was said")

    def _read(self, limit_s):
        self.connection.settimeout(limit_s)
        try:
            data = self.connection.recv(2**16)
            self._ended = not data
            self._reader.feed(data)
        except TimeoutError:
            pass
        except (OSError, AuthenticationError, StopIteration):
            self._ended = True

    def close(self):
        self.connection.close()


class Worker:
    """A worker's process and what it has said."""

    def __init__(self, options):
        program = Path(__file__).with_name("channel_worker.py")
        self.process = subprocess.Popen(
            [sys.executable, program, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.events = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def told(self, name):
        return [event[name] for event in list(self.events) if name in event]

    def wait_for(self, name, count=1):
        deadline = time.monotonic() + PATIENCE_S
        while len(self.told(name)) < count:
            assert time.monotonic() < deadline, (name, self.events)
            time.sleep(0.005)

    def signal(self, number):
        self.process.send_signal(number)

    def finish(self):
        """The status and the error after the process has ended."""
        status = self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        return status, (self.told("error") or [None])[0]

    def remove(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.finish()
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def start_workers(size, steps, descriptions=None, timeout_s=5.0):
    """Workers as processes: `steps` for all alike, or a list of those of each in a dictionary."""
    control = free_address()
    with ExitStack() as stack:
        workers = []
        for index in range(size):
            options = {
                "control": control,
                "size": size,
                "index": index,
                "timeout_s": timeout_s,
                "join_timeout_s": 120,
                "description": (descriptions or [{}] * size)[index],
                "steps": steps.get(index, steps.get(None)) if isinstance(steps, dict) else steps,
            }
            workers.append(Worker(options))
            stack.callback(workers[-1].remove)
        yield workers


def own_address():
    """An address of this computer that is not loopback, or None; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


def open_files():
    """How many; those that earlier tests left to the garbage collector are closed first."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
