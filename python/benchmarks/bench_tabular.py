"""Compares networks for tables with boosted trees and plain models:  make bench-tabular

    bench_tabular.py [--quick] [--only REGEX] [--ways REGEX] [--seeds N] [--json PATH]

--quick: three tables, one seed, few ways and epochs. --only: tables whose name matches, see
`tabular_tables.py`. --ways: ways whose name matches. --seeds: how many, 5 if it is not said.
--json: a file with a record a line; runs that it holds are not repeated, and the tables at the end
are of all of them, so that a long run may come in pieces. Needs gpukeras on PYTHONPATH, and the
packages of requirements-tabular.txt.

Each seed is another split (80 % to train, 20 % to test), the same for all ways, and other first
weights. Nothing is tuned on these tables: each way has its defaults. Those of gpukeras and the
plain perceptron of Keras (three layers of 256 units, one-hot factors, Adam) are fitted alike, as
`?gpu_tabular` advises: a fifth of the training rows are held out to stop at the best epoch, see
FIT. "trees" are scikit-learn's HistGradientBoosting with native factors, "xgboost" those of that
package. "brulee" is the perceptron of that R package's defaults (3 hidden units, penalty 0.001,
L-BFGS, 100 iterations) in scikit-learn: the package is not run.

Errors are root mean squares in deviations of the test labels, or shares of wrong classes; the table
has the median over seeds, and all seeds stand in the record (--json). A rank is that of the median.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench_table import make_parser
from tabular_tables import NAMES, Table, read_table

TREES, PLAIN, BEST = "trees", "keras mlp", "best of ours"
OURS: dict[str, Mapping[str, Any]] = {
    "resnet": {"kind": "resnet"},
    "resnet, none": {"kind": "resnet", "numeric_embeddings": "none"},
    "dcn": {"kind": "dcn"},
    "ft_transformer": {"kind": "ft_transformer"},
    "tabm": {"kind": "tabm"},
    "mlp": {"kind": "mlp"},
}
QUICK = {"tables": ("concrete", "cars", "attrition"), "ways": "linear|trees|keras|dcn|mlp"}
EPOCHS, BATCH = 200, 64
FIT: dict[str, Any] = {"early_stopping": 16, "ema": 0.99}


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


def make_xgboost(table: Table, seed: int) -> Any:
    import xgboost

    made = xgboost.XGBClassifier if table.classes else xgboost.XGBRegressor
    kinds = ["c" if coded else "q" for coded in table.matrix()[1]]
    return made(feature_types=kinds, enable_categorical=True, random_state=seed)


def make_brulee(table: Table, seed: int) -> Any:
    from sklearn import neural_network
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    kind = "Classifier" if table.classes else "Regressor"
    made = getattr(neural_network, f"MLP{kind}")
    model = made(
        hidden_layer_sizes=(3,), solver="lbfgs", alpha=0.001, max_iter=100, random_state=seed
    )
    if not table.classes:  # brulee standardises a numeric outcome
        model = TransformedTargetRegressor(model, transformer=StandardScaler())
    return _encoded(table, model)


def fit_network(
    make: Callable[[Any, int], Any], encode: str, epochs: int, table: Table, seed: int
) -> np.ndarray:
    """The predictions of a network that stops at its best epoch."""
    from gpukeras.backend import runtime
    from gpukeras.data.dataset import map_dataset
    from gpukeras.training import fit

    runtime.keras().backend.clear_session()
    train, test = split(len(table.values), seed)
    columns, labels = table.take(train)
    features = {"kind": "columns", "columns": columns}
    options = {"batch_size": BATCH, "validation": 0.2, "seed": seed, "encode": encode}
    data = map_dataset.build_dataset(features, {**options, "scale": True}, labels)
    model = make(data, seed)
    fit.fit(model, data, {"epochs": epochs, **FIT})
    columns, _ = table.take(test)
    rows = map_dataset.build_dataset(
        {"kind": "columns", "columns": columns}, {}, recipe=data.recipe
    )
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

    scikit = {
        "linear": make_linear,
        TREES: make_trees,
        "xgboost": make_xgboost,
        "brulee": make_brulee,
    }
    ours = {name: (_tabular(given), "codes") for name, given in OURS.items()}
    networks = {PLAIN: (_plain, "onehot"), **ours}
    return {
        **{name: partial(fit_scikit, make) for name, make in scikit.items()},
        **{name: partial(fit_network, *given, epochs) for name, given in networks.items()},
    }


# Results -----------------------------------------------------------------------------------------

Runs = list[dict[str, Any]]  # table, way, seed, error and seconds of each run


def run_table(table: Table, ways: Mapping[str, Any], seeds: int, runs: Runs, path: Any) -> None:
    """Runs what is not yet among `runs`, and adds it to them and to the file at `path`."""
    known = {(one["table"], one["way"], one["seed"]) for one in runs}
    for seed in range(1, seeds + 1):
        for name in [one for one in ways if (table.name, one, seed) not in known]:
            started = time.perf_counter()
            predicted = ways[name](table, seed)
            seconds = round(time.perf_counter() - started, 2)
            error = measure_error(table, split(len(table.values), seed)[1], predicted)
            run = {"table": table.name, "way": name, "seed": seed, "error": round(error, 6)}
            runs.append({**run, "seconds": seconds})
            print(f"{table.name}, {name}, seed {seed}: {error:.4f}, {seconds:.1f} s", flush=True)
            if path:
                with Path(path).open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")


def read_runs(path: str | None) -> Runs:
    """The runs of a file, if there is one."""
    lines = Path(path).read_text().splitlines() if path and Path(path).exists() else []
    return [json.loads(line) for line in lines]


def take_medians(runs: Runs, key: str) -> dict[str, dict[str, float]]:
    """The median over seeds of each table and way."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        found.setdefault(run["table"], {}).setdefault(run["way"], []).append(run[key])
    return {
        table: {way: median(values) for way, values in ways.items()}
        for table, ways in found.items()
    }


