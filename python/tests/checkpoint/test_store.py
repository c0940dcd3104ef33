"""A folder of checkpoints always holds a good one, whatever happens."""

import json
import shutil
import subprocess
from contextlib import suppress

import numpy as np
import pytest
from checkpointed import damage, numbers, run_python, save, small_files
from hypothesis import given, settings
from hypothesis import strategies as st
from permissions import obeying_permissions

from gpukeras import CheckpointError
from gpukeras.checkpoint.store import (
    HISTORY,
    LOCK,
    CheckpointStore,
    InUseError,
    UnusableError,
    remove_stores,
)

SAVER = """
import sys
import numpy as np
from gpukeras.checkpoint.store import CheckpointStore
with CheckpointStore(sys.argv[1]) as store:
    saved = store.load()
    number = 0 if saved is None else saved.plain["number"]
    print("ready", number, flush=True)
    while True:
        number += 1
        store.save({"number": number}, {"all": np.full(100_000, number)})
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


# Folders -----------------------------------------------------------------------------------------


def test_the_newest_is_loaded_and_only_the_last_are_kept(folder):
    with CheckpointStore(folder, keep=2) as store:
        assert store.load() is None
        for number in range(1, 5):
            save(store, number)
        assert store.load().plain == {"number": 4}
    assert numbers(folder) == ["checkpoint-000003.npz", "checkpoint-000004.npz"]
    with CheckpointStore(folder) as store:
        saved = store.load()
        assert (saved.plain, saved.notes) == ({"number": 4}, ())
        save(store, 5)
    assert numbers(folder)[-1] == "checkpoint-000005.npz"


def test_a_damaged_one_is_passed_over_and_named_and_goes_with_the_next_save(folder):
    with CheckpointStore(folder, keep=2) as store:
        save(store, 1)
        save(store, 2)
    damage(folder / "checkpoint-000002.npz")
    with CheckpointStore(folder, keep=2) as store:
        saved = store.load()
        assert saved.plain == {"number": 1}
        assert saved.notes == (
            "checkpoint-000002.npz was passed over: all is not as it was written.",
        )
        save(store, 3)
    assert numbers(folder) == ["checkpoint-000001.npz", "checkpoint-000003.npz"]


def test_if_all_are_damaged_nothing_is_loaded_and_nothing_removed(folder):
    with CheckpointStore(folder) as store:
        save(store, 1)
        save(store, 2)
    for path in folder.glob("checkpoint-*"):
        path.write_bytes(b"")
    with CheckpointStore(folder) as store:
        with pytest.raises(UnusableError, match="all checkpoints in run are damaged") as caught:
            store.load()
        assert "000002.npz was passed over: it is not as it was written" in caught.value.message
        assert caught.value.details["path"] == str(folder)
    assert len(numbers(folder)) == 2


def test_checkpoints_are_cleared_and_other_files_stay(folder):
    with CheckpointStore(folder) as store:
        save(store, 1)
        save(store, 2)
        (folder / "notes.txt").write_text("mine")
        store.clear()
        assert store.load() is None
    assert numbers(folder) == ["notes.txt"]
    with CheckpointStore(folder) as store:  # it is a store still
        save(store, 3)
    assert numbers(folder) == ["checkpoint-000001.npz", "notes.txt"]


def test_stores_are_removed_and_other_files_stay(tmp_path):
    root = tmp_path / "states"
    for name in ("1/1", "1/2", "2/1"):
        (root / name).mkdir(parents=True)
        with CheckpointStore(root / name) as store:
            save(store, 1)
            store.write_history({"loss": [1.0]})
    mine = [root / "1/2/notes.txt", root / "3/history.json", root / "3/checkpoint-1.npz"]
    (root / "3").mkdir()
    for path in mine:
        path.write_text("mine")
    remove_stores(root)
    assert sorted(path for path in root.rglob("*") if path.is_file()) == sorted(mine)
    assert sorted(path.name for path in root.iterdir()) == ["1", "3"]
    for path in mine:
        path.unlink()
    remove_stores(root)
    assert not root.exists()
    remove_stores(root)  # again does nothing


@settings(max_examples=25)
@given(st.data())
def test_a_good_one_is_found_whatever_happens_to_the_others(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "property"
    shutil.rmtree(folder, ignore_errors=True)
    with CheckpointStore(folder, keep=4) as store:
        for number in range(1, 5):
            save(store, number, 50)
    size = (folder / "checkpoint-000001.npz").stat().st_size
    hit = data.draw(st.sets(st.integers(1, 4), max_size=3))
    for number in hit:
        path = folder / f"checkpoint-{number:06d}.npz"
        whole = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            whole[place] ^= data.draw(st.integers(1, 255))
        else:
            del whole[place:]
        path.write_bytes(whole)
    with CheckpointStore(folder, keep=4) as store:
        best = max({1, 2, 3, 4} - hit)
        saved = store.load()
        found = saved.plain["number"]  # of a newer one where what was hit has no meaning
        assert found >= best
        assert found == best or not (folder / f"checkpoint-{found:06d}.npz").stat().st_size < size
        assert (saved.arrays["all"] == found).all()
        assert len(saved.notes) == 4 - found


def test_what_a_killed_save_left_is_removed_and_other_files_stay(folder):
    with CheckpointStore(folder) as store:
        save(store, 1)
    (folder / ".checkpoint-000002.npz.partial").write_bytes(b"half")
    (folder / ".history.json.partial").write_bytes(b"half")
    (folder / "mine.txt").write_text("mine")
    with CheckpointStore(folder) as store:
        assert store.load().plain == {"number": 1}
    left = {path.name for path in folder.iterdir()}
    assert left == {"checkpoint-000001.npz", "mine.txt", LOCK}


def test_history_is_standard_json_and_replaced_whole(folder):
    with CheckpointStore(folder) as store:
        record = {"loss": [float("nan"), np.float32(0.5)], "best": float("inf"), "n": np.int64(2)}
        for _ in range(2):
            store.write_history(record)
    text = (folder / HISTORY).read_text()
    assert json.loads(text) == {"loss": [None, 0.5], "best": None, "n": 2}
    assert {path.name for path in folder.iterdir()} == {HISTORY, LOCK}


# Folders that cannot be used ---------------------------------------------------------------------


def make_file(tmp_path):
    (tmp_path / "run").write_text("x")
    return tmp_path / "run"


def make_other(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.json").write_text("mine")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (make_file, "run is a file"),
        (make_other, "run holds other files, and no checkpoints"),
        (lambda tmp_path: tmp_path / "no" / "run", "the folder no that run is to be in does not"),
        (lambda tmp_path: tmp_path / ("n" * 300), "File name too long"),
    ],
    ids=["a file", "other files", "no parent", "a long name"],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path, make, says):
    path = make(tmp_path)
    before = {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match=says) as caught:
        CheckpointStore(path)
    assert caught.value.message.startswith("`checkpoint`: ")
    assert caught.value.hint
    assert caught.value.details == {"arg": "checkpoint", "path": str(path)}
    assert {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_hidden_files_do_not_make_a_folder_somebody_elses(folder):
    folder.mkdir()
    (folder / ".DS_Store").write_bytes(b"")
    with CheckpointStore(folder) as store:
        save(store, 1)


def test_a_folder_without_permission_is_refused(folder):
    folder.mkdir(mode=0o500)
    with obeying_permissions(), pytest.raises(CheckpointError, match="Permission denied"):
        CheckpointStore(folder)


def test_a_second_process_is_refused_until_the_first_dies(folder):
    child = run_python(SAVER, folder)
    assert child.stdout.readline() == "ready 0\n"
    try:
        with pytest.raises(CheckpointError, match=rf"another training \(process {child.pid}\)"):
            CheckpointStore(folder)
    finally:
        child.kill()
        child.communicate()
    CheckpointStore(folder).close()


def test_a_folder_that_could_not_be_opened_is_not_kept_from_others(folder):
    CheckpointStore(folder).close()
    (folder / ".history.json.partial").mkdir()  # cannot be unlinked
    with pytest.raises(CheckpointError, match="run cannot be written"):
        CheckpointStore(folder)
    (folder / ".history.json.partial").rmdir()
    CheckpointStore(folder).close()


def test_a_second_training_of_the_same_process_is_refused(folder):
    with CheckpointStore(folder), pytest.raises(InUseError, match="another training"):
        CheckpointStore(folder)
    CheckpointStore(folder).close()


# Disks that are full -----------------------------------------------------------------------------


def test_a_save_that_fails_leaves_those_before(folder):
    with CheckpointStore(folder, keep=1) as store:
        save(store, 1, 10)
        with small_files(4096), pytest.raises(CheckpointError, match="the disk is full") as caught:
            save(store, 2, 10_000)
        assert "Make room" in caught.value.hint
        assert store.load().plain == {"number": 1}
        assert {p.name for p in folder.iterdir()} == {"checkpoint-000001.npz", LOCK}
        save(store, 3, 10_000)
        assert store.load().plain == {"number": 3}


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 2 MiB and 12 names, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount, "-t", "tmpfs", "-o", "size=2m,nr_inodes=12", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_and_the_last_good_one_stays(small_disk):
    with CheckpointStore(small_disk / "run") as store:
        save(store, 1, 1000)
        (small_disk / "other").write_bytes(b"x" * 2**20)
        with pytest.raises(CheckpointError, match="the disk is full"):
            save(store, 2, 200_000)
        with suppress(OSError), (small_disk / "other").open("ab") as file:
            file.write(b"x" * 2**21)
        for size in (1, 10_000):
            with pytest.raises(CheckpointError, match="the disk is full"):
                save(store, 3, size)
        with pytest.raises(CheckpointError, match="the disk is full"):
            store.write_history({"loss": [1.0] * 2000})
        assert store.load().plain == {"number": 1}
        (small_disk / "other").unlink()
        save(store, 4, 1000)
        assert store.load().plain == {"number": 4}


def test_a_disk_that_takes_no_more_names_is_refused_from_the_start(small_disk):
    with suppress(OSError):
        for number in range(100):
            (small_disk / f"{number}").touch()
    with pytest.raises(CheckpointError, match="the disk is full"):
        CheckpointStore(small_disk / "run")


# Processes that are killed -----------------------------------------------------------------------


def test_a_process_that_is_killed_while_it_saves_leaves_a_good_one(folder):
    rng, last = np.random.default_rng(4), 0
    for _ in range(6):
        child = run_python(SAVER, folder)
        assert child.stdout.readline() == f"ready {last}\n"
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=rng.uniform(0, 0.15))
        child.kill()
        child.communicate()
        with CheckpointStore(folder) as store:
            saved = store.load()
        if saved is not None:
            assert saved.notes == ()
            assert (saved.arrays["all"] == saved.plain["number"]).all()
            assert saved.plain["number"] >= last
            last = saved.plain["number"]
    assert last > 0
