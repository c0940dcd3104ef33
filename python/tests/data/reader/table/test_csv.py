import bz2
import gzip
import os
import time
from datetime import date, datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.reader.table import csv_records
from gpukeras.data.reader.table.features import open_table
from gpukeras.data.reader.table.schema import Wanted, to_column

in_one_folder = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
UTC = timezone.utc


@pytest.fixture
def write(tmp_path):
    def write(text, name="x.csv"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        packed = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(data)
        path.write_bytes(packed)
        return str(path)

    return write


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 64)
    monkeypatch.setattr(csv_records, "COLUMN_BYTES", 1)


def read(paths, columns=None, **options):
    reader = open_table(paths, "x", wanted=Wanted(columns), **options)
    return pa.Table.from_batches(reader.batches(), reader.schema)


def values(text, write, **options):
    return read(write(text), **options).column(0).to_pylist()


# Types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "type", "expected"),
    [
        (["1", "2"], pa.float64(), [1, 2]),
        (["1", "NA", "", "NaN", "2.5"], pa.float64(), [1, None, None, None, 2.5]),
        ([" 1", "2 ", " NA", "+3", "-4e2"], pa.float64(), [1, 2, None, 3, -400]),
        (["Inf", "-Inf"], pa.float64(), [np.inf, -np.inf]),
        (['"1"', '"NA"'], pa.float64(), [1, None]),
        (["TRUE", "F", "NA", "true"], pa.bool_(), [True, False, None, True]),
        (["0", "1"], pa.float64(), [0, 1]),
        (["a", "NA", "", "NaN", "null"], pa.string(), ["a", None, "", "NaN", "null"]),
        (["größe", "日本", '"a,""b"'], pa.string(), ["größe", "日本", 'a,"b']),
        (["2024-02-29", "NA"], pa.date32(), [date(2024, 2, 29), None]),
        (
            ["2024-01-02 03:04:05", "2024-01-02T03:04:05.25"],
            pa.timestamp("us"),
            [datetime(2024, 1, 2, 3, 4, 5), datetime(2024, 1, 2, 3, 4, 5, 250_000)],
        ),
        (
            ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05+02:00"],
            pa.timestamp("us", "UTC"),
            [datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)],
        ),
        (["NA", "NA"], pa.bool_(), [None, None]),
    ],
)
def test_types_are_those_r_would_read(write, lines, type, expected):
    table = read(write("\n".join(["v,w", *(f"{line},1" for line in lines), ""])))
    assert table.schema.field("v").type == type
    assert table.column("v").to_pylist() == expected


def test_parts_of_microseconds_are_kept(write):
    found = read(write("t\n2024-01-02 03:04:05.123456789\n"))
    assert found.schema.field("t").type == pa.timestamp("ns")


def test_times_of_day_are_durations(write):
    column = read([write("t\n12:30:00\n", "1.csv"), write("t\n00:00:01.5\n", "2.csv")]).column(0)
    assert to_column("t", column)["values"].tolist() == [45_000.0, 1.5]


@pytest.mark.parametrize(
    ("text", "name", "decimal"),
    [
        ("a;b\n1,5;x\n2;y\n", "x.csv", 1.5),
        ("a;b\n1.5;x\n2;y\n", "x.csv", 1.5),
        ("a\tb\n1,5\tx\n2\ty\n", "x.tsv", 1.5),
        ("a\tb\n1.5\tx\n2\ty\n", "x.txt", 1.5),
        ("\ufeffa,b\r\n1.5,x\r\n2,y\r\n", "x.csv", 1.5),
        ("a,b\r1.5,x\r2,y", "x.csv", 1.5),
        ("\n\na,b\n\n1.5,x\n\n\n2,y\n\n", "x.csv", 1.5),
        ("a,b\n1.5,x\n2,y\n", "x.csv.gz", 1.5),
        ("a,b\n1.5,x\n2,y\n", "x.csv.bz2", 1.5),
    ],
)
def test_dialects_give_the_same_rows(write, text, name, decimal):
    table = read(write(text, name))
    assert table.to_pydict() == {"a": [decimal, 2], "b": ["x", "y"]}