def format_table(runs: Runs) -> list[str]:
    """The Markdown table of median errors: a row a way, a column a table, the mean rank, seconds.

    A rank is among the ways that ran on the table, and the mean is over a way's tables.
    """
    errors, seconds = take_medians(runs, "error"), take_medians(runs, "seconds")
    ranks: dict[str, list[int]] = {}
    for known in errors.values():
        for place, name in enumerate(sorted(known, key=known.__getitem__), 1):
            ranks.setdefault(name, []).append(place)
    lines = [
        "| | " + " | ".join(errors) + " | mean rank | s |",
        "|---|" + "---:|" * (len(errors) + 2),
    ]
    for name in sorted(ranks, key=lambda one: np.mean(ranks[one])):
        cells = [f"{known[name]:.3f}" if name in known else "" for known in errors.values()]
        times = [known[name] for known in seconds.values() if name in known]
        cells += [f"{np.mean(ranks[name]):.1f}", f"{median(times):.1f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def compare(runs: Runs) -> list[str]:
    """Lines on each of our ways, and the best of them by table, against rivals."""
    errors, lines = take_medians(runs, "error"), []
    for known in errors.values():
        ours = [known[name] for name in OURS if name in known]
        known.update({BEST: min(ours)} if ours else {})
    for rival in (TREES, "xgboost", PLAIN):
        for name in (*OURS, BEST):
            both = [known for known in errors.values() if name in known and rival in known]
            if both:
                ratios = [known[name] / max(known[rival], 1e-9) for known in both]
                lines.append(
                    f"{name}: median of its error in that of {rival} {median(ratios):.3f}, "
                    f"ahead on {sum(one < 1 for one in ratios)} of {len(ratios)} tables"
                )
    return lines


def name_versions() -> str:
    """The versions of what was run."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy", "scikit-learn", "xgboost-cpu"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


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
    runs = read_runs(options.json)
    for name in tables:
        if re.search(options.only, name):
            run_table(read_table(name), ways, seeds, runs, options.json)
    print("", *format_table(runs), "", *compare(runs), name_versions(), sep="\n")


if __name__ == "__main__":
    main()
