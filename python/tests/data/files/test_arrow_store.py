"""Tables of an S3 server: moto's, a process of its own, behind a proxy that breaks its answers."""

import http.client
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from object_servers import KEY, SECRET, breaking, explain_missing, s3_server
from pyarrow import fs
from table_files import read, write_bytes

from gpukeras import DataError, RuntimeMissingError
from gpukeras.checkpoint.fingerprint import _digest_rows
from gpukeras.data.dataset import map_dataset
from gpukeras.data.files import stores
from gpukeras.data.files.stores import ArrowStore, parse_url
from gpukeras.data.reader.table import columnar
from gpukeras.data.reader.table.features import open_table
from gpukeras.data.recipe.serialization import to_portable

RANDOM = np.random.default_rng(1)
ROWS = 20_000
TABLE = pa.table(
    {
        **{name: RANDOM.normal(size=ROWS) for name in "abcdef"},
        "s": pa.array(RANDOM.choice(["x", "y", "größe"], ROWS)),
        "y": RANDOM.normal(size=ROWS),
    }
)


def written(suffix, table=TABLE):
    return write_bytes(table, suffix)


class Bucket:
    """A bucket of the server's, written past the proxy."""

    def __init__(self, port, answers, url):
        self.port, self.answers, self.url = port, answers, url
        self.files = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"http://127.0.0.1:{port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        self.files.create_dir("bucket")

    def put(self, key, content):
        with self.files.open_output_stream(f"bucket/{key}", compression=None) as file:
            file.write(content)
        return len(content)


@pytest.fixture(scope="module")
def server():
    if explain_missing():
        pytest.skip(explain_missing())
    with s3_server() as port, breaking(port) as (url, answers):
        yield Bucket(port, answers, url)


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))
    monkeypatch.setattr(stores, "STORE_ATTEMPTS", 2)
    monkeypatch.setattr(stores, "READ_SECONDS", 1.0)
    server.answers.rule = None
    server.answers.requests.clear()
    server.answers.sent = 0
    server.answers.released.clear()
    yield server
    server.answers.released.set()
    assert os.listdir(tmp_path) == []


@pytest.mark.varies
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".csv.gz", ".h5"])
def test_objects_give_the_rows_that_files_give(bucket, tmp_path, suffix):
    parts = [TABLE.slice(0, 7000), TABLE.slice(7000)]
    local = tmp_path / f"0{suffix}"
    for number, part in enumerate(parts):
        bucket.put(f"same{suffix}/part {number}{suffix}", written(suffix, part))
    local.write_bytes(written(suffix, parts[0]))
    expected = read(str(local))
    local.unlink()
    found = read(f"s3://bucket/same{suffix}/*{suffix}")
    assert found.slice(0, 7000).combine_chunks() == expected.combine_chunks()
    assert found.num_rows == ROWS
    assert read(f"s3://bucket/same{suffix}", columns=["y", "s"]) == found.select(["y", "s"])


@pytest.mark.parametrize(("suffix", "share"), [(".parquet", 0.35), (".arrow", 0.35)])
def test_only_the_columns_asked_for_are_read(bucket, suffix, share):
    size = bucket.put(f"part{suffix}", written(suffix))
    assert read(f"s3://bucket/part{suffix}", columns=["a"]) == TABLE.select(["a"])
    assert 0 < bucket.answers.sent / size < share
    assert all(asked for method, _, asked in bucket.answers.requests if method == "GET")


def test_a_dataset_is_that_of_the_file_and_reads_each_object_once(bucket, tmp_path):
    sizes = [bucket.put(f"once/{n}.parquet", written(".parquet")) for n in range(2)]
    local = tmp_path / "0.parquet"
    local.write_bytes(written(".parquet"))
    made = [
        map_dataset.build_dataset({"kind": "table", "paths": paths, "label": "y"}, {"seed": 1})
        for paths in ([str(local), "s3://bucket/once/1.parquet"], ["s3://bucket/once"])
    ]
    local.unlink()
    rows = slice(0, 2 * ROWS)
    for mine, of_files in zip(made[1].sources, made[0].sources, strict=True):
        np.testing.assert_array_equal(mine.gather(rows), of_files.gather(rows))
    # What a checkpoint knows the rows by.
    digests = {_digest_rows(data.sources[:1], exact=True) for data in made}
    assert len(digests) == 1
    assert bucket.answers.sent < 1.1 * (sizes[0] + 2 * sizes[1])


