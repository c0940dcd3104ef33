import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError, GpuKerasError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.reader import storage
from gpukeras.data.reader.table import features as table_features
from gpukeras.data.reader.table.columnar import TableReader
from gpukeras.data.reader.table.schema import to_column
from gpukeras.data.recipe.columns import ScaledRule

NAN = float("nan")


def write(table, path, rows=1000):
    """A file of the format that its suffix says, in record batches of some rows."""
    path = Path(path)
    if path.suffix == ".csv":
        pacsv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            for batch in table.to_batches(max_chunksize=rows):
                file.write_batch(batch)
    return str(path)


def features(paths, **more):
    paths = [paths] if isinstance(paths, str) else list(paths)
    return {"kind": "table", "paths": paths, "format": "auto", "columns": None, **more}


def in_memory(table, names=None):
    """The same columns as R would send them."""
    names = table.column_names if names is None else names
    return {"kind": "columns", "columns": [to_column(name, table.column(name)) for name in names]}


def build(given, options=None, recipe=None):
    return map_dataset.build_dataset(given, {"seed": 1, **(options or {})}, recipe=recipe)


def gathered(data):
    return [source.gather(slice(0, len(data))) for source in data.sources]


# The same as in memory ---------------------------------------------------------------------------

NUMBERS = st.floats(-1e6, 1e6, width=64)
TYPES = {
    "double": (pa.float64(), NUMBERS),
    "float": (pa.float32(), st.floats(-1e3, 1e3, width=32)),
    "far": (pa.float64(), st.floats(0, 1).map(lambda value: 1e9 + value)),
    "few": (pa.float64(), st.sampled_from([0.1, 0.7])),
    "integer": (pa.int32(), st.integers(-9, 9)),
    "long": (pa.int64(), st.integers(-(2**60), 2**60)),
    "logical": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.sampled_from(["b", "a", "é", "Z", "10", "9"])),
    "factor": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["z", "m", "a"])),
    "date": (pa.date32(), st.integers(-1000, 20_000)),
    "time": (pa.timestamp("s", "Europe/Oslo"), st.integers(-(10**9), 10**9)),
    "duration": (pa.duration("s"), st.integers(-100, 100)),
}
BAD = {
    "nan": (pa.float64(), st.sampled_from([NAN, 1.5, 2.5])),
    "infinite": (pa.float64(), st.sampled_from([NAN, float("inf"), 2.5])),
    "large": (pa.float64(), st.sampled_from([1e39, -2e39, 0.1, 3.0])),
    "identifier": (pa.string(), st.integers(0, 10**9).map(str)),
}


@st.composite
def random_tables(draw, types):
    """A label and some columns of different kinds, with holes or without."""
    rows = draw(st.integers(2, 25))
    seed = draw(st.integers(0, 2**32 - 1))
    columns = {"y": pa.array(np.random.default_rng(seed).normal(size=rows))}
    for kind in draw(st.lists(st.sampled_from(sorted(types)), min_size=1, max_size=6)):
        of_type, values = types[kind]
        values = st.none() | values if draw(st.booleans()) else values
        drawn = draw(st.lists(values, min_size=rows, max_size=rows))
        columns[f"{kind} {len(columns)}"] = make_column(drawn, of_type)
    return pa.table(columns)


def make_column(values, of_type):
    if not pa.types.is_dictionary(of_type):
        return pa.array(values, of_type)
    levels = ["unused", "z", "a", "m"]
    codes = [None if value is None else levels.index(value) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), levels)


