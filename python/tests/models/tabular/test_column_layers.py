import numpy as np
import pytest

from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular import column_layers

pytestmark = pytest.mark.tf
ROWS = np.array([[1.0, 0, 1, 0, 2020], [3, 1, 0, 2, 2024], [5, 0, 0, 7, 2022]], np.float32)


def test_numbers_are_scaled():
    layer = keras_class(column_layers.TableNumbers)([0, 4], [3.0, 2022.0], [2.0, 0.5])
    expected = np.array([[-1, -4], [0, 4], [1, 0]])
    np.testing.assert_array_equal(np.asarray(layer(ROWS)), expected)
    old = {key: value for key, value in layer.get_config().items() if key != "clip"}
    assert layer.from_config(old).clip is None  # files of earlier versions have no such field
    layer.clip = 3.0
    clipped = expected / np.sqrt(1 + (expected / 3) ** 2)
    np.testing.assert_allclose(np.asarray(layer(ROWS)), clipped, rtol=1e-6)
    assert layer.compute_output_shape((None, 5)) == (None, 2)


def test_codes_of_unknown_levels_are_one_more():
    made = keras_class(column_layers.FactorCodes)
    layer = made([1, 3], [2, 3], [True, False])
    np.testing.assert_array_equal(np.asarray(layer(ROWS)), [[1, 3], [0, 5], [2, 6]])
    np.testing.assert_array_equal(layer.unknown, [2, 6])
    coded = made([3, 1], [3, 2], [False, False])
    np.testing.assert_array_equal(np.asarray(coded(ROWS)), [[0, 4], [2, 5], [3, 4]])


def test_the_class_token_comes_first():
    layer = keras_class(column_layers.ClassToken)(seed=1)
    tokens = np.ones((2, 3, 4), np.float32)
    found = np.asarray(layer(tokens))
    np.testing.assert_array_equal(found[:, 1:], tokens)
    assert (found[0, 0] == found[1, 0]).all()
    assert 0 < np.abs(found[0, 0]).max() <= 0.5
    assert layer.compute_output_shape((None, 3, 4)) == (None, 4, 4)
