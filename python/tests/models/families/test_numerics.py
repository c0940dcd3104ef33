import numpy as np
import pytest

from gpukeras.backend import runtime
from gpukeras.models.families import numerics

pytestmark = pytest.mark.tf
special = pytest.importorskip("scipy.special")


def tensor(values):
    return runtime.keras().ops.convert_to_tensor(np.asarray(values, "float32"))


def slope(function, values):
    tf = runtime.tensorflow()
    x = tensor(values)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = function(x)
    return np.asarray(tape.gradient(total, x))


def test_stirlings_error_is_that_of_the_log_gamma_function():
    x = np.array([1e-20, 1e-5, 0.1, 0.9, 1.0, 2.5, 7.0, 30.0, 1e3])
    double = x.astype("float32").astype(float)
    expected = special.gammaln(double) - (
        (double - 0.5) * np.log(double) - double + 0.5 * np.log(2 * np.pi)
    )
    np.testing.assert_allclose(numerics.stirling_error(tensor(x)), expected, rtol=1e-5, atol=2e-6)
    slopes = special.digamma(double) - np.log(double) + 0.5 / double
    found = slope(numerics.stirling_error, x)
    np.testing.assert_allclose(found, slopes, rtol=1e-4, atol=2e-6)
    assert abs(float(numerics.stirling_error(tensor(1e6)))) < 2e-6


def test_the_normal_distribution_has_all_digits_in_its_lower_tail():
    x = np.array([-9.0, -5.0, -1.0, 0.0, 0.5, 3.0])
    np.testing.assert_allclose(numerics.normal_cdf(tensor(x)), special.ndtr(x), rtol=1e-5)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slope(numerics.normal_cdf, x), density, rtol=1e-4, atol=1e-6)


def test_the_ratio_of_close_numbers_keeps_its_digits():
    a, b = tensor([1000.0, 5.0, 1e13, 1e-13]), tensor([1000.5, 1.0, 1e-13, 1e13])
    expected = np.log(np.array([1000, 5, 1e13, 1e-13]) / [1000.5, 1, 1e-13, 1e13])
    np.testing.assert_allclose(numerics.log_ratio(a, b), expected, rtol=1e-5)
    assert np.isfinite(slope(lambda x: numerics.log_ratio(a, x), b)).all()


def test_a_mean_that_left_its_range_stays_positive_and_comes_back():
    x = [2.0, 0.5, 0.1, 0.0, -1.0, -1e6]
    found = np.asarray(numerics.positive(tensor(x), 0.5))
    assert (found > 0).all()
    np.testing.assert_allclose(found[:4], [2.0, 0.5, 0.5 * np.exp(-0.8), 0.5 / np.e], rtol=1e-6)
    assert (slope(lambda one: numerics.positive(one, 0.5), x)[:5] > 0).all()


def test_a_probability_of_0_has_a_logarithm():
    found = np.asarray(numerics.safe_log(tensor([0.0, 0.5])))
    np.testing.assert_allclose(found, np.log([1e-30, 0.5]), rtol=1e-6)
    assert float(numerics.clip(tensor(3.0), 0.0, 1.0)) == 1.0
