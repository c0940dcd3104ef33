"""A checkpoint's file gives back what was written to it, or says that it is damaged."""

import zipfile

import numpy as np
import pytest
from checkpointed import run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import CheckpointError
from gpukeras.checkpoint.format import STATE, DamagedError, read_file, write_file

ARRAYS = {
    "scalar": np.array(3.5, np.float32),
    "empty": np.empty((0, 4), np.int64),
    "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(20, dtype=np.uint8)[::3],
    "flags": np.array([True, False]),
    "half": np.array([1.5, -0.0, np.nan, np.inf], np.float16),
    "seed": np.array([2**32 - 1, 7], np.uint32),
}


def test_values_and_arrays_come_back_to_the_last_bit(tmp_path):
    plain = {"a": [0.1 + 0.2, float("inf"), -0.0, 1e-320], "b": {"c": None, "d": "ü\udc80"}}
    write_file(tmp_path / "f", {**plain, "n": np.float64(0.1), "i": np.int32(3)}, ARRAYS)
    found, arrays = read_file(tmp_path / "f")
    assert found == {**plain, "n": 0.1, "i": 3}
    assert str(found["a"][2]) == "-0.0"
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        assert arrays[name].tobytes() == array.tobytes()


def test_nan_comes_back_as_nan(tmp_path):
    write_file(tmp_path / "f", {"loss": [float("nan"), 1.0]}, {})
    loss = read_file(tmp_path / "f")[0]["loss"]
    assert np.isnan(loss[0])
    assert loss[1] == 1.0


def test_a_type_that_only_tensorflow_brings_needs_no_import_before(tmp_path):
    code = """
import sys, pathlib, numpy as np
from gpukeras.checkpoint.format import read_file, write_file
path = pathlib.Path(sys.argv[1])
if path.exists():
    print(read_file(path)[1]["w"].tolist())
else:
    import ml_dtypes
    write_file(path, {}, {"w": np.array([1.5, 2.0], ml_dtypes.bfloat16)})
"""
    pytest.importorskip("ml_dtypes")
    for expected in ("", "[1.5, 2.0]\n"):
        out, err = run_python(code, tmp_path / "f").communicate(timeout=600)
        assert (out, err) == (expected, "")


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["a"]), np.array([b"a"])])
def test_what_is_no_number_is_refused(tmp_path, array):
    with pytest.raises(CheckpointError, match="weights/0000 holds .*, not numbers"):
        write_file(tmp_path / "f", {}, {"weights/0000": array})


def test_a_file_of_a_later_version_says_so(tmp_path):
    with zipfile.ZipFile(tmp_path / "f", "w") as archive:
        archive.writestr(STATE, '{"version": 2, "plain": {}, "arrays": {}}')
    with pytest.raises(DamagedError, match="a later version of gpukeras"):
        read_file(tmp_path / "f")


def test_numpy_reads_the_arrays_too(tmp_path):
    write_file(tmp_path / "f.npz", {"epoch": 3}, ARRAYS)
    with np.load(tmp_path / "f.npz") as found:
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
def test_dtypes_that_numpy_lacks_come_back(tmp_path, name, shape):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    array = np.ones(shape, dtype)
    write_file(tmp_path / "f", {}, {"w": array, "t": array.T, "f": np.ones(2, np.float16)})
    found = read_file(tmp_path / "f")[1]
    assert (found["w"].dtype, found["w"].shape) == (array.dtype, shape)
    assert found["w"].tobytes() == array.tobytes()
    assert found["t"].tobytes() == array.T.tobytes()
    assert found["f"].dtype == np.float16


@settings(max_examples=150)
@given(st.data())
def test_no_damage_to_a_file_changes_what_is_read(tmp_path_factory, data):
    """It is found, or it hit what has no meaning, such as a date."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    arrays = {"w": np.arange(40, dtype=np.float32), "b": np.ones(3)}
    write_file(path, {"epoch": 3}, arrays)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "zero", "append"]))
    if how == "flip":
        bit = data.draw(st.integers(0, 7))
        damaged = whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :]
    elif how == "cut":
        damaged = whole[:place]
    elif how == "zero":  # what some file systems leave after a power cut
        damaged = whole[:place] + b"\0" * (len(whole) - place)
    else:
        damaged = whole + data.draw(st.binary(min_size=1, max_size=9))
    path.write_bytes(damaged)
    try:
        plain, found = read_file(path)
    except DamagedError:
        return
    assert how != "cut"
    assert plain == {"epoch": 3}
    assert {name: (array.dtype, array.tobytes()) for name, array in found.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in arrays.items()
    }
