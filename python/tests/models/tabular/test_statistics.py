import numpy as np
import pytest
from tables import make_table

from gpukeras.models.tabular import statistics
from gpukeras.models.tabular.statistics import bin_edges, describe_numbers, read_numbers


def test_numbers_are_described_by_mean_and_deviation():
    values = np.array([[1.0, 0, 7], [2, 1, 7], [6, 1, 7]])
    facts = describe_numbers(values, 2)
    assert facts.centers == pytest.approx((3.0, 0.0, 0.0))  # 0/1 and constants stay as they are
    assert facts.scales == pytest.approx((np.std([1, 2, 6]), 1.0, 1.0))
    assert facts.edges[0] == pytest.approx(((1 - 3) / np.std([1, 2, 6]), -1 / np.std([1, 2, 6]),
                                            3 / np.std([1, 2, 6])))  # fmt: skip
    assert facts.edges[1:] == ((0.0, 1.0), (7.0, 8.0))


def test_bins_have_distinct_edges():
    values = np.repeat([0.0, 1.0, 2.0, 9.0], [40, 40, 20, 1])
    assert bin_edges(values, 10) == (0.0, 1.0, 2.0, 9.0)
    assert len(bin_edges(np.arange(1000.0), 48)) == 49
    assert bin_edges(np.array([4.0, 4.0]), 48) == (4.0, 5.0)
    assert bin_edges(np.array([4.0]), 48) == (4.0, 5.0)


def test_only_training_rows_count(monkeypatch):
    data = make_table(validation=0.5)
    facts = read_numbers(data, (0, 1), 4)
    own = data.arrays[0][data.train_rows]
    assert facts.centers == pytest.approx(tuple(own[:, :2].mean(axis=0, dtype=float)))
    monkeypatch.setattr(statistics, "MOST_ROWS", 16)
    drawn, again = read_numbers(data, (0,), 4), read_numbers(data, (0,), 4)
    assert drawn == again
    assert drawn.centers != facts.centers[:1]
