import os
import subprocess
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.feather as pa_feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.files import arrow
from gpukeras.data.reader.table.features import open_table
from gpukeras.data.reader.table.schema import Wanted, to_column

in_one_folder = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SUFFIXES = (".parquet", ".feather")


def write(table, path, **options):
    """As Parquet or Arrow, by the path's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, **options)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=options.get("row_group_size"))
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table, max_chunksize=options.get("row_group_size"))
    return str(path)


def read(paths, columns=None, **options):
    reader = open_table(paths, "x", wanted=Wanted(columns), **options)
    return pa.Table.from_batches(reader.batches(), reader.schema)


def numbers(rows=1000, start=0):
    return pa.table({"k": np.arange(start, start + rows), "v": np.arange(rows) / 7})


def factor(codes, levels):
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), levels)


NESTED = pa.table({"a": [1], "l": [[1, 2]], "s": [{"b": 1}], "raw": [b"x"]})
ALL = pa.table(
    {
        "double": [1.5, None, np.nan],
        "single": pa.array([1.5, None, 2], pa.float32()),
        "half": pa.array([1.5, None, 2], pa.float16()),
        "int": pa.array([1, None, 3], pa.int32()),
        "long": pa.array([2**53, None, -3], pa.int64()),
        "ulong": pa.array([2**63, None, 3], pa.uint64()),
        "decimal": pa.array([Decimal("1.25"), None, Decimal("-2")], pa.decimal128(9, 2)),
        "flag": [True, None, False],
        "text": ["b", None, ""],
        "long_text": pa.array(["größe", None, "日本"], pa.large_string()),
        "factor": factor([2, None, 0], ["c", "unused", "a"]),
        "day": pa.array([date(2024, 2, 29), None, date(1969, 1, 1)]),
        "moment": pa.array([datetime(2024, 7, 1), None, datetime(1969, 1, 1)], pa.timestamp("ns")),
        "zoned": pa.array([datetime(2024, 7, 1)] * 3, pa.timestamp("us", "Europe/Berlin")),
        "clock": pa.array([time(1, 2, 3), None, time(0)], pa.time64("us")),
        "span": pa.array([timedelta(1), None, timedelta(seconds=1)], pa.duration("ms")),
        "nothing": pa.nulls(3),
    }
)
KINDS = (
    "numeric numeric numeric integer integer integer numeric logical character character factor "
    "date time time duration duration logical"
)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".arrow"])
def test_every_type_comes_back_as_it_was_written(tmp_path, suffix):
    table = ALL
    if suffix != ".parquet":  # which has no view
        table = table.append_column("view", pa.array(["b", None, "a"], pa.string_view()))
    found = read(write(table, tmp_path / f"x{suffix}"))
    kinds = KINDS.split() + ["character"] * (len(table.columns) > len(ALL.columns))
    for name, kind in zip(table.column_names, kinds, strict=True):
        column, expected = (to_column(name, of.column(name)) for of in (found, table))
        assert column["kind"] == kind
        for part in expected:
            np.testing.assert_array_equal(column[part], expected[part], err_msg=name)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_every_compression_is_read(tmp_path, codec):
    path = write(numbers(), tmp_path / "x.parquet", compression=codec)
    assert read(path).equals(numbers())


@pytest.mark.parametrize("codec", ["uncompressed", "lz4", "zstd"])
def test_feather_is_read_however_it_is_compressed(tmp_path, codec):
    pa_feather.write_feather(numbers(), tmp_path / "x.feather", compression=codec)
    assert read(str(tmp_path / "x.feather")).equals(numbers())


def test_metadata_of_pandas_is_no_part_of_the_schema(tmp_path):
    path = write(numbers().replace_schema_metadata({"pandas": "{}"}), tmp_path / "x.parquet")
    assert open_table(path, "x").schema.metadata is None


# Streaming ---------------------------------------------------------------------------------------


def join_levels(columns):
    """Levels of all batches' columns, in order of appearance."""
    return list(dict.fromkeys(level for each in columns for level in to_column("", each)["levels"]))


@in_one_folder
@given(
    cuts=st.sets(st.integers(1, 199), max_size=3),
    group=st.sampled_from([13, 50, 1000]),
    batch_bytes=st.sampled_from([1, 5000, 2**22]),
    suffix=st.sampled_from(SUFFIXES),
)
def test_any_chunking_gives_the_same_columns(
    tmp_path, monkeypatch, cuts, group, batch_bytes, suffix
):
    monkeypatch.setattr(arrow, "BATCH_BYTES", batch_bytes)
    table = pa.concat_tables([ALL] * 67).slice(0, 200)
    edges = [0, *sorted(cuts), 200]
    paths = [
        write(table.slice(start, end - start), tmp_path / f"{start}{suffix}", row_group_size=group)
        for start, end in zip(edges, edges[1:], strict=False)
    ]
    reader = open_table(paths, "x")
    parts = list(reader.batches())
    assert reader.known_rows == sum(part.num_rows for part in parts) == 200
    for name in table.column_names:
        whole = to_column(name, table.column(name))
        if "levels" in whole and whole["kind"] in ("factor", "character"):
            texts = [text for part in parts for text in part.column(name).to_pylist()]
            assert texts == table.column(name).to_pylist()
            continue
        values = np.concatenate([to_column(name, part.column(name))["values"] for part in parts])
        np.testing.assert_array_equal(values.astype("f8"), whole["values"].astype("f8"))
    assert join_levels(part.column("factor") for part in parts) == ["c", "unused", "a"]


