import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.data.reader.table.csv_records import (
    choose_separator,
    has_header,
    parse_header,
    record_ends,
    split_end,
)

fields = st.text(st.sampled_from('ab,;" \n'), max_size=6)
rows = st.lists(st.lists(fields, min_size=2, max_size=3), min_size=1, max_size=8)


def write(rows, lineterminator="\n"):
    file = io.StringIO()
    csv.writer(file, lineterminator=lineterminator).writerows(rows)
    return file.getvalue().encode()


@pytest.mark.costly
@settings(max_examples=200, deadline=None)
@given(rows=rows, newline=st.sampled_from(["\n", "\r\n"]))
def test_records_end_where_each_was_written(rows, newline):
    expected, whole = [], b""
    for row in rows:
        whole += write([row], newline)
        expected.append(len(whole))
    assert record_ends(whole, ",") == expected
    assert split_end(whole, b"\n", ",") == len(whole)


@pytest.mark.costly
@settings(max_examples=200, deadline=None)
@given(rows=rows, cut=st.floats(0, 1))
def test_a_block_is_split_behind_a_whole_record(rows, cut):
    whole = write(rows)
    ends = [0, *record_ends(whole, ",")]
    size = int(cut * len(whole))
    assert split_end(whole[:size], b"\n", ",") == max(end for end in ends if end <= size)


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b"", []),
        (b"1,2", [3]),
        (b'1,5" pipe\n2,3\n', [10, 14]),
        (b'1,"x\n2,3\n', []),
        (b'1,2\n1,"x\n2,3\n', [4]),
        (b'1,"x"y\n', [7]),
        (b"1,2\n\n\n3,4\n", [4, 10]),
        (b'1,"\xff\x85\n"\n', [8]),
        (b"1,2\r3,4\r", [4, 8]),
        (b'1,"' + b"x" * 200_000 + b"\n2,3\n", []),
    ],
)
def test_records_that_do_not_end_are_none(data, ends):
    assert record_ends(data, ",") == ends


def test_a_stray_quote_does_not_hide_the_records_behind_it():
    data = b'1,5" pipe\n2,3\n4,'
    assert split_end(data, b"\n", ",") == 10 + 4


@pytest.mark.parametrize(
    ("header", "separator"),
    [("a,b", ","), ("a;b", ";"), ("a\tb", "\t"), ("a", ","), ("a;b,c", ","), ('"a,x";b', ";")],
)
def test_the_separator_is_that_of_the_header(header, separator):
    assert choose_separator(header) == separator


@pytest.mark.parametrize(
    ("data", "names", "start"),
    [
        (b"a,b\n1,2\n", ("a", "b"), 4),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n", ("a", "b"), 8),
        (b"a\r1\r", ("a",), 2),
        (b"\n\r\na\n1\n", ("a",), 5),
        (b'"a\nb","c, d"\n1,2\n', ("a\nb", "c, d"), 13),
        ("größe;日本\n1;2\n".encode(), ("größe", "日本"), 15),
        (b"a,b", ("a", "b"), 3),
        (b'size 5",b\n1,2\n', ('size 5"', "b"), 10),
        (b'"","a",""\n', ("X", "a", "X.1"), 10),
    ],
)
def test_headers_give_names(data, names, start):
    header = parse_header(data, None)
    assert (header.names, header.start) == (names, start)


def test_what_is_odd_in_a_header_is_noted():
    assert "called `X`" in parse_header(b",a\n1,2\n", None).notes[0]
    assert "only numbers" in parse_header(b"1,2.5\n3,4\n", None).notes[0]


@pytest.mark.parametrize("data", [b"", b"\n\n", b'"a,b\n1,2\n', b'a,"b'])
def test_what_has_no_header_has_none(data):
    assert parse_header(data, None) is None
    assert not has_header(data)
