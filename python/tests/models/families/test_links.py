import numpy as np
import pytest
from lazy_modules import keras, tf

from gpukeras.models.families import links, numerics

pytestmark = pytest.mark.tf
special = pytest.importorskip("scipy.special")
INVERSE = {
    "logit": special.expit,
    "probit": special.ndtr,
    "cloglog": lambda x: -np.expm1(-np.exp(x)),
}
MEANS = {"log": np.exp, "sqrt": np.square, "identity": lambda x: x, "inverse": lambda x: 1 / x}


def tensor(values):
    return keras.ops.convert_to_tensor(np.asarray(values, "float32"))


def slope(function, values):
    x = tensor(values)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = function(x)
    return np.asarray(tape.gradient(total, x))


@pytest.mark.parametrize("link", INVERSE)
def test_probabilities_are_those_of_the_link_and_so_are_their_complements(link):
    x = np.array([-8.0, -2.0, 0.3, 1.3])
    probability, rest = links.probabilities(link, tensor(x))
    np.testing.assert_allclose(probability, INVERSE[link](x), rtol=1e-5)
    np.testing.assert_allclose(rest, 1 - INVERSE[link](x), rtol=1e-5)
    for extreme in links.probabilities(link, tensor([-80.0, 80.0])):
        assert (np.asarray(extreme) > 0).all()
    assert links.link_of(link, float(INVERSE[link](0.7))) == pytest.approx(0.7)


@pytest.mark.parametrize("link", INVERSE)
def test_the_probability_between_thresholds_keeps_its_digits(link):
    low = np.array([-6.0, -1.0, 0.5, 1.2])
    high = low + 0.4
    found = links.probability_between(link, tensor(low), tensor(high))
    expected = INVERSE[link](high) - INVERSE[link](low)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("link", MEANS)
def test_means_are_those_of_the_link(link):
    x = np.array([0.5, 2.0, 4.0])
    found = links.positive_mean(link, tensor(x), 1.5)
    np.testing.assert_allclose(found, MEANS[link](x), rtol=1e-5)
    assert (np.asarray(links.positive_mean(link, tensor([-80.0, 80.0]), 1.5)) > 0).all()
    assert links.link_of(link, float(MEANS[link](0.7))) == pytest.approx(0.7)


def test_the_slope_of_the_normal_distribution_is_its_density_also_at_0():
    x = np.array([-9.0, -1.0, 0.0, 0.5, 3.0])
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slope(numerics.normal_cdf, x), density, rtol=1e-4, atol=1e-6)


def test_a_mean_that_left_its_range_stays_positive_and_comes_back():
    x = [2.0, 0.5, 0.1, 0.0, -1.0, -1e6]
    found = np.asarray(numerics.positive(tensor(x), 0.5))
    assert (found > 0).all()
    np.testing.assert_allclose(found[:4], [2.0, 0.5, 0.5 * np.exp(-0.8), 0.5 / np.e], rtol=1e-6)
    assert (slope(lambda one: numerics.positive(one, 0.5), x)[:5] > 0).all()
