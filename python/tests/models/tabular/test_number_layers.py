import numpy as np
import pytest

from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular import number_layers

pytestmark = pytest.mark.tf


def test_shares_are_those_of_equation_1():
    """arXiv:2203.05556, equation 1, with the last bin in the last place, as in the package."""
    edges = [[0.0, 1.0, 3.0, 4.0], [0.0, 2.0]]
    layer = keras_class(number_layers.PiecewiseLinearEncoding)(edges)
    rows = np.array([[-1.0, -1], [0.5, 0.5], [2, 2], [3.5, 3], [6, 5]], np.float32)
    found = np.asarray(layer(rows))
    first = [[-1, 0, 0], [0.5, 0, 0], [1, 0.5, 0], [1, 1, 0.5], [1, 1, 3]]
    np.testing.assert_allclose(found[:, 0], first)
    second = [[0, 0, -0.5], [0, 0, 0.25], [0, 0, 1], [0, 0, 1.5], [0, 0, 2.5]]
    np.testing.assert_allclose(found[:, 1], second)
    assert layer.compute_output_shape((None, 2)) == (None, 2, 3)
    assert layer.get_config()["edges"] == edges


def test_frequencies_begin_small_and_the_seed_fixes_them():
    made = keras_class(number_layers.PeriodicEncoding)
    one, two = made(40, 0.01, seed=1), made(40, 0.01, seed=1)
    rows = np.array([[0.0, 3.0]], np.float32)
    found = np.asarray(one(rows))
    np.testing.assert_array_equal(found, np.asarray(two(rows)))
    np.testing.assert_array_equal(found[0, 0], [1.0] * 40 + [0.0] * 40)
    assert 0 < np.abs(np.asarray(one.kernel)).max() <= 0.02
    assert one.compute_output_shape((None, 2)) == (None, 2, 80)
