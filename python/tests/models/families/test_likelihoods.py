"""Each likelihood against SciPy's, its gradients at extreme predictors, and its mean."""

from dataclasses import replace

import numpy as np
import pytest
from lazy_modules import keras, tf

from gpukeras.models.families.registry import LIKELIHOODS, likelihood
from gpukeras.models.families.spec import KINDS, Family, FamilySpec

pytestmark = pytest.mark.tf
stats = pytest.importorskip("scipy.stats")
COUNTS, AMOUNTS = np.array([0, 1, 5, 40, 1000]), np.array([0.01, 0.5, 3.0, 40.0, 900.0])
SHARES = np.array([0.001, 0.2, 0.5, 0.9, 0.999])
MEANS = np.array([0.2, 1.5, 4.0, 50.0, 999.0])
SIZES = np.array([0.3, 2.0, 7.0, 100.0, 1e4])
COLUMNS = {"ordinal": 3, "multinomial": 3}
PINBALL = [(0.1, -0.5), (0.5, 0.2), (0.9, 1.5)]


def tensor(values):
    return keras.ops.convert_to_tensor(np.asarray(values, "float32"))


def a_family(name, **more):
    spec = FamilySpec(name, more.pop("link", "auto"), more.pop("dispersion", "auto"))
    quantiles = (0.1, 0.5, 0.9) if name == "quantile" else ()
    center = 0.4 if "logit" in KINDS[name].links else 2.0
    known = {"center": center, "scale": 0.3, "quantiles": quantiles, **more}
    return Family(name, spec.link, spec.dispersion, **known)


def loss(name, labels, *parameters, **more):
    family = a_family(name, **more)
    found = likelihood(family).loss(family, tensor(labels), tensor(np.column_stack(parameters)))
    return np.asarray(found)


def single(values):
    """As the model has them: in float32."""
    return np.asarray(values, "float32").astype(float)


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_gaussian():
    y, mean, sd = [0.0, 1.0, -3.0], np.array([0.1, 5.0, -3.0]), np.array([0.2, 1.0, 30.0])
    same(loss("gaussian", y, mean, sd, dispersion="rows"), -stats.norm.logpdf(y, mean, sd))


def test_quantile():
    values = np.array([[value for _, value in PINBALL]] * 2)
    expected = [
        np.mean([max(q * (y - f), (q - 1) * (y - f)) for q, f in PINBALL]) for y in (0.0, 3.0)
    ]
    same(loss("quantile", [0.0, 3.0], values), expected)


def test_poisson():
    same(loss("poisson", COUNTS, MEANS), -stats.poisson.logpmf(COUNTS, single(MEANS)))


def test_negative_binomial():
    expected = -stats.nbinom.logpmf(COUNTS, SIZES, SIZES / (SIZES + single(MEANS)))
    same(loss("negative_binomial", COUNTS, MEANS, SIZES), expected)


def test_zero_inflated_poisson():
    zero = np.array([0.01, 0.3, 0.9, 0.5, 0.1])
    mass = (1 - zero) * stats.poisson.pmf(COUNTS, MEANS) + zero * (COUNTS == 0)
    same(loss("zero_inflated_poisson", COUNTS, MEANS, zero, 1 - zero), -np.log(mass))


def test_gamma():
    y, mean, shape = single(AMOUNTS), single(MEANS), single(SIZES)
    same(loss("gamma", y, mean, shape), -stats.gamma.logpdf(y, shape, scale=mean / shape))


def test_beta():
    y, a, b = single(SHARES), single([0.1, 2.0, 30.0, 5.0, 300.0]), single([3, 2.0, 25.0, 1, 2])
    same(loss("beta", y, a, b), -stats.beta.logpdf(y, a, b))


def test_binomial():
    won, lost = np.array([0, 3, 7, 500, 20]), np.array([4, 0, 7, 500, 1])
    pair = np.column_stack([won, lost])
    expected = -stats.binom.logpmf(won, won + lost, single(SHARES))
    same(loss("binomial", pair, 1 - SHARES, SHARES, columns=2), expected)
    once = np.array([0, 1, 1, 0, 0])
    expected = -stats.bernoulli.logpmf(once, single(SHARES))
    same(loss("binomial", once, 1 - single(SHARES), SHARES), expected)


