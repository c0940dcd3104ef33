"""Servers of objects on this computer's loopback, and what breaks their answers.

objects() -- a web server of the standard library with ranges -- https:// (as http:// here)
s3_server() -- moto's S3, a process of its own -- breaking() in front of it -- s3://
"""

import http.client
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

KEY, SECRET = "key-of-tests", "open-sesame"


@dataclass
class Answers:
    """What a server was asked for, and what it does to its answers.

    Args:
        rule: Called with the method, path and byte range of a request; names a fault or gives None.
            Faults: "500", "403", "truncate", "drip" (a byte now and then), "stall", "drop".
    """

    rule: object = None
    requests: list = field(default_factory=list)
    sent: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def fault(self, *request):
        self.requests.append(request)
        return self.rule(*request) if self.rule else None

    def count(self, method, end=""):
        return sum(each[0] == method and each[1].endswith(end) for each in self.requests)


class Handler(BaseHTTPRequestHandler):
    """Sends what `answer()` gives, broken as the rule says."""

    protocol_version = "HTTP/1.1"
    answers = None

    def log_message(self, *_):
        pass

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        fault = self.answers.fault(self.command, path, self.headers.get("Range"))
        if fault == "drop":
            self.close_connection = True
            return
        if fault in ("500", "403", "503"):
            status, headers, content = int(fault), {"Content-Length": "0"}, b""
        else:
            status, headers, content = self.answer(body)
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(content, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def send_body(self, content, fault):
        if fault in ("truncate", "stall", "drip"):
            self.close_connection = True
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.answers.released.wait(60)
            for byte in content[len(content) // 2 :] if fault == "drip" else b"":
                if self.answers.released.wait(0.05):
                    break
                self.wfile.write(bytes([byte]))
            return
        self.answers.sent += len(content)
        self.wfile.write(content)

    def answer(self, body):
        raise NotImplementedError

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except OSError:  # the client has left
            self.close_connection = True


class Objects(Handler):
    """Objects in a dictionary from path to bytes."""

    content = None
    ranges = True
    password = None  # the header Authorization that is asked for

    def answer(self, body):
        data = self.content.get(self.path)
        if self.password and self.headers.get("Authorization") != self.password:
            return 401, {"Content-Length": "0"}, b""
        if data is None:
            return 404, {"Content-Length": "0"}, b""
        if isinstance(data, str):
            return 302, {"Location": data, "Content-Length": "0"}, b""
        headers = {"ETag": f'"{hash(data):x}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if not asked or not self.ranges:
            return 200, {**headers, "Content-Length": str(len(data))}, data
        first, last = asked.removeprefix("bytes=").split("-")
        part = data[int(first) : int(last) + 1]
        if not part:
            place = {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"}
            return 416, {**headers, **place}, b""
        place = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return 206, {**headers, "Content-Range": place, "Content-Length": str(len(part))}, part


class Proxy(Handler):
    """Hands requests on to another server."""

    port = None

    def answer(self, body):
        there = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        there.request(self.command, self.path, body, headers)
        answer = there.getresponse()
        content = answer.read()
        there.close()
        kept = {name: v for name, v in answer.getheaders() if name not in ("Connection", "Server")}
        return answer.status, kept, content


@contextmanager
def _serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        handler.answers.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def objects(content, **options):
    """Yields the address of a server of `content`, from path to bytes, and its `Answers`."""
    answers = Answers()
    made = type("TheseObjects", (Objects,), {"answers": answers, "content": content, **options})
    with _serving(made) as port:
        yield f"http://127.0.0.1:{port}", answers


@contextmanager
def breaking(port):
    """Yields the address of a proxy in front of a server, and its `Answers`."""
    answers = Answers()
    with _serving(type("ThisProxy", (Proxy,), {"answers": answers, "port": port})) as own:
        yield f"http://127.0.0.1:{own}", answers


def explain_missing():
    """Returns why no S3 server can be started, or ""."""
    missing = [name for name in ("moto", "flask", "flask_cors") if find_spec(name) is None]
    return f"{' and '.join(missing)} cannot be imported: moto is no part of it" if missing else ""


@contextmanager
def s3_server():
    """Yields the port of moto's S3 server, a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with tempfile.TemporaryFile() as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _wait_for(server, port)
            yield port
        finally:
            server.terminate()
            server.wait()


def _wait_for(server, port):
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
        if server.poll() is not None:
            break
    raise RuntimeError("moto's server did not start")
