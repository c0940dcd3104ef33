"""Small tables of numbers and factors, for networks of tables."""

from pathlib import Path

import numpy as np

from gpukeras.data.dataset import map_dataset as data_dataset

RECORDED = Path(__file__).parent / "data" / "tabular.npz"  # see record_tabular.py


def make_columns(rows=64, seed=0):
    """Two numbers, a factor of three levels and one of five."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(1, [4, 6], (rows, 2)).astype(np.int32)
    return [
        {"name": "size", "kind": "numeric", "values": rng.normal(50, 8, rows), "levels": []},
        {"name": "count", "kind": "numeric", "values": rng.poisson(2.0, rows), "levels": []},
        {"name": "colour", "kind": "factor", "values": codes[:, 0], "levels": list("rgb")},
        {"name": "shop", "kind": "factor", "values": codes[:, 1], "levels": list("abcde")},
    ]


def make_table(label="classes", rows=64, columns=None, **options):
    """A dataset whose labels depend on a number and a factor; "shop" is a column of codes."""
    columns = make_columns(rows) if columns is None else columns
    size, colour = columns[0]["values"], columns[2]["values"]
    value = (size - 50) / 8 + (colour == 2)
    labels = {
        "number": {"kind": "numeric", "values": 1000 + 10 * value},
        "two": {"kind": "logical", "values": value > 0.3},
        "classes": {
            "kind": "factor",
            "values": 1 + np.digitize(value, [-0.3, 0.8]).astype(np.int32),
            "levels": ["low", "mid", "high"],
        },
        "matrix": {"kind": "matrix", "values": np.stack([value, -value], axis=1)},
    }[label]
    options = {"batch_size": 16, "seed": 1, "encode": {"shop": "codes"}, **options}
    features = {"kind": "columns", "columns": columns}
    return data_dataset.build_dataset(features, options, {"levels": [], **labels})
