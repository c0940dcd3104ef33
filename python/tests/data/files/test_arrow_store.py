"""What is of S3 and its like alone; what all files promise is in test_stores.py."""

import http.client
import json

import numpy as np
import pyarrow as pa
import pytest
from object_servers import KEY, SECRET
from pyarrow import fs
from table_files import read, write_bytes

from gpukeras import DataError, RuntimeMissingError
from gpukeras.checkpoint.fingerprint import _digest_rows
from gpukeras.data.dataset import map_dataset
from gpukeras.data.files import stores
from gpukeras.data.files.stores import ArrowStore, parse_url
from gpukeras.data.reader.table import columnar
from gpukeras.data.recipe.serialization import to_portable

pytestmark = pytest.mark.process

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


@pytest.mark.varies
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_objects_of_a_glob_and_a_folder_are_one_table(bucket, suffix):
    for number, part in enumerate([TABLE.slice(0, 7000), TABLE.slice(7000)]):
        bucket.put(f"same{suffix}/part {number}{suffix}", written(suffix, part))
    assert read(f"s3://bucket/same{suffix}/*{suffix}") == TABLE
    assert read(f"s3://bucket/same{suffix}", columns=["y", "s"]) == TABLE.select(["y", "s"])


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
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
