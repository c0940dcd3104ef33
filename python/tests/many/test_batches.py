"""The steps of an epoch hold each model's rows once, in its own order."""

import numpy as np
import pytest

from gpukeras.many.batches import count_steps, plan_epoch, split_models


def rows_of(pieces, model):
    """Returns the rows that count for a model, in the order of the steps."""
    found = []
    for piece in pieces:
        for step in range(piece.steps):
            found += piece.rows[step, model, : piece.counts[step, model]].tolist()
    return found


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("sizes", [(7, 7, 7), (8, 8), (1, 9, 20), (0, 5), (3,), (0, 0)])
def test_each_row_counts_once_in_its_models_order(sizes, exact):
    orders = [np.random.default_rng(n).permutation(50)[:n].astype(np.int32) for n in sizes]
    pieces = plan_epoch(orders, 4, exact)
    for place, order in enumerate(orders):
        assert rows_of(pieces, place) == order.tolist()
    if exact:
        assert not any(piece.partial for piece in pieces)


def test_places_that_fill_up_have_a_row_of_the_same_model():
    orders = [np.arange(5), np.arange(10, 13)]
    (piece,) = plan_epoch(orders, 4)
    assert piece.partial
    assert piece.counts.tolist() == [[4, 3], [1, 0]]
    assert set(piece.rows[:, 0].ravel()) <= set(orders[0])
    assert piece.rows[0, 1].tolist() == [10, 11, 12, 10]


def test_tails_of_each_size_are_steps_of_their_own():
    pieces = plan_epoch([np.arange(9), np.arange(10), np.arange(5)], 4, exact=True)
    assert [(one.batch_size, one.steps) for one in pieces] == [(4, 2), (1, 1), (2, 1)]
    assert pieces[1].counts.tolist() == [[1, 0, 1]]


def test_short_batches_are_left_out_except_of_models_that_have_no_other():
    pieces = plan_epoch([np.arange(9), np.arange(3)], 4, drop_last=True)
    assert rows_of(pieces, 0) == list(range(8))
    assert rows_of(pieces, 1) == [0, 1, 2]


def test_steps_are_those_of_the_plan():
    for rows in (1, 3, 4, 9):
        for drop_last in (False, True):
            (piece,) = plan_epoch([np.arange(rows)], 4, drop_last=drop_last)
            assert count_steps(rows, 4, drop_last) == piece.steps


def test_stacks_have_models_of_similar_sizes():
    assert split_models([5, 100, 6, 90], 2) == [[1, 3], [2, 0]]
    assert split_models([1, 2, 3, 4, 5], 4) == [[4, 3, 2], [1, 0]]
    assert split_models([], 4) == []
