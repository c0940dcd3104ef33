"""Saving datasets: what is written, and that it is whole or not there."""

import io
import os
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from permissions import obeying_permissions
from savings import entries, in_one_folder, plain_dataset, run_child
from small_disks import small_disk
from small_fits import make_dataset

from gpukeras import DataError, SpecError
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.streams import build_stream
from gpukeras.data.saved import reader
from gpukeras.data.saved import reader as saved
from gpukeras.data.saved import writer as storage

# Files -------------------------------------------------------------------------------------------


def test_numpy_alone_reads_the_files(tmp_path):
    x = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
    y, weights = np.arange(10, dtype=np.int32), np.ones(10, np.float32)
    path = tmp_path / "saved"
    record = storage.save_dataset(plain_dataset(x, y, weights, [2, 5]), str(path))
    assert (record["rows"], record["bytes"]) == (10, 10 * (24 + 4 + 4 + 1))
    marks = np.isin(np.arange(10), [2, 5]).astype(np.uint8)
    expected = {"x": x, "y": y, "weights": weights, "validation": marks}
    assert entries(path) == sorted([reader.MANIFEST, *(f"{name}.npy" for name in expected)])
    for name, values in expected.items():
        found = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        assert (found.dtype, found.flags.c_contiguous) == (values.dtype, True)
        np.testing.assert_array_equal(found, values)


@in_one_folder
@given(
    rows=st.integers(1, 40),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=8).map(tuple),
    kind=st.sampled_from(["float32", "uint8", "int32"]),
    block=st.sampled_from([1, 100, 2**22]),
)
def test_every_row_is_once_in_its_file_in_order(tmp_path, monkeypatch, rows, shape, kind, block):
    monkeypatch.setattr(storage, "BLOCK_BYTES", block)
    x = np.random.default_rng(rows).integers(0, 256, (rows, *shape)).astype(kind)
    path = tmp_path / "saved"
    storage.save_dataset(plain_dataset(x), str(path), overwrite=True)
    np.testing.assert_array_equal(np.load(path / "x.npy", allow_pickle=False), x)


@pytest.mark.parametrize("rows", [1, 10**9, 2**53])
@pytest.mark.parametrize("shape", [(), (7,), (2**20,) * 31])
@pytest.mark.parametrize("kind", reader.DTYPES)
def test_a_header_is_one_of_numpy(shape, kind, rows):
    field = reader.Field(kind, shape)
    header = io.BytesIO(field.header(rows))
    assert np.lib.format.read_magic(header) == (1, 0)
    found = np.lib.format.read_array_header_1_0(header)
    assert found == ((rows, *shape), False, np.dtype(kind).newbyteorder("<"))
    assert header.read() == b""
    assert len(field.header(rows)) == len(field.header(0))
    assert len(field.header(rows)) % 64 == 0


# Streams -----------------------------------------------------------------------------------------


def chunks_of(x, y, size):
    def call(epoch, batch):
        part = slice((batch - 1) * size, batch * size)
        if part.start >= len(x):
            return None
        labels = {"kind": "numeric", "name": "y", "values": y[part]}
        return {"features": {"kind": "array", "values": x[part]}, "labels": labels}

    return call


@pytest.mark.parametrize("block_rows", [1, 256, 300, 2**20])
def test_rows_in_sequence_are_saved(tmp_path, monkeypatch, block_rows):
    monkeypatch.setattr(storage, "BLOCK_BYTES", 12 * block_rows)
    x = np.random.default_rng(4).normal(size=(1000, 2))
    y = np.arange(1000.0)
    stream = build_stream({"kind": "generator", "call": chunks_of(x, y, 70)}, Request({}))
    record = storage.save_dataset(stream, str(tmp_path / "saved"))
    back = saved.build_saved({"path": record["path"]}, Request({}))
    assert record["rows"] == 1000
    np.testing.assert_array_equal(back.arrays[0], x.astype(np.float32))
    np.testing.assert_array_equal(back.arrays[1], y.astype(np.float32))
    assert (back.recipe.label.minimum, back.recipe.label.maximum) == (0, 999)


@pytest.mark.tf
def test_a_pipeline_without_end_is_refused(tmp_path):
    import tensorflow as tf

    pairs = (np.zeros((8, 3), np.float32), np.zeros(8, np.float32))
    endless = tf.data.Dataset.from_tensor_slices(pairs).batch(4).repeat()
    given = {"kind": "tfdata", "dataset": endless}
    with pytest.raises(SpecError, match="no end"):
        storage.save_dataset(build_stream(given, Request({})), str(tmp_path / "saved"))
    record = storage.save_dataset(
        build_stream({**given, "steps": 3}, Request({})), str(tmp_path / "saved")
    )
    assert record["rows"] == 12