def test_a_decimal_comma_is_noted(write):
    assert open_table(write("a;b\n1,5;2\n"), "x").notes == (
        "The file x.csv has numbers with a decimal comma.",
    )


def test_newlines_within_quotes_are_text(write, small_blocks):
    lines = [f'{row},"line {row}\nand\n""more"""' for row in range(50)]
    table = read(write("a,b\n" + "\n".join(lines)))
    assert table.column("b").to_pylist() == [f'line {row}\nand\n"more"' for row in range(50)]


def test_later_blocks_may_have_decimals_and_first_values(write, small_blocks):
    lines = [f"{row},NA,NA,NA" for row in range(40)] + ["1.5,2,b,2024-01-01"]
    table = read(write("a,late,text,day\n" + "\n".join(lines)))
    assert table.schema.types == [pa.float64(), pa.float64(), pa.string(), pa.date32()]
    assert table.slice(40).to_pylist() == [
        {"a": 1.5, "late": 2, "text": "b", "day": date(2024, 1, 1)}
    ]


def test_types_may_come_from_a_later_file(write):
    first, second = write("a,b\n1,NA\n", "1.csv"), write("b,a\nx,2\n", "2.csv")
    assert read([first, second]).to_pydict() == {"a": [1, 2], "b": [None, "x"]}


def test_whole_numbers_beyond_64_bits_are_noted(write):
    reader = open_table(write("k,v\n1,1\n-12345678901234567890,2\nNA,3\n"), "x")
    list(reader.batches())
    assert reader.notes == ("Column `k` of `x` has whole numbers beyond 2^53: they are rounded.",)


@pytest.mark.parametrize("number", ["9007199254740992", "1e300", "9007199254740994", "-1e17"])
def test_large_numbers_that_are_kept_are_not_noted(write, number):
    reader = open_table(write(f"k\n{number}\n"), "x")
    list(reader.batches())
    assert reader.notes == ()


# Streaming ---------------------------------------------------------------------------------------


def is_open(path):
    files = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return any(file.is_symlink() and os.readlink(file) == str(path) for file in files)


def test_a_pass_that_is_given_up_leaves_no_file_open(write, small_blocks):
    path = write("a\n" + "1\n" * 5000, "x.csv.gz")
    batches = open_table(path, "x").batches()
    next(batches)
    assert is_open(path)
    batches.close()
    until = time.monotonic() + 30
    while is_open(path) and time.monotonic() < until:  # the thread that reads it ends by itself
        time.sleep(0.01)
    assert not is_open(path)


cells = st.tuples(
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.text(st.sampled_from('ab,"\n é'), max_size=5).filter(lambda text: text != "NA"),
    st.none() | st.booleans(),
    st.none() | st.dates(date(1900, 1, 1), date(2100, 1, 1)),
)


def to_csv(row):
    number, text, flag, day = row
    quoted = "NA" if text is None else '"' + text.replace('"', '""') + '"'
    logical = "NA" if flag is None else str(flag).upper()
    return f"{'' if number is None else repr(number)},{quoted},{logical},{day or 'NA'}\n"


@pytest.mark.costly
@in_one_folder
@given(
    rows=st.lists(cells, min_size=1, max_size=40),
    size=st.sampled_from([1, 7, 50, 1000]),
    cuts=st.sets(st.integers(1, 39), max_size=3),
    suffix=st.sampled_from([".csv", ".csv.gz"]),
)
def test_any_chunking_gives_the_same_rows(write, monkeypatch, rows, size, cuts, suffix):
    rows = [(1.5, "z", True, date(2000, 1, 1)), *rows]  # types for all columns
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    paths = [
        write("n,t,l,d\n" + "".join(map(to_csv, rows[start:end])), f"{index}{suffix}")
        for index, (start, end) in enumerate(zip(edges, edges[1:], strict=False))
    ]
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 2**20)
    whole = read(paths)
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", size)
    monkeypatch.setattr(csv_records, "COLUMN_BYTES", 0)
    assert read(paths).to_pylist() == whole.to_pylist()
    assert [tuple(row.values()) for row in whole.to_pylist()] == rows


