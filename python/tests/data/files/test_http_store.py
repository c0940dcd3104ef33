import urllib.parse

import numpy as np
import pyarrow as pa
import pytest
from object_servers import objects
from table_files import read, write_bytes

from gpukeras import DataError, RuntimeMissingError
from gpukeras.data.files import stores
from gpukeras.data.files.stores import is_loopback
from gpukeras.data.reader.table.features import open_table

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


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arrow"])
def test_files_of_a_web_server_are_read(suffix):
    with objects({f"/a%20b/t{suffix}": written(suffix)}) as (url, _):
        assert read(f"{url}/a b/t{suffix}") == TABLE


def test_only_the_columns_asked_for_are_sent():
    content = written(".parquet")
    with objects({"/t.parquet": content}) as (url, answers):
        assert read(f"{url}/t.parquet", columns=["c"]) == TABLE.select(["c"])
    assert 0.15 < answers.sent / len(content) < 0.35
    assert all(asked.startswith("bytes=") for _, _, asked in answers.requests)


def test_what_is_transient_is_asked_for_again():
    with objects({"/t.parquet": written(".parquet")}) as (url, answers):
        faults = [None, "503", "drop", None, "truncate", None, "500", "500"]
        answers.rule = lambda *_: faults.pop(0) if faults else None
        assert read(f"{url}/t.parquet") == TABLE


@pytest.mark.varies
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "the server answers HTTP status 500, 3 times"),
        ("403", "access is denied"),
        ("truncate", "the server breaks off, 3 times"),
        ("stall", "the server does not answer, or breaks off, 3 times"),
        ("drop", "the server does not answer, or breaks off, 3 times"),
        ("drip", "the server sends too slowly, 3 times"),
    ],
)
def test_what_lasts_is_an_error_that_names_the_file(suffix, fault, reason):
    login = "me:open-sesame@"
    with objects({f"/t{suffix}?sig=hidden": written(suffix)}) as (url, answers):
        given = url.replace("//", f"//{login}") + f"/t{suffix}?sig=hidden"
        reader = open_table(given, "x")
        opened = len(answers.requests)
        answers.rule = lambda *_: fault if len(answers.requests) > opened + 3 else None
        with pytest.raises(DataError, match=f"`x`: the file t{suffix} .*: {reason}") as raised:
            list(reader.batches())
    assert raised.value.details["path"] == f"{url}/t{suffix}"
    said = f"{raised.value} {raised.value.details}"
    assert "sesame" not in said
    assert "hidden" not in said


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("new", "message"),
    [
        (None, "is gone"),
        (b"x\n1\n", "changed after it was opened"),
    ],
)
def test_a_file_that_changes_or_goes_meanwhile_is_an_error(suffix, new, message):
    content = {"/t": written(suffix)}
    with objects(content) as (url, answers):
        reader = open_table(f"{url}/t", "x", format=suffix[1:])
        before = len(answers.requests)

        def rule(*_):
            if len(answers.requests) == before + 3:
                content["/t"] = new

        answers.rule = rule
        with pytest.raises(DataError, match=f"the file t {message}"):
            list(reader.batches())


def test_a_changed_file_of_the_same_size_is_found_by_its_etag():
    content = {"/t.parquet": written(".parquet")}
    with objects(content) as (url, _):
        reader = open_table(f"{url}/t.parquet", "x")
        content["/t.parquet"] = content["/t.parquet"][:-1] + b"2"
        with pytest.raises(DataError, match=r"the file t\.parquet changed after it was opened"):
            list(reader.batches())


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


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({}, {}, r"the file t\.csv does not exist"),
        ({"/t.csv": b""}, {}, r"the file t\.csv is empty"),
        ({"/t.csv": b"a\n1\n"}, {"ranges": False}, "the server gives no ranges of it"),
    ],
)
def test_what_cannot_be_read_is_named(content, options, message):
    with objects(content, **options) as (url, _), pytest.raises(DataError, match=message):
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
