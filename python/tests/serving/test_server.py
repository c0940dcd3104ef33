"""A real server, with real clients: those that come together, that go, that send nonsense."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack

import numpy as np
import pytest
from children import PATHS, PATIENCE_S
from served import ask, exchange, frame_dataset, make_columns, to_json_rows

from gpukeras import DataError, ModelError, RuntimeMissingError, ServiceError, SpecError
from gpukeras.core.attached_process import server_runs, stop_server
from gpukeras.export import archive
from gpukeras.models import mlp
from gpukeras.serving import server, server_main
from gpukeras.serving.options import ServeSpec
from gpukeras.serving.server import read_told, start_server
from gpukeras.training import fit, predict

pytestmark = [pytest.mark.tf, pytest.mark.process]
TOKEN = "0123456789-abcdef"
CLIENTS = 16


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = frame_dataset()
    model = mlp.build_mlp(data, {"units": [4], "seed": 1})
    fit.fit(model, data, {"epochs": 1})
    path = str(tmp_path_factory.mktemp("served") / "m.keras")
    archive.save_archive(model, path)
    return model, path


@pytest.fixture(scope="module")
def rows(trained):
    """Rows as clients write them, and what the model predicts for each."""
    columns = make_columns(64, seed=2)
    values = predict.predict(trained[0], {"kind": "columns", "columns": columns})["values"]
    return to_json_rows(columns), values


@pytest.fixture(scope="module")
def served(trained):
    record = start_server(path=trained[1], options={"max_batch": 16, "max_body": 20_000})
    yield record
    stop_server(record["handle"])


@pytest.fixture(scope="module")
def guarded(trained):
    """A server with a token, of a model in memory, whose requests wait for others for long."""
    options = {"token": TOKEN, "max_batch": 16, "max_wait": 500}
    record = start_server(model=trained[0], options=options)
    yield record
    stop_server(record["handle"])


def test_a_server_says_where_it_is_and_describes_its_model(served):
    assert served["url"] == f"http://127.0.0.1:{served['port']}/"
    assert served["token"] is False
    assert ask(served["port"], "/health")[:2] == (200, {"status": "ok"})
    status, about, _ = ask(served["port"], "/model")
    assert status == 200
    assert [one["name"] for one in about["inputs"]["columns"]] == ["a", "b", "day", "at", "took"]


def test_it_listens_on_loopback_only(served):
    import psutil

    listening = psutil.Process(served["handle"]._child.pid).net_connections()
    assert {one.laddr.ip for one in listening if one.status == "LISTEN"} == {"127.0.0.1"}


def test_many_clients_get_the_predictions_of_their_own_rows(served, rows):
    given, expected = rows
    wrong, answers = [], []

    def client(number):
        connection = http.client.HTTPConnection("127.0.0.1", served["port"], timeout=PATIENCE_S)
        for turn in range(8):
            places = [(number * 7 + turn * 3 + step) % len(given) for step in range(1 + turn % 3)]
            body = {"rows": [given[place] for place in places]}
            status, answer, _ = exchange(connection, body=body)
            answers.append(status)
            if not np.allclose(answer["predictions"], expected[places], rtol=1e-5):
                wrong.append((number, turn))
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [200] * (8 * CLIENTS)
    assert wrong == []


def test_clients_that_go_harm_nobody(served, rows):
    given, expected = rows
    body = json.dumps({"rows": given[:8]}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for cut in (3, len(head), len(whole) - 20, len(whole)):
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", served["port"])) as client:
                # The connection is reset, as when a client is killed.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(whole[:cut])
    status, answer, _ = ask(served["port"], body={"rows": given[:2]})
    assert status == 200
    np.testing.assert_allclose(answer["predictions"], expected[:2], rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "service"),
        (b"\x00\xff", 400, "service"),
        (b"[" * 15_000, 400, "service"),
        (b"{}", 422, "data"),
        (b'{"rows": [], "type": "odds"}', 422, "spec"),
        (b'{"rows": [], "interval": 0.9}', 200, None),
        (b" " * 30_000, 413, "service"),
    ],
)
def test_malformed_bodies_are_told(served, body, status, code):
    found, answer, headers = ask(served["port"], body=body)
    assert found == status
    assert answer.get("error", {}).get("code") == code
    if status == 413:
        assert answer["error"]["message"] == "The body is larger than 20,000 bytes."
        assert headers["connection"] == "close"


def test_an_error_names_the_column_and_shows_no_value(served, rows):
    row = {**rows[0][0], "a": "my secret value"}
    status, answer, _ = ask(served["port"], body={"rows": [row]})
    assert status == 422
    assert answer["error"]["column"] == "a"
    assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/nothing", "GET", {}, 404),
        ("/predict", "GET", {}, 405),
        ("/predict", "POST", {"Content-Type": "text/plain"}, 415),
        ("/predict", "POST", {}, 415),
        ("/health", "GET", {"Host": "evil.example"}, 403),
        ("/model", "GET", {"Host": "evil.example:80"}, 403),
        ("/model", "GET", {"Host": "LOCALHOST:9"}, 200),
        ("/model/", "GET", {"Host": "evil.example"}, 403),
        ("/nothing", "GET", {"Host": "evil.example"}, 403),
    ],
)
def test_other_paths_methods_types_and_hosts(served, path, method, headers, status):
    status_found, answer, sent = ask(served["port"], path, headers=headers, method=method)
    assert status_found == status
    assert "evil" not in json.dumps([answer, sent])


def test_a_redirect_is_to_the_server_itself(served):
    connection = http.client.HTTPConnection("127.0.0.1", served["port"], timeout=PATIENCE_S)
    connection.request("GET", "/model/")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("location")) == (307, f"{served['url']}model")
    connection.close()


def test_without_the_token_there_is_only_the_health(guarded, rows):
    body = {"rows": rows[0][:1]}
    port = guarded["port"]
    assert ask(port, "/health")[0] == 200
    for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        status, answer, headers = ask(port, body=body, headers=sent)
        assert (status, answer["error"]["code"]) == (401, "service")
        assert headers["www-authenticate"] == "Bearer"
    assert ask(port, "/model", headers={"Authorization": "Bearer gelöst".encode()})[0] == 401
    assert ask(port, body=body, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200


def test_the_token_is_in_no_argument_and_no_description(guarded):
    import psutil

    child = psutil.Process(guarded["handle"]._child.pid)
    assert TOKEN not in " ".join(child.cmdline())
    assert TOKEN not in repr({name: value for name, value in guarded.items()})
    assert TOKEN not in repr(vars(guarded["handle"]))


def begin(port, size):
    """A client whose request is in flight: the server has asked for its body, and waits for it."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    lines = [
        "POST /predict HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {size}",
        "Expect: 100-continue",
    ]
    client.sendall("\r\n".join([*lines, "", ""]).encode())
    assert receive(client) == b"HTTP/1.1 100 Continue"
    return client