# Faults ------------------------------------------------------------------------------------------

NUMBERS = "a,b\n1,2\n"
BROKEN = [
    # first file, later file, what is said of it, row and column in the details, its rows left
    (NUMBERS, "a,b\n1,2\n3,x9\n5,6\n", "a value in line 3 that is not a number", 3, "b", 2),
    (NUMBERS, "b,a\n1,2\nx9,4\n", "a value in line 3 that is not a number", 3, "b", 1),
    (NUMBERS, "a,b\n1,2\n3\n5,6\n", "1 value in line 3 where its header has 2", 3, None, 2),
    (NUMBERS, "a,b\n1,2\n3,4,5\n5,6\n", "3 values in line 3 where its header has 2", 3, None, 2),
    (NUMBERS, 'a,b\n1,2\n3,"4\n5,6\n', "a quoted text that begins in line 3", 3, None, 2),
    ("a,b\n1,TRUE\n", "a,b\n1,F\n2,x9\n", "line 3 that is not TRUE or FALSE", 3, "b", 1),
    ("a,b\n1,2024-01-01\n", "a,b\n2,x9\n", "line 2 that is not a date", 2, "b", 0),
    ("a,b\n1,2024-01-01 10:00:00\n", "a,b\n2,x9\n", "line 2 that is not a time", 2, "b", 0),
    ("a,b\n1,x\n", b"a,b\n1,x\n2,\xff\xfe\n", "line 3 of column `b` that is not in", 3, "b", 1),
    ("a,b\n1,x\n", b"a,b\n1,x\n2\xff\n", "1 value in line 3 where its header", 3, None, 1),
    ("a,b\n1,x\n", 'a,b\n1,"x\ny"\n\n2,"z"\nx9,"u"\n', "in line 6 that is not a num", 6, "a", 2),
]


@pytest.mark.parametrize(("first", "text", "message", "row", "column", "left"), BROKEN)
def test_a_broken_row_is_named(write, first, text, message, row, column, left):
    paths = [write(first, "first.csv"), write(text, "part.csv")]
    with pytest.raises(DataError, match=f"`x`: the file part.csv has .*{message}") as raised:
        read(paths)
    assert "x9" not in str(raised.value)
    details = raised.value.details
    assert (details["row"], details.get("column"), details["path"]) == (row, column, paths[1])


@pytest.mark.parametrize(("first", "text", "message", "row", "column", "left"), BROKEN)
def test_broken_rows_are_skipped_and_counted(write, first, text, message, row, column, left):
    reader = open_table([write(first), write(text, "part.csv")], "x", on_error="skip")
    for _ in range(2):
        assert sum(batch.num_rows for batch in reader.batches()) == 1 + left
        assert (reader.skipped.rows, reader.skipped.files) == (1, 0)
        assert message in reader.skipped.first


def test_many_broken_rows_are_all_counted(write, small_blocks):
    lines = [f"{row},{'?' if row % 7 == 3 else row}" + ",9" * (row % 11 == 5) for row in range(500)]
    paths = [write("a,b\n-1,-1\n", "1.csv"), write("a,b\n" + "\n".join(lines), "2.csv")]
    reader = open_table(paths, "x", on_error="skip")
    good = [-1, *(row for row in range(500) if row % 7 != 3 and row % 11 != 5)]
    found = pa.Table.from_batches(reader.batches()).column("b").to_pylist()
    assert found == good
    assert reader.skipped.rows == 501 - len(good)
    assert "in line 5 " in reader.skipped.first


def test_the_line_of_a_late_fault_is_found(write, small_blocks):
    text = "a,b\n" + '1,"x\ny"\n' * 200 + "2,z\n" * 99 + "bad,z\n" + "3,u\n" * 100
    for name in ("x.csv", "x.csv.gz"):
        with pytest.raises(DataError, match="line 501 that is not a number"):
            read(write(text, name))


