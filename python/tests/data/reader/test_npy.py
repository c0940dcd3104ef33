import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from children import PATHS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from small_fits import make_model

from gpukeras import DataError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset import map_dataset
from gpukeras.data.reader import npy
from gpukeras.data.recipe.columns import Learning
from gpukeras.diagnostics import usage
from gpukeras.training import fit, predict

FILE_BYTES = 200 * 2**20
GROWTH_BYTES = 0.6 * FILE_BYTES  # 0.35 measured: a map, blocks, labels, an order of rows
in_one_folder = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def save(folder, values, name="x.npy"):
    np.save(folder / name, values)
    return {"kind": "npy", "path": str(folder / name)}


def opened(folder, values, arg="x"):
    return npy.open_npy(save(folder, values)["path"], arg)


def make_arrays(rows=100, columns=5, seed=1):
    random = np.random.default_rng(seed)
    x = random.normal(3.0, 2.0, size=(rows, columns))
    return x, np.digitize(x[:, 0], [2.0, 4.0]).astype(np.int32)


def classes(codes):
    return {"kind": "factor", "values": codes + 1, "levels": ["a", "b", "c"]}


# Reading -----------------------------------------------------------------------------------------


@in_one_folder
@given(
    values=npst.arrays(
        st.sampled_from(["f4", "f8", ">f8", "i4", "i8", "u1", "?"]),
        npst.array_shapes(min_dims=1, max_dims=4, max_side=7),
        elements={"allow_nan": False, "allow_infinity": False, "min_value": 0, "max_value": 1},
    ),
    fortran=st.booleans(),
    map_bytes=st.sampled_from([1, 40, 10_000]),
    data=st.data(),
)
def test_gathering_is_indexing(tmp_path, values, fortran, map_bytes, data):
    saved = np.asfortranarray(values) if fortran else values
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1))), dtype=np.int32)
    dense = values.reshape(len(values), *(values.shape[1:] or (1,))).astype(np.float32)
    before, npy.MAP_BYTES = npy.MAP_BYTES, map_bytes
    try:
        source = npy.FileRows(opened(tmp_path, saved), "x.npy", np.float32)
        np.testing.assert_array_equal(source.gather(rows), dense[rows])
        np.testing.assert_array_equal(source.gather(slice(1, 3)), dense[1:3])
    finally:
        npy.MAP_BYTES = before


def test_what_is_gathered_is_float32_that_tensorflow_can_adopt(tmp_path):
    source = npy.FileRows(opened(tmp_path, np.arange(6).reshape(3, 2)), "x.npy", np.float32)
    found = source.gather(np.array([2, 0]))
    assert (found.dtype, found.ctypes.data % 64) == (np.float32, 0)
    assert (source.row_bytes, source.resident_bytes, len(source)) == (8, 0, 3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_standardised_as_the_same_array_in_memory(tmp_path, order):
    values = np.random.default_rng(2).normal(5.0, 3.0, size=(300, 4, 3))
    features = save(tmp_path, np.asarray(values, order=order))
    options = {"scale": True, "validation": 0.3}
    file = map_dataset.build_dataset(features, options)
    array = map_dataset.build_dataset({"kind": "array", "values": values}, options)
    np.testing.assert_allclose(file.arrays[0], array.arrays[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(file.recipe.features.center, array.recipe.features.center)
    np.testing.assert_allclose(file.recipe.features.scale, array.recipe.features.scale)


def test_the_file_is_read_once_when_the_dataset_is_made(tmp_path, monkeypatch):
    features, scans = save(tmp_path, make_arrays()[0]), []
    scan = npy.FileFeatures.scan
    monkeypatch.setattr(npy.FileFeatures, "scan", lambda *args: scans.append(1) or scan(*args))
    train = map_dataset.build_dataset(features, {"scale": True})
    assert len(scans) == 1
    map_dataset.build_dataset(features, {}, recipe=train.recipe)
    assert len(scans) == 2


# Refusing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, np.nan], [np.nan, np.inf]], "2 missing and 1 infinite, the first in row 1"),
        ([[1.0], [2.0], [-np.inf]], "cannot be trained on: 1 infinite, the first in row 3"),
        ([[1.0, 1e300]], "too large for float32 in column 2. Rescale the values first"),
        ([[1.0 + 1j]], "an array of numbers, not complex128"),
        ([["a"]], "an array of numbers, not <U1"),
        (np.array([[1, "a"]], dtype=object), "not a whole .npy file of numbers"),
        (np.zeros((0, 3)), "no values: its shape is"),
        (np.zeros((3, 0)), "no values: its shape is"),
        (np.float64(3.0), "no values: its shape is"),
    ],
)
def test_bad_values_are_refused(tmp_path, values, message):
    with pytest.raises(DataError, match=message) as raised:
        map_dataset.build_dataset(save(tmp_path, np.asarray(values)), {})
    assert "`x`: the file x.npy" in raised.value.message
    assert raised.value.details["path"] == str(tmp_path / "x.npy")


def test_the_counts_are_those_of_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr("gpukeras.data.arrays.BLOCK_BYTES", 64)
    values = np.zeros((100, 2))
    values[[10, 50, 99], 1] = np.nan
    with pytest.raises(DataError, match="3 missing, the first in row 11"):
        map_dataset.build_dataset(save(tmp_path, values), {"scale": True})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "not a whole .npy file"),
        (b"PK\x03\x04 an archive?", "not a whole .npy file"),
        (b"1,2,3\n4,5,6\n", "not a whole .npy file"),
        (b"\x93NUMPY\x01\x00", "not a whole .npy file"),
        (b"\x93NUMPY\x01\x00\x90\x01" + b"(" * 400, "not a whole .npy file"),
    ],
)
def test_what_is_no_npy_file_is_refused(tmp_path, content, message):
    path = tmp_path / "x.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        npy.open_npy(str(path), "x")


