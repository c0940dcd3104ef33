"""What connections may do, without a model: slow ones end, and others do not notice."""

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from functools import partial

import pytest
from children import PATIENCE_S
from served import ask, exchange

from gpukeras import ClusterError, DataError, ModelError, ServiceError
from gpukeras.serving import app as app_module
from gpukeras.serving import http_server
from gpukeras.serving.answers import http_error, status_of
from gpukeras.serving.options import ServeSpec

pytestmark = pytest.mark.process


class Echo:
    """A served model that gives each row its first number; 13 is a defect."""

    recipe = shape = None

    def describe(self):
        return {"name": "echo"}

    def predict(self, requests):
        found = [one.rows.features["values"][:, 0].tolist() for one in requests]
        if any(13 in rows for rows in found):
            raise ZeroDivisionError("with 13, which nobody may see")
        if any(14 in rows for rows in found):
            raise ModelError("`model` takes no 14.")
        if any(15 in rows for rows in found):
            text = "Column `newdata` of `newdata` has values."
            raise DataError(text, hint="Look at `newdata`.", arg="newdata")
        return found


@pytest.fixture(scope="module")
def port():
    """A server in a thread, with short limits."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    started = threading.Event()
    application = app_module.build_app(Echo(), ServeSpec(max_body=2000), started.set, body_s=0.5)
    server = http_server.make_server(application, head_s=0.3)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE_S)


def read_end(client):
    """Reads until the server closes the connection."""
    client.settimeout(PATIENCE_S)
    said = b""
    try:
        while part := client.recv(4096):
            said += part
    except ConnectionResetError:
        pass
    return said


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def trickle(client, sent=b"a"):
    """Sends some bytes now and then ("slow loris"); returns whether the server ends that."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            client.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            return True
        time.sleep(0.05)
    return False


def test_connections_that_bring_no_request_are_closed(port):
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert read_end(silent) == b""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        assert trickle(slow)


def test_a_body_that_trickles_is_sent_away(port):
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert read_end(slow).startswith(b"HTTP/1.1 408 ")


def test_requests_on_one_connection_go_on_beyond_the_limit_for_silence(port):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    client.connect()
    own = client.sock
    for _ in range(8):  # longer than both limits together
        assert exchange(client, "/health")[0] == 200
        time.sleep(0.1)
    assert client.sock is own
    client.close()


def test_a_chunked_body_has_the_same_limit(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"800\r\n" + b" " * 0x800 + b"\r\n0\r\n\r\n")
        client.settimeout(PATIENCE_S)
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_announced_as_too_large_is_refused_before_its_first_byte(port):
    for more in (b"", b"Expect: 100-continue\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(PATIENCE_S)
            client.sendall(HEAD + more + b"Content-Length: 3000\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(4096)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"100 Continue" not in answer
            assert answer.count(b"HTTP/1.1") == 1
            if not more:
                client.sendall(b" " * 3000)  # as clients do that do not look up
            assert client.recv(4096) == b""


def test_of_a_body_that_is_too_large_only_so_much_is_thrown_away(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HEAD + b"Content-Length: 1000000000\r\n\r\n")
        assert trickle(client, b" " * 2000)


def test_errors_name_the_rows_as_the_request_does(port):
    status, answer, _ = ask(port, body={"x": [[15]]})
    assert status == 422
    assert answer["error"] == {
        "code": "data",
        "message": "Column `newdata` of `x` has values.",
        "hint": "Look at `x`.",
        "arg": "x",
    }


def test_endless_bodies_and_heads_end(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
        read_end(client)  # it ends
    assert ask(port, "/health")[0] == 200


def test_a_defect_is_told_without_a_word_about_it(port, caplog):
    with caplog.at_level(logging.ERROR):
        status, answer, _ = ask(port, body={"x": [[13]]})
    assert status == 500
    assert answer == {"error": {"code": "internal", "message": "The server failed."}}
    status, answer, _ = ask(port, body={"x": [[14]]})
    assert status == 422
    assert answer == {"error": {"code": "model", "message": "`model` takes no 14."}}
    assert ask(port, body={"x": [[5]]})[1] == {"predictions": [5]}


def test_errors_with_a_time_to_wait_say_so():
    answer = app_module.tell_error(http_error(503, "Full.", retry_after=1))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    unprocessable = app_module.tell_error(DataError("Wrong."))
    assert json.loads(unprocessable.body)["error"]["message"] == "Wrong."
    assert asyncio.run(app_module.tell_fault(None, ValueError("secret"))).status_code == 500


def test_an_error_of_the_server_itself_is_logged(caplog):
    with caplog.at_level(logging.ERROR):
        assert app_module.tell_error(ClusterError("Worker 2 is lost.")).status_code == 500
        app_module.tell_error(DataError("Wrong."))
    assert [record.getMessage() for record in caplog.records] == ["ClusterError: Worker 2 is lost."]


def test_bodies_share_a_room_and_give_it_back():
    budget = app_module.ByteBudget(10)
    with budget.reserve() as one, budget.reserve() as other:
        one(6)
        other(4)
        with pytest.raises(ServiceError, match="as many bodies in memory as it keeps") as found:
            other(1)
        assert (status_of(found.value), found.value.details["retry_after"]) == (503, 1)
    with budget.reserve() as take:
        take(10)


def test_clients_that_hold_bodies_back_leave_no_room_until_they_are_sent_away(port):
    """The server of this file keeps bodies of 32 x 2000 bytes, and a body for half a second."""
    whole = json.dumps({"x": [1] * 600}).encode()
    with contextlib.ExitStack() as clients:
        connect = partial(socket.create_connection, ("127.0.0.1", port))
        held = [clients.enter_context(connect()) for _ in range(36)]
        for client in held:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(whole) + whole[:-1])
        told = [read_end(client).split(b" ", 2)[1] for client in held]
    assert set(told) == {b"408", b"503"}
    assert ask(port, body={"x": [1]})[0] == 200
