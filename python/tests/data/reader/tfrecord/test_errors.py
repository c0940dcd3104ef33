"""Records and descriptions of them that are wrong are named."""

import numpy as np
import pytest
from examples import a_picture, encoded, opened, scalars, write

from gpukeras import DataError, SpecError
from gpukeras.data.reader.tfrecord import schema as record_files
from gpukeras.data.reader.tfrecord import schema as records

pytestmark = pytest.mark.tf


# Faults ------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.varies
@pytest.mark.parametrize(
    ("spoil", "message", "record"),
    [
        (cut, "the file x.tfrecord ends within record 20: it is cut short", 20),
        (flip, "the file x.tfrecord has a wrong checksum in record 11", 11),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_broken_chain_is_left_from_there_on(tmp_path, monkeypatch, spoil, message, record, size):
    monkeypatch.setattr(record_files, "MOST_RECORDS", size)
    path = tmp_path / "x.tfrecord"
    write(path, scalars())
    other = write(tmp_path / "y.tfrecord", scalars(2))
    spoil(path)
    given = {"description": {"n": "int64"}}
    with pytest.raises(DataError, match=message) as caught:
        assert opened(str(path), **given).rows
    assert caught.value.details["record"] == record
    assert caught.value.details["path"] == str(path)
    left = opened([str(path), other], {"on_error": "skip"}, **given)
    _, rows = encoded(left)
    assert rows[:, 0].tolist() == [*range(record - 1), 0, 1]
    assert left.skipped.startswith(f"1 file; the first: `x`: {message}")


@pytest.mark.varies
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"n": 3}, "it lacks the feature `age`"),
        ({"age": [1.0, 2.0]}, "its feature `age` has another number of values than described"),
        ({"age": "old"}, "its feature `age` is of another type than described"),
        (b"\x00nonsense", "it is no tf.train.Example"),
    ],
)
@pytest.mark.parametrize("size", [3, 100])
def test_a_record_that_lacks_something_is_named_or_left_out(
    tmp_path, monkeypatch, row, message, size
):
    monkeypatch.setattr(record_files, "MOST_RECORDS", size)
    rows = [{"age": float(i)} for i in range(12)]
    rows[7] = rows[9] = row
    path = write(tmp_path / "x.tfrecord", rows)
    with pytest.raises(DataError, match=f"x.tfrecord has a record that .* number 8: {message}"):
        assert opened(path).rows
    given = opened(path, {"on_error": "skip"})
    _, left = encoded(given)
    assert left[:, 0].tolist() == [*range(7), 8, 10, 11]
    assert given.skipped.startswith("2 rows; the first:") or given.skipped.startswith("2 records")