def test_a_truncated_file_an_archive_and_a_folder_are_refused(tmp_path):
    path = Path(save(tmp_path, np.zeros((100, 3)))["path"])
    path.write_bytes(path.read_bytes()[:-8])
    np.savez(tmp_path / "two.npz", a=np.zeros(3))
    (tmp_path / "two.npz").rename(tmp_path / "two.npy")
    (tmp_path / "folder.npy").mkdir()
    for name, message in {"x": "whole", "two": "whole", "folder": "cannot be opened"}.items():
        with pytest.raises(DataError, match=message):
            npy.open_npy(str(tmp_path / f"{name}.npy"), "x")


def change(path):
    np.save(path, np.zeros((100, 5), "float32"))


def touch(path):
    os.utime(path, ns=(1, 1))


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, "is gone"),
        (change, "changed after it was opened"),
        (touch, "changed after it was opened"),
        (lambda path: os.truncate(path, 200), "changed after it was opened"),
    ],
)
def test_a_file_that_changes_or_vanishes_is_an_error_in_the_next_epoch(tmp_path, spoil, message):
    x, codes = make_arrays()
    features = save(tmp_path, x)
    data = map_dataset.build_dataset(features, {"batch_size": 10}, classes(codes))
    path, epochs = Path(features["path"]), []

    def on_event(event):
        if event["kind"] == "epoch" and not epochs:
            epochs.append(event["epoch"])
            spoil(path)

    with pytest.raises(DataError, match=message):
        fit.fit(make_model(), data, {"epochs": 3, "engine": "keras"}, on_event=on_event)
    assert epochs == [1]


# Labels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(10.0), "number"),
        (np.arange(10) % 2, "binary"),
        (np.arange(10) % 2 == 0, "binary"),
        (np.arange(10, dtype="i8").reshape(-1, 1), "number"),
        (np.zeros((10, 3)), "matrix"),
    ],
)
def test_labels_may_be_a_file(tmp_path, values, kind):
    x = {"kind": "array", "values": np.zeros((10, 2))}
    data = map_dataset.build_dataset(x, {}, save(tmp_path, values, "y.npy"))
    assert data.recipe.label.kind == kind
    np.testing.assert_array_equal(data.arrays[1], np.squeeze(values).astype("float32"))


def test_labels_in_a_file_are_checked(tmp_path):
    x = save(tmp_path, np.zeros((4, 2)))
    cases = {
        "`y` has 3 rows where `x` has 4": np.zeros(3),
        "`y` has 1 missing value": np.array([0, 1, np.nan, 2]),
    }
    for message, values in cases.items():
        with pytest.raises(DataError, match=message):
            map_dataset.build_dataset(x, {}, save(tmp_path, values, "y.npy"))


