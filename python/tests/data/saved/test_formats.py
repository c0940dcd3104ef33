"""Saved datasets are what other programs read: Parquet and TFRecord."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from savings import in_one_folder, plain_dataset

from gpukeras.data.saved import crc32c, shards, tf_example
from gpukeras.data.saved import writer as storage


def test_parquet_is_a_table_for_others(tmp_path):
    import pyarrow.parquet as pq

    x = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
    data = plain_dataset(x, np.arange(10, dtype=np.int32), np.ones(10, np.float32), [2, 5])
    storage.save_dataset(data, str(tmp_path / "saved"), shards=3)
    table = pq.read_table(sorted((tmp_path / "saved").glob("*.parquet")))
    flat = table["x"].combine_chunks().flatten().to_numpy()
    assert table.schema.names == ["x", "y", "w", "validation"]
    assert str(table.schema.field("x").type) == "fixed_size_list<element: float not null>[6]"
    first = pq.read_schema(tmp_path / "saved" / "part-00001.parquet")
    assert json.loads(first.field("x").metadata[shards.SHAPE_KEY]) == [3, 2]
    np.testing.assert_array_equal(flat.reshape(x.shape), x)
    assert table["y"].to_pylist() == list(range(10))
    assert np.flatnonzero(table["validation"].to_numpy()).tolist() == [2, 5]


def test_bytes_are_a_fixed_binary_in_parquet(tmp_path):
    import pyarrow.parquet as pq

    x = np.random.default_rng(1).integers(0, 256, (5, 4, 3, 1)).astype(np.uint8)
    storage.save_dataset(plain_dataset(x), str(tmp_path / "saved"))
    column = pq.read_table(tmp_path / "saved" / "part-00001.parquet")["x"]
    assert str(column.type) == "fixed_size_binary[12]"
    assert b"".join(column.to_pylist()) == x.tobytes()


@pytest.mark.tf
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_tfrecords_are_examples_for_others(tmp_path, kind):
    import tensorflow as tf

    x = np.random.default_rng(1).integers(0, 256, (300, 5, 4)).astype(kind)
    y = np.random.default_rng(2).integers(0, 2**31 - 1, 300).astype(np.int32)
    w = np.random.default_rng(3).random(300).astype(np.float32)
    storage.save_dataset(plain_dataset(x, y, w, [1]), str(tmp_path / "saved"), "tfrecord", shards=2)
    files = sorted(map(str, (tmp_path / "saved").glob("*.tfrecord")))
    records = next(iter(tf.data.TFRecordDataset(files).batch(1000)))
    features = {
        "x": tf.io.FixedLenFeature((5, 4), tf.float32),
        "y": tf.io.FixedLenFeature((), tf.int64),
        "w": tf.io.FixedLenFeature((), tf.float32),
        "validation": tf.io.FixedLenFeature((), tf.int64),
    }
    if kind is np.uint8:
        features["x"] = tf.io.FixedLenFeature((), tf.string)
    parsed = tf.io.parse_example(records, features)
    found = tf.io.decode_raw(parsed["x"], tf.uint8) if kind is np.uint8 else parsed["x"]
    np.testing.assert_array_equal(np.reshape(found, x.shape), x)
    np.testing.assert_array_equal(parsed["y"], y)
    np.testing.assert_array_equal(parsed["w"], w)
    assert np.flatnonzero(parsed["validation"]).tolist() == [1]
    example = tf.train.Example.FromString(records[7].numpy())
    assert example.features.feature["y"].int64_list.value[0] == y[7]


@pytest.mark.tf
def test_crc32c_is_the_one_of_tensorflow(tmp_path):
    import tensorflow as tf

    contents = [bytes(range(256)) * 3, b"abcd", b"x" * 128, b"y" * 129]
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        for content in contents:
            writer.write(content)
    raw, place = (tmp_path / "x.tfrecord").read_bytes(), 0
    for content in contents:
        crc = np.frombuffer(raw, "<u4", 1, place + 12 + len(content))[0]
        assert crc32c.masked_crc32c(np.frombuffer(content, np.uint8)[None])[0] == crc
        place += 16 + len(content)


def test_crc32c_of_the_standard():
    digits = np.frombuffer(b"123456789", np.uint8)
    assert crc32c.crc32c(np.stack([digits, digits])).tolist() == [0xE3069283] * 2
    assert len(crc32c.crc32c(np.zeros((0, 9), np.uint8))) == 0


@in_one_folder
@given(
    rows=st.integers(1, 40),
    shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
    kind=st.sampled_from(["float32", "uint8", "int32"]),
    seed=st.integers(0, 99),
)
def test_packed_fields_come_back(rows, shape, kind, seed):
    field = tf_example.Field(kind, shape)
    layout = tf_example.plan_layout({"é": field, "w": tf_example.Field("float32", ())})
    values = np.random.default_rng(seed).integers(0, 256, (rows, *shape)).astype(kind)
    records = layout.pack({"é": values, "w": np.zeros(rows, np.float32)})
    start = layout.offset("é")
    raw = np.ascontiguousarray(records[:, start : start + field.record_bytes])
    np.testing.assert_array_equal(tf_example.from_bytes(raw, field), values)