def check_same(found, expected):
    """The recipes agree, numbers to 12 digits, and so do the rows."""
    for one, other in zip(
        found.recipe.features.columns, expected.recipe.features.columns, strict=True
    ):
        scale = max(abs(other.center), other.scale)
        np.testing.assert_allclose(one.center, other.center, rtol=1e-12, atol=1e-12 * scale)
        np.testing.assert_allclose(one.scale, other.scale, rtol=1e-12)
        if isinstance(other, ScaledRule):
            one = dataclasses.replace(one, center=other.center, scale=other.scale)
        assert one == other
    assert found.recipe.label == expected.recipe.label
    assert found.recipe.shape == expected.recipe.shape
    assert (found.na, found.dropped) == (expected.na, expected.dropped)
    for part in ("train", "validation"):
        np.testing.assert_array_equal(found.rows(part), expected.rows(part))
    for one, other in zip(gathered(found), gathered(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


OPTIONS = st.fixed_dictionaries(
    {
        "na": st.sampled_from(["error", "impute", "drop"]),
        "validation": st.sampled_from([0.0, 0.3]),
        "scale": st.booleans(),
        "encode": st.sampled_from(["onehot", "codes", "hash"]),
    }
)
CUTS = st.tuples(st.integers(1, 8), st.integers(1, 3), st.sampled_from([".feather", ".parquet"]))


@pytest.mark.costly
@settings(deadline=None, max_examples=60)
@given(random_tables(TYPES), CUTS, OPTIONS)
def test_learning_in_blocks_is_learning_of_the_whole(table, cuts, options):
    compare(table, cuts, options)


@pytest.mark.costly
@settings(deadline=None, max_examples=40)
@given(random_tables({**BAD, "double": TYPES["double"]}), CUTS, OPTIONS)
def test_what_is_refused_is_refused_as_in_memory(table, cuts, options):
    compare(table, cuts, options)


def compare(table, cuts, options):
    names = [name for name in table.column_names if name != "y"]
    label = {**to_column("y", table.column("y"))}
    expected = attempt(in_memory(table, names), label, options)
    with tempfile.TemporaryDirectory() as folder:
        found = attempt(features(cut(table, cuts, folder), label="y"), None, options)
    if isinstance(expected, tuple):
        assert (found[0], plain(found[1])) == (expected[0], plain(expected[1]))
    else:
        check_same(found, expected)


def plain(message):
    """Without what only files have: the first row."""
    return message.split("; the first is in row")[0].removesuffix(".")


def cut(table, cuts, folder):
    """Some files of some record batches each."""
    rows, files, suffix = cuts
    step = -(-table.num_rows // files)
    return [
        write(table.slice(start, step), f"{folder}/{start:03}{suffix}", rows)
        for start in range(0, table.num_rows, step)
    ]


def attempt(given_features, label, options):
    try:
        return map_dataset.build_dataset(given_features, {"seed": 1, **options}, label)
    except GpuKerasError as error:
        return type(error), error.message


# Files -------------------------------------------------------------------------------------------


def simple(rows=6):
    return pa.table(
        {
            "y": np.arange(rows, dtype=float),
            "größe": np.arange(rows) * 2.0,
            "f": pa.array(["a", "b"] * (rows // 2) + ["a"] * (rows % 2)),
        }
    )


def test_csv_is_parquet_is_feather(tmp_path):
    built = [
        build(features(write(simple(), tmp_path / f"x.{suffix}"), label="y"), {"scale": True})
        for suffix in ("csv", "parquet", "feather")
    ]
    for data in built[1:]:
        check_same(data, built[0])
    assert built[0].recipe.features.feature_names == ("größe", "f=a", "f=b")
    assert built[0].recipe.formula == "`y` ~ `größe` + `f`"


def test_dictionaries_that_differ_are_joined(tmp_path):
    levels = [["a", "unused", "b"], ["c", "b"]]
    columns = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1 + (i == 0)]), levels[i]) for i in (0, 1)
    ]
    paths = [
        write(pa.table({"f": column, "y": [1.0, 2.0]}), tmp_path / f"{i}.feather")
        for i, column in enumerate(columns)
    ]
    data = build(features(paths, label="y"), {"encode": "codes", "shuffle": False})
    assert data.recipe.features.columns[0].levels == ("a", "unused", "b", "c")
    np.testing.assert_array_equal(gathered(data)[0][:, 0], [0, 2, 3, 2])


def test_one_row_of_one_column(tmp_path):
    path = write(pa.table({"x": [3.0]}), tmp_path / "x.csv")
    data = build(features(path), {"scale": True})
    np.testing.assert_array_equal(gathered(data)[0], [[0.0]])


@pytest.mark.parametrize(
    ("table", "more", "options", "error", "message"),
    [
        ({"y": [1.0]}, {"label": "y"}, {}, DataError, "`x` has no feature columns"),
        ({"a": [1.0]}, {"label": "z"}, {}, DataError, "`x` has no column `z`"),
        ({"a": [1.0]}, {"columns": ["a", "b"]}, {}, DataError, "`x` has no column `b`"),
        (
            {"a": [None, 1.0, None], "y": [1, 2, 3]},
            {"label": "y"},
            {},
            DataError,
            "`a` of `x` has 2",
        ),
        ({"a": [1.0, None]}, {}, {"scale": False}, DataError, "`a` of `x` has 1 missing value"),
        ({"a": [1.0, 2.0], "y": [1.0, None]}, {"label": "y"}, {}, DataError, "`y` has 1 missing"),
        ({"a": [None, None], "b": [1, 2]}, {}, {"na": "drop"}, DataError, "leaves no row"),
        ({"a": pa.array([], pa.float64())}, {}, {}, DataError, "no rows"),
    ],
)
def test_bad_tables_are_refused(tmp_path, table, more, options, error, message):
    path = write(pa.table(table), tmp_path / "x.parquet")
    with pytest.raises(error, match=message):
        build(features(path, **more), {"scale": True, **options})


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather"])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(("missing", "file", "row"), [([5, 40], "a", 6), ([31, 40], "b", 12)])
def test_the_first_row_that_is_not_right_is_named(tmp_path, suffix, scale, missing, file, row):
    values = np.arange(50.0)
    values[missing] = NAN
    table = pa.table({"a": np.arange(50.0), "b": pa.array(values, from_pandas=True)})
    parts = {"a": table.slice(0, 20), "b": table.slice(20)}
    paths = [write(part, tmp_path / f"{name}.{suffix}", rows=7) for name, part in parts.items()]
    name = f"{file}.{suffix}"
    with pytest.raises(DataError, match=f"2 missing values; the first is in row {row} of {name}"):
        build(features(paths), {"scale": scale})
    with pytest.raises(DataError, match=f"row {missing[0] + 1} of whole.{suffix}") as caught:
        build(features(write(table, tmp_path / f"whole.{suffix}")), {"scale": scale})
    assert caught.value.details["row"] == missing[0] + 1
    assert caught.value.details["path"].endswith(f"whole.{suffix}")


def test_a_fault_is_located_beside_columns_left_out(tmp_path):
    for number, value in enumerate((1.0, None)):
        table = pa.table({"a": [2.0, value], "b": [b"x", b"y"], "y": [0.0, 1.0]})
        write(table, tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=r"the first is in row 2 of 1\.parquet"):
        build(features([tmp_path], label="y", columns=["a"]))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_named_columns_are_read_of_files_that_have_others_too(tmp_path, suffix):
    table = pa.table({"a": [1.0, 2.0], "y": [0.5, 1.5]})
    more = table.append_column("more", pa.array(["no", "feature"]))
    paths = [write(table, tmp_path / f"1.{suffix}"), write(more, tmp_path / f"2.{suffix}")]
    data = build(features(paths, label="y", columns=["a"]))
    np.testing.assert_array_equal(gathered(data)[0], [[1], [2], [1], [2]])
    again = build(features(paths, label="y"), recipe=data.recipe)
    np.testing.assert_array_equal(gathered(again)[0], gathered(data)[0])
    with pytest.raises(DataError, match="has a column `more` that files before it do not have"):
        build(features(paths, label="y"))


def test_a_recipe_of_other_rows_is_named_before_the_file_is_read(tmp_path):
    path = write(simple(), tmp_path / "x.csv")
    recipe = build(features(path, label="y")).recipe
    other = write(pa.table({"u": [1.0], "v": [2.0]}), tmp_path / "other.csv")
    with pytest.raises(DataError, match="lacks the column"):
        build(features(other), recipe=recipe)
    array = {"kind": "array", "values": np.ones((3, 2)), "names": []}
    with pytest.raises(DataError, match="must be a matrix or array, as in training"):
        build(features(path), recipe=build(array).recipe)


def test_a_column_is_the_label_or_the_weights():
    table = pa.table({"a": [1.0, 2.0], "y": [0.5, 1.5]})
    asked = {"kind": "table", "stream": table, "label": "y", "weights": "y"}
    with pytest.raises(DataError, match="`weights` is the label `y`"):
        build(asked)
    with pytest.raises(DataError, match="more than one column `y`"):
        build({**asked, "label": ["y", "y"], "weights": None})


def test_the_row_counts_those_that_were_dropped(tmp_path):
    table = pa.table({"a": [None, 1.0, None, float("inf")], "b": [1.0, 2.0, 3.0, 4.0]})
    path = write(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="1 infinite; the first is in row 4 of x.parquet"):
        build(features(path), {"na": "drop"})


@pytest.mark.tf
def test_texts_are_learned_as_in_memory(tmp_path):
    texts = ["the cat", "the dog", None, "a cat and a dog", "the cat"] * 6
    table = pa.table({"t": texts, "y": np.arange(30.0)})
    path = write(table, tmp_path / "x.feather", rows=4)
    options = {"na": "impute", "validation": 0.3, "seed": 1}
    text = {"columns": ["t"], "max_tokens": 5, "output": "count"}
    label = to_column("y", table.column("y"))
    found = map_dataset.build_dataset(features(path, label="y"), options, text=text)
    expected = map_dataset.build_dataset(in_memory(table, ["t"]), options, label, text=text)
    check_same(found, expected)
    assert found.recipe.features.columns[0].kind == "text"


def test_dates_cannot_be_labels(tmp_path):
    path = write(
        pa.table({"y": pa.array([1, 2], pa.date32()), "x": [1, 2]}), tmp_path / "x.feather"
    )
    with pytest.raises(DataError, match="cannot be labels: the column `y` is a date"):
        build(features(path, label="y"), {})


def test_weights_come_from_the_file(tmp_path):
    table = simple().append_column("w", pa.array([1.0, 2, 3, 4, 5, 6]))
    path = write(table, tmp_path / "x.csv")
    data = build(features(path, label="y", weights="w"), {"validation": 0.5})
    assert data.recipe.features.known == {"größe", "f"}
    np.testing.assert_array_equal(gathered(data)[2], [1, 2, 3, 4, 5, 6])


def test_texts_are_no_weights(tmp_path):
    path = write(simple(), tmp_path / "x.csv")
    with pytest.raises(DataError, match="`weights` must be numbers: the column `f`"):
        build(features(path, label="y", weights="f"), {})


@pytest.mark.parametrize("na", ["error", "drop", "impute"])
def test_a_recipe_encodes_another_file(tmp_path, na):
    train = build(
        features(write(simple(), tmp_path / "x.csv"), label="y"), {"na": na, "scale": True}
    )
    other = simple(3).append_column("more", pa.array(["no", None, "feature"]))
    path = write(other.drop(["y"]), tmp_path / "new.parquet")
    test = build(features(path), recipe=train.recipe)
    np.testing.assert_array_equal(gathered(test)[0], gathered(train)[0][:3])
    lacking = write(other.drop(["y", "f"]), tmp_path / "lack.parquet")
    with pytest.raises(DataError, match="lacks the column `f`"):
        build(features(lacking), recipe=train.recipe)


def test_only_what_the_recipe_reads_makes_a_row_incomplete(tmp_path):
    train = build(features(write(simple(), tmp_path / "x.csv"), label="y"))
    table = pa.table({"größe": [0.0, None, 4.0], "f": ["a", "b", "a"], "more": [None, "x", "y"]})
    path = write(table, tmp_path / "new.parquet")
    test = build(features(path), {"na": "drop"}, recipe=train.recipe)
    assert test.dropped == 1
    np.testing.assert_array_equal(gathered(test)[0], gathered(train)[0][[0, 2]])


def test_new_levels_of_another_file_are_zeros_if_asked_for(tmp_path):
    write(pa.table({"city": ["Oslo", "Rome"]}), tmp_path / "a.csv")
    write(pa.table({"city": ["Rome", "Lima"]}), tmp_path / "b.csv")
    first = build(features([tmp_path / "a.csv"]), {"new_levels": "own"})
    found = gathered(build(features([tmp_path / "b.csv"]), recipe=first.recipe))[0]
    np.testing.assert_array_equal(found, [[0, 1], [0, 0]])


def test_times_are_read_in_the_zone_of_training(tmp_path):
    noon = pa.array([12 * 3600, 36 * 3600], pa.int64())
    paths = [
        write(pa.table({"t": noon.cast(pa.timestamp("s", zone))}), tmp_path / f"{n}.parquet")
        for n, zone in enumerate(["Asia/Tokyo", "UTC"])
    ]
    train = build(features(paths[0]), {})
    assert train.recipe.features.columns[0].zone == "Asia/Tokyo"
    test = build(features(paths[1]), recipe=train.recipe)
    np.testing.assert_array_equal(gathered(test)[0], gathered(train)[0])


def test_broken_rows_are_skipped_and_counted(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n3\n5,6\n")
    with pytest.raises(DataError):
        build(features(str(path)), {})
    data = build(features(str(path)), {"on_error": "skip"})
    assert data.skipped.startswith("1 row; the first: ")
    assert data.plan("CPU:0").skipped == data.skipped
    assert len(data) == 2


# Memory and disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("cache", ["auto", "disk"])
def test_what_does_not_fit_is_the_same(tmp_path, monkeypatch, suffix, cache):
    rng = np.random.default_rng(1)
    table = pa.table({f"x{i}": rng.normal(size=5000) for i in range(6)})
    table = table.append_column("y", pa.array(rng.integers(0, 3, 5000)).cast(pa.string()))
    path = write(table, tmp_path / f"x.{suffix}", rows=600)
    options = {"validation": 0.2, "scale": True}
    expected = build(features(path, label="y"), options)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.delenv("R_SESSION_TMPDIR", raising=False)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 10_000)
    monkeypatch.setattr(storage, "MEMORY_BYTES", 10_000)
    found = build(features(path, label="y"), {**options, "cache": cache})
    check_same(found, expected)
    assert isinstance(found.sources[0], storage.DiskRows)
    assert [file.suffix for file in (tmp_path / "scratch").iterdir()] == [".rows"]  # no spool
    del found
    assert not list((tmp_path / "scratch").iterdir())


def test_the_files_may_vanish_once_the_dataset_is_made(tmp_path):
    path = write(simple(), tmp_path / "x.csv")
    data = build(features(path, label="y"), {"cache": "disk"})
    os.remove(path)
    assert len(gathered(data)[0]) == 6


@pytest.mark.parametrize("na", ["error", "impute", "drop"])
def test_a_table_is_parsed_once(tmp_path, monkeypatch, na):
    passes, read = [], TableReader.batches
    monkeypatch.setattr(TableReader, "batches", lambda self: passes.append(1) or read(self))
    path = write(simple(), tmp_path / "x.csv")
    build(features(path, label="y"), {"na": na, "validation": 0.5})
    assert len(passes) == 1