# Training ----------------------------------------------------------------------------------------


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("scale", [False, True])
def test_a_file_trains_as_the_same_matrix(tmp_path, scale):
    x, codes = make_arrays(207)
    options = {"batch_size": 16, "scale": scale, "validation": 0.25, "seed": 4}
    histories, predictions = [], []
    features = save(tmp_path, x)
    for given_features in ({"kind": "array", "values": x}, features):
        data, model = (
            map_dataset.build_dataset(given_features, options, classes(codes)),
            make_model(),
        )
        report = fit.fit(model, data, {"epochs": 3, "engine": "graph_loop"})
        histories.append(report.history)
        predictions.append(predict.predict(model, features)["values"])
        predictions.append(predict.predict(model, data=data)["values"])
    assert report.plan.mode == "streamed"
    for name, losses in histories[0].items():
        np.testing.assert_allclose(histories[1][name], losses, rtol=1e-5, err_msg=name)
    for found in predictions[1:]:
        np.testing.assert_allclose(found, predictions[0], atol=1e-5)


@pytest.mark.tf
def test_what_a_device_does_is_read_from_a_file_too(tmp_path):
    x, codes = make_arrays()
    data = map_dataset.build_dataset(save(tmp_path, x), {"batch_size": 16}, classes(codes))
    use = usage.read_use(make_model(), data, "CPU:0", batches=2)
    assert use["median_s"] > 0
    assert use["input_dtypes"] == ["float32"]


CHILD = """
    import sys
    import numpy as np
    from gpukeras.data.dataset import map_dataset as pipeline
    from gpukeras.models import mlp
    from gpukeras.training import fit as training

    def memory(name):
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def train(path, rows):
        labels = {"kind": "numeric", "values": np.arange(float(rows)), "levels": []}
        features = {"kind": "npy", "path": path}
        data = pipeline.build_dataset(features, {"batch_size": 512, "scale": True}, labels)
        model = mlp.build_mlp(data, {"units": (4,)})
        training.fit(model, data, {"epochs": 1, "engine": "graph_loop"})

    small, large, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    train(small, len(np.load(small, mmap_mode="r")))  # what TensorFlow takes for any training
    before = memory("VmRSS")
    train(large, rows)
    print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read in Linux' way")
def test_memory_stays_bounded(tmp_path):
    rows = FILE_BYTES // (100 * 4)
    large = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", "float32", (rows, 100))
    large[:] = np.arange(100, dtype="float32") + (np.arange(rows) % 7)[:, None]
    large.flush()
    np.save(tmp_path / "small.npy", large[:50_000])
    arguments = [str(tmp_path / "small.npy"), str(tmp_path / "large.npy"), str(rows)]
    del large
    environment = {**os.environ, "PYTHONPATH": PATHS}
    program = [sys.executable, "-c", textwrap.dedent(CHILD), *arguments]
    child = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert float(child.stdout.split()[-1]) < GROWTH_BYTES


def test_the_plan_says_where_rows_come_from(tmp_path):
    data = map_dataset.build_dataset(save(tmp_path, np.asfortranarray(np.ones((4, 3)))), {})
    plan = data.plan("GPU:0")
    assert plan.mode == "streamed"
    assert "x.npy" in plan.reason
    assert "Fortran order, which reads slowly" in plan.reason


def test_a_vector_is_one_column(tmp_path):
    features = npy.FileFeatures(opened(tmp_path, np.arange(3)))
    assert features.row_shape == (1,)
    recipe = features.learn(Learning(np.ones(3, bool), DatasetSpec(scale=True)))
    np.testing.assert_allclose(recipe.center, [1.0])


@pytest.mark.parametrize(
    ("dtype", "scale", "count"),
    [(np.int64, False, 2), (np.int64, True, 1), (np.float64, False, 1), (np.float64, True, 0)],
)
def test_whole_numbers_that_lose_digits_are_noted_as_in_memory(tmp_path, dtype, scale, count):
    values, options = np.array([[2**24 + 1, 1], [3, 2**53 + 1]], dtype), {"scale": scale}
    np.save(tmp_path / "x.npy", values)
    given = {"kind": "npy", "path": str(tmp_path / "x.npy")}
    found = map_dataset.build_dataset(given, options)
    rows = {"kind": "array", "values": values, "names": []}
    expected = map_dataset.build_dataset(rows, options)
    assert found.notes == expected.notes
    assert len(found.notes) == count
    again = map_dataset.build_dataset(given, options, recipe=expected.recipe)
    assert again.notes == expected.notes
    beside = {"kind": "inputs", "inputs": [{"name": "a", "features": given}]}
    assert len(map_dataset.build_dataset(beside, options).notes) == count