@pytest.mark.parametrize(("kept", "times"), [(columnar.FOOTER_BYTES, 1), (0, 2)])
def test_footers_are_read_once_while_they_are_small(bucket, monkeypatch, kept, times):
    monkeypatch.setattr(columnar, "FOOTER_BYTES", kept)
    sizes = [bucket.put(f"footers/{n}.parquet", written(".parquet")) for n in range(2)]
    bucket.answers.requests.clear()
    assert read("s3://bucket/footers").num_rows == 2 * ROWS
    ends = [asked for method, _, asked in bucket.answers.requests if method == "GET" and asked]
    assert sum(asked.endswith(f"-{sizes[0] - 1}") for asked in ends) == 2 * times


def test_what_is_transient_is_asked_for_again(bucket):
    bucket.put("retry.parquet", written(".parquet"))
    faults = ["500", None, "truncate", None, "503"]
    bucket.answers.rule = lambda *_: faults.pop(0) if faults else None
    assert read("s3://bucket/retry.parquet") == TABLE
    assert not faults


@pytest.mark.parametrize(
    ("suffix", "fault", "reason"),
    [
        (".csv", "500", "the store answers HTTP status 500"),
        (".parquet", "500", "the store answers HTTP status 500"),
        (".arrow", "403", "access is denied"),
        (".parquet", "403", "access is denied"),
        (".csv", "truncate", "the store does not answer, or breaks off"),
        (".parquet", "truncate", "the store does not answer, or breaks off"),
        (".csv.gz", "drop", "the store does not answer, or breaks off"),
        (".parquet", "stall", "the store does not answer, or breaks off"),
        (".h5", "500", "the store answers HTTP status 500"),
        (".h5", "403", "access is denied"),
    ],
)
def test_what_lasts_is_an_error_that_names_the_object(bucket, suffix, fault, reason):
    bucket.put(f"broken{suffix}", written(suffix))
    reader = open_table(f"s3://bucket/broken{suffix}", "x")
    opened = bucket.answers.count("GET")
    bucket.answers.rule = lambda method, *_: (
        fault if method == "GET" and bucket.answers.count("GET") > opened + 1 else None
    )
    with pytest.raises(DataError, match=f"`x`: the file broken{suffix} .*: {reason}") as raised:
        list(reader.batches())
    assert raised.value.details["path"] == f"s3://bucket/broken{suffix}"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bucket, key: bucket.files.delete_file(f"bucket/{key}"), "is gone"),
        (lambda bucket, key: bucket.put(key, b"a\n1\n"), "changed after it was opened"),
        (
            lambda bucket, key: bucket.put(key, written("." + key.split(".")[1])[:-1] + b" "),
            "changed after it was opened",
        ),
    ],
    ids=["gone", "shorter", "as long"],
)
def test_an_object_that_changes_meanwhile_is_an_error(bucket, suffix, change, message):
    key = f"changed{suffix}"
    bucket.put(key, written(suffix))
    bucket.put("other" + suffix, written(suffix))
    features = {"kind": "table", "paths": [f"s3://bucket/{key}", f"s3://bucket/other{suffix}"]}
    gets, changed = [], []

    def rule(method, path, _):
        if method == "GET" and path.endswith(key):
            gets.append(path)
        if len(gets) == (5 if suffix == ".parquet" else 3) and not changed:
            changed.append(path)
            change(bucket, key)

    bucket.answers.rule = rule
    with pytest.raises(DataError, match=f"the file {key} {message}"):
        map_dataset.build_dataset({**features, "label": "y"}, {"seed": 1})
    assert changed


