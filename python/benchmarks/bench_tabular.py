"""Compares networks for tables with boosted trees and plain models:  make bench-tabular

    bench_tabular.py [--quick] [--only REGEX] [--ways REGEX] [--seeds N] [--json PATH]

--quick: three tables, one seed, few ways and epochs. --only: tables whose name matches, see
`tabular_tables.py`. --ways: ways whose name matches. --seeds: how many, 5 if it is not said. Needs
gpukeras on PYTHONPATH, and the packages of requirements-tabular.txt.

Each seed is another split (80 % to train, 20 % to test), the same for all ways, and other first
weights. Nothing is tuned: each way has its defaults. Those of gpukeras and the plain perceptron of
Keras (three layers of 256 units, one-hot factors) hold out a fifth of the training rows to stop at
the best epoch of at most 200, with a patience of 16. Trees are scikit-learn's
HistGradientBoosting with native factors. "brulee" is the perceptron of that R package's defaults
(3 hidden units, penalty 0.001, L-BFGS, 100 iterations) in scikit-learn: the package is not run.

Errors are root mean squares in deviations of the test labels, or shares of wrong classes; the table
has the median over seeds, and all seeds stand in the record (--json). A rank is that of the median.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench_table import make_parser
from tabular_tables import NAMES, Table, read_table

TREES, PLAIN = "trees", "keras mlp"
OURS: dict[str, Mapping[str, Any]] = {
    "resnet": {"kind": "resnet"},
    "resnet, none": {"kind": "resnet", "numeric_embeddings": "none"},
    "dcn": {"kind": "dcn"},
    "ft_transformer": {"kind": "ft_transformer"},
    "tabm": {"kind": "tabm"},
    "mlp": {"kind": "mlp"},
}
QUICK = {"tables": ("concrete", "cars", "attrition"), "ways": "linear|trees|keras|dcn|mlp"}
EPOCHS, PATIENCE, BATCH = 200, 16, 64


def split(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train and to test."""
    order, test = np.random.default_rng(seed).permutation(rows), rows // 5
    return np.sort(order[test:]), np.sort(order[:test])


def measure_error(table: Table, rows: np.ndarray, predicted: np.ndarray) -> float:
    """The error on test rows; predictions of classes are probabilities or codes."""
    true = table.values[rows]
    if not table.classes:
        return float(np.sqrt(np.mean((predicted.reshape(-1) - true) ** 2)) / true.std())
    if predicted.ndim == 2 and predicted.shape[1] > 1:
        predicted = predicted.argmax(axis=1)
    return float(
        np.mean((predicted.reshape(-1) > 0.5 if table.classes == 2 else predicted) != true)
    )


# Ways --------------------------------------------------------------------------------------------


def fit_scikit(make: Callable[[Table, int], Any], table: Table, seed: int) -> np.ndarray:
    train, test = split(len(table.values), seed)
    values, _ = table.matrix()
    model = make(table, seed).fit(values[train], table.values[train])
    return model.predict(values[test])


def _encoded(table: Table, model: Any) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    coded = np.array(table.matrix()[1])
    columns = make_column_transformer(
        (StandardScaler(), np.flatnonzero(~coded)),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), np.flatnonzero(coded)),
    )
    return make_pipeline(columns, model)


