"""TLS on the control channel: real connections with certificates, and with others than ours."""

import os
import shutil
import socket
import subprocess
import threading

import pytest
from channels import PATIENCE_S, free_address, make_spec, run_threads
from strangers import JOINED, PLAIN, close_connections, connect, join, recorded

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel import rendezvous
from gpukeras.distributed.channel.channel import open_channel
from gpukeras.distributed.channel.protocol import MAGIC
from gpukeras.distributed.credentials import Credentials


@pytest.fixture(autouse=True)
def close_all():
    yield
    close_connections()


def run_openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_authority(folder, name):
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    run_openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", str(key), "-out", str(cert)),
    )
    return cert, key


def make_certificate(folder, name, authority, address="IP:127.0.0.1"):
    cert, key, request = (folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
    (folder / f"{name}.ext").write_text(f"subjectAltName={address}\n")
    run_openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", str(key), "-out", str(request)),
    )
    run_openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-CA", str(authority[0])),
        *("-CAkey", str(authority[1]), "-CAcreateserial", "-out", str(cert)),
        *("-extfile", str(folder / f"{name}.ext")),
    )
    os.chmod(key, 0o600)
    return Credentials(b"", (str(cert), str(key), str(authority[0])))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("there is no program openssl here, which makes certificates")
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = (make_authority(folder, name) for name in ("ours", "theirs"))
    return {
        "worker": make_certificate(folder, "worker", ours),
        "other host": make_certificate(folder, "other", ours, "IP:192.0.2.1"),
        "stranger": make_certificate(folder, "stranger", theirs),
    }


def test_workers_with_certificates_speak_over_tls(certificates):
    def work(channel):
        told = [channel.exchange(f"step {i}", {"of": channel.index}) for i in range(50)]
        assert told == [[{"of": w} for w in range(3)]] * 50
        much = bytes(range(256)) * 2**13
        assert channel.gather(much[: channel.index]) == [much[:w] for w in range(3)]
        return channel.gather(much if channel.index == 0 else b"")[0] == much

    assert run_threads(3, work, credentials=certificates["worker"], timeout_s=20.0) == [True] * 3


def test_nothing_is_said_in_the_clear_with_tls(certificates):
    control, known = free_address(), certificates["worker"]
    with recorded(control) as (front, sent):
        specs = [make_spec(control, 2, 0, 5.0, known), make_spec(front, 2, 1, 5.0, known)]
        assert join(specs) == JOINED
    assert len(sent[0]) > 100
    assert b"index" not in sent[0]
    assert MAGIC not in sent[0]


def test_strangers_without_a_certificate_of_ours_do_not_end_a_start(certificates):
    control, known = free_address(), certificates["worker"]
    specs = [make_spec(control, 2, index, 5.0, known) for index in range(2)]
    outcomes = []

    def run(spec):
        with open_channel(spec, {}, None, 20) as channel:
            outcomes.append(channel.exchange("joined", {"index": spec.index}))

    chief = threading.Thread(target=run, args=(specs[0],))
    chief.start()
    plain = connect(control)
    plain.sendall(PLAIN["a hello with other versions"])
    spec = make_spec(control, 2, 1, 5.0, certificates["stranger"])
    with pytest.raises(ClusterError, match="has not been found"):
        open_channel(spec, {}, None, 1.0)
    with pytest.raises(ClusterError, match="has not been found"):
        open_channel(make_spec(control, 2, 1), {}, None, 1.0)  # without TLS
    run(specs[1])
    chief.join(PATIENCE_S)
    plain.close()
    assert outcomes == JOINED


@pytest.mark.parametrize("chief", ["stranger", "other host"])
def test_a_chief_without_a_certificate_for_its_address_is_not_believed(certificates, chief):
    control = free_address()
    outcomes = []

    def run():
        with pytest.raises(ClusterError) as caught:
            open_channel(make_spec(control, 2, 0, 5.0, certificates[chief]), {}, None, 2.0)
        outcomes.append(caught.value.message)

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(ClusterError, match="has not been found at 127.0.0.1"):
        open_channel(make_spec(control, 2, 1, 5.0, certificates["worker"]), {}, None, 1.0)
    thread.join(PATIENCE_S)
    assert outcomes == ["Worker 2 (127.0.0.1:2002) has not come within 2 s."]


def test_what_does_not_answer_the_handshake_is_no_chief(certificates, monkeypatch):
    monkeypatch.setattr(rendezvous, "ATTEMPT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        control = f"127.0.0.1:{silent.getsockname()[1]}"
        spec = make_spec(control, 2, 1, 5.0, certificates["worker"])
        with pytest.raises(ClusterError, match="has not been found at .* timed out"):
            open_channel(spec, {}, None, 0.5)


def test_a_connection_that_breaks_without_a_word_has_ended(certificates):
    def work(channel):
        channel.exchange("start", {})
        if channel.index == 1:
            for connection in list(channel._member._connections.values()):
                channel._loop.call_soon_threadsafe(connection.abort)
        return channel.exchange("epoch", {})

    told = run_threads(2, work, credentials=certificates["worker"])
    assert [one.message for one in told] == [
        "Worker 2 (127.0.0.1:2002) has ended.",
        "The chief, worker 1 (127.0.0.1:2001), has ended.",
    ]