def test_a_function_whose_rows_have_all_been_dropped_is_refused(tmp_path):
    full, labels = np.ones((4, 2)), {"kind": "numeric", "name": "y", "values": np.arange(4.0)}
    values = iter([full, None, np.full((4, 2), np.nan), None])

    def call(epoch, batch):
        given = next(values)
        features = {"kind": "array", "values": given}
        return None if given is None else {"features": features, "labels": labels}

    data = build_stream({"kind": "generator", "call": call}, Request({"na": "drop"}))
    assert storage.save_dataset(data, str(tmp_path / "first"))["rows"] == 4
    with pytest.raises(DataError, match="`data` gave no rows to save"):
        storage.save_dataset(data, str(tmp_path / "second"))
    assert entries(tmp_path) == ["first"]


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"overwrite": 1}, SpecError, "`overwrite` must be TRUE or FALSE"),
        ({"path": 3}, SpecError, "`path` must be the path of a folder, not 3"),
        ({"path": "/nowhere/saved"}, DataError, "the folder nowhere that saved is to be in"),
        ({"data": "x"}, SpecError, "`data` must be a gpu_dataset"),
    ],
)
def test_bad_arguments_are_named(tmp_path, dataset, change, error, message):
    arguments = {"data": dataset, "path": str(tmp_path / "saved"), **change}
    with pytest.raises(error, match=message):
        storage.save_dataset(**arguments)
    assert entries(tmp_path) == []


def test_a_folder_that_is_there_stays(tmp_path, dataset):
    path = tmp_path / "saved"
    storage.save_dataset(dataset, str(path))
    before = (path / reader.MANIFEST).read_bytes()
    with pytest.raises(DataError, match="`path`: saved exists already"):
        storage.save_dataset(dataset, str(path))
    assert (path / reader.MANIFEST).read_bytes() == before


def test_our_own_folder_is_replaced(tmp_path):
    path = tmp_path / "saved"
    storage.save_dataset(make_dataset(rows=50, validation=0.2), str(path))
    storage.save_dataset(make_dataset(rows=70), str(path), overwrite=True)
    assert entries(path) == [reader.MANIFEST, "x.npy", "y.npy"]
    assert entries(tmp_path) == ["saved"]
    assert len(saved.build_saved({"path": str(path)}, Request({}))) == 70


def test_an_empty_folder_is_taken(tmp_path, dataset):
    (tmp_path / "saved").mkdir()
    storage.save_dataset(dataset, str(tmp_path / "saved"))
    assert reader.MANIFEST in entries(tmp_path / "saved")


def make_file(path):
    path.write_text("precious")


def make_other_folder(path):
    path.mkdir()
    (path / "notes.txt").write_text("precious")


def make_mixed_folder(path):
    storage.save_dataset(make_dataset(), str(path))
    (path / "notes.txt").write_text("precious")


def make_broken_folder(path):
    storage.save_dataset(make_dataset(), str(path))
    (path / reader.MANIFEST).write_text("{}")


@pytest.mark.parametrize(
    "make", [make_file, make_other_folder, make_mixed_folder, make_broken_folder]
)
def test_what_is_not_ours_is_never_deleted(tmp_path, dataset, make):
    path = tmp_path / "saved"
    make(path)
    with pytest.raises(DataError, match="is not a folder that gpu_dataset_save"):
        storage.save_dataset(dataset, str(path), overwrite=True)
    assert path.is_file() or len(entries(path)) >= 1
    assert entries(tmp_path) == ["saved"]


def test_a_folder_without_permission_is_an_error(tmp_path, dataset):
    tmp_path.chmod(0o500)
    refused = pytest.raises(DataError, match="cannot be written: Permission denied")
    with obeying_permissions(), refused:
        storage.save_dataset(dataset, str(tmp_path / "saved"))


