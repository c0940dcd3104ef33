"""Deviances by their definition with SciPy's densities, and null models by its optimisation."""

import numpy as np
import pytest
from familied import labels_of

from gpukeras.models.families.deviance import (
    Rows,
    invert_link,
    log_likelihood,
    measure_deviance,
    null_parameters,
    unit_deviance,
)
from gpukeras.models.families.links import link_of
from gpukeras.models.families.spec import KINDS, Family

pytestmark = pytest.mark.tf
stats, optimize = pytest.importorskip("scipy.stats"), pytest.importorskip("scipy.optimize")
N, SHAPE, SIZE = 60, 3.0, 2.0
RNG = np.random.default_rng(4)
MEAN, OFFSET = np.exp(RNG.normal(0.3, 0.5, N)), RNG.normal(0.2, 0.6, N)
WEIGHTS, TRIALS = RNG.integers(1, 4, N).astype(float), RNG.integers(1, 9, N)
LABELS = {
    "gaussian": RNG.normal(MEAN),
    "poisson": RNG.poisson(MEAN).astype(float),
    "negative_binomial": RNG.negative_binomial(SIZE, SIZE / (SIZE + MEAN)).astype(float),
    "gamma": RNG.gamma(SHAPE, MEAN / SHAPE),
    "binomial": RNG.binomial(TRIALS, 0.4).astype(float),
}
DENSITIES = {
    "gaussian": lambda y, mean: stats.norm.logpdf(y, mean, 1.0),
    "poisson": lambda y, mean: stats.poisson.logpmf(y, mean),
    "negative_binomial": lambda y, mean: stats.nbinom.logpmf(y, SIZE, SIZE / (SIZE + mean)),
    "gamma": lambda y, mean: stats.gamma.logpdf(y, SHAPE, scale=mean / SHAPE),
    "binomial": lambda y, mean: stats.binom.logpmf(y, TRIALS, mean),
}
SCALE = {"gamma": SHAPE}  # of a deviance that is divided by the dispersion
CASES = [
    *(("gaussian", link) for link in ("identity", "log")),
    *(("poisson", link) for link in ("log", "sqrt")),
    *(("negative_binomial", "log"), ("gamma", "log"), ("gamma", "inverse")),
    *(("binomial", link) for link in KINDS["binomial"].links),
]


def as_rows(name, mean, offset):
    y = LABELS[name]
    labels, parameters = y, mean[:, None]
    if name == "binomial":
        labels, parameters = np.column_stack([y, TRIALS - y]), np.column_stack([1 - mean, mean])
    if name in ("negative_binomial", "gamma"):
        second = {"negative_binomial": SIZE, "gamma": SHAPE}[name]
        parameters = np.column_stack([mean, np.full(N, second)])
    return Rows(labels, parameters, WEIGHTS, offset)


def by_definition(name, mean):
    """2 (l_s - l), with SciPy's densities."""
    y, density = LABELS[name], DENSITIES[name]
    full = y / TRIALS if name == "binomial" else np.maximum(y, 1e-9 * (name != "gaussian"))
    full = y if name == "gaussian" else full
    return 2 * WEIGHTS @ (density(y, full) - density(y, mean)) / SCALE.get(name, 1.0)


def first_of(name):
    mean = LABELS[name] / TRIALS if name == "binomial" else LABELS[name]
    return float(np.average(mean, weights=WEIGHTS))


@pytest.mark.parametrize(("name", "link"), CASES)
def test_deviances_are_those_of_the_definition_and_null_models_the_best(name, link):
    mean = np.clip(MEAN / 5, 0.05, 0.95) if name == "binomial" else MEAN
    offset = 0.2 * np.abs(OFFSET) if link in ("inverse", "sqrt") else OFFSET
    dispersion = KINDS[name].dispersions[0]
    family = Family(name, link, dispersion, columns=1 + (name == "binomial"))
    for shift in (np.zeros(N), offset):
        rows = as_rows(name, mean, shift)
        found = measure_deviance(family, rows)
        assert found.deviance == pytest.approx(by_definition(name, mean), rel=1e-6)

        def null(intercept, shift=shift):
            return by_definition(name, invert_link(link, intercept + shift)[0])

        start = link_of(link, first_of(name))
        bounds = (max(start - 1.5, 0.05 if link in ("inverse", "sqrt") else -9), start + 1.5)
        best = optimize.minimize_scalar(null, bounds=bounds, method="bounded")
        assert found.null_deviance == pytest.approx(best.fun, rel=1e-6)
        if name != "gaussian":
            expected = WEIGHTS @ DENSITIES[name](LABELS[name], mean)
            assert found.log_likelihood == pytest.approx(expected, rel=1e-5)


