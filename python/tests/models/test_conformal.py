import math

import numpy as np
import pytest

from gpukeras import SpecError
from gpukeras.models import conformal


def test_the_margin_is_the_score_of_the_rank_that_counts_the_new_row_too():
    scores = np.arange(1.0, 20.0)  # 19 rows: (19 + 1) * 0.9 = 18
    assert conformal.conformal_quantile(scores, 0.9) == 18
    assert conformal.conformal_quantile(scores, 0.901) == 19
    assert conformal.conformal_quantile(scores, 0.5) == 10
    assert [conformal.conformal_rank(9, level) for level in (0.1, 0.7, 0.9)] == [1, 7, 9]


def test_weighted_scores_have_the_quantiles_of_repeated_ones():
    rng = np.random.default_rng(1)
    scores, counts = rng.normal(size=60), rng.integers(1, 5, 60)
    found = conformal.weigh_scores(scores, counts / counts.mean())
    repeated = np.sort(np.repeat(scores, counts))
    for level in (0.1, 0.5, 0.9):
        own = repeated[math.ceil(level * len(repeated)) - 1]
        assert found[math.ceil(level * len(found)) - 1] == own
    np.testing.assert_array_equal(conformal.weigh_scores(scores, np.ones(60)), np.sort(scores))


def test_too_few_rows_for_a_level_are_named():
    with pytest.raises(SpecError, match=r"`interval = 0.99` needs at least 99 rows in gpu_calib"):
        conformal.conformal_rank(98, 0.99)
    assert conformal.conformal_rank(99, 0.99) == 99
    assert conformal.conformal_rank(9, 0.9) == 9
    with pytest.raises(SpecError, match="which had 8"):
        conformal.conformal_rank(8, 0.9)


def test_intervals_cover_as_promised_whatever_the_model_predicts():
    # A model that is wrong (constant), labels that are skewed; 20,000 rows are new.
    draw = np.random.default_rng(4)
    labels = draw.gamma(1.5, size=25_000)
    scores = np.sort(conformal.absolute_scores(np.ones(5_000), labels[:5_000]))
    for level in (0.5, 0.8, 0.9, 0.95):
        margin = conformal.conformal_quantile(scores, level)
        covered = np.abs(labels[5_000:] - 1) <= margin
        assert abs(covered.mean() - level) < 0.01


def test_quantiles_are_corrected_by_hand():
    lower, upper = np.array([0.0, 0, 0, 0]), np.array([1.0, 1, 1, 1])
    labels = np.array([0.5, 1.25, -0.5, 0.9])
    scores = conformal.quantile_scores(lower, upper, labels)
    np.testing.assert_allclose(scores, [-0.5, 0.25, 0.5, -0.1])
    # (4 + 1) * 0.8 = 4: the largest
    assert conformal.conformal_quantile(np.sort(scores), 0.8) == 0.5
    assert conformal.conformal_quantile(np.sort(scores), 0.4) == pytest.approx(-0.1)


def test_the_pair_nearest_to_a_level_is_chosen():
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95)
    assert conformal.list_pairs(quantiles) == [(0, 4), (1, 3)]
    assert [conformal.choose_pair(quantiles, level) for level in (0.95, 0.8, 0.6)] == [0, 0, 1]


def test_many_scores_are_thinned_at_random(monkeypatch):
    monkeypatch.setattr(conformal, "MOST_SCORES", 100)
    scores = np.random.default_rng(1).exponential(size=5000)
    kept = conformal.thin_scores(scores)
    assert len(kept) == 100
    assert set(kept) <= set(scores)
    assert (np.diff(kept) >= 0).all()
    assert abs(np.mean(scores <= kept[89]) - 0.9) < 0.06
    np.testing.assert_array_equal(conformal.thin_scores(scores[:100]), np.sort(scores[:100]))


@pytest.mark.parametrize(
    ("ends", "margin", "expected"),
    [
        ((0.0, 4.0), 1.0, (-1.0, 5.0)),
        ((0.0, 4.0), -1.0, (1.0, 3.0)),
        ((0.0, 4.0), -2.0, (2.0, 2.0)),
        ((0.0, 4.0), -3.0, (2.0, 2.0)),
        ((4.0, 0.0), 1.0, (2.0, 2.0)),
        ((4.0, 0.0), 3.0, (1.0, 3.0)),
        ((np.nan, 4.0), 1.0, (np.nan, 5.0)),
    ],
)
def test_ends_of_an_interval_never_cross(ends, margin, expected):
    lower, upper = conformal.widen(*(np.array([end]) for end in ends), margin)
    np.testing.assert_array_equal([lower[0], upper[0]], expected)
