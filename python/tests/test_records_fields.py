"""Foreign TFRecord files: what is read of them, and which record is wrong."""

import numpy as np
import pytest

from gpukeras import DataError, SpecError, pipeline
from gpukeras.records import fields as records
from gpukeras.records import files as record_files
from gpukeras.records.features import describe_records, open_records
from gpukeras.specs import DatasetSpec

pytestmark = pytest.mark.tf


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
    return open_records(
        {"kind": "records", "paths": path, **features}, "x", DatasetSpec(**spec or {})
    )


def encoded(given, spec=None):
    keep = np.ones(given.rows, dtype=bool)
    recipe = given.learn(keep, DatasetSpec(**spec or {}))
    source = given.encode(recipe)
    return recipe, source.gather(slice(len(source)))


def scalars(rows=20):
    return [
        {"age": i + 0.5, "city": "é" if i % 2 else "b", "n": i, "label": i % 3} for i in range(rows)
    ]


# Reading -----------------------------------------------------------------------------------------


def test_scalars_are_columns(tmp_path):
    given = opened(write(tmp_path / "x.tfrecord", scalars()), label="label")
    recipe, rows = encoded(given)
    labels = given.labels()
    paths = {"paths": str(tmp_path / "x.tfrecord"), "label": "label"}
    assert describe_records(paths) == {"kind": "columns"}
    assert [rule.name for rule in recipe.columns] == ["age", "city", "n"]
    assert recipe.feature_names == ("age", "city=b", "city=é", "n")
    np.testing.assert_array_equal(rows[3], [3.5, 0, 1, 3])
    assert labels["kind"] == "integer"
    np.testing.assert_array_equal(labels["values"], np.arange(20) % 3)
    assert given.notes == (
        "Read from the first record of x.tfrecord, as `description` does not say it: "
        "age (float32), city (string), label (int64), n (int64).",
    )


def test_only_what_is_described_is_read(tmp_path):
    path = write(tmp_path / "x.tfrecord", scalars())
    given = opened(path, label="n", description={"age": "float32", "n": "int64"})
    recipe, rows = encoded(given, {"scale": True})
    assert [rule.name for rule in recipe.columns] == ["age"]
    np.testing.assert_allclose([rows.mean(), rows.std()], [0, 1], atol=1e-6)
    assert given.notes == ()


@pytest.mark.parametrize(("values", "levels"), [(range(12), [*map(str, range(12))]), ("ba", "ab")])
@pytest.mark.parametrize("beside", [{"age": 1.0}, {"age": [1.0, 2.0]}])
def test_whole_numbers_and_texts_can_be_classes(tmp_path, values, levels, beside):
    path = write(tmp_path / "x.tfrecord", [{**beside, "y": value} for value in values])
    shape = [2] if isinstance(beside["age"], list) else []
    description = {"age": ["float32", *shape], "y": "factor"}
    labels = opened(path, label="y", description=description).labels()
    assert (labels["kind"], labels["levels"]) == ("factor", list(levels))
    found = [labels["levels"][code - 1] for code in labels["values"]]
    assert found == [str(value) for value in values]


def test_one_array_is_an_array(tmp_path):
    x = np.random.default_rng(1).normal(size=(50, 4, 3)).astype(np.float32)
    rows = [{"px": row, "y": i % 2, "w": 0.5} for i, row in enumerate(x)]
    path = write(tmp_path / "x.tfrecord", rows)
    description = {"px": {"dtype": "float32", "shape": [4, 3]}}
    given = opened(path, label="y", weights="w", description=description)
    recipe, plain = encoded(given)
    assert (given.rows, given.row_shape, recipe.kind) == (50, (4, 3), "array")
    assert describe_records({"paths": path, "label": "y", "weights": "w"}) == {"kind": "array"}
    np.testing.assert_array_equal(plain, x)
    np.testing.assert_array_equal(given.labels()["values"], np.arange(50) % 2)
    np.testing.assert_array_equal(given.weights(), np.full(50, 0.5))
    _, scaled = encoded(opened(path, description=description), {"scale": True})
    wanted = (x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1))
    np.testing.assert_allclose(scaled, wanted, rtol=1e-4, atol=1e-5)


def test_a_matrix_of_labels(tmp_path):
    path = write(tmp_path / "x.tfrecord", [{"px": [1.0, 2], "y": [i, 0.5]} for i in range(4)])
    labels = opened(path, label="y").labels()
    assert labels["kind"] == "matrix"
    np.testing.assert_array_equal(labels["values"], [[i, 0.5] for i in range(4)])


