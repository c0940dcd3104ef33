"""HDF5 files as tables; what all formats promise is in test_readers.py."""

import h5py
import numpy as np
import pyarrow as pa
import pytest
from table_files import read

from gpukeras import DataError
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.reader.table.features import open_table
from gpukeras.data.reader.table.schema import Wanted

X = np.random.default_rng(1).normal(size=(40, 3))


def write(folder, name="x.h5", **sets):
    with h5py.File(folder / name, "w") as file:
        for key, values in sets.items():
            file[key] = values
    return str(folder / name)


def test_a_matrix_has_a_column_for_each_place_and_groups_are_in_the_names(tmp_path):
    path = write(tmp_path, x=X, **{"labels/y": np.arange(40)})
    table = read(path)
    assert table.column_names == ["labels/y", "x.1", "x.2", "x.3"]
    np.testing.assert_array_equal(np.stack([table[f"x.{place}"] for place in (1, 2, 3)], 1), X)
    assert table["labels/y"].to_pylist() == list(range(40))


DTYPES = ["<f4", ">f8", "<f2", "<i1", ">i2", "<u4", "<i8", "?"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_all_kinds_are_read(tmp_path, dtype):
    values = np.array([0, 1, 1, 0, 1]).astype(dtype)
    assert read(write(tmp_path, a=values))["a"].to_pylist() == values.tolist()


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_whole_numbers_that_r_writes_for_na_are_missing(tmp_path, dtype):
    values = np.array([3, np.iinfo(dtype).min, -3], dtype)
    assert read(write(tmp_path, a=values))["a"].to_pylist() == [3, None, -3]
    with pytest.raises(DataError, match="Column `a` of `x` has 1 missing value"):
        build_dataset({"kind": "table", "paths": [write(tmp_path, a=values)]}, {})


def test_texts_of_any_length_and_of_a_fixed_one_are_read(tmp_path):
    texts = ["a", "", "Zürich"]
    varying = np.array(texts, h5py.string_dtype())
    fixed = np.array([text.encode() for text in texts])
    table = read(write(tmp_path, a=varying, b=fixed))
    assert table.schema.types == [pa.string(), pa.string()]
    assert table["a"].to_pylist() == table["b"].to_pylist() == texts


def test_an_enumeration_is_a_factor_and_other_numbers_are_missing(tmp_path):
    kind = h5py.enum_dtype({"red": 3, "blue": 1}, "i4")
    values = np.array([1, 3, 3, -(2**31)], kind)
    column = read(write(tmp_path, a=values))["a"].combine_chunks()
    assert column.to_pylist() == ["blue", "red", "red", None]
    assert column.dictionary.to_pylist() == ["blue", "red"]


def test_a_compound_set_has_a_column_for_each_field(tmp_path):
    frame = np.array([(1.5, 2, b"a"), (2.5, 4, b"b")], [("k", "f8"), ("n", ">i4"), ("t", "S1")])
    assert read(write(tmp_path, frame=frame)).to_pydict() == {
        "k": [1.5, 2.5],
        "n": [2, 4],
        "t": ["a", "b"],
    }


def test_blocks_join_whatever_the_chunks_are(tmp_path):
    rows = 150_000
    numbers = np.random.default_rng(2).normal(size=(rows, 2))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=numbers, chunks=(rows, 1), compression="gzip")
        file.create_dataset("y", data=np.arange(rows), chunks=(700,))
    table = read(str(tmp_path / "x.h5"))
    np.testing.assert_array_equal(np.stack([table["x.1"], table["x.2"]], 1), numbers)
    np.testing.assert_array_equal(table["y"], np.arange(rows))


