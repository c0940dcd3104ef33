"""In a folder of others nothing is opened that is not ours: no link is followed, no pipe waited at.

Every test that would hang where it fails is ended by an alarm.
"""

import errno
import os
import signal
import socket
import stat
import zipfile

import numpy as np
import pytest
from checkpointed import numbers, save

from gpukeras import CheckpointError, DataError
from gpukeras.backend import runtime
from gpukeras.checkpoint.store import LOCK, CheckpointStore
from gpukeras.core import safe_files
from gpukeras.core.atomic_dir import write_text
from gpukeras.core.file_lock import FolderLock
from gpukeras.core.safe_files import NotOursError, find_disk_fault
from gpukeras.data.saved.writer import is_ours
from gpukeras.export.archive import load_archive, save_archive
from gpukeras.export.keras_file import written_beside
from gpukeras.training.callbacks.tensorboard import EventFiles

PRECIOUS = "what somebody else has written"


@pytest.fixture(autouse=True)
def alarm():
    def ring(*_):
        raise TimeoutError("waited for something that never comes")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text(PRECIOUS)
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


def put_socket(place, precious):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place))


PUT = {
    "symbolic link": lambda place, precious: place.symlink_to(precious),
    "dangling link": lambda place, precious: place.symlink_to(precious.with_name("none")),
    "link to a folder": lambda place, precious: place.symlink_to(precious.parent),
    "hard link": lambda place, precious: os.link(precious, place),
    "pipe": lambda place, precious: os.mkfifo(place),
    "folder": lambda place, precious: place.mkdir(),
    "socket": put_socket,
}
KINDS = {
    "symbolic link": "a symbolic link",
    "dangling link": "a symbolic link",
    "link to a folder": "a symbolic link",
    "hard link": "a file that has another name too",
    "pipe": "a pipe",
    "folder": "a folder",
    "socket": "a socket",
}


# The lock of a checkpoint's folder ---------------------------------------------------------------


@pytest.mark.parametrize("what", PUT)
def test_what_has_the_locks_name_is_neither_followed_nor_truncated(folder, precious, what):
    PUT[what](folder / LOCK, precious)
    with pytest.raises(CheckpointError, match=rf"{LOCK} is {KINDS[what]}, which gpukeras") as error:
        CheckpointStore(folder)
    assert error.value.hint == "Nothing was written to it. Delete it, or give another folder."
    assert precious.read_text() == PRECIOUS
    assert not precious.with_name("none").exists()


def test_a_file_at_the_locks_name_keeps_what_gpukeras_has_not_written(folder):
    (folder / LOCK).write_text(PRECIOUS)
    with pytest.raises(CheckpointError, match="holds what gpukeras has not written"):
        CheckpointStore(folder)
    assert (folder / LOCK).read_text() == PRECIOUS


@pytest.mark.parametrize("before", ["", "12345", "9" * 20])
def test_a_lock_that_an_earlier_process_has_left_is_taken(folder, before):
    (folder / LOCK).write_text(before)
    FolderLock(folder / LOCK).close()
    assert (folder / LOCK).read_text() == str(os.getpid())


# Files that are written there --------------------------------------------------------------------


@pytest.mark.parametrize("what", ["symbolic link", "dangling link", "hard link", "pipe", "socket"])
def test_a_new_file_takes_the_place_of_a_link_and_leaves_what_it_leads_to(folder, precious, what):
    PUT[what](folder / "new", precious)
    write_text(folder / "new", "ours")
    assert (folder / "new").read_text() == "ours"
    assert stat.S_ISREG(os.lstat(folder / "new").st_mode)
    assert precious.read_text() == PRECIOUS
    assert not precious.with_name("none").exists()


def test_a_new_file_takes_no_folders_place(folder, precious):
    (folder / "new").mkdir()
    with pytest.raises(OSError, match="directory"):
        safe_files.create_file(folder / "new")