def make_linear(table: Table, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    return _encoded(table, LogisticRegression(max_iter=1000) if table.classes else Ridge())


def make_trees(table: Table, seed: int) -> Any:
    from sklearn import ensemble

    kind = "Classifier" if table.classes else "Regressor"
    made = getattr(ensemble, f"HistGradientBoosting{kind}")
    return made(categorical_features=table.matrix()[1], random_state=seed)


def make_brulee(table: Table, seed: int) -> Any:
    from sklearn import neural_network
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    kind = "Classifier" if table.classes else "Regressor"
    made = getattr(neural_network, f"MLP{kind}")
    model = made((3,), solver="lbfgs", alpha=0.001, max_iter=100, random_state=seed)
    if not table.classes:  # brulee standardises a numeric outcome
        model = TransformedTargetRegressor(model, transformer=StandardScaler())
    return _encoded(table, model)


def fit_network(
    make: Callable[[Any, int], Any], encode: str, epochs: int, table: Table, seed: int
) -> np.ndarray:
    """The predictions of a network that stops at its best epoch."""
    from gpukeras.backend import runtime
    from gpukeras.data import dataset
    from gpukeras.training import fit

    runtime.keras().backend.clear_session()
    train, test = split(len(table.values), seed)
    columns, labels = table.take(train)
    features = {"kind": "columns", "columns": columns}
    options = {"batch_size": BATCH, "validation": 0.2, "seed": seed, "encode": encode}
    data = dataset.build_dataset(features, {**options, "scale": True}, labels)
    model = make(data, seed)
    fit.fit(model, data, {"epochs": epochs, "early_stopping": PATIENCE})
    columns, _ = table.take(test)
    rows = dataset.build_dataset({"kind": "columns", "columns": columns}, {}, recipe=data.recipe)
    return np.asarray(model.predict(rows.arrays[0], verbose=0))


def _tabular(options: Mapping[str, Any]) -> Callable[[Any, int], Any]:
    from gpukeras.models.tabular import builder

    return lambda data, seed: builder.build_tabular(data, {**options, "seed": seed})


def _plain(data: Any, seed: int) -> Any:
    from gpukeras.models import mlp

    return mlp.build_mlp(data, {"units": [256] * 3, "seed": seed})


def list_ways(epochs: int) -> dict[str, Callable[[Table, int], np.ndarray]]:
    """All ways by name: they take a table and a seed, and predict the test rows."""
    from functools import partial

    scikit = {"linear": make_linear, TREES: make_trees, "brulee": make_brulee}
    ours = {name: (_tabular(given), "codes") for name, given in OURS.items()}
    networks = {PLAIN: (_plain, "onehot"), **ours}
    return {
        **{name: partial(fit_scikit, make) for name, make in scikit.items()},
        **{name: partial(fit_network, *given, epochs) for name, given in networks.items()},
    }


# Results -----------------------------------------------------------------------------------------


def run_table(table: Table, ways: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Errors and seconds of each way, one a seed."""
    found: dict[str, Any] = {}
    for name, way in ways.items():
        errors, seconds = [], []
        for seed in range(1, seeds + 1):
            started = time.perf_counter()
            predicted = way(table, seed)
            seconds.append(time.perf_counter() - started)
            errors.append(measure_error(table, split(len(table.values), seed)[1], predicted))
        found[name] = {"errors": errors, "seconds": seconds}
        shown = " ".join(f"{error:.4f}" for error in errors)
        print(f"| {table.name} | {name} | {median(errors):.4f} | {shown} | {median(seconds):.1f} |",
              flush=True)  # fmt: skip
    return found


def summarise(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines on ranks, and on our best against trees and the plain perceptron."""
    errors = {
        table: {name: median(one["errors"]) for name, one in ways.items()}
        for table, ways in found.items()
    }
    ranks: dict[str, list[int]] = {}
    for known in errors.values():
        for place, name in enumerate(sorted(known, key=known.__getitem__), 1):
            ranks.setdefault(name, []).append(place)
    order = sorted(ranks, key=lambda name: sum(ranks[name]))
    lines = [f"mean rank {np.mean(ranks[name]):.1f}: {name}" for name in order]
    for rival in (TREES, PLAIN):
        for name in [one for one in OURS if one in ranks]:
            ratios = [known[name] / max(known[rival], 1e-9) for known in errors.values()]
            ahead = sum(ratio < 1 for ratio in ratios)
            lines.append(
                f"{name}: median of its error in that of {rival} {median(ratios):.3f}, "
                f"ahead on {ahead} of {len(ratios)} tables"
            )
    return lines


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--ways", default="")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    seeds, epochs = (1, 20) if options.quick else (options.seeds, EPOCHS)
    pattern = options.ways or (QUICK["ways"] if options.quick else "")
    ways = {n: way for n, way in list_ways(epochs).items() if re.search(pattern, n)}
    tables = QUICK["tables"] if options.quick else NAMES
    print("| table | way | median error | each seed | s |\n|---|---|---|---|---|")
    found = {
        name: run_table(read_table(name), ways, seeds)
        for name in tables
        if re.search(options.only, name)
    }
    print("", *summarise(found), sep="\n")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