def test_a_full_disk_is_a_data_error(tmp_path):
    code = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        try:
            storage.save_dataset(data, sys.argv[1])
        except GpuKerasError as error:
            print(type(error).__name__, error)
    """
    done = run_child(code, tmp_path / "saved")
    assert done.stdout.strip() == (
        "DataError `path`: the disk is full: a file may not become larger. "
        "Make room, or give a path on another disk."
    )
    assert done.returncode == 0
    assert entries(tmp_path) == []


def test_too_little_room_is_told_before_anything_is_written(tmp_path, dataset, monkeypatch):
    class Full:
        free = 2**10

    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: Full)
    with pytest.raises(
        DataError, match="the disk is full: the dataset needs [0-9.]+ KiB of 1.0 KiB free"
    ):
        storage.save_dataset(dataset, str(tmp_path / "saved"))
    assert entries(tmp_path) == []


def test_rows_are_saved_and_read_without_pyarrow(tmp_path):
    code = """
        import gpukeras.export.recipe_json, gpukeras.data.reader.tfrecord.source
        from gpukeras.data import builder
        path = storage.save_dataset(data, sys.argv[1])["path"]
        again = builder.assemble({"kind": "saved", "path": path}, {})
        print((again.arrays[0] == x.astype("f4")).all())
        print([name for name in sys.modules if name.startswith('pyarrow')])
    """
    assert run_child(code, tmp_path / "saved").stdout.split() == ["True", "[]"]


# Interrupts --------------------------------------------------------------------------------------


def test_events_tell_the_progress(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr(storage, "EVENT_S", 0.0)
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1)
    events = []
    storage.save_dataset(dataset, str(tmp_path / "saved"), on_event=events.append)
    steps = [event["step"] for event in events]
    assert steps == [*range(1, 201), 200]
    assert {(event["kind"], event["steps"]) for event in events} == {("saving", 200)}
    assert events[-1]["bytes"] == 200 * dataset.row_bytes


def raise_error(event):
    raise RuntimeError("listener")


def interrupt(event):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("listener", "raised"),
    [(lambda event: True, None), (raise_error, RuntimeError), (interrupt, KeyboardInterrupt)],
)
def test_what_is_interrupted_leaves_the_old_one(tmp_path, listener, raised):
    path = tmp_path / "saved"
    storage.save_dataset(make_dataset(rows=50), str(path))
    arguments = (make_dataset(rows=70), str(path))
    replacing = {"overwrite": True, "on_event": listener}
    if raised is None:
        assert storage.save_dataset(*arguments, **replacing)["stopped"] == "interrupted"
    else:
        with pytest.raises(raised):
            storage.save_dataset(*arguments, **replacing)
    assert entries(tmp_path) == ["saved"]
    assert len(saved.build_saved({"path": str(path)}, Request({}))) == 50


def test_a_killed_process_leaves_nothing_under_the_name(tmp_path, dataset):
    code = """
        def kill(event):
            os.kill(os.getpid(), signal.SIGKILL)
        storage.save_dataset(data, sys.argv[1], on_event=kill)
    """
    done = run_child(code, tmp_path / "saved")
    assert done.returncode == -signal.SIGKILL
    (left,) = entries(tmp_path)
    assert left.startswith(".saved.partial-")
    storage.save_dataset(dataset, str(tmp_path / "saved"))
    assert entries(tmp_path) == ["saved"]


def test_a_process_killed_between_two_renames_loses_nothing(tmp_path, dataset):
    path = tmp_path / "saved"
    storage.save_dataset(dataset, str(path))
    code = """
        from pathlib import Path
        rename = Path.rename
        def kill(self, target):
            if ".partial-" in self.name:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)
        Path.rename = kill
        storage.save_dataset(data, sys.argv[1], overwrite=True)
    """
    assert run_child(code, path).returncode == -signal.SIGKILL
    assert not path.exists()
    with pytest.raises(DataError, match="saved exists already"):  # it is back
        storage.save_dataset(make_dataset(rows=9, batch_size=2), str(path))
    assert entries(tmp_path) == ["saved"]
    assert len(saved.build_saved({"path": str(path)}, Request({}))) == len(dataset)


def test_the_partial_folder_of_a_running_process_stays(tmp_path, dataset):
    others = [f".saved.partial-{os.getppid()}@{storage_host()}", ".saved.partial-1@elsewhere"]
    for name in others:
        (tmp_path / name).mkdir()
    storage.save_dataset(dataset, str(tmp_path / "saved"))
    assert entries(tmp_path) == sorted([*others, "saved"])


def storage_host():
    import socket

    return socket.gethostname()


@pytest.mark.parametrize(
    ("breaking", "reason"), [("fill", "the disk is full"), ("make_read_only", "is read-only")]
)
def test_a_disk_that_takes_nothing_leaves_no_half_dataset(tmp_path, dataset, breaking, reason):
    with small_disk(tmp_path / "disk") as disk:
        storage.save_dataset(dataset, str(disk.folder / "whole"))
        getattr(disk, breaking)()
        before = entries(disk.folder)
        with pytest.raises(DataError, match=reason):
            storage.save_dataset(dataset, str(disk.folder / "half"))
        assert entries(disk.folder) == before
