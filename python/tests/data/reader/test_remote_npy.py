import gc
import io
import os

import numpy as np
import pytest
from object_servers import objects

from gpukeras import DataError
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.files import stores
from gpukeras.data.reader import storage
from gpukeras.data.reader.npy import open_npy
from gpukeras.data.reader.storage import open_npy_anywhere

ARRAY = np.random.default_rng(1).normal(size=(500, 3))


def written(array=ARRAY):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(storage, "CHUNK_BYTES", 2000)
    return tmp_path


def test_a_path_is_opened_where_it_lies(scratch):
    (scratch / "x.npy").write_bytes(written())
    path = str(scratch / "x.npy")
    assert open_npy_anywhere(path, "x") == open_npy(path, "x")


def test_a_remote_array_gives_its_rows_and_leaves_with_its_dataset(scratch):
    labels = written(np.arange(500.0))
    with objects({"/x.npy": written(), "/y.npy": labels}) as (url, _):
        given = {"kind": "npy", "path": f"{url}/x.npy"}
        data = build_dataset({**given}, {"seed": 1}, labels={"kind": "npy", "path": f"{url}/y.npy"})
    np.testing.assert_allclose(data.sources[0].gather(slice(0, 500)), ARRAY, rtol=1e-6)
    gc.collect()
    assert len(os.listdir(scratch)) == 1  # the labels are in memory
    del data
    gc.collect()
    assert os.listdir(scratch) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content, answers: content.update({"/x.npy": written(ARRAY + 1)}), "x.npy changed"),
        (lambda content, answers: content.clear(), r"x\.npy is gone"),
        (lambda content, answers: setattr(answers, "rule", lambda *_: "403"), "access is denied"),
        (lambda content, answers: setattr(answers, "rule", lambda *_: "truncate"), "breaks off"),
    ],
)
def test_a_copy_that_breaks_off_is_an_error_and_leaves_nothing(scratch, change, message):
    content = {"/x.npy": written()}
    with objects(content) as (url, answers):

        def rule(*_):
            if len(answers.requests) == 4:
                answers.rule = None
                change(content, answers)

        answers.rule = rule
        with pytest.raises(DataError, match=message) as raised:
            open_npy_anywhere(f"{url}/x.npy", "x")
    assert raised.value.details["path"] == f"{url}/x.npy"
    assert os.listdir(scratch) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "does not exist"), ({"/x.npy": b"none"}, "is not a whole .npy file of numbers")],
)
def test_what_is_no_array_is_an_error_and_leaves_nothing(scratch, content, message):
    with objects(content) as (url, _), pytest.raises(DataError, match=message):
        open_npy_anywhere(f"{url}/x.npy", "x")
    assert os.listdir(scratch) == []


def test_a_copy_that_does_not_fit_is_not_begun(scratch, monkeypatch):
    monkeypatch.setattr("gpukeras.data.reader.storage.SPARE_BYTES", 2**60)
    with (
        objects({"/x.npy": written()}) as (url, answers),
        pytest.raises(DataError, match="does not fit into the temporary folder"),
    ):
        open_npy_anywhere(f"{url}/x.npy", "x")
    assert answers.sent < 10
    assert os.listdir(scratch) == []
