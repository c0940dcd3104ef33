"""What a model learns from labels, it learns from the rows that train it."""

import numpy as np
import pytest
from nightly import few
from stacked import ALONE, difference, fit_many

from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.models.mlp import build_mlp
from gpukeras.models.tabular.builder import build_tabular

pytestmark = pytest.mark.tf

ROWS, HELD = 60, 20  # the first fold holds out rows 1 to 30, of which the first 20 labels change
FOLDS = [list(range(1, 31)), list(range(31, 61))]


def dataset(values, kind="numeric", *, class_weight=None, levels=(), **options):
    rng = np.random.default_rng(0)
    labels = {"kind": kind, "values": values, "levels": list(levels)}
    options = {"batch_size": 8, "seed": 1, **options}
    features = {"kind": "array", "values": rng.normal(size=(len(values), 4))}
    return build_dataset(features, options, labels, class_weight=class_weight)


def numbers():
    return np.random.default_rng(3).normal(size=ROWS) * 3 + 20


def counts():
    return np.random.default_rng(4).poisson(5, ROWS) + 1.0


def times():
    rng = np.random.default_rng(5)
    return np.stack([rng.exponential(10, ROWS) + 0.1, rng.random(ROWS) < 0.7], axis=1) * 1.0


def spoiled(values):
    changed = values.copy()
    changed[:HELD] = changed[:HELD] * 50 + 3
    if values.ndim > 1:
        changed[:HELD, 1] = 1 - values[:HELD, 1]
    return changed


def mlp(data, family=None):
    return build_mlp(data, {"units": [4], "seed": 1, "family": family})


def tabular(data, family=None):
    sizes = {"kind": "mlp", "units": 4, "blocks": 1, "numeric_embeddings": "none"}
    return build_tabular(data, {**sizes, "seed": 1})


FAMILIES = [
    ("numeric", numbers, None),
    ("numeric", numbers, {"name": "gaussian", "dispersion": "rows"}),
    ("numeric", numbers, "quantile"),
    ("numeric", counts, {"name": "gaussian", "link": "inverse"}),
    ("numeric", counts, "poisson"),
    ("numeric", counts, {"name": "poisson", "link": "sqrt"}),
    ("numeric", counts, "negative_binomial"),
    ("numeric", counts, "zero_inflated_poisson"),
    ("numeric", counts, "gamma"),
    ("matrix", times, "discrete_time"),
    ("matrix", times, {"name": "discrete_time", "breaks": [3.0, 10.0, 20.0]}),
    ("matrix", times, "cox"),
]


def same(one, other):
    return all(map(np.array_equal, one.get_weights(), other.get_weights()))


# Without a family, with two numbers of the labels, with breaks.
@pytest.mark.varies
@pytest.mark.parametrize(
    ("kind", "draw", "family"), few(FAMILIES, FAMILIES[0], FAMILIES[1], FAMILIES[9])
)
def test_labels_held_out_leave_a_model_as_it_is_to_the_last_bit(kind, draw, family):
    fits = []
    for values in (draw(), spoiled(draw())):
        data = dataset(values, kind)
        fits.append(fit_many([mlp(data, family)], data, folds=FOLDS, epochs=1))
    assert not fits[0].plan.alone
    assert same(fits[0].model(1), fits[1].model(1))
    np.testing.assert_array_equal(*(one.held_out(1)["values"] for one in fits))
    assert not same(fits[0].model(2), fits[1].model(2))
    weights, _ = difference(fits[1], 2, epochs=1)  # losses are in the thousands
    assert weights < ALONE


@pytest.mark.varies
@pytest.mark.parametrize("most", ["auto", 1])
def test_a_fold_ends_as_its_rows_do_as_a_dataset_of_their_own(most):
    from gpukeras.training.fit import fit

    values = spoiled(numbers())
    data = dataset(values, scale=False)
    fits = fit_many([mlp(data)], data, folds=FOLDS, most=most)
    features = np.asfortranarray(data.sources[0].gather(slice(30, None)), dtype=np.float64)
    labels = {"kind": "numeric", "values": values[30:], "levels": []}
    options = {"batch_size": 8, "seed": 1, "scale": False}
    own = build_dataset({"kind": "array", "values": features}, options, labels)
    model = mlp(own)
    fit(model, own, {"epochs": 3, "engine": "graph_loop"})
    for one, other in zip(fits.model(1).get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=ALONE)
    assert fits.model(1).layers[-1].scale == pytest.approx(values[30:].std())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    # `search/test_label_leaks.py` has workers in each run.
    [{"most": 1}, pytest.param({"most": 1, "workers": 2}, marks=pytest.mark.nightly)],
)
def test_each_way_of_training_learns_from_its_own_rows(options):
    found = []
    for values in (numbers(), spoiled(numbers())):
        data = dataset(values)
        found.append(fit_many([mlp(data), tabular(data)], data, folds=FOLDS, epochs=1, **options))
    for number in (1, 3):
        assert same(found[0].model(number), found[1].model(number))


def test_validation_labels_do_not_start_a_family():
    data = dataset(counts(), validation=1 / 3)
    values = counts()
    first = mlp(dataset(values, validation=1 / 3), "poisson").layers[-1].family
    values[data.validation_rows] = 1000
    assert mlp(dataset(values, validation=1 / 3), "poisson").layers[-1].family == first
    assert first.center == pytest.approx(values[data.train_rows].mean())


@pytest.mark.slow
def test_balanced_classes_weigh_by_the_rows_that_train():
    values = np.where(np.random.default_rng(6).random(ROWS) < 0.3, 1.0, 0.0)
    changed = values.copy()
    changed[:HELD] = 1.0
    fits = []
    for labels in (values, changed):
        data = dataset(labels, class_weight="balanced")
        fits.append(fit_many([mlp(data)], data, folds=FOLDS, epochs=2))
    assert same(fits[0].model(1), fits[1].model(1))
    for number in (1, 2):
        assert max(difference(fits[1], number, epochs=2)) < ALONE
    # As in Keras, rows that are measured on weigh nothing more.
    rows = fits[1].initial(1)[1]
    weights = rows.sources[2].gather(slice(None))
    assert (weights[rows.validation_rows] == 1).all()
    share = values[rows.train_rows].mean()
    assert weights[rows.train_rows].max() == pytest.approx(0.5 / min(share, 1 - share))


@pytest.mark.slow
def test_a_model_that_has_trained_keeps_what_it_learned():
    from gpukeras.training.fit import fit

    data = dataset(numbers())
    model = mlp(data)
    fit(model, data, {"epochs": 1})
    fits = fit_many([model], data, folds=FOLDS, epochs=1)
    assert fits.model(1).layers[-1].scale == model.layers[-1].scale
    anew = fit_many([model], data, folds=FOLDS, seeds=[1], epochs=1)
    assert anew.model(1).layers[-1].scale != model.layers[-1].scale