def receive(client):
    """The first line of an answer whose headers have arrived."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = client.recv(4096)
        assert part, answer
        answer += part
    return answer.partition(b"\r\n")[0]


@pytest.mark.slow
def test_a_stopped_server_answers_what_is_in_flight(guarded, rows):
    """The last test of this server, since it stops it."""
    body = json.dumps({"rows": rows[0][:3]}).encode()
    with ExitStack() as clients:
        asked = [clients.enter_context(begin(guarded["port"], len(body))) for _ in range(4)]
        for client in asked:
            client.sendall(body)  # with it they wait for others
        stop_server(guarded["handle"])
        answers = [receive(client) for client in asked]
    assert answers == [b"HTTP/1.1 200 OK"] * 4
    assert server_runs(guarded["handle"]) is False
    stop_server(guarded["handle"])  # again does nothing
    with pytest.raises(ConnectionRefusedError):
        ask(guarded["port"], "/health")


# Starting -----------------------------------------------------------------------------------------


def test_a_server_that_cannot_start_says_why(trained, served, tmp_path):
    with pytest.raises(SpecError, match=rf"`port` {served['port']} is in use"):
        start_server(path=trained[1], options={"port": served["port"]})
    damaged = tmp_path / "damaged.keras"
    damaged.write_bytes(b"no model")
    with pytest.raises(ModelError, match="damaged"):
        start_server(path=str(damaged))


def test_an_address_of_another_computer_is_refused():
    with pytest.raises(SpecError, match="Nothing can listen on `host` 192.0.2.1"):
        server_main.open_socket(ServeSpec("192.0.2.1", token=TOKEN))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        class Taken(ServeSpec):
            ports = range(port, port + 1)

        with pytest.raises(SpecError, match=f"ports from {port} to {port} are all in use"):
            server_main.open_socket(Taken())


def test_servers_that_start_together_get_ports_of_their_own():
    spec = ServeSpec()
    with server_main.open_socket(spec) as one, server_main.open_socket(spec) as other:
        assert one.getsockname() != other.getsockname()


def test_what_is_missing_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr(server_main, "PACKAGES", ("uvicorn", "no_such_package"))
    words = "gpu_serve\\(\\) needs the Python packages uvicorn and no_such_package"
    with pytest.raises(RuntimeMissingError, match=words) as found:
        start_server(path="m.keras", python="/usr/bin/python3")
    assert found.value.hint.endswith("/usr/bin/python3 -m pip install uvicorn no_such_package")


def test_what_a_child_says_is_its_address_or_its_error():
    assert read_told(b'{"url": "u"') == {}
    assert read_told(b'{"url": "u"}\nmore') == {"url": "u"}
    line = json.dumps(
        {"code": "data", "message": "Bad.", "hint": "Mend.", "details": {"arg": "model"}}
    )
    with pytest.raises(DataError, match="Bad. Mend.") as found:
        read_told(line.encode() + b"\n")
    assert found.value.details == {"arg": "model"}


def test_a_child_that_dies_or_hangs_is_told(monkeypatch):
    monkeypatch.delattr(os, "pread")  # Windows has none
    monkeypatch.setattr(server, "PROGRAM", "gpukeras.no_such_module")
    with pytest.raises(ServiceError, match="The server ended before it listened: exit status 1, "):
        server.PredictionServer("m.keras", ServeSpec(), sys.executable)
    monkeypatch.setattr(server, "START_S", 0.0)
    with pytest.raises(ServiceError, match="The server did not listen within 0 s"):
        server.PredictionServer("m.keras", ServeSpec(), sys.executable)


def test_the_command_line_serves_until_sigterm(trained, rows):
    environment = {**os.environ, "PYTHONPATH": PATHS, "GPUKERAS_TOKEN": TOKEN}
    program = [sys.executable, "-m", "gpukeras", "serve", trained[1], "--max-batch", "4"]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE) as child:
        told = json.loads(child.stdout.readline())
        request = urllib.request.Request(
            told["url"] + "predict",
            json.dumps({"rows": rows[0][:1]}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PATIENCE_S) as answer:
            found = json.load(answer)["predictions"]
        np.testing.assert_allclose(found, rows[1][:1], rtol=1e-5)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_the_command_line_tells_errors(capsys, monkeypatch):
    monkeypatch.delenv("GPUKERAS_TOKEN", raising=False)
    assert server_main.main(["m.keras", "--host", "0.0.0.0"]) == 1
    assert "there is no token" in capsys.readouterr().out