def test_a_damaged_image_is_named(tmp_path):
    picture = a_picture()
    rows = [{"im": picture}, {"im": picture[: len(picture) // 2]}, {"im": picture}]
    path = write(tmp_path / "x.tfrecord", rows)
    with pytest.raises(DataError, match="number 2: its image is damaged"):
        assert opened(path, image_size=[4, 4]).rows
    assert opened(path, {"on_error": "skip"}, image_size=[4, 4]).rows == 2


def test_raw_bytes_of_another_length_are_named(tmp_path):
    path = write(tmp_path / "x.tfrecord", [{"raw": bytes(12)}, {"raw": bytes(11)}])
    with pytest.raises(DataError, match="number 2: its raw bytes have another length"):
        assert opened(path, description={"raw": ["uint8", 3, 4]}).rows
    with pytest.raises(DataError, match=r"number 1: its .* another (length|number)"):
        assert opened(path, description={"raw": ["uint8", 3, 2]}).rows


def test_missing_values_of_an_array_are_named(tmp_path):
    rows = [{"px": [1.0, np.nan if i == 3 else 2.0]} for i in range(6)]
    given = opened(write(tmp_path / "x.tfrecord", rows))
    with pytest.raises(
        DataError, match="`px` of `x` has missing .* the first in record 4"
    ) as caught:
        assert given.rows
    assert (caught.value.details["column"], caught.value.details["row"]) == ("px", 4)
    with pytest.raises(SpecError, match='`na` = "drop" needs rows in memory'):
        given.check_policy("drop")


def test_texts_that_are_none_are_named(tmp_path):
    rows = [{"city": "b"}, {"city": b"\xff\xfe"}]
    given = opened(write(tmp_path / "x.tfrecord", rows))
    with pytest.raises(DataError, match="`city` of `x` holds bytes that are no UTF-8 text"):
        assert given.rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file x.tfrecord is empty"),
        (b"a,b\n1,2\n" * 9, "the file x.tfrecord is no TFRecord file"),
    ],
)
def test_what_is_no_tfrecord_file_is_named(tmp_path, content, message):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        opened(str(path))
    good = write(tmp_path / "y.tfrecord", scalars(3))
    left = opened([str(path), good], {"on_error": "skip"}, description={"n": "int64"})
    assert left.rows == 3
    assert "x.tfrecord" in left.skipped


@pytest.mark.varies
@pytest.mark.parametrize("missing", [1, 4, 8, 9, *range(20, 500, 60)])
def test_a_packed_file_that_is_cut_is_never_taken_for_whole(tmp_path, missing):
    rows = [{"n": i, "noise": np.random.default_rng(i).random(2)} for i in range(40)]
    path = tmp_path / "x.gz"
    write(path, rows, "GZIP")
    path.write_bytes(path.read_bytes()[:-missing])
    given = {"description": {"n": "int64"}}
    with pytest.raises(DataError, match="the file x.gz (ends within record|has no records)"):
        assert opened(str(path), **given).rows
    left = opened(str(path), {"on_error": "skip"}, **given)
    assert 0 < left.rows < 41
    assert left.skipped.startswith("1 file; the first: `x`: the file x.gz ends within record")


def test_packed_parts_in_one_file_are_read(tmp_path):
    path = tmp_path / "x.gz"
    write(path, scalars(3), "GZIP")
    path.write_bytes(path.read_bytes() * 2)
    assert opened(str(path), description={"n": "int64"}).rows == 6


def test_files_without_records_are_named(tmp_path):
    packed = write(tmp_path / "x.gz", [], "GZIP")
    with pytest.raises(DataError, match="`x` has no records"):
        opened(packed)
    good = write(tmp_path / "y.tfrecord", scalars(3))
    with pytest.raises(DataError, match="the file x.gz has no records"):
        assert opened([good, packed]).rows


def test_a_file_that_is_not_there_or_changes_is_named(tmp_path):
    with pytest.raises(DataError, match="the file x.tfrecord does not exist"):
        opened(str(tmp_path / "x.tfrecord"))
    path = tmp_path / "y.tfrecord"
    write(path, [{"px": [1.0, 2.0]}])
    given = opened(str(path))
    path.unlink()
    with pytest.raises(DataError, match="the file y.tfrecord is gone"):
        assert given.rows


# Descriptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"label": "nothing"}, DataError, "x.tfrecord has no feature `nothing`"),
        ({"description": {"nothing": "float32"}}, DataError, "has no feature `nothing`"),
        ({"description": {"n": "double"}}, SpecError, '`description` must be one of "float32"'),
        ({"description": "n"}, SpecError, "`description` must name each feature"),
        ({"description": {"n": 3}}, SpecError, r"`description\$n` must be a kind, or a kind and a"),
        (
            {"description": {"n": ["int64", 0]}},
            SpecError,
            r"`description\$n` must be a whole number",
        ),
        ({"description": {"city": ["string", 3]}}, SpecError, "a string has no shape"),
        ({"description": {"city": "uint8"}}, SpecError, "raw bytes need their shape"),
        ({"description": {"n": "int64"}, "label": "n"}, DataError, "no features but the labels"),
        (
            {"description": {"n": "int64", "px": ["float32", 2]}},
            SpecError,
            r"must be scalars, or one array or image, not n \(int64\), px \(float32 x 2\)",
        ),
        ({"label": "im"}, DataError, "`im` of `x` holds bytes"),
    ],
)
def test_descriptions_that_do_not_fit_are_named(tmp_path, given, error, message):
    rows = [{"n": 1, "city": "b", "px": [1.0, 2.0]}]
    if given.get("label") == "im":
        rows = [{"im": a_picture(), "n": 1}]
    path = write(tmp_path / "x.tfrecord", rows)
    with pytest.raises(error, match=message):
        opened(path, **given)


def test_other_records_than_examples_are_refused(tmp_path):
    path = write(tmp_path / "x.tfrecord", [b"just bytes"])
    with pytest.raises(DataError, match=r"first record of x.tfrecord is no tf.train.Example"):
        opened(path)


def test_descriptions_come_from_r_in_several_forms():
    wanted = records.RecordField("float32", (28, 28))
    for given in (
        ["float32", 28.0, 28],
        ["float32", "28", "28"],
        {"dtype": "float32", "shape": [28, 28]},
    ):
        assert records.parse_description({"px": given}) == {"px": wanted}
    assert records.parse_description({"n": {"dtype": "int64"}}) == {
        "n": records.RecordField("int64")
    }
    assert records.parse_description([]) == {}
