"""Images and numbers side by side: stored apart, gathered as one row."""

import numpy as np
import pytest
from tabled import SIZE, build, counts, image_features, input_features, write_table

from gpukeras import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.data.reader.inputs import InputRows
from gpukeras.data.reader.rows import MemoryRows


def source():
    images = aligned_empty((6, 2, 3, 1), np.uint8)
    images[...] = np.arange(36).reshape(images.shape)
    numbers = aligned_empty((6, 2))
    numbers[...] = -np.arange(12).reshape(6, 2)
    return InputRows([MemoryRows(images), MemoryRows(numbers)]), images, numbers


@pytest.mark.tf
def test_rows_are_the_inputs_side_by_side():
    rows, images, numbers = source()
    assert (rows.shape, rows.dtype, rows.movable) == ((6, 8), np.float32, True)
    assert rows.stored_bytes == rows.resident_bytes == images.nbytes + numbers.nbytes
    expected = np.concatenate([images.reshape(6, 6), numbers], axis=1)
    order = np.array([4, 0, 0, 5])
    np.testing.assert_array_equal(rows.gather(slice(1, 5)), expected[1:5])
    np.testing.assert_array_equal(rows.gather(order), expected[order])
    np.testing.assert_array_equal(rows.gatherer("CPU:0")(order).numpy(), expected[order])
    np.testing.assert_array_equal(rows.reusing_gatherer()(order).numpy(), expected[order])


@pytest.mark.tf
@pytest.mark.gpu
def test_rows_are_gathered_on_a_gpu():
    rows, images, numbers = source()
    expected = np.concatenate([images.reshape(6, 6), numbers], axis=1)
    order = np.array([4, 0, 0, 5])
    np.testing.assert_array_equal(rows.gatherer("GPU:0")(order).numpy(), expected[order])


@pytest.mark.tf
@pytest.mark.parametrize("cache", ["auto", "host", "disk", "none"])
def test_images_stay_bytes_wherever_they_are(tmp_path, cache):
    table = write_table(tmp_path)
    data = build(input_features(table), counts(table), cache=cache)
    rows = data.sources[0].gather(np.arange(8))
    assert rows.shape == (8, 12 * 16 * 3 + 1)
    pixels = rows[:, :-1].reshape(8, *SIZE, 3)
    assert pixels.max() == 200
    age = table["age"]
    np.testing.assert_allclose(rows[:, -1], (age - age.mean()) / age.std(), rtol=1e-5)


@pytest.mark.tf
def test_rows_of_another_kind_are_refused(tmp_path):
    table = write_table(tmp_path)
    recipe = build(input_features(table), counts(table)).recipe
    with pytest.raises(DataError, match="must be a data frame with a column of images, as in"):
        build(image_features(table), counts(table), recipe)