@pytest.mark.parametrize("what", ["symbolic link", "hard link", "pipe"])
def test_a_save_leaves_alone_what_has_the_names_that_it_will_use(folder, precious, what):
    names = ["checkpoint-000001.npz", "history.json"]
    with CheckpointStore(folder) as store:  # such names are removed when it is opened: put later
        for name in names:
            PUT[what](folder / f".{name}.partial", precious)
        save(store, 1)
        store.write_history({"loss": [1.0]})
        assert store.load().plain == {"number": 1}
    assert numbers(folder) == names
    assert precious.read_text() == PRECIOUS


@pytest.mark.parametrize("what", ["pipe", "folder", "link to a folder"])
def test_a_checkpoint_that_is_no_file_is_passed_over(folder, precious, what):
    with CheckpointStore(folder) as store:
        save(store, 1)
    PUT[what](folder / "checkpoint-000002.npz", precious)
    with CheckpointStore(folder) as store:
        saved = store.load()
    assert saved.plain == {"number": 1}
    kind = "a pipe" if what == "pipe" else "a folder"
    assert saved.notes == (f"checkpoint-000002.npz was passed over: it is {kind}, not a file.",)


def test_a_pipe_for_a_manifest_is_not_waited_at(folder):
    os.mkfifo(folder / "gpukeras-dataset.json")
    assert not is_ours(folder)


@pytest.mark.tf
def test_a_model_is_written_where_nobody_can_have_put_a_link(folder, precious):
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for name in (f".m.partial-{os.getpid()}.keras", ".m.partial-.keras"):
        (folder / name).symlink_to(precious)
    save_archive(model, str(folder / "m.keras"))
    assert precious.read_text() == PRECIOUS
    assert zipfile.is_zipfile(folder / "m.keras")
    loaded = load_archive(str(folder / "m.keras"))["model"]
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_what_is_written_beside_lies_in_a_folder_of_this_user_alone(folder):
    with written_beside(folder / "m.keras", "model") as one:
        with written_beside(folder / "m.keras", "model") as other:
            assert one.parent != other.parent
        assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700
        one.write_text("half")
    assert list(folder.iterdir()) == []
    with (
        pytest.raises(DataError, match="cannot be written to the file m.keras: No such file"),
        written_beside(folder / "none" / "m.keras", "model"),
    ):
        pass


@pytest.mark.tf
def test_event_files_have_names_that_nobody_can_guess(folder):
    names = set()
    for _ in range(2):
        files = EventFiles(str(folder))
        files.add("train", "scalars", {"loss": np.float32(1)}, 0)
        files.close()
    names = {path.name.split(".")[-2] for path in (folder / "train").iterdir()}
    assert len(names) == 2
    assert {len(name) for name in names} == {16}


# Reading -----------------------------------------------------------------------------------------


def test_a_link_to_a_file_is_read(folder, precious):
    (folder / "link").symlink_to(precious)
    with safe_files.open_regular(folder / "link") as file:
        assert file.read().decode() == PRECIOUS


@pytest.mark.parametrize("what", ["pipe", "folder"])
def test_what_is_no_file_is_not_read(folder, precious, what):
    PUT[what](folder / "it", precious)
    with pytest.raises(NotOursError, match="not a file"):
        safe_files.open_regular(folder / "it")


def quoted(number):
    """An error of another library that has only the system's words, and is told by a third one."""
    outer = RuntimeError("not exported")
    outer.__cause__ = ValueError(f"{{{{node Save}}}} part-00000; {os.strerror(number)} [Op:SaveV2]")
    return outer


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full: your quota is used up"),
        (errno.EFBIG, "the disk is full: a file may not become larger"),
        (errno.EROFS, "the disk is read-only"),
        (errno.ESTALE, "the network's disk is not the one that was opened"),
        (errno.EACCES, None),
        (errno.ENOENT, None),
        (errno.EIO, None),
    ],
)
def test_a_disk_that_takes_nothing_more_is_recognised_by_its_number_or_its_words(number, reason):
    for error in (OSError(number, os.strerror(number)), OSError(number, "x"), quoted(number)):
        fault = find_disk_fault(error)
        assert (fault.reason if fault else None) == reason
        assert fault is None or "on another disk." in fault.hint


def test_an_error_without_a_number_is_no_disk_fault():
    assert find_disk_fault(OSError()) is None
    assert find_disk_fault(None) is None
