import numpy as np
import pytest
from tables import make_table

from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular import statistics
from gpukeras.models.tabular.column_layers import TableNumbers
from gpukeras.models.tabular.statistics import bin_edges, describe_numbers, read_numbers

pytestmark = pytest.mark.tf


def test_numbers_are_scaled_robustly_and_clipped_smoothly():
    """As RealMLP's preprocessing in NumPy (arXiv:2407.04491, section 3.1; package pytabkit)."""
    rng = np.random.default_rng(0)
    values = np.stack([rng.lognormal(size=200), np.repeat([1.0, 5, 9], [160, 20, 20])], axis=1)
    facts = describe_numbers(values, 4)
    for place, column in enumerate(values.T):
        quartiles = np.quantile(column, 0.75) - np.quantile(column, 0.25)
        if quartiles == 0:
            quartiles = 0.5 * (column.max() - column.min())
        scaled = 1 / quartiles * (column - np.median(column))
        expected = scaled / np.sqrt(1 + (scaled / 3) ** 2)
        layer = keras_class(TableNumbers)([0], *facts_of(facts, place), statistics.CLIP)
        np.testing.assert_allclose(np.asarray(layer(column[:, None]))[:, 0], expected, atol=2e-6)
        wanted = np.unique(np.quantile(expected, np.linspace(0, 1, 5)))
        assert facts.edges[place] == pytest.approx(tuple(wanted), rel=1e-6)
        assert np.abs(expected).max() < 3


def facts_of(facts, place):
    return [facts.centers[place]], [facts.scales[place]]


def test_switches_and_constants_are_not_scaled():
    facts = describe_numbers(np.array([[0.0, 7], [1, 7], [1, 7]]), 2)
    assert (facts.centers, facts.scales) == ((0.0, 0.0), (1.0, 1.0))


def test_a_value_far_out_does_not_move_the_others():
    values = np.arange(101.0)[:, None]
    other = values.copy()
    other[-1] = 1e6
    one, two = describe_numbers(values, 4), describe_numbers(other, 4)
    assert (one.centers, one.scales) == (two.centers, two.scales)
    assert one.edges[0][:-1] == two.edges[0][:-1]


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
    assert facts.centers == pytest.approx(tuple(np.median(own[:, :2].astype(float), axis=0)))
    monkeypatch.setattr(statistics, "MOST_ROWS", 16)
    drawn, again = read_numbers(data, (0,), 4), read_numbers(data, (0,), 4)
    assert drawn == again
    assert drawn.centers != facts.centers[:1]
