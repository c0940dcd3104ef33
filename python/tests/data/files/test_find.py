"""Globs and folders: what both paths and addresses promise, and what is of addresses alone.

The store is Arrow's own file system of a folder.
"""

import pytest
from pyarrow import fs

from gpukeras import DataError
from gpukeras.data.files import stores
from gpukeras.data.files.paths import find_files
from gpukeras.data.files.stores import find_objects

NAMES = ("b.csv", "a.csv", "_SUCCESS", ".hid.csv", "2024/c.csv", "2024/07/d.csv", "a b/é.csv")


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """The stores that were opened; their buckets are folders of `tmp_path`."""
    for name in NAMES:
        path = tmp_path / "bucket" / "rows" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n1\n")
    (tmp_path / "bucket" / "none").mkdir()
    (tmp_path / "bucket" / "by" / "year" / "month").mkdir(parents=True)
    (tmp_path / "bucket" / "by" / "year" / "month" / "e.csv").write_text("x\n1\n")
    opened = []

    def open_folder(url):
        opened.append(url.shown)
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    monkeypatch.setitem(stores.FILE_SYSTEMS, "s3", open_folder)
    return opened


@pytest.fixture(params=["paths", "objects"])
def root(request, opened, tmp_path):
    return {"paths": str(tmp_path / "bucket"), "objects": "s3://bucket"}[request.param]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("rows/b.csv", ["b.csv"]),
        ("rows/nothing.csv", ["nothing.csv"]),  # that it is there is looked at when it is read
        ("rows", ["a.csv", "b.csv"]),
        ("rows/", ["a.csv", "b.csv"]),
        ("rows/*.csv", ["a.csv", "b.csv"]),
        ("rows/.*.csv", [".hid.csv"]),
        ("rows/[b-z].csv", ["b.csv"]),
        ("rows/?.csv", ["a.csv", "b.csv"]),
        ("rows/*/*.csv", ["2024/c.csv", "a b/é.csv"]),
        ("rows/**/*.csv", ["2024/07/d.csv", "2024/c.csv", "a b/é.csv", "a.csv", "b.csv"]),
        ("r*s/2024/**/*.csv", ["2024/07/d.csv", "2024/c.csv"]),
        ("**/d.csv", ["2024/07/d.csv"]),
        ("rows/2024/**", ["2024/07/d.csv", "2024/c.csv"]),
        ("rows/2024/**/*", ["2024/07/d.csv", "2024/c.csv"]),
        ("rows/20*", ["2024/c.csv"]),
        ("rows/a b/é.csv", ["a b/é.csv"]),
    ],
)
def test_files_are_found(root, given, names):
    found = find_files(f"{root}/{given}", "x").paths
    assert [str(file) for file in found] == [f"{root}/rows/{name}" for name in names]


@pytest.mark.parametrize("given", ["by/**", "by/**/*"])
def test_folders_above_what_matches_need_no_files(root, given):
    found = find_files(f"{root}/{given}", "x").paths
    assert [str(file) for file in found] == [f"{root}/by/year/month/e.csv"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("rows/*.parquet", "no .* matches"),
        ("rows/A*", "no .* matches"),  # upper case is another name
        ("rows/*/c", "no .* matches"),
        ("rows/*/d.csv", "no .* matches"),  # a star is no "/"
        ("none/", "none has no .* Give a glob"),
    ],
)
def test_where_nothing_is_found_is_an_error(root, given, what):
    with pytest.raises(DataError, match=f"^`x`: .*{what}") as raised:
        find_files(f"{root}/{given}", "x")
    assert raised.value.details["path"].startswith(root)


def test_none_is_given_twice(root):
    given = [f"{root}/rows/a.csv", f"{root}/rows/b.csv"]
    assert find_files(given, "x").format == "csv"
    for again in (f"{root}/rows/a.csv", f"{root}/rows/*.csv"):
        with pytest.raises(DataError, match="the file a.csv is given twice"):
            find_files([*given, again], "x")


def test_objects_have_keys_and_their_bucket_is_opened_once(opened):
    given = ["s3://bucket/rows/a.csv", "s3://bucket/rows/20*"]
    found = find_files(given, "x").paths
    assert [file.key for file in found] == ["bucket/rows/a.csv", "bucket/rows/2024/c.csv"]
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rows/*.parquet", r"`x`: no object matches s3://bucket/rows/\*\.parquet"),
        ("none/", "`x`: s3://bucket/none has no objects. Give a glob"),
    ],
)
def test_what_is_missing_is_said_by_its_address(opened, given, message):
    with pytest.raises(DataError, match=message):
        find_objects(f"s3://bucket/{given}", "x")


@pytest.mark.parametrize("given", ["https://h/*.csv", "https://h/folder/", "https://h"])
def test_web_servers_have_no_lists(given):
    with pytest.raises(DataError, match="a web server does not list its files"):
        find_objects(given, "x")
