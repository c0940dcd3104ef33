"""The folder of the cache: its bound, its locks, and what must not be used."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from savings import PYTHON_PATH

from gpukeras import DataError, SpecError
from gpukeras.core.file_lock import FolderLock
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.saved import cache, manifest
from gpukeras.data.saved.fingerprint import Fingerprint, NotKeptError

DISK = DatasetSpec(cache="disk")
X = np.arange(3000, dtype=np.float32).reshape(1000, 3)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", str(tmp_path / "cache"))
    return cache.open_cache()


def make_rows(x=X):
    return build_dataset({"kind": "array", "values": x}, {})


def made_from(letter, source="rows.csv"):
    return Fingerprint(letter * 32, "table", source)


def store(opened, *letters):
    for number, letter in enumerate(letters):
        opened.store(make_rows(), made_from(letter))
        os.utime(opened.folder / (letter * 32) / manifest.MANIFEST, (number, number))


def keys(opened):
    return [entry.key[0] for entry in opened.entries()]


def test_what_was_stored_is_found_and_listed(opened):
    assert opened.find("a" * 32, DISK, "x") is None
    data = make_rows()
    data.notes, data.skipped = ("A note.",), "3 rows"
    opened.store(data, made_from("a"))
    found = opened.find("a" * 32, DISK, "x")
    np.testing.assert_array_equal(found.arrays[0], X)
    assert (found.notes, found.skipped, found.spec) == (("A note.",), "3 rows", DISK)
    (entry,) = opened.entries()
    assert (entry.kind, entry.source, entry.rows) == ("table", "rows.csv", 1000)
    assert entry.bytes > X.nbytes
    assert abs(entry.used - time.time()) < 60


def test_only_this_user_can_open_the_folder(opened):
    assert opened.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("mode", "reason"), [(0o755, "opened by other"), (0o777, "written to by")])
def test_a_folder_that_others_can_open_is_not_used(opened, mode, reason):
    opened.folder.chmod(mode)
    with pytest.raises(NotKeptError, match=f"the folder of the cache can be {reason}"):
        cache.open_cache()


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", "off")
    with pytest.raises(NotKeptError, match="GPUKERAS_DATA_CACHE is off"):
        cache.open_cache()
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(NotKeptError, match="the folder of the cache cannot be made"):
        cache.open_cache()


# The bound ---------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first(opened):
    store(opened, "a", "b", "c")
    opened.find("a" * 32, DISK, "x")  # now the most recently used
    opened.limit = 4 * X.nbytes
    opened.store(make_rows(), made_from("d"))
    assert keys(opened) == ["c", "a", "d"]


def test_an_entry_in_use_stays(opened):
    store(opened, "a", "b")
    data = opened.find("a" * 32, DISK, "x")
    assert [entry.in_use for entry in opened.entries()] == [False, True]
    os.utime(opened.folder / ("a" * 32) / manifest.MANIFEST, (0, 0))
    opened.limit = 2.5 * X.nbytes
    opened.store(make_rows(), made_from("c"))
    assert keys(opened) == ["a", "c"]
    opened.clear()
    assert keys(opened) == ["a"]
    np.testing.assert_array_equal(data.arrays[0], X)
    del data
    opened.clear()
    assert keys(opened) == []


def test_rows_that_do_not_fit_are_not_kept_and_remove_nothing(opened):
    store(opened, "a")
    opened.limit = 2 * X.nbytes
    with pytest.raises(NotKeptError, match="35.2 KiB do not fit into the cache's 23.4 KiB"):
        opened.store(make_rows(np.concatenate([X, X, X])), made_from("b"))
    assert keys(opened) == ["a"]


def test_a_full_disk_keeps_nothing(opened, monkeypatch):
    monkeypatch.setattr("gpukeras.data.saved.writer.shutil.disk_usage", lambda _: os.times())
    monkeypatch.setattr(os, "times", lambda: type("Free", (), {"free": 10})())
    with pytest.raises(NotKeptError, match="could not be written: `path`: the disk is full"):
        opened.store(make_rows(), made_from("a"))
    assert keys(opened) == []
    assert [each.name for each in opened.folder.iterdir()] == [".lock"]


@pytest.mark.parametrize(("given", "limit"), [("", 2), ("0.5", 0.5), ("0", 0), ("200", 200)])
def test_the_limit_is_the_user_s(given, limit):
    assert cache.read_limit({"GPUKERAS_DATA_CACHE_GIB": given}) == limit * 2**30


@pytest.mark.parametrize("given", ["much", "-1", "nan", "inf", "1e9"])
def test_a_limit_that_is_none_is_an_error(given):
    with pytest.raises(SpecError, match="GPUKERAS_DATA_CACHE_GIB must be a number of GiB from 0"):
        cache.read_limit({"GPUKERAS_DATA_CACHE_GIB": given})


# Damage ------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def change(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, change, os.unlink])
@pytest.mark.parametrize("name", ["x.npy", "gpukeras-dataset.json"])
def test_a_damaged_entry_is_an_error_and_goes(opened, damage, name):
    store(opened, "a")
    damage(opened.folder / ("a" * 32) / name)
    with pytest.raises(DataError, match="The entry of `x` in the cache was damaged"):
        opened.find("a" * 32, DISK, "x")
    assert opened.find("a" * 32, DISK, "x") is None


@pytest.mark.parametrize("wrong", [{"notes": [1]}, {"notes": "x"}, {"notes": 1}, {"kind": 1}, None])
def test_facts_of_other_types_are_damage(opened, wrong):
    store(opened, "a")
    file = opened.folder / ("a" * 32) / manifest.MANIFEST
    plain = json.loads(file.read_text())
    del plain["crc32"]
    plain["about"] = {} if wrong is None else {**plain["about"], **wrong}
    file.write_text(json.dumps({**plain, "crc32": manifest._sum_of(plain)}))
    assert opened.entries()[0].kind == "damaged"
    with pytest.raises(DataError, match="damaged"):
        opened.find("a" * 32, DISK, "x")


def test_a_link_is_no_entry(opened, tmp_path):
    store(opened, "a")
    (opened.folder / ("a" * 32)).rename(tmp_path / "elsewhere")
    (opened.folder / ("a" * 32)).symlink_to(tmp_path / "elsewhere")
    assert opened.find("a" * 32, DISK, "x") is None


# Several processes -------------------------------------------------------------------------------


def test_what_a_killed_process_left_is_removed(opened):
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        text=True,
        capture_output=True,
        check=True,
    )
    host = os.uname().nodename
    left = opened.folder / f".{'a' * 32}.partial-{child.stdout.strip()}@{host}"
    left.mkdir()
    opened.store(make_rows(), made_from("b"))
    assert not left.exists()


def test_a_cache_that_stays_locked_is_not_used(opened, monkeypatch):
    monkeypatch.setattr(cache, "WAIT_S", 0.0)
    lock = FolderLock(opened.folder / ".lock")
    with pytest.raises(NotKeptError, match="another process does not release"):
        opened.find("a" * 32, DISK, "x")
    lock.close()


TOGETHER = """
import sys, time
from gpukeras.data.saved.cached import build_cached
path, marker = sys.argv[1:]
open(marker, "w").close()
data = build_cached({"kind": "table", "paths": [path], "label": "y"}, {"cache": "disk"})
print(data.sources[0].streamed.rpartition(", ")[2], float(data.arrays[0].sum(dtype="f8")))
"""


@pytest.mark.slow
def test_processes_that_make_an_entry_at_once_share_it(opened, tmp_path):
    table = tmp_path / "rows.csv"
    rows = [f"{number},{number % 2}" for number in range(20000)]
    table.write_text("x,y\n" + "\n".join(rows) + "\n")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(table), str(tmp_path / str(number))],
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [each.communicate()[0].strip() for each in started]
    assert all(line.endswith(f" {float(sum(range(20000)))}") for line in said)
    assert len(opened.entries()) == 1
    assert [each.name for each in opened.folder.iterdir() if each.name[0] == "."] == [".lock"]


# The list ----------------------------------------------------------------------------------------


def test_looking_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUKERAS_XLA_CACHE", str(tmp_path / "xla"))
    told = cache.list_cache(clean=True)
    assert told == {
        "folder": str(tmp_path / "cache" / "data"),
        "limit_bytes": 2 * 2**30,
        "program_bytes": 0,
        "reason": "",
        "entries": [],
    }
    assert not (tmp_path / "cache").exists()


def test_the_list_begins_with_what_was_used_last_and_cleans(opened):
    store(opened, "a", "b")
    assert [entry.key[0] for entry in cache.list_cache()["entries"]] == ["b", "a"]
    assert cache.list_cache(clean=True)["entries"] == []


def test_programs_of_xla_are_counted_and_removed_but_not_their_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", "off")
    monkeypatch.setenv("GPUKERAS_XLA_CACHE", str(tmp_path))
    kind = tmp_path / "jax-0.7.1-0123"
    kind.mkdir()
    (kind / "program-cache").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(96))
    (kind / "mine.txt").write_text("not a program")
    assert cache.list_cache()["program_bytes"] == 100
    assert cache.list_cache(clean=True)["program_bytes"] == 0
    assert [path.name for path in kind.iterdir()] == ["mine.txt"]
    monkeypatch.setenv("GPUKERAS_XLA_CACHE", "off")
    assert cache.list_cache()["program_bytes"] == 0


def test_the_list_says_why_there_is_no_cache(opened, monkeypatch):
    opened.folder.chmod(0o755)
    assert "opened by other users" in cache.list_cache()["reason"]
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", "off")
    assert cache.list_cache()["reason"] == "GPUKERAS_DATA_CACHE is off"
