"""A secret comes from a text or a file that nobody else can read; certificates from files."""

import os
import subprocess

import pytest

from gpukeras.core.errors import SpecError
from gpukeras.distributed.cluster_config import ClusterSpec, read_cluster
from gpukeras.distributed.credentials import Credentials, read_credentials, read_secret

LONG = "0123456789abcdef"
FAR = {"workers": ["10.0.0.5:2222", "10.0.0.6:2222"], "index": 1}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(f"{LONG}\n")
    path.chmod(0o600)
    return path


def test_a_secret_is_a_text_or_what_is_in_a_file(file, monkeypatch):
    monkeypatch.setenv("HOME", str(file.parent))
    assert read_secret(f" {LONG}\n") == LONG.encode()
    assert read_secret(str(file)) == LONG.encode()
    assert read_secret("~/secret") == LONG.encode()
    file.chmod(0o400)
    assert read_secret(str(file)) == LONG.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_a_file_that_others_can_use_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(SpecError, match="others than its owner can use the file secret") as caught:
        read_secret(str(file))
    assert f"(its mode is {mode:o})" in caught.value.message
    assert caught.value.details["arg"] == "secret"
    assert "Make a new one" in caught.value.hint
    assert LONG not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(file):
    os.chown(file, 65534, -1)
    with pytest.raises(SpecError, match="the file secret belongs to another user"):
        read_secret(str(file))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "at least 16 characters and at most 4,096, not 0"),
        ("short", "not 5"),
        ("x" * 4097, "not 4,097"),
        (7, "`secret` must be a text or the path of a file, not"),
        (True, "`secret` must be a text or the path of a file, not"),
        ("/no/such/file", "the file file cannot be read: No such file"),
        ("/", "cannot be read"),
    ],
)
def test_what_is_no_secret_is_refused(given, says):
    with pytest.raises(SpecError, match=says) as caught:
        read_credentials(given, None, {})
    assert caught.value.details["arg"] == "secret"


def test_a_pipe_is_not_waited_at(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SpecError, match="it is a pipe, not a file"):
        read_secret(str(tmp_path / "pipe"))


def test_what_the_user_gives_wins_over_the_environment(file):
    variables = {"GPUKERAS_SECRET": "of the environment"}
    assert read_credentials(None, None, variables).secret == b"of the environment"
    assert read_credentials(str(file), None, variables).secret == LONG.encode()
    assert not read_credentials(None, None, {"GPUKERAS_SECRET": ""}).given
    with pytest.raises(SpecError, match="`GPUKERAS_SECRET` must have at least"):
        read_credentials(None, None, {"GPUKERAS_SECRET": "short"})


def test_a_secret_is_never_shown():
    spec = ClusterSpec(("a:1", "b:1"), credentials=Credentials(LONG.encode()))
    assert LONG not in repr(spec)


def test_workers_of_several_computers_need_a_secret(file):
    with pytest.raises(SpecError, match="Workers of several computers need a secret") as caught:
        read_cluster(FAR, {})
    assert "export GPUKERAS_SECRET=$(openssl rand -hex 32)" in caught.value.hint
    assert read_cluster({**FAR, "secret": str(file)}, {}).credentials.given
    assert read_cluster(FAR, {"GPUKERAS_SECRET": LONG}).credentials.given
    assert read_cluster({"workers": ["10.0.0.5:2222"], "index": 1}, {}).size == 1
    here = {"workers": ["127.0.0.1:2222", "127.0.0.1:2223"], "index": 1}
    assert not read_cluster(here, {}).credentials.given


# Certificates ------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    paths = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=a -keyout {} -out {}"
    try:
        subprocess.run(
            command.format(paths["key"], paths["cert"]).split(), check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("there is no program openssl here, which makes certificates")
    paths["ca"].write_text(paths["cert"].read_text())
    paths["key"].chmod(0o600)
    return {name: str(path) for name, path in paths.items()}


def test_certificates_are_files_by_name(files):
    known = read_credentials(None, files, {})
    assert known.tls == (files["cert"], files["key"], files["ca"])
    assert known.given
    assert known.open_tls(is_chief=True) is not None
    assert known.open_tls(is_chief=False).check_hostname
    assert read_cluster({**FAR, "tls": files}, {}).credentials.given
    assert Credentials().open_tls(is_chief=True) is None


@pytest.mark.varies
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": None}, "the file None of `key` is not there"),
        ({"ca": "/no/ca.pem"}, "the file ca.pem of `ca` is not there"),
        ({"other": "x"}, "`tls` must name the files `cert`, `key` and `ca`, not cert, key, ca, ot"),
    ],
)
def test_files_that_are_not_there_are_named(files, change, says):
    with pytest.raises(SpecError, match=says) as caught:
        read_credentials(None, {**files, **change}, {})
    assert caught.value.details["arg"] == "tls"
    with pytest.raises(SpecError, match="`tls` must name the files"):
        read_credentials(None, "worker.pem", {})


def test_a_key_that_others_can_read_is_refused(files):
    os.chmod(files["key"], 0o644)
    with pytest.raises(SpecError, match="`tls`: others than its owner can use the file key.pem"):
        read_credentials(None, files, {})


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_files_that_are_no_certificates_are_refused(files, name):
    with open(files[name], "w") as file:
        file.write("nothing of the kind")
    known = read_credentials(None, files, {})
    for is_chief in (True, False):
        with pytest.raises(SpecError, match="`tls`: the certificate, its key and the `ca` cannot"):
            known.open_tls(is_chief)