@pytest.mark.varies
@pytest.mark.parametrize(
    ("later", "message", "row", "column"),
    [
        ("a,b\n1,2\n1,2,3\n", "has 3 values in line 3 where its header has 2", 3, None),
        ("a,b\n1,oops\n", "has a value in line 2 that is not a number, as column `b`", 2, "b"),
        ("a,a\n1,2\n", "has several columns named `a`", 1, "a"),
        ("", "is empty", None, None),
        (b"\xff\xfea\x00", "has a header that is not in UTF-8", 1, None),
        ("a,b\n1,2\n".encode("utf-16-le"), "has a header that is not in UTF-8", 1, None),
    ],
)
def test_of_100_files_the_broken_one_is_named(write, tmp_path, later, message, row, column):
    for number in range(100):
        write(later if number == 57 else f"a,b\n{number},1\n", f"part{number:02}.csv")
    with pytest.raises(DataError, match=f"the file part57.csv {message}") as raised:
        read(str(tmp_path / "part*.csv"))
    assert (raised.value.details.get("row"), raised.value.details.get("column")) == (row, column)
    reader = open_table(str(tmp_path), "x", on_error="skip")
    assert sum(batch.num_rows for batch in reader.batches()) in (99, 100)
    assert reader.skipped.rows + reader.skipped.files == 1
    assert f"part57.csv {message}" in reader.skipped.first


@pytest.mark.costly
def test_a_header_may_be_wide(write):
    names = [f"gene_number_{number}" for number in range(9000)]  # more than is read at once
    for newline in ("\n", "\r\n", "\r"):
        text = newline.join([",".join(names), ",".join(["1"] * 9000), ""])
        assert open_table(write(text), "x").names == tuple(names)


@pytest.mark.costly
@pytest.mark.parametrize("packed", [".gz", ".bz2"])
def test_a_truncated_compressed_file_is_named(write, tmp_path, monkeypatch, packed):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 100_000)
    rng = np.random.default_rng(1)
    text = "a\n" + "\n".join(map(str, rng.normal(size=150_000)))
    path = write(text, "x.csv" + packed)
    whole = (tmp_path / ("x.csv" + packed)).read_bytes()
    (tmp_path / ("x.csv" + packed)).write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(DataError, match="is no whole compressed file"):
        read(path)
    reader = open_table([write("a\n1\n"), path], "x", on_error="skip")
    assert sum(batch.num_rows for batch in reader.batches()) > 1
    assert reader.skipped.files == 1


@pytest.mark.costly
def test_a_truncated_file_that_is_skipped_may_not_say_its_types(write, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 100_000)
    rng = np.random.default_rng(1)
    text = "a,b\n" + "".join(f"{value},\n" for value in rng.normal(size=150_000))
    path = write(text, "x.csv.gz")
    whole = (tmp_path / "x.csv.gz").read_bytes()
    (tmp_path / "x.csv.gz").write_bytes(whole[: len(whole) * 3 // 4])
    paths = [path, write("a,b\n1,2.5\n")]
    reader = open_table(paths, "x", on_error="skip")
    assert [batch["b"].to_pylist()[-1] for batch in reader.batches()][-1] == 2.5
    assert reader.skipped.files == 1
    with pytest.raises(DataError, match="is no whole compressed file"):
        open_table(paths, "x")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("\n\n", None, "has no header"),
        ("a,b\n1,2\n", ["a", "a"], "each column once"),
        ("a,b\n1,2\n", [], "no feature columns"),
    ],
)
def test_what_is_no_table_is_refused(write, text, columns, message):
    with pytest.raises(DataError, match=message):
        open_table(write(text), "x", wanted=Wanted(columns))


def test_other_columns_do_not_matter_when_some_are_chosen(write):
    first, second = write("a,b\n1,2\n", "1.csv"), write("c,a\n?,2\n", "2.csv")
    assert read([first, second], columns=["a"]).column("a").to_pylist() == [1, 2]


def test_a_header_alone_is_a_file_without_rows(write):
    assert len(read([write("a;b\n", "1.csv"), write("a;b\n1,5;2\n", "2.csv")])) == 1


def test_no_readable_file_is_an_error_even_when_skipping(write):
    with pytest.raises(DataError, match="none of 2 files can be read"):
        open_table([write("", "1.csv"), write("", "2.csv")], "x", on_error="skip")
