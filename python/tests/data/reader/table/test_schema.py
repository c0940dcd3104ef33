from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.reader.table.schema import to_column
from gpukeras.data.recipe.columns import TimeRule, transform_column
from gpukeras.data.recipe.imputation import is_missing

NAN = float("nan")
DAY = datetime(2024, 3, 1, 12, 30, tzinfo=timezone.utc)
SECONDS = DAY.timestamp()


def factor(codes, levels, index=None):
    return pa.DictionaryArray.from_arrays(pa.array(codes, index or pa.int8()), pa.array(levels))


@pytest.mark.parametrize(
    ("array", "kind", "dtype", "values"),
    [
        (pa.array([1.5, None]), "numeric", "f8", [1.5, NAN]),
        (pa.array([1.5, NAN]), "numeric", "f8", [1.5, NAN]),
        (pa.array([1.5, None], pa.float32()), "numeric", "f8", [1.5, NAN]),
        (pa.array([1.5, 2.0], pa.float16()), "numeric", "f8", [1.5, 2.0]),
        (pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)), "numeric", "f8", [1.25, NAN]),
        (pa.array([Decimal("1.25")], pa.decimal256(60, 2)), "numeric", "f8", [1.25]),
        (pa.array([1, 2], pa.int64()), "integer", "i8", [1, 2]),
        (pa.array([1, None], pa.int64()), "integer", "f8", [1, NAN]),
        (pa.array([1, 2**63], pa.uint64()), "integer", "u8", [1, 2**63]),
        (pa.array([1, None], pa.uint8()), "integer", "f8", [1, NAN]),
        (pa.array([2**62 + 1, None], pa.int64()), "integer", "f8", [2.0**62, NAN]),
        (pa.array([True, False]), "logical", "?", [True, False]),
        (pa.array([True, None]), "logical", "f8", [1, NAN]),
        (pa.nulls(2), "logical", "f8", [NAN, NAN]),
        (pa.array([date(1970, 1, 3), None]), "date", "f8", [2, NAN]),
        (pa.array([date(1969, 12, 31)], pa.date64()), "date", "f8", [-1]),
        (pa.array([time(1, 0, 0, 500_000), None]), "duration", "f8", [3600.5, NAN]),
        (pa.array([time(0, 1)], pa.time32("s")), "duration", "f8", [60]),
        (pa.array([timedelta(minutes=2)], pa.duration("ms")), "duration", "f8", [120]),
        (pa.array([DAY, None], pa.timestamp("ns", "UTC")), "time", "f8", [SECONDS, NAN]),
        (pa.array([DAY], pa.timestamp("s")), "time", "f8", [SECONDS]),
        (pa.array(["b", None, "a", "b", ""]), "character", "i4", [3, 0, 2, 3, 1]),
        (pa.array(["b", None], pa.large_string()), "character", "i4", [1, 0]),
        (pa.array(["b", "a"], pa.string_view()), "character", "i4", [2, 1]),
        (pa.array([], pa.string()), "character", "i4", []),
        (pa.array([None], pa.string()), "character", "i4", [0]),
        (factor([1, None, 0], ["b", "a", "c"]), "factor", "i4", [2, 0, 1]),
        (
            factor([1, 255, 0], [f"l{i}" for i in range(256)], pa.uint8()),
            "factor",
            "i4",
            [2, 256, 1],
        ),
        (factor([0, 1, 2, 3], ["b", None, "a", "b"]), "factor", "i4", [1, 0, 2, 1]),
        (factor([1, 0], [20, 10]), "factor", "i4", [2, 1]),
    ],
)
def test_each_type_comes_as_r_sends_it(array, kind, dtype, values):
    for form in (array, pa.chunked_array([array[:1], array[1:]])):
        column = to_column("v", form)
        assert (column["name"], column["kind"]) == ("v", kind)
        assert column["values"].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(column["values"], np.array(values, dtype))
        missing = [value is None for value in array.to_pylist()]
        if kind != "numeric":
            assert is_missing(column).tolist() == missing


def test_what_goes_with_a_kind_comes_with_it():
    assert set(to_column("v", pa.array([1.0]))) == {"name", "kind", "values", "levels"}
    assert set(to_column("v", pa.array([date(2000, 1, 1)]))) == {"name", "kind", "values"}
    assert to_column("v", pa.array([timedelta(1)]))["units"] == "secs"
    moment = to_column("v", pa.array([DAY], pa.timestamp("us", "Europe/Berlin")))
    assert (moment["zone"], moment["offsets"].tolist()) == ("Europe/Berlin", [3600])
    naive = to_column("v", pa.array([DAY, None], pa.timestamp("us")))
    assert (naive["zone"], naive["offsets"][0]) == ("UTC", 0)


def test_numbers_are_not_copied():
    array = pa.array(np.arange(5.0))
    values = to_column("v", array)["values"]
    assert values.ctypes.data == array.buffers()[1].address


def test_levels_of_texts_are_sorted_as_bytes_and_those_of_factors_are_kept():
    texts = ["b", "é", "Z", "a", "日"]
    assert to_column("v", pa.array(texts))["levels"] == ["Z", "a", "b", "é", "日"]
    assert to_column("v", factor([0], ["c", "unused", "a"]))["levels"] == ["c", "unused", "a"]
    assert to_column("v", factor([0, 1], [20, 10]))["levels"] == ["20", "10"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([b"x"]),
        pa.array([[1]], pa.list_(pa.int8(), 1)),
    ],
)
def test_types_that_no_column_has_are_refused(array):
    with pytest.raises(DataError, match="Column `v` has the type"):
        to_column("v", array)


@given(
    values=st.lists(st.none() | st.sampled_from(["a", "b", "é", "zz", ""]), min_size=1),
    cuts=st.lists(st.integers(0, 20), max_size=3),
    encode=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_batches_with_their_own_levels_give_the_same_categories(values, cuts, encode):
    array = pa.array(values, pa.string())
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [array[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    parts = [part.dictionary_encode() for part in parts] if encode else parts
    whole = to_column("v", array.dictionary_encode() if encode else array)
    columns = [to_column("v", part) for part in parts]
    assert {level for column in columns for level in column["levels"]} == set(whole["levels"])
    codes = []
    for column in columns:
        places = [0, *(whole["levels"].index(level) + 1 for level in column["levels"])]
        codes.extend(np.array(places)[column["values"]])
    assert codes == whole["values"].tolist()


def test_a_batchs_column_goes_through_the_rules():
    column = to_column("when", pa.array([DAY], pa.timestamp("s", "Europe/Berlin")))
    rule = TimeRule("when", zone="Europe/Berlin")
    out = np.empty((1, len(rule.features)))
    transform_column(rule, column, out, "x")
    assert out[0, 0] == pytest.approx(SECONDS / 86400)
    turn = (13.5 / 24) * 2 * np.pi  # 12:30 in UTC is 13:30 there
    np.testing.assert_allclose(out[0, -2:], [np.sin(turn), np.cos(turn)], atol=1e-6)
