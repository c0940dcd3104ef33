"""Children that have imported Keras: forks of a process that has done nothing else.

An import of TensorFlow and Keras takes a child several times as long as what it is started for, so
a session imports them once for each backend, in `fork_server.py`. A fork of it has started nothing
of TensorFlow or JAX, and has variables, streams and arguments of its own, as a new process has.
What tests an import, or a variable that an import reads, starts a new process.
"""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent
CORE = SUPPORT.parents[2] / "inst" / "python"
# For PYTHONPATH: the core, these helpers, and what makes a child start faster.
PATHS = os.pathsep.join(map(str, (CORE, SUPPORT, SUPPORT / "lean")))

seconds = 0.0  # of the processor, by all forks and their imports


class Fork:
    """`python ARGUMENTS` as `subprocess.Popen` gives it, with pipes for its streams of text.

    Args:
        arguments: As Python has them, but for `-m`.
        environment: All variables.
        stderr: `subprocess.STDOUT` for errors among the other text.
        folder: Where it runs; this process' own by default.
    """

    def __init__(self, arguments, environment, stderr=None, folder="."):
        self.args, self.returncode = arguments, None
        request = {
            "arguments": arguments,
            "environment": environment,
            "folder": os.path.abspath(folder),
        }
        (given, self.stdin), *told = open_pipes(), open_pipes(), open_pipes(), open_pipes()
        (self.stdout, out), (self.stderr, err), (self._status, status) = told
        server = start_server(environment.get("KERAS_BACKEND"), environment.get("XLA_FLAGS"))
        files = [given, out, out if stderr == subprocess.STDOUT else err, status]
        socket.send_fds(server, [json.dumps(request).encode()], [file.fileno() for file in files])
        for file in (given, out, err, status):
            file.close()
        self.pid = int(self._status.readline())

    def wait(self, timeout=None):
        global seconds
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            status, spent_s = self._status.readline().split()
            self.returncode = os.waitstatus_to_exitcode(int(status))
            seconds += float(spent_s)
            self._status.close()
            self.stdin.close()
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """Both texts to their ends; what is silent for so long is killed."""
        self.stdin.close()
        texts, files = {self.stdout: [], self.stderr: []}, [self.stdout, self.stderr]
        while files:
            ready = select.select(files, [], [], timeout)[0]
            if not ready:
                self.kill()
                self.wait()
                for file in files:
                    file.close()
                raise subprocess.TimeoutExpired(self.args, timeout)
            for file in ready:
                texts[file].append(os.read(file.fileno(), 2**16))
                if not texts[file][-1]:
                    file.close()
                    files.remove(file)
        self.wait(timeout)
        return tuple(b"".join(parts).decode(errors="replace") for parts in texts.values())


def open_pipes():
    """The end to read text from and the one to write it to."""
    reading, writing = os.pipe()
    return os.fdopen(reading, errors="replace"), os.fdopen(writing, "w")


def run_fork(arguments, environment, timeout):
    """As `subprocess.run()` with the texts of both streams."""
    fork = Fork(arguments, environment)
    out, err = fork.communicate(timeout)
    return subprocess.CompletedProcess(arguments, fork.returncode, out, err)


@functools.cache
def start_server(backend, flags):
    """A socket to the process that forks for a backend, with the flags of XLA of its children."""
    given = {"KERAS_BACKEND": backend, "XLA_FLAGS": flags}
    environment = {name: value for name, value in os.environ.items() if name not in given}
    environment |= {name: value for name, value in given.items() if value is not None}
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, str(SUPPORT / "fork_server.py"), str(theirs.fileno())],
        env={**environment, "PYTHONPATH": PATHS, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    atexit.register(end_server, mine, server)
    return mine


def end_server(requests, server):
    requests.close()
    server.wait(60)
