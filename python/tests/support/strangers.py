"""Connections to the control channel that are no worker's, and what lies between two workers."""

import json
import socket
import threading
from contextlib import contextmanager, suppress

import channels
from channels import PATIENCE_S, make_spec

from gpukeras.distributed.channel.channel import open_channel
from gpukeras.distributed.channel.protocol import HEADER, HELLO

JOINED = [[{"index": 0}, {"index": 1}]] * 2
opened = []  # connections, which a test that makes some closes by `close_connections()`


def connect(control):
    opened.append(channels.connect(control))
    return opened[-1]


def close_connections():
    while opened:
        opened.pop().close()


def say(kind, values):
    """A message without tags."""
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    body = b'{"kind": "%s", "lengths": [], "values": %s}' % (kind.encode(), text)
    return HEADER.pack(len(body), 0) + body


def hello(index, **alike):
    workers = list(make_spec("127.0.0.1:1", 2, 1).workers)
    return {"index": index, "description": {"workers": workers, **alike}}


LONG = b'{"index": ' + b"9" * 4300 + b', "description": {}}'
PLAIN = {
    "a hello with other versions": say(HELLO, hello(1, tensorflow="0.1")),
    "a hello of the chief's place": say(HELLO, hello(0)),
    "a hello of no place": say(HELLO, hello(7)),
    "an index of 4300 digits": say(HELLO, LONG),
    "true for an index": say(HELLO, hello(True)),
    "64 GiB announced": HEADER.pack(1, 2**36) + b"x" * 1000,
    "1 MiB announced": HEADER.pack(1, 2**20) + b"x" * 1000,
    "a nested record": say(HELLO, b"[" * 10**5),
    "NaN": say(HELLO, b'{"index": NaN, "description": {}}'),
    "TLS": b"\x16\x03\x01" * 100,
    "half a greeting": b"GPUK\x03\x02",
    "another version's header": b"GPUK\xff" + bytes(11),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "silence": b"",
}
# What is shorter than a greeting is waited for.
UNFINISHED = ("half a greeting", "another version's header", "HTTP", "silence")


def join(specs, work=None):
    """What each of the workers gets, by threads."""
    outcomes = [None] * len(specs)

    def run(place, spec):
        try:
            with open_channel(spec, {}, None, 20) as channel:
                told = channel.exchange("joined", {"index": spec.index})
                outcomes[place] = work(channel) if work else told
        except Exception as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(specs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return outcomes


def pass_on(source, target, kept, spoil_after):
    with suppress(OSError):
        while data := source.recv(2**16):
            place = spoil_after - len(kept)
            kept.extend(data)
            changed = bytearray(data)
            if 0 <= place < len(data):
                changed[place] ^= 1
            target.sendall(changed)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def recorded(control, spoil_after=-1):
    """Someone between a worker and the chief, who keeps what the worker sends, or changes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    sent, threads = [], []

    def run():
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            outer = connect(control)
            opened.append(inner)
            sent.append(bytearray())
            ways = (inner, outer, sent[-1], spoil_after), (outer, inner, bytearray(), -1)
            threads.extend(threading.Thread(target=pass_on, args=way, daemon=True) for way in ways)
            for thread in threads[-2:]:
                thread.start()

    threading.Thread(target=run, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", sent
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(5)
