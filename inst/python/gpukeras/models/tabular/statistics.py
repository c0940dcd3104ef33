"""Reads what a network for tables needs to know of its numbers: centers, scales and bins.

References:
    Gorishniy, Y., Rubachev, I. & Babenko, A. (2022). On embeddings for numerical features in
    tabular deep learning. arXiv:2203.05556, section 3.2.1.
    Holzmüller, D., Grinsztajn, L. & Steinwart, I. (2024). Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data. arXiv:2407.04491, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpukeras.data.dataset.map_dataset import Dataset, MapDataset

CLIP = 3.0  # the bound of a scaled number, of arXiv:2407.04491
MOST_ROWS = 100_000  # a quantile of so many rows has a standard error below 0.2 % of the rows


@dataclass(frozen=True)
class NumberFacts:
    """What the training rows say of numbers, one entry each.

    Args:
        centers: Medians; 0 for a constant, and for 0/1 columns.
        scales: Distances of the quartiles, or half of the range if they are one value; 1 for a
            constant, and for 0/1 columns.
        edges: Increasing edges of bins of the scaled and smoothly clipped numbers, at least two
            each.
    """

    centers: tuple[float, ...]
    scales: tuple[float, ...]
    edges: tuple[tuple[float, ...], ...]


def read_numbers(data: Dataset, places: tuple[int, ...], bins: int) -> NumberFacts:
    """Reads at most `MOST_ROWS` training rows; of rows in sequence, the first chunk.

    Args:
        data: The dataset.
        places: Places of the numbers in a row.
        bins: Most bins of a number.
    """
    if isinstance(data, MapDataset):
        rows = data.train_rows
        if len(rows) > MOST_ROWS:
            drawn = np.random.default_rng(data.spec.seed).choice(len(rows), MOST_ROWS, False)
            rows = rows[np.sort(drawn)]
        values = data.sources[0].gather(rows)
    else:
        values = data.batch(min(MOST_ROWS, len(data.sources[0])))[0]
    return describe_numbers(values[:, list(places)].astype(np.float64), bins)


def describe_numbers(values: np.ndarray, bins: int) -> NumberFacts:
    """Returns the facts of numbers, rows first (float64).

    A value far out neither moves the center and the scale nor leaves +-`CLIP`: "robust scaling and
    smooth clipping" of arXiv:2407.04491. There 0/1 columns are scaled too.
    """
    low, centers, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    span = values.max(axis=0) - values.min(axis=0)
    scales = np.where(high > low, high - low, span / 2)
    plain = (span == 0) | np.isin(values, (0.0, 1.0)).all(axis=0)
    centers, scales = np.where(plain, 0.0, centers), np.where(plain, 1.0, scales)
    columns = (values - centers) / scales
    columns = columns / np.sqrt(1 + (columns / CLIP) ** 2)
    edges = tuple(bin_edges(column, bins) for column in columns.T)
    return NumberFacts(tuple(map(float, centers)), tuple(map(float, scales)), edges)


def bin_edges(values: np.ndarray, bins: int) -> tuple[float, ...]:
    """Returns the edges of bins with about as many values each: their distinct quantiles.

    A number with fewer distinct values has fewer bins; a constant has one, of width 1.
    """
    count = max(1, min(bins, len(values) - 1))
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, count + 1)).astype(np.float32))
    edges = edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1])
    return tuple(float(edge) for edge in edges)
