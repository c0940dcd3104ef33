"""What every reader of tables promises, whatever its rows are written in."""

from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from table_files import write_hdf5

from gpukeras import DataError
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.files.files import Skipped
from gpukeras.data.reader.table.features import open_table
from gpukeras.data.reader.table.schema import Wanted
from gpukeras.data.reader.table.stream import open_stream

FILES = (".csv", ".csv.gz", ".parquet", ".feather", ".arrow", ".h5")
WITH_COUNTS = (
    ".csv",
    ".parquet",
    ".feather",
    ".h5",
)  # an Arrow stream's end is seen when it is read
KINDS = (*FILES, "stream")


def write(table, path):
    """A file of the format that its name ends in."""
    if ".csv" in path.name:
        with pa.output_stream(str(path)) as out:  # compressed by its name
            pacsv.write_csv(table, out)
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".h5":
        write_hdf5(table, path)
    else:
        make = pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file
        with make(str(path), table.schema) as out:
            out.write_table(table)
    return str(path)


def opened(kind, table, folder, columns=None):
    if kind != "stream":
        return open_table(write(table, folder / f"x{kind}"), "x", wanted=Wanted(columns))
    return open_stream(table, "x").select(columns) if columns else open_stream(table, "x")


def read(reader):
    return pa.Table.from_batches(list(reader.batches()), reader.schema)


def numbers(rows, start=0):
    return pa.table({"k": np.arange(start, start + rows) + 0.5, "v": np.arange(rows) / 7})


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_asked_for_come_in_their_order(tmp_path, kind):
    table = pa.table({"a": [1.5, 2.0], "b": ["x", "y"], "c": [True, False]})
    reader = opened(kind, table, tmp_path, ["c", "a"])
    assert reader.names == ("c", "a")
    assert read(reader).equals(table.select(["c", "a"]))


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_of_a_name_are_refused(tmp_path, kind):
    with pytest.raises(DataError, match="several columns named `a`"):
        opened(kind, pa.table([[1], [2]], names=["a", "a"]), tmp_path)


@pytest.mark.parametrize(
    ("columns", "hint"), [(["kk"], "called like k, v"), (["zzzz"], "It has 2 columns")]
)
@pytest.mark.parametrize("kind", FILES)
def test_a_column_that_is_not_there_names_the_near_ones(tmp_path, kind, columns, hint):
    with pytest.raises(DataError, match=f"has no column `{columns[0]}`") as raised:
        opened(kind, numbers(3), tmp_path, columns)
    assert hint in raised.value.hint
    assert raised.value.details["column"] == columns[0]


@pytest.mark.parametrize("kind", WITH_COUNTS)
def test_a_table_without_rows_is_refused(tmp_path, kind):
    with pytest.raises(DataError, match="has no rows"):
        opened(kind, numbers(0), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("values", "noted"),
    [
        ([2**53 + 1], True),
        ([2**63 - 1], True),
        ([2**53, 2**60, None], False),
        ([-(2**62) - 1, 7, None], True),
    ],
)
def test_whole_numbers_that_are_rounded_are_noted(tmp_path, kind, values, noted):
    reader = opened(kind, pa.table({"k": values, "v": [1.5] * len(values)}), tmp_path)
    assert reader.notes == ()
    read(reader)
    said = "Column `k` of `x` has whole numbers beyond 2^53: they are rounded."
    assert reader.notes == ((said,) if noted else ())


@pytest.mark.costly
@pytest.mark.parametrize("kind", [".csv", ".parquet", ".feather", "stream"])
def test_batches_are_small_however_the_rows_are_written(tmp_path, kind):
    table = numbers(400_000)
    reader = opened(kind, table, tmp_path)
    batches = list(reader.batches())
    assert max(batch.nbytes for batch in batches) < 5 * 2**20 < table.nbytes
    assert pa.Table.from_batches(batches)["k"].to_pylist() == table["k"].to_pylist()
    assert reader.known_rows == (400_000 if kind in (".parquet", ".feather") else None)


@pytest.mark.parametrize("kind", FILES)
def test_a_second_pass_gives_the_same_rows(tmp_path, kind):
    reader = opened(kind, numbers(5000), tmp_path)
    first, again = read(reader), read(reader)
    assert len(first) == 5000
    assert first.equals(again)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("change", ["is gone", "changed after it was opened"])
def test_a_file_that_vanishes_or_changes_between_passes_is_named(tmp_path, kind, change):
    paths = [write(numbers(2, start), tmp_path / f"{start}{kind}") for start in (1, 2)]
    stop, skip = (open_table(paths, "x", on_error=how) for how in ("stop", "skip"))
    assert len(read(stop)) == 4
    if change == "is gone":
        (tmp_path / f"2{kind}").unlink()
    else:
        write(numbers(30), tmp_path / f"2{kind}")
    with pytest.raises(DataError, match=f"the file 2{kind} {change}. Make the dataset again"):
        read(stop)
    assert len(read(skip)) == 2
    assert (skip.skipped.files, skip.skipped.first) == (1, f"`x`: the file 2{kind} {change}.")


MISFITS = [
    ({"k": [1], "w": [1.0]}, "has no column `v`: it has 2 columns, files before it have 2", "v"),
    ({"k": [1]}, "has no column `v`: it has 1 column", "v"),
    ({"k": [1], "v": [1.0], "z": [1]}, "has a column `z` that files before it do not have", "z"),
]
OF_ANOTHER_TYPE = [
    ({"k": [1], "v": ["a"]}, "has string in the column `v` where files before it have double", "v"),
    ({"k": [1], "v": [[1.0]]}, "has a nested column `v` of type list", "v"),
]


@pytest.mark.varies
@pytest.mark.parametrize(
    ("kind", "misfit"),
    [*product(WITH_COUNTS, MISFITS), *product((".parquet", ".feather"), OF_ANOTHER_TYPE)],
)
def test_of_100_files_the_one_that_does_not_fit_is_named(tmp_path, kind, misfit):
    columns, message, name = misfit
    for number in range(100):
        table = pa.table(columns) if number == 57 else numbers(3)
        write(table, tmp_path / f"part{number:02}{kind}")
    with pytest.raises(DataError, match=f"`x`: the file part57{kind} {message}") as raised:
        read(open_table(str(tmp_path / f"*{kind}"), "x"))
    assert raised.value.details["column"] == name
    reader = open_table(str(tmp_path), "x", on_error="skip")
    assert len(read(reader)) == 99 * 3
    assert reader.known_rows in (None, 99 * 3)
    assert reader.skipped == Skipped(0, 1, reader.skipped.first)
    assert f"part57{kind} {message}" in reader.skipped.first


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".feather"])
def test_a_text_that_r_cannot_hold_is_refused_by_its_column_and_may_be_hashed(tmp_path, kind):
    path = write(pa.table({"k": ["x\0z", "b"], "v": [1.0, 2.0]}), tmp_path / f"x{kind}")
    features = {"kind": "table", "paths": [path]}
    with pytest.raises(DataError, match="Column `k` of `x` has a text with a NUL") as caught:
        build_dataset(features, {})
    assert caught.value.details["column"] == "k"
    assert len(build_dataset(features, {"encode": {"k": "hash"}})) == 2