@pytest.mark.parametrize("encode", ["png", "jpeg"])
def test_encoded_images_are_decoded_and_resized(tmp_path, encode):
    rows = [{"im": a_picture(40 * i, encode=encode), "y": i} for i in range(5)]
    given = opened(write(tmp_path / "x.tfrecord", rows), label="y", image_size=[4, 6])
    recipe, images = encoded(given, {"scale": True})
    paths = {"paths": str(tmp_path / "x.tfrecord"), "label": "y"}
    assert describe_records(paths) == {"kind": "images"}
    assert (recipe.kind, recipe.shape, recipe.scale) == ("images", (4, 6, 3), (255.0,) * 3)
    assert (images.shape, images.dtype) == ((5, 4, 6, 3), np.uint8)
    assert np.unique(images).tolist() == [0, 40, 80, 120, 160]


def test_raw_bytes_need_their_shape(tmp_path):
    raw = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = write(tmp_path / "x.tfrecord", [{"raw": row.tobytes()} for row in raw])
    with pytest.raises(DataError, match="`raw` holds bytes that are no text in the first record"):
        opened(path)
    _, rows = encoded(opened(path, description={"raw": ["uint8", "3", "4"]}))
    np.testing.assert_array_equal(rows, raw)


def test_packed_and_several_files_are_read_in_order(tmp_path):
    write(tmp_path / "1.tfrecord.gz", scalars(3), "GZIP")
    write(tmp_path / "2.tfrecord", scalars(4))
    write(tmp_path / "3.packed", scalars(5), "GZIP")  # told by its first bytes
    paths = [str(tmp_path / name) for name in ("1.tfrecord.gz", "2.tfrecord", "3.packed")]
    _, rows = encoded(opened(paths, description={"n": "int64"}))
    assert rows[:, 0].tolist() == [*range(3), *range(4), *range(5)]
    _, some = encoded(opened(str(tmp_path / "*.tfrecord"), description={"n": "int64"}))
    assert len(some) == 4


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_every_record_is_read_once_whatever_the_batch(tmp_path, monkeypatch, size):
    monkeypatch.setattr(record_files, "MOST_RECORDS", size)
    path = write(tmp_path / "x.tfrecord", scalars(20))
    _, rows = encoded(opened(path, description={"n": "int64"}))
    assert rows[:, 0].tolist() == [*range(20)]


def test_a_dataset_of_records_trains_as_the_same_rows(tmp_path):
    path = write(tmp_path / "x.tfrecord", scalars(30))
    given = opened(path, {"validation": 0.2, "seed": 3, "scale": True}, label="label")
    options = {"validation": 0.2, "seed": 3, "scale": True}
    i = np.arange(30)
    columns = [
        {"name": "age", "kind": "numeric", "values": i + 0.5, "levels": []},
        {"name": "city", "kind": "character", "values": i % 2 + 1, "levels": ["b", "é"]},
        {"name": "n", "kind": "integer", "values": i, "levels": []},
    ]
    labels = {"name": "y", "kind": "integer", "values": i % 3, "levels": []}
    data = pipeline.build_dataset({"kind": "columns", "columns": columns}, options, labels)
    keep = np.zeros(30, dtype=bool)
    keep[data.train_rows] = True
    recipe = given.learn(keep, DatasetSpec(**options))
    assert recipe.columns == data.recipe.columns
    np.testing.assert_array_equal(
        given.encode(recipe).gather(slice(30)), data.sources[0].gather(slice(30))
    )


def test_a_recipe_knows_what_it_takes_of_other_records(tmp_path):
    train = opened(
        write(tmp_path / "x.tfrecord", scalars()),
        label="label",
        description={"age": "float32", "n": "factor"},
    )
    recipe, rows = encoded(train)
    more = [{**row, "noise": [1.0, 2.0], "none": []} for row in scalars()]
    path = write(tmp_path / "y.tfrecord", more)
    given = open_records({"paths": path}, "newdata", DatasetSpec(), recipe)
    np.testing.assert_array_equal(given.encode(recipe).gather(slice(20)), rows)
    assert given.notes == ()


@pytest.mark.parametrize(
    ("row", "description"),
    [
        ({"px": [1.0, 2, 3, 4], "y": 1, "id": "a"}, {"px": ["float32", 2, 2]}),
        ({"im": "picture", "y": 1, "id": "a"}, {"im": "image"}),
    ],
)
def test_a_recipe_of_an_array_finds_it(tmp_path, row, description):
    row = {**row, "im": a_picture()} if "im" in row else row
    path = write(tmp_path / "x.tfrecord", [row, row])
    recipe, rows = encoded(opened(path, description=description, image_size=[2, 3]))
    given = open_records({"paths": path}, "newdata", DatasetSpec(), recipe)
    np.testing.assert_array_equal(given.encode(recipe).gather(slice(2)), rows)


def test_big_whole_numbers_are_noted(tmp_path):
    path = write(tmp_path / "x.tfrecord", [{"ids": [2**24 + 1, 3]}])
    given = opened(path, description={"ids": ["int64", 2]})
    assert given.rows == 1
    assert "has 1 whole number beyond 2^24 that float32 cannot hold exactly" in given.notes[0]


# Faults ------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


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
        ({"description": {"n": 3}}, SpecError, r"`description\$n` must be a kind"),
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
