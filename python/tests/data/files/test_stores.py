"""What files promise wherever they lie: in folders, on web servers, in S3's buckets.

The servers are real, and break their answers as a rule says.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from object_servers import KEY, SECRET, objects
from table_files import read, write_bytes

from gpukeras import DataError
from gpukeras.data.files import stores
from gpukeras.data.reader.table.features import open_table

RANDOM = np.random.default_rng(1)
TABLE = pa.table(
    {
        **{name: RANDOM.normal(size=20_000) for name in "abcdef"},
        "s": pa.array(RANDOM.choice(["x", "y", "größe"], 20_000)),
    }
)


@dataclass
class Folder:
    """Files of this computer."""

    root: Path

    def address(self, key):
        return str(self.root / key)

    shown = address

    def put(self, key, content):
        self.root.joinpath(key).parent.mkdir(exist_ok=True)
        self.root.joinpath(key).write_bytes(content)

    def remove(self, key):
        self.root.joinpath(key).unlink()

    def close(self):
        for path in [path for path in self.root.rglob("*") if path.is_file()]:
            path.unlink()


@dataclass
class Web:
    """Files of a web server, whose addresses have a login and a signature."""

    stack: ExitStack
    content: dict = field(default_factory=dict)
    opening = 3  # requests after a file was opened that must succeed for its rows to be begun
    transient = (None, "503", "drop", None, "truncate", None, "500", "500")

    def __post_init__(self):
        self.url, self.answers = self.stack.enter_context(objects(self.content))

    def address(self, key):
        return self.shown(key).replace("//", "//me:open-sesame@") + "?sig=hidden"

    def shown(self, key):
        return f"{self.url}/{key}"

    def put(self, key, content):
        self.content[f"/{key.replace(' ', '%20')}?sig=hidden"] = content

    def remove(self, key):
        self.put(key, None)

    def close(self):
        self.stack.close()


@dataclass
class S3:
    """Objects of a bucket, whose addresses have a key and a secret."""

    bucket: object
    opening = 1
    transient = ("500", None, "truncate", None, "503")

    def __post_init__(self):
        self.answers = self.bucket.answers
        self.put, self.remove = self.bucket.put, self.bucket.remove

    def address(self, key):
        return f"s3://{KEY}:{SECRET}@bucket/{key}"

    def shown(self, key):
        return f"s3://bucket/{key}"

    def close(self):
        pass


def open_place(name, request):
    if name == "folder":
        return Folder(request.getfixturevalue("tmp_path"))
    return Web(ExitStack()) if name == "web" else S3(request.getfixturevalue("bucket"))


@pytest.fixture
def place(request, monkeypatch):
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(stores, "HTTP_ATTEMPTS", 3)
    monkeypatch.setattr(stores, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(stores, "SLOWEST_BYTES", 2**24)
    opened = open_place(request.param, request)
    yield opened
    opened.close()


def at(*places):
    return pytest.mark.parametrize("place", places, indirect=True)


def written(suffix, table=TABLE):
    return write_bytes(table, suffix)


@at("folder", "web", "s3")
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arrow", ".h5"])
def test_what_was_written_is_read(place, suffix):
    place.put(f"a b/t{suffix}", written(suffix))
    assert read(place.address(f"a b/t{suffix}")).select(TABLE.column_names) == TABLE


@at("web", "s3")
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_only_the_columns_asked_for_are_sent(place, suffix):
    content = written(suffix)
    place.put(f"t{suffix}", content)
    assert read(place.address(f"t{suffix}"), columns=["c"]) == TABLE.select(["c"])
    assert 0.1 < place.answers.sent / len(content) < 0.35
    gets = [asked for method, _, asked in place.answers.requests if method == "GET"]
    assert all(asked.startswith("bytes=") for asked in gets)


@at("web", "s3")
def test_what_is_transient_is_asked_for_again(place):
    place.put("t.parquet", written(".parquet"))
    faults = [*place.transient]
    place.answers.rule = lambda *_: faults.pop(0) if faults else None
    assert read(place.address("t.parquet")) == TABLE
    assert not faults


LASTING = {
    "web": {
        "500": "the server answers HTTP status 500, 3 times",
        "403": "access is denied",
        "truncate": "the server breaks off, 3 times",
        "stall": "the server does not answer, or breaks off, 3 times",
        "drop": "the server does not answer, or breaks off, 3 times",
        "drip": "the server sends too slowly, 3 times",
    },
    "s3": {
        "500": "the store answers HTTP status 500",
        "403": "access is denied",
        "truncate": "the store does not answer, or breaks off",
        "stall": "the store does not answer, or breaks off",
        "drop": "the store does not answer, or breaks off",
    },
}
SLOW = [("s3", "stall"), ("s3", "drop"), ("s3", "truncate")]  # it tries for seconds: one format
FAULTS = [
    (place, fault, suffix)
    for place, reasons in LASTING.items()
    for fault in reasons
    for suffix in ([".parquet"] if (place, fault) in SLOW else [".csv", ".parquet", ".arrow"])
]
FAULTS += [("s3", "500", ".h5"), ("s3", "403", ".h5"), ("s3", "truncate", ".csv")]
FAULTS += [("s3", "drop", ".csv.gz")]


@pytest.mark.varies
@pytest.mark.parametrize(("place", "fault", "suffix"), FAULTS, indirect=["place"])
def test_what_lasts_is_an_error_that_names_the_file(place, fault, suffix):
    place.put(f"t{suffix}", written(suffix))
    reader = open_table(place.address(f"t{suffix}"), "x")
    opened = place.answers.count("GET")
    reason = LASTING[type(place).__name__.lower()][fault]
    place.answers.rule = lambda method, *_: (
        fault if method == "GET" and place.answers.count("GET") > opened + place.opening else None
    )
    with pytest.raises(DataError, match=f"`x`: the file t{suffix} .*: {reason}") as raised:
        list(reader.batches())
    assert raised.value.details["path"] == place.shown(f"t{suffix}")
    said = f"{raised.value!r} {raised.value.details} {raised.value.__cause__!r}"
    for secret in (KEY, SECRET, "sesame", "hidden"):
        assert secret not in said


CHANGES = {
    "gone": (lambda place, key: place.remove(key), "is gone"),
    "shorter": (lambda place, key: place.put(key, b"a\n1\n"), "changed after it was opened"),
    "as long": (
        lambda place, key: place.put(key, written(f".{key.partition('.')[2]}")[:-1] + b" "),
        "changed after it was opened",
    ),
}


@pytest.mark.varies
@at("web", "s3")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_while_it_is_read_is_an_error(place, suffix, change, message):
    key = f"t{suffix}"
    place.put(key, written(suffix))
    reader = open_table(place.address(key), "x")
    opened, changed = place.answers.count("GET"), []

    def rule(method, *_):
        if place.answers.count("GET") > opened + place.opening and not changed:
            changed.append(method)
            change(place, key)

    place.answers.rule = rule
    with pytest.raises(DataError, match=f"the file t{suffix} {message}"):
        list(reader.batches())
    assert changed


@at("folder", "web", "s3")
@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_before_it_is_read_is_an_error_or_skipped(place, change, message):
    for name in "12":
        place.put(f"t{name}.csv", written(".csv"))
    addresses = [place.address(f"t{name}.csv") for name in "12"]
    stop, skip = (open_table(addresses, "x", on_error=how) for how in ("stop", "skip"))
    change(place, "t1.csv")
    with pytest.raises(DataError, match=rf"the file t1\.csv {message}"):
        list(stop.batches())
    rows = sum(map(len, skip.batches()))
    assert rows == len(TABLE) or rows > len(TABLE) and not isinstance(place, Folder)  # at its end
    assert (skip.skipped.files, skip.skipped.first) == (1, f"`x`: the file t1.csv {message}.")


@at("web", "s3")
def test_a_file_that_is_refused_can_be_skipped_and_is_counted(place):
    for name in "12":
        place.put(f"t{name}.parquet", written(".parquet"))
    place.answers.rule = lambda _, path, __: "403" if path.endswith("t1.parquet") else None
    addresses = [place.address(f"t{name}.parquet") for name in "12"]
    reader = open_table(addresses, "x", on_error="skip")
    assert sum(map(len, reader.batches())) == len(TABLE)
    assert "1 file; the first: `x`: the file t1.parquet" in reader.skipped.explain()


@at("folder", "web", "s3")
def test_what_is_not_there_or_empty_is_named(place):
    place.put("void.csv", b"")
    for name, message in {"none": "does not exist", "void": "is empty"}.items():
        with pytest.raises(DataError, match=rf"the file {name}\.csv {message}") as raised:
            read(place.address(f"{name}.csv"))
        assert raised.value.details["path"] == place.shown(f"{name}.csv")
