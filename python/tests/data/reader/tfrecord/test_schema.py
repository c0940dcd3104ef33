"""Records are read as the rows that were written."""

import numpy as np
import pytest
from examples import a_picture, encoded, opened, scalars, write

from gpukeras import DataError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset import map_dataset
from gpukeras.data.reader.rows import FeatureRequest
from gpukeras.data.reader.tfrecord import schema as record_files
from gpukeras.data.reader.tfrecord.source import describe_records, open_records
from gpukeras.data.recipe.columns import Learning

pytestmark = pytest.mark.tf


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
    data = map_dataset.build_dataset({"kind": "columns", "columns": columns}, options, labels)
    keep = np.zeros(30, dtype=bool)
    keep[data.train_rows] = True
    recipe = given.learn(Learning(keep, DatasetSpec(**options)))
    assert recipe.columns == data.recipe.features.columns
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
    given = open_records(FeatureRequest({"paths": path}, "newdata", encoding=recipe))
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
    given = open_records(FeatureRequest({"paths": path}, "newdata", encoding=recipe))
    np.testing.assert_array_equal(given.encode(recipe).gather(slice(2)), rows)


def test_big_whole_numbers_are_noted(tmp_path):
    path = write(tmp_path / "x.tfrecord", [{"ids": [2**24 + 1, 3]}])
    given = opened(path, description={"ids": ["int64", 2]})
    assert given.rows == 1
    assert "has 1 whole number beyond 2^24 that float32 cannot hold exactly" in given.notes[0]


def test_values_that_scaling_makes_too_large_are_refused(tmp_path):
    small = write(tmp_path / "x.tfrecord", [{"px": [1e-5, 2e-5]}, {"px": [3e-5, 4e-5]}])
    recipe, _ = encoded(opened(small, description={"px": ["float32", 2]}), {"scale": True})
    large = write(tmp_path / "y.tfrecord", [{"px": [1.0, 3e38]}])
    given = open_records(FeatureRequest({"paths": large}, "newdata", encoding=recipe))
    with pytest.raises(DataError, match="not finite after scaling"):
        given.encode(recipe)


def test_records_of_a_scaled_array_are_read_once(tmp_path, monkeypatch):
    path = write(tmp_path / "x.tfrecord", [{"px": [float(i), 2.0 * i], "y": i} for i in range(9)])
    reads, read = [], record_files.RecordFiles.read
    monkeypatch.setattr(
        record_files.RecordFiles, "read", lambda *asked: reads.append(1) or read(*asked)
    )
    given = {"kind": "records", "paths": path, "description": {"px": ["float32", 2]}, "label": "y"}
    data = map_dataset.build_dataset(given, {"scale": True})
    assert (len(data), len(reads)) == (9, 1)