def test_derivatives_of_links_are_those_of_differences():
    eta = np.linspace(0.2, 1.2, 7)
    for link in ("identity", "log", "sqrt", "inverse", "logit", "probit", "cloglog"):
        slopes = (invert_link(link, eta + 1e-6)[0] - invert_link(link, eta - 1e-6)[0]) / 2e-6
        np.testing.assert_allclose(invert_link(link, eta)[1], slopes, rtol=1e-7)
        back = [link_of(link, float(mean)) for mean in invert_link(link, eta)[0]]
        np.testing.assert_allclose(back, eta, rtol=1e-9)


def test_the_deviance_of_classes_is_that_of_their_frequencies_alone():
    codes = RNG.integers(0, 3, N)
    family = Family("multinomial", "logit", columns=3)
    chances = RNG.dirichlet(np.ones(3), N)
    rows = Rows(codes.astype(float), chances, WEIGHTS, np.zeros(N))
    found = measure_deviance(family, rows)
    own = WEIGHTS @ np.log(chances[np.arange(N), codes])
    assert found.log_likelihood == pytest.approx(own)
    assert found.deviance == pytest.approx(-2 * own)
    counts = np.bincount(codes, WEIGHTS)
    assert found.null_deviance == pytest.approx(-2 * counts @ np.log(counts / counts.sum()))


def test_several_labels_add_up():
    labels, chances = labels_of("multi_label", N)["values"], RNG.uniform(0.1, 0.9, (N, 3))
    family = Family("multi_label", "logit", columns=3)
    found = measure_deviance(family, Rows(labels, chances, np.ones(N), np.zeros(N)))
    assert found.log_likelihood == pytest.approx(stats.bernoulli.logpmf(labels, chances).sum())


def test_no_other_hazards_alone_are_more_likely():
    family = Family("discrete_time", "logit", columns=2, breaks=(2.0, 4.0, 8.0))
    labels = labels_of("discrete_time", N)["values"]
    rows = Rows(labels, np.full((N, 3), 0.2), WEIGHTS, np.zeros(N))
    null = null_parameters(family, rows)
    best = measure_deviance(family, rows).null_deviance
    assert best == pytest.approx(-2 * log_likelihood(family, Rows(labels, null, WEIGHTS, OFFSET)))
    for place in range(3):
        for factor in (0.95, 1.05):
            other = null.copy()
            other[:, place] *= factor
            assert -2 * log_likelihood(family, Rows(labels, other, WEIGHTS, OFFSET)) > best


@pytest.mark.parametrize("name", ["poisson", "binomial"])
def test_labels_that_are_all_0_have_a_null_deviance_of_0(name):
    link = KINDS[name].links[0]
    chances = np.column_stack([MEAN, MEAN]) / 10
    found = measure_deviance(Family(name, link), Rows(np.zeros(N), chances, WEIGHTS, OFFSET))
    assert found.null_deviance == pytest.approx(0, abs=1e-6)


def test_what_a_family_does_not_define_is_none():
    rows = Rows(LABELS["gamma"], np.column_stack([MEAN, MEAN]), WEIGHTS, np.zeros(N))
    found = measure_deviance(Family("gamma", "log", "rows"), rows)
    assert found.log_likelihood is not None
    assert (found.deviance, found.null_deviance) == (None, None)
    found = measure_deviance(Family("quantile", "identity", quantiles=(0.5,)), rows)
    assert found.log_likelihood is None
    crossing = Rows(LABELS["gamma"], np.column_stack([MEAN, MEAN]), WEIGHTS, 50 * OFFSET)
    found = measure_deviance(Family("gamma", "inverse", "constant"), crossing)
    assert found.deviance is not None
    assert found.null_deviance is None
    both = Rows(np.ones((N, 2)), np.ones((N, 2)), WEIGHTS, np.zeros(N))
    found = measure_deviance(Family("gaussian", "identity", columns=2), both)
    assert (found.log_likelihood, found.deviance) == (None, 0)
    assert unit_deviance(Family("poisson", "log"), np.zeros(1), np.ones(1), np.ones(1)) == 2