def test_an_object_that_breaks_off_can_be_skipped_and_is_counted(bucket):
    for name in ("1", "2"):
        bucket.put(f"skip/{name}.parquet", written(".parquet"))
    bucket.answers.rule = lambda _, path, __: "403" if path.endswith("1.parquet") else None
    reader = open_table("s3://bucket/skip", "x", on_error="skip")
    assert sum(map(len, reader.batches())) == ROWS
    assert "1 file; the first: `x`: the file 1.parquet" in reader.skipped.explain()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("s3://bucket/none.csv", r"the file none\.csv does not exist"),
        ("s3://nobucket/*.csv", "s3://nobucket/.*cannot be opened: there is no such bucket"),
        ("s3://bucket/none/*.csv", r"no object matches s3://bucket/none/\*\.csv"),
    ],
)
def test_what_is_not_there_is_named(bucket, given, message):
    with pytest.raises(DataError, match=message):
        read(given)


def test_the_address_may_say_who_asks_and_whom_and_that_is_shown_nowhere(bucket, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    bucket.put("mine.parquet", written(".parquet"))
    login = f"s3://{KEY}:{SECRET}@bucket"
    query = f"endpoint_override={bucket.url}&region=eu-north-1"
    given = {"kind": "table", "paths": [f"{login}/mine.parquet?{query}"], "label": "y"}
    data = map_dataset.build_dataset(given, {"seed": 1})
    shown = [data.notes, data.plan, data.recipe, json.dumps(to_portable(data.recipe), default=str)]
    assert SECRET not in repr(shown)
    with pytest.raises(DataError, match="not exist") as raised:
        read(f"{login}/none.parquet?{query}")
    said = f"{raised.value!r} {raised.value.details} {raised.value.__cause__!r}"
    assert SECRET not in said
    assert KEY not in said


def test_public_objects_need_no_key(bucket, monkeypatch):
    there = http.client.HTTPConnection("127.0.0.1", bucket.port)
    for right in ("public-read", "private"):
        there.request("PUT", f"/bucket/{right}.csv", b"a\n1\n", {"x-amz-acl": right})
        there.getresponse().read()
    there.close()
    assert len(read("s3://bucket/public-read.csv?anonymous=true")) == 1
    with pytest.raises(DataError, match=r"private\.csv cannot be opened: access is denied"):
        read("s3://bucket/private.csv?anonymous=true")


@pytest.mark.parametrize(
    "given",
    ["s3://b/c.csv?endpoint_override=nothing://x", "gs://b/c.csv?endpoint_override=no://x"],
)
def test_options_that_arrow_refuses_are_an_error(given, monkeypatch):
    monkeypatch.setattr(stores, "STORE_ATTEMPTS", 1)
    monkeypatch.setattr(stores, "RETRY_SECONDS", 1)
    with pytest.raises(DataError, match=r"`x`: (s3|gs)://b|the file c\.csv"):
        read(given)


def test_a_pyarrow_without_the_store_is_named(monkeypatch):
    def absent(url):
        raise ImportError("The pyarrow installation is not built with support for it")

    monkeypatch.setitem(stores.FILE_SYSTEMS, "abfs", absent)
    with pytest.raises(RuntimeMissingError, match="is built without abfs://"):
        read("abfs://container@account.dfs.core.windows.net/rows.csv")


@pytest.mark.slow
def test_azure_is_asked_in_the_account_of_the_address(monkeypatch):
    asked = {}
    monkeypatch.setattr(fs, "AzureFileSystem", lambda name, **more: asked.update(more, name=name))
    monkeypatch.setenv("AZURE_STORAGE_KEY", "open-sesame")
    ArrowStore(parse_url("abfs://c@account.dfs.core.windows.net/x.csv", "x"), "x")
    assert asked == {"name": "account", "account_key": "open-sesame"}
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "other")
    asked.clear()
    ArrowStore(parse_url("abfs://c/x.csv", "x"), "x")
    assert asked == {"name": "other", "sas_token": "sv=1"}
