"""Imports Keras, and forks for each request of a socket: `python fork_server.py SOCKET`.

A request is JSON, with the child's three streams and a pipe that gets its process id, then its
status and the processor's seconds that it took. The first child's
seconds have those of the imports too. See `keras_forks.py`.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

MOST_BYTES = 2**17  # of a request

running = {}  # children, by process id: where to tell that they have ended
untold_s = 0.0


def serve(requests):
    """Forks until nobody can ask any more; in a fork, returns its request."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready = select.select([requests, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 2**10)
            reap()
        if requests in ready:
            content, streams, *_ = socket.recv_fds(requests, MOST_BYTES, 4)
            if not content:
                return None
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                close(requests.detach(), ended, wake, *running.values())
                return {**json.loads(content), "streams": streams}
            running[child] = streams.pop()
            tell(running[child], child)
            close(*streams)


def reap():
    """Tells of the children that have ended."""
    global untold_s
    while running and (found := os.wait4(-1, os.WNOHANG))[0]:
        child, status, usage = found
        untold_s += usage.ru_utime + usage.ru_stime
        pipe = running.pop(child)
        tell(pipe, status, untold_s)
        close(pipe)
        untold_s = 0.0


def tell(pipe, *values):
    with contextlib.suppress(BrokenPipeError):  # nobody waits for this child any more
        os.write(pipe, " ".join(map(str, values)).encode() + b"\n")


def close(*places):
    for place in places:
        os.close(place)


def become(request):
    """Makes this fork what `python ARGUMENTS` would be; returns its source and its name."""
    *streams, status = request["streams"]
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    close(*streams, status)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if test := os.environ.get("GPUKERAS_COVERAGE_CONTEXT"):  # of make test-faults
        from coverage import Coverage

        Coverage.current().switch_context(test)
    first, *rest = request["arguments"]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        return rest[0], "<string>"
    sys.argv = [first, *rest]
    sys.path.insert(0, str(Path(first).parent))
    return Path(first).read_text(encoding="utf-8"), first


if __name__ == "__main__":
    import keras  # noqa: F401

    if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        import tensorflow  # noqa: F401
    gc.freeze()
    untold_s = sum(os.times()[:2])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        source, name = become(asked)
        module = sys.modules["__main__"].__dict__
        module["__file__"] = name
        exec(compile(source, name, "exec"), module)
