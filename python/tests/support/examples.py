"""Files of TFRecord, written by TensorFlow, and how they are opened."""

import numpy as np

from gpukeras.core.options import DatasetSpec
from gpukeras.data.reader.rows import FeatureRequest
from gpukeras.data.reader.tfrecord.source import open_records
from gpukeras.data.recipe.columns import Learning


def to_feature(value):
    import tensorflow as tf

    if isinstance(value, (bytes, str)):
        text = value if isinstance(value, bytes) else value.encode()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
    values = np.asarray(value)
    if values.dtype.kind in "iu":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.ravel()))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values.ravel()))


def to_record(row):
    import tensorflow as tf

    features = {name: to_feature(value) for name, value in row.items()}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def write(path, rows, compression=None):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for row in rows:
            writer.write(row if isinstance(row, bytes) else to_record(row))
    return str(path)


def a_picture(shade=100, shape=(8, 9, 3), encode="png"):
    import tensorflow as tf

    image = np.full(shape, shade, np.uint8)
    return (tf.io.encode_png if encode == "png" else tf.io.encode_jpeg)(image).numpy()


def opened(path, spec=None, **features):
    asked = {"kind": "records", "paths": path, **features}
    return open_records(FeatureRequest(asked, "x", DatasetSpec(**spec or {})))


def encoded(given, spec=None):
    keep = np.ones(given.rows, dtype=bool)
    encoding = given.learn(Learning(keep, DatasetSpec(**spec or {})))
    source = given.encode(encoding)
    return encoding, source.gather(slice(len(source)))


def scalars(rows=20):
    return [
        {"age": i + 0.5, "city": "é" if i % 2 else "b", "n": i, "label": i % 3} for i in range(rows)
    ]