def test_rows_of_a_stream_are_not_known_before_it_is_read(tmp_path):
    reader = open_table(write(numbers(), tmp_path / "x.arrow"), "x")
    assert reader.known_rows is None
    assert sum(batch.num_rows for batch in reader.batches()) == 1000


# Several files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "later", "type"),
    [
        (pa.array([1, 2]), pa.array([1.5, None]), pa.float64()),
        (pa.array([1.5]), pa.array([2]), pa.float64()),
        (pa.array([1], pa.int8()), pa.array([2], pa.int32()), pa.int64()),
        (pa.array([1], pa.int64()), pa.array([2], pa.uint64()), pa.float64()),
        (pa.array([Decimal("1.5")]), pa.array([2.5]), pa.float64()),
        (pa.array([1.5], pa.float32()), pa.array([2.5]), pa.float64()),
        (pa.nulls(1), pa.array(["a"]), pa.string()),
        (pa.array(["a"]), pa.nulls(1), pa.string()),
        (pa.array(["a"]), pa.array(["b"], pa.large_string()), pa.large_string()),
        (pa.array(["a"]), factor([0], ["b"]), pa.string()),
        (factor([0], ["b"]), pa.array(["a"]), pa.string()),
        (factor([0], ["b"]), factor([0], [3]), pa.dictionary(pa.int32(), pa.string())),
        (pa.array([date(2024, 1, 1)]), pa.array([date(2024, 1, 2)], pa.date64()), pa.date32()),
        (
            pa.array([datetime(2024, 1, 1)], pa.timestamp("ms", "UTC")),
            pa.array([datetime(2024, 1, 1)], pa.timestamp("us", "Europe/Berlin")),
            pa.timestamp("us", "UTC"),
        ),
        (pa.array([time(1)], pa.time32("s")), pa.array([time(2)]), pa.time64("ns")),
        (pa.array([timedelta(1)], pa.duration("s")), pa.array([timedelta(2)]), pa.duration("us")),
    ],
)
def test_types_that_go_together_are_joined(tmp_path, first, later, type):
    paths = [
        write(pa.table({"v": array}), tmp_path / f"{index}.feather")
        for index, array in enumerate((first, later))
    ]
    table = read(paths)
    assert table.schema.field("v").type == type
    found = to_column("v", table.column("v"))
    parts = [to_column("v", array) for array in (first, later)]
    if "levels" in found and found["levels"]:
        texts = [str(value) for array in (first, later) for value in array.to_pylist()]
        assert [str(value) for value in table.column("v").to_pylist()] == texts
    else:
        values = np.concatenate([np.asarray(part["values"], "f8") for part in parts])
        np.testing.assert_array_equal(found["values"], values)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_factors_with_other_levels_are_joined_in_order_of_appearance(tmp_path, suffix):
    paths = [
        write(pa.table({"f": factor([1, 0], levels)}), tmp_path / f"{index}{suffix}")
        for index, levels in enumerate((["b", "a", "unused"], ["c", "a"], ["b", "d"]))
    ]
    columns = (batch.column("f") for batch in open_table(paths, "x").batches())
    assert join_levels(columns) == ["b", "a", "unused", "c", "d"]


# Faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.0001, 0.5, 0.999])
def test_a_truncated_file_is_named(tmp_path, suffix, share):
    path = tmp_path / f"x{suffix}"
    write(numbers(5000), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(1, int(len(whole) * share))])
    with pytest.raises(DataError, match=rf"`x`: the file x{suffix} is no whole ") as raised:
        open_table(str(path), "x")
    assert raised.value.details["path"] == str(path)
    good = write(numbers(5), tmp_path / f"good{suffix}")
    reader = open_table([str(path), good], "x", on_error="skip")
    assert sum(batch.num_rows for batch in reader.batches()) == 5
    assert reader.skipped.files == 1
    assert f"the file x{suffix} is no whole" in reader.skipped.first


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_file_is_named_with_the_rows_before_the_damage(tmp_path, suffix):
    path, group = tmp_path / f"x{suffix}", 4000
    rng = np.random.default_rng(1)
    table = pa.table({"v": pa.array([str(number) for number in rng.normal(size=3 * group)])})
    write(table, path, row_group_size=group)
    whole = bytearray(path.read_bytes())
    end = len(whole) // 2
    whole[end - 30_000 : end + 30_000] = b"\xff" * 60_000
    path.write_bytes(whole)
    with pytest.raises(DataError, match=f"x{suffix} is damaged behind row") as raised:
        read(str(path))
    good = write(table.slice(0, 5), tmp_path / f"y{suffix}")
    reader = open_table([str(path), good], "x", on_error="skip")
    found = sum(batch.num_rows for batch in reader.batches())
    assert reader.skipped.files == 1
    assert found + reader.skipped.rows == 3 * group + 5
    assert raised.value.details["row"] == found - 5 + 1


def test_nested_columns_are_refused_unless_others_are_chosen(tmp_path):
    path = write(NESTED, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="nested column `l` of type list"):
        open_table(path, "x")
    with pytest.raises(DataError, match="nested column `s` of type struct"):
        open_table(path, "x", wanted=Wanted(["a", "s"]))
    with pytest.raises(DataError, match="a column `raw` of type binary"):
        open_table(path, "x", wanted=Wanted(["raw"]))
    assert read(path, columns=["a"]).column_names == ["a"]


def test_a_missing_pyarrow_is_named():
    program = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from gpukeras import RuntimeMissingError\n"
        "try:\n    from gpukeras.data.reader.table import features\n"
        "except RuntimeMissingError as error:\n    print(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert "pyarrow is needed to read CSV, Parquet and Arrow files" in done.stdout