def test_columns_become_features_and_labels(tmp_path):
    path = write(tmp_path, x=X, y=np.arange(40) % 2, note="a scalar is no column")
    features = {"kind": "table", "paths": [path], "label": ["y"]}
    data = build_dataset(features, {"scale": True, "validation": 0.25})
    assert data.recipe.features.feature_names == ("x.1", "x.2", "x.3")
    train = X[data.train_rows]
    expected = (X - train.mean(0)) / train.std(0)
    np.testing.assert_allclose(data.arrays[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(data.arrays[1], np.arange(40) % 2)


def test_columns_of_other_lengths_are_refused_unless_they_are_left_out(tmp_path):
    path = write(tmp_path, x=X.T, y=np.arange(40))
    with pytest.raises(DataError, match="x.h5 has 3 rows in `x` and 40 in `y`") as raised:
        list(open_table(path, "x", wanted=Wanted(["x.1", "y"])).batches())
    assert "write t(x)" in raised.value.hint
    assert read(path, columns=["y"]).num_rows == 40


UNREADABLE = {
    "complex numbers": (np.ones(3, complex), "a column `z` of type binary"),
    "arrays of any length": (
        np.array([np.arange(2), np.arange(3), np.arange(1)], h5py.vlen_dtype("i4")),
        "a column `z` of type binary",
    ),
    "references": (np.empty(3, h5py.ref_dtype), "a column `z` of type binary"),
    "images": (np.zeros((3, 4, 4)), "a nested column `z` of type list"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_column_is_refused_by_name_unless_it_is_left_out(tmp_path, what):
    values, message = UNREADABLE[what]
    path = write(tmp_path, a=np.arange(3), z=values)
    with pytest.raises(DataError, match=f"x.h5 has {message}: it cannot be read") as raised:
        open_table(path, "x")
    assert raised.value.details["column"] == "z"
    assert read(path, columns=["a"])["a"].to_pylist() == [0, 1, 2]


def link(file, folder):
    file["secret"] = h5py.ExternalLink(str(folder / "other.h5"), "/secret")


def keep_outside(file, folder):
    (folder / "raw").write_bytes(np.arange(3.0).tobytes())
    file.create_dataset("secret", (3,), "f8", external=[(str(folder / "raw"), 0, 24)])


def compose(file, folder):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "secret", (3,))
    file.create_virtual_dataset("secret", layout)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (link, "links to another file as `secret`"),
        (keep_outside, "keeps the values of `secret` in another file"),
        (compose, "keeps the values of `secret` in another file"),
    ],
)
def test_what_another_file_holds_is_never_read(tmp_path, make, message):
    write(tmp_path, "other.h5", secret=np.arange(3.0))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3.0)
        make(file, tmp_path)
    with pytest.raises(DataError, match=f"x.h5 {message}"):
        open_table(str(tmp_path / "x.h5"), "x")


def test_a_group_that_holds_itself_and_other_names_of_a_set_do_no_harm(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/a"] = np.arange(3)
        file["group/again"] = file["group"]
        file["other"] = h5py.SoftLink("/group/a")
        file["dangling"] = h5py.SoftLink("/nowhere")
    assert read(str(tmp_path / "x.h5")).to_pydict() == {"group/a": [0, 1, 2]}


@pytest.mark.parametrize("content", [b"no HDF5", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" * 99])
def test_another_file_is_named(tmp_path, content):
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(DataError, match="the file x.h5 is no whole HDF5 file"):
        open_table(str(tmp_path / "x.h5"), "x")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    write(tmp_path, x=X, t=np.array(["a", "b"] * 20, h5py.string_dtype()))
    whole = path.read_bytes()
    for length in np.linspace(1, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"x\.h5 is (no whole HDF5 file|damaged)"):
            read(str(path))


# Texts are of a fixed length here: HDF5's own library never ends on some references to others.
@pytest.mark.costly
def test_changed_bytes_give_rows_or_an_error_of_ours(tmp_path):
    path = tmp_path / "x.h5"
    write(tmp_path, x=X, t=np.array([b"a", b"b"] * 20))
    whole, generator, refused = path.read_bytes(), np.random.default_rng(3), 0
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    for place in generator.choice(used, 150, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        try:
            read(str(path))
        except DataError:
            refused += 1
    assert refused > 3


def test_a_set_that_is_larger_than_its_bytes_is_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (2**40,), "f8", chunks=(1000,))
    with pytest.raises(DataError, match="x.h5 is no whole HDF5 file"):
        open_table(str(tmp_path / "x.h5"), "x")


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = write(tmp_path, t=np.array([b"\xff\xfe"], "S2"))
    with pytest.raises(DataError, match="x.h5 is damaged behind row 0"):
        read(path)