@pytest.mark.parametrize(
    ("link", "cdf"), [("logit", stats.logistic.cdf), ("probit", stats.norm.cdf)]
)
def test_ordinal(link, cdf):
    family, raw = a_family("ordinal", link=link, columns=3), np.array([0.3, -0.2])
    limits = np.asarray(likelihood(family).thresholds(family, tensor(raw)))[0]
    eta = np.array([-2.0, 0.4, 3.0])
    below = np.column_stack([0 * eta, cdf(limits[0] - eta), cdf(limits[1] - eta), 0 * eta + 1])
    probability = np.diff(below, axis=1)
    own = {"thresholds": tensor(raw)}
    found = likelihood(family).parameters(family, tensor(eta[:, None]), own)
    same(found, probability)
    chosen = [0, 2, 1]
    expected = -np.log(probability[np.arange(3), chosen])
    same(likelihood(family).loss(family, tensor(chosen), found), expected)
    assert limits[0] < limits[1]


def test_classes_and_labels():
    chances = single(np.random.default_rng(2).dirichlet(np.ones(3), 4))
    codes = [0, 2, 1, 1]
    found = loss("multinomial", codes, *chances.T, columns=3)
    same(found, -np.log(chances[np.arange(4), codes]))
    labels = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0]])
    found = loss("multi_label", labels, *chances.T, columns=3)
    same(found, -stats.bernoulli.logpmf(labels, chances).sum(axis=1))


def cases():
    for name, kind in KINDS.items():
        for link in kind.links:
            for dispersion in kind.dispersions:
                yield name, link, dispersion


@pytest.mark.parametrize(("name", "link", "dispersion"), list(cases()))
def test_extreme_predictors_have_finite_losses_and_gradients(name, link, dispersion):
    if name == "gaussian" and dispersion == "none":
        pytest.skip("the loss is Keras' own")
    family = a_family(name, link=link, dispersion=dispersion, columns=COLUMNS.get(name, 1))
    family = replace(family, breaks=(1.0, 2.0) if name == "discrete_time" else ())
    kin = likelihood(family)
    units = kin.predictors(family) + (dispersion == "rows")
    labels = [0.1, 0.9] if name == "beta" else [1.0, 2.0] if name == "gamma" else [0.0, 1.0]
    labels = [[1.0, 1.0], [2.0, 0.0]] if name in ("cox", "discrete_time") else labels
    linear = tensor(np.repeat([-80.0, 0.0, 80.0], 2)[:, None] * np.ones(units))
    own = {key: tensor(np.zeros(shape)) for key, shape in kin.weights(family).items()}
    with tf.GradientTape() as tape:
        tape.watch([linear, own])
        losses = kin.loss(family, tensor(labels * 3), kin.parameters(family, linear, own))
    assert np.isfinite(np.asarray(losses)).all()
    for slope in tf.nest.flatten(tape.gradient(losses, [linear, own])):
        assert np.isfinite(np.asarray(slope)).all()


def test_means_are_those_of_the_parameters():
    mean = {name: LIKELIHOODS[name].mean for name in LIKELIHOODS}
    three = np.array([[2.0, 0.25, 0.75]])
    assert mean["zero_inflated_poisson"](a_family("zero_inflated_poisson"), three) == [1.5]
    assert mean["beta"](a_family("beta"), np.array([[1.0, 3.0]])) == [0.25]
    assert mean["binomial"](a_family("binomial"), np.array([[0.1, 0.9]])) == [0.9]
    assert mean["gamma"](a_family("gamma"), np.array([[4.0, 2.0]])) == [4.0]
    assert mean["quantile"](a_family("quantile"), three).shape == (1, 3)
    assert mean["gaussian"](a_family("gaussian", columns=3), three).shape == (1, 3)


def test_quantiles_never_cross():
    family = a_family("quantile")
    linear = np.random.default_rng(0).normal(size=(50, 3)) * 20
    found = np.asarray(likelihood(family).parameters(family, tensor(linear), {}))
    assert (np.diff(found, axis=1) >= 0).all()
