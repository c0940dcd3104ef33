"""Files divided among workers: every unit once, in runs of about equal weight."""

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.reader.table.columnar import split_units
from gpukeras.data.reader.table.features import open_table


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_every_unit_is_in_one_run_and_no_run_is_empty(weights, count):
    count = min(count, len(weights))
    runs = split_units(weights, count)
    assert [unit for run in runs for unit in run] == list(range(len(weights)))
    assert len(runs) == count
    assert all(runs)


@pytest.mark.parametrize(
    ("weights", "count", "sizes"),
    [
        ([1] * 8, 4, [2, 2, 2, 2]),
        ([1] * 5, 2, [2, 3]),
        ([10, 1, 1, 1, 1, 6], 2, [1, 5]),
        ([1, 1, 1, 100], 3, [2, 1, 1]),
        ([0, 0, 0], 3, [1, 1, 1]),
    ],
)
def test_runs_have_about_equal_weights(weights, count, sizes):
    assert [len(run) for run in split_units(weights, count)] == sizes


def make_files(folder, rows_of_files, group=100):
    start, paths = 0, []
    for number, rows in enumerate(rows_of_files):
        table = pa.table({"a": pa.array(range(start, start + rows), pa.float64())})
        paths.append(folder / f"{number}.parquet")
        pq.write_table(table, paths[-1], row_group_size=group)
        start += rows
    return [str(path) for path in paths]


def read_shards(paths, count, **how):
    """The rows of each worker, and its phrase."""
    found = []
    for index in range(count):
        reader = open_table(paths, "x", **how)
        share = reader.take_shard(index, count)
        rows = [value for batch in reader.batches() for value in batch["a"].to_pylist()]
        assert reader.known_rows in (None, len(rows))
        found.append((rows, share))
    return found


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_one_parquet_file_is_divided_by_row_groups(tmp_path, workers):
    paths = make_files(tmp_path, [1150])
    found = read_shards(paths, workers)
    assert [row for rows, _ in found for row in rows] == list(range(1150))
    assert max(len(rows) for rows, _ in found) <= 1150 / workers + 100
    assert found[-1][1].endswith(" to 12 of 12")


def test_row_groups_of_several_files_are_divided(tmp_path):
    paths = make_files(tmp_path, [500, 100, 300])
    found = read_shards(paths, 2)
    assert [row for rows, _ in found for row in rows] == list(range(900))
    assert [share for _, share in found] == [
        "row groups 1 to 4 of 9, in 1 of 3 files",
        "row groups 5 to 9 of 9, in 3 of 3 files",
    ]


def test_a_worker_is_asked_for_its_own_bytes(tmp_path):
    (path,) = make_files(tmp_path, [1000])
    whole = pq.read_metadata(path)
    sizes = [whole.row_group(number).total_byte_size for number in range(whole.num_row_groups)]
    asked = []
    for index in range(4):
        reader = open_table(path, "x")
        reader.take_shard(index, 4)
        (part,) = reader._parts
        asked.append(sum(sizes[group] for group in part.groups))
    assert sum(asked) == sum(sizes)
    assert max(asked) < 0.4 * sum(sizes)


@pytest.mark.parametrize("form", ["csv", "feather"])
def test_other_files_are_divided_as_they_are(tmp_path, form):
    paths, start = [], 0
    for number, rows in enumerate([100, 100, 100]):
        values = [float(value) for value in range(start, start + rows)]
        paths.append(str(tmp_path / f"{number}.{form}"))
        if form == "csv":
            (tmp_path / f"{number}.csv").write_text("a\n" + "\n".join(map(str, values)) + "\n")
        else:
            feather.write_feather(pa.table({"a": values}), paths[-1])
        start += rows
    found = read_shards(paths, 2)
    assert [row for rows, _ in found for row in rows] == list(range(300))
    assert sorted(len(rows) for rows, _ in found) == [100, 200]
    assert {share for _, share in found} <= {
        "file 1 of 3",
        "files 2 to 3 of 3",
        "files 1 to 2 of 3",
        "file 3 of 3",
    }


@pytest.mark.parametrize(("form", "noun"), [("parquet", "1 row group"), ("csv", "1 file")])
def test_fewer_files_than_workers_are_an_error(tmp_path, form, noun):
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    path = make_files(tmp_path, [50])[0] if form == "parquet" else str(tmp_path / "x.csv")
    with pytest.raises(DataError, match=f"`x` has {noun} for 2 workers"):
        open_table(path, "x").take_shard(0, 2)
