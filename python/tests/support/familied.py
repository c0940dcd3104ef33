"""Rows whose labels come from each family, and models of them."""

import os
from pathlib import Path

import numpy as np

from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.export import transfer
from gpukeras.models import mlp
from gpukeras.training import fit

ROWS, LEVELS = 120, ["low", "mid", "high"]


def features(rows=ROWS, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 2))


def labels_of(name, rows=ROWS):
    """Labels as they come from R, of a linear predictor with the slopes 0.5 and -0.3."""
    rng, x = np.random.default_rng(1), features(rows)
    eta = 0.4 + x @ [0.5, -0.3]
    mean, share = np.exp(eta), 1 / (1 + np.exp(-eta))
    trials = rng.integers(1, 9, rows)
    won = rng.binomial(trials, share)
    hidden = eta + rng.logistic(size=rows)
    died, lost = rng.exponential(1 / mean), rng.exponential(2.0, rows)
    times = np.column_stack([np.ceil(5 * np.minimum(died, lost)), (died < lost).astype(float)])
    drawn = {
        "gaussian": lambda: ("numeric", eta + rng.normal(size=rows)),
        "quantile": lambda: ("numeric", eta + rng.normal(size=rows)),
        "poisson": lambda: ("integer", rng.poisson(mean)),
        "negative_binomial": lambda: ("integer", rng.negative_binomial(2, 2 / (2 + mean))),
        "zero_inflated_poisson": lambda: ("integer", rng.poisson(mean) * (rng.random(rows) < 0.7)),
        "gamma": lambda: ("numeric", rng.gamma(2, mean / 2)),
        "beta": lambda: ("numeric", rng.beta(5 * share, 5 * (1 - share))),
        "binomial": lambda: ("integer", (rng.random(rows) < share).astype(int)),
        "trials": lambda: ("matrix", np.column_stack([won, trials - won]).astype(float)),
        "multinomial": lambda: ("factor", 1 + rng.integers(0, 3, rows)),
        "multi_label": lambda: ("matrix", (rng.random((rows, 3)) < 0.5).astype(float)),
        "cox": lambda: ("matrix", times),
        "discrete_time": lambda: ("matrix", times),
        "ordinal": lambda: ("factor", 1 + (hidden > 0).astype(int) + (hidden > 1)),
    }
    kind, values = drawn[name]()
    labels = {"kind": kind, "values": values}
    return {**labels, "levels": LEVELS} if kind == "factor" else labels


def dataset(name, rows=ROWS, **options):
    given = {"kind": "array", "values": features(rows)}
    labels = name if isinstance(name, dict) else labels_of(name, rows)
    spec = {"batch_size": rows, "shuffle": False, **options}
    return data_dataset.build_dataset(given, spec, labels)


def model_of(name, data=None, **options):
    family = {"trials": "binomial"}.get(name, name)
    options = {"units": [], "family": family, "learning_rate": 0.05, "seed": 1, **options}
    return mlp.build_mlp(data or dataset(name), options)


# In a child, on JAX: see `jax_runs`.


def loaded():
    """Predictions of the models in a folder, by gpukeras' safe loading."""
    paths = sorted(Path(os.environ["FAMILIES"]).glob("*.keras"))
    models = {path.stem: transfer.load_model(str(path)) for path in paths}
    return {name: model.predict(features(), verbose=0).tolist() for name, model in models.items()}


all_loaded = loaded  # at night: a part of its own, because what a child found is remembered


def trained(names=("cox", "ordinal")):
    """The loss of trainings, at first and in the end, and the engine."""
    found = {}
    for name in names:
        data = dataset(name)
        done = fit.fit(model_of(name, data), data, {"epochs": 3, "engine": "compiled"})
        found[name] = [done.history["loss"][0], done.history["loss"][-1], done.engine.engine]
    return found


def others_trained():
    """Other families (at night)."""
    return trained(("negative_binomial", "quantile"))


def tell(name):
    return globals()[name]()
