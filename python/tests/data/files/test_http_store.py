"""What is of web servers alone; what all files promise is in test_stores.py."""

import urllib.parse

import numpy as np
import pyarrow as pa
import pytest
from object_servers import objects
from table_files import read, write_bytes

from gpukeras import DataError, RuntimeMissingError
from gpukeras.data.files import stores
from gpukeras.data.files.stores import is_loopback

RANDOM = np.random.default_rng(1)
TABLE = pa.table({name: RANDOM.normal(size=20_000) for name in "abcdef"})


def written(suffix, table=TABLE):
    return write_bytes(table, suffix)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(stores, "HTTP_ATTEMPTS", 3)
    monkeypatch.setattr(stores, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(stores, "SLOWEST_BYTES", 2**24)


def test_a_login_goes_to_its_own_server_only():
    table, word = {"/t.csv": written(".csv"), "/moved.csv": "/t.csv"}, "Basic bWU6b3Blbi1zZXNhbWU="
    with objects(table, password=word) as (url, _):
        with pytest.raises(DataError, match=r"t\.csv cannot be opened: access is denied"):
            read(f"{url}/t.csv")
        mine = url.replace("//", "//me:open-sesame@")
        assert read(f"{mine}/t.csv") == TABLE
        assert read(f"{mine}/moved.csv") == TABLE
        with objects({"/away.csv": f"{url}/t.csv"}) as (other, _):
            other = other.replace("//", "//me:open-sesame@")
            with pytest.raises(DataError, match="access is denied"):
                read(f"{other}/away.csv")


def test_redirections_lead_to_https_only():
    with (
        objects({"/t.csv": "http://gpukeras.invalid/t.csv"}) as (url, _),
        pytest.raises(DataError, match="sends on to an address that is not https://"),
    ):
        read(f"{url}/t.csv")


def test_a_server_without_ranges_is_named():
    with (
        objects({"/t.csv": b"a\n1\n"}, ranges=False) as (url, _),
        pytest.raises(DataError, match="the server gives no ranges of it"),
    ):
        read(f"{url}/t.csv")


def test_http_is_for_this_computer_only():
    with pytest.raises(DataError, match="http://gpukeras.invalid is not read") as raised:
        read("http://me:open-sesame@gpukeras.invalid/t.csv")
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("localhost", 1), ("127.0.0.9", 1), ("[::1]", 1), ("10.0.0.1", 0), ("localhost.net", 0)],
)
def test_loopback(host, is_one):
    assert is_loopback(urllib.parse.urlunsplit(("http", host, "/", "", ""))) == bool(is_one)


def test_without_tls_https_is_refused_in_words(monkeypatch):
    monkeypatch.delattr("http.client.HTTPSConnection")
    with pytest.raises(RuntimeMissingError, match="https:// needs Python's module ssl"):
        read("https://gpukeras.invalid/t.csv")


class Dripping:
    """An answer whose second half comes a byte a second, by a clock of its own."""

    status = 206

    def __init__(self, count):
        self.count, self.seconds = count, 0.0
        place = f"bytes 0-{count - 1}/{count}"
        self.headers = {"Content-Range": place, "ETag": "1"}

    def read1(self, _):
        self.seconds += 1.0
        return bytes(self.count // 2 if self.seconds == 1.0 else 1)


def test_a_server_that_begins_to_drip_is_given_up_soon_however_much_is_asked_for(monkeypatch):
    answer = Dripping(2**26)
    monkeypatch.setattr(stores, "SILENT_SECONDS", 20.0)
    monkeypatch.setattr(stores, "SLOWEST_BYTES", 2**13)
    monkeypatch.setattr(stores.time, "monotonic", lambda: answer.seconds)
    with pytest.raises(stores._Transient, match="the server sends too slowly"):
        stores._take(answer, 0, answer.count)
    assert answer.seconds == 40
