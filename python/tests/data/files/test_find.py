"""Globs and folders, among objects of Arrow's own file system of a folder."""

import pytest
from pyarrow import fs

from gpukeras import DataError
from gpukeras.data.files import stores
from gpukeras.data.files.paths import find_files
from gpukeras.data.files.stores import find_objects, matches_glob

NAMES = ("b.csv", "a.csv", "_SUCCESS", ".hid.csv", "2024/c.csv", "2024/07/d.csv", "a b/é.csv")


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    for name in NAMES:
        path = tmp_path / "bucket" / "rows" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n1\n")
    (tmp_path / "bucket" / "none").mkdir()
    opened = []

    def open_folder(url):
        opened.append(url.shown)
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    monkeypatch.setitem(stores.FILE_SYSTEMS, "s3", open_folder)
    return opened


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("rows/b.csv", ["b.csv"]),
        ("rows/nothing.csv", ["nothing.csv"]),  # that it is there is looked at when it is read
        ("rows", ["a.csv", "b.csv"]),
        ("rows/", ["a.csv", "b.csv"]),
        ("rows/*.csv", ["a.csv", "b.csv"]),
        ("rows/[b-z].csv", ["b.csv"]),
        ("rows/?.csv", ["a.csv", "b.csv"]),
        ("rows/*/*.csv", ["2024/c.csv", "a b/é.csv"]),
        ("r*s/2024/**/*.csv", ["2024/07/d.csv", "2024/c.csv"]),
        ("rows/20*", ["2024/c.csv"]),
        ("rows/a b/é.csv", ["a b/é.csv"]),
    ],
)
def test_objects_are_found(bucket, given, names):
    found = find_objects(f"s3://bucket/{given}", "x")
    assert [str(file) for file in found] == [f"s3://bucket/rows/{name}" for name in names]
    assert [file.key for file in found] == [f"bucket/rows/{name}" for name in names]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rows/*.parquet", r"`x`: no object matches s3://bucket/rows/\*\.parquet"),
        ("none/", "`x`: s3://bucket/none has no objects. Give a glob"),
    ],
)
def test_no_objects_are_an_error(bucket, given, message):
    with pytest.raises(DataError, match=message) as raised:
        find_objects(f"s3://bucket/{given}", "x")
    assert raised.value.details["path"].startswith("s3://bucket/")


def test_addresses_of_one_bucket_share_its_store_and_none_is_given_twice(bucket):
    given = ["s3://bucket/rows/a.csv", "s3://bucket/rows/b.csv"]
    assert find_files(given, "x").format == "csv"
    assert len(bucket) == 1
    with pytest.raises(DataError, match="the file a.csv is given twice"):
        find_files([*given, "s3://bucket/rows/a.csv"], "x")


@pytest.mark.parametrize("given", ["https://h/*.csv", "https://h/folder/", "https://h"])
def test_web_servers_have_no_lists(given):
    with pytest.raises(DataError, match="a web server does not list its files"):
        find_objects(given, "x")


@pytest.mark.parametrize(
    ("key", "pattern", "matches"),
    [
        ("a", "*", True),
        (".a", "*", False),
        (".a", ".*", True),
        ("a/b", "*", False),
        ("a/b", "**", True),
        ("b", "**/b", True),
        ("x/y/b", "**/b", True),
        ("x/y/b", "x/*/c", False),
        ("A", "a", False),
    ],
)
def test_globs_match_as_those_of_paths(key, pattern, matches):
    assert matches_glob(key.split("/"), pattern.split("/")) == matches
