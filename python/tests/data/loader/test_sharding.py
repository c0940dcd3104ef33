"""How rows are shared out among replicas: nothing is lost, nothing counts twice."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpukeras import SpecError
from gpukeras.data.loader.sharding import BatchSharding, check_batch_size, round_batch_size

COUNTS = st.integers(1, 9)


def processes(replicas, each):
    """The shares of all processes of `each` devices, which together are `replicas`."""
    devices = tuple(f"GPU:{place}" for place in range(each))
    return [BatchSharding(replicas, first, devices) for first in range(0, replicas, each)]


@given(each=COUNTS, workers=COUNTS, part=COUNTS, batches=COUNTS)
def test_the_parts_of_all_replicas_are_each_batch_in_order(each, workers, part, batches):
    replicas = each * workers
    rows = np.arange(batches * replicas * part * 2).reshape(-1, 2)
    size = replicas * part
    parts = [
        own.reshape(batches, part, 2)
        for shares in processes(replicas, each)
        for own in shares.split_batches(rows, size)
    ]
    assert {shares.count_part(size) for shares in processes(replicas, each)} == {part}
    np.testing.assert_array_equal(np.concatenate(parts, axis=1).reshape(-1, 2), rows)


@given(each=COUNTS, workers=COUNTS, rows=st.integers(1, 200))
def test_the_parts_of_a_short_last_batch_are_its_rows_in_order(each, workers, rows):
    replicas = each * workers
    assume(rows >= replicas)
    values = np.arange(rows)
    split = [shares.split_tail(values) for shares in processes(replicas, each)]
    parts = [own for group in split for own in group]
    np.testing.assert_array_equal(np.concatenate(parts), values)
    counts = [
        shares.count_tail(rows, rank)
        for shares in processes(replicas, each)
        for rank in shares.ranks
    ]
    assert [len(own) for own in parts] == counts
    assert max(counts) - min(counts) <= 1 <= min(counts)


@given(replicas=COUNTS, rows=st.integers(1, 200), seed=st.integers(0, 9))
def test_weighed_means_of_the_parts_are_the_mean_of_a_short_last_batch(replicas, rows, seed):
    shares = processes(replicas, replicas)[0]
    losses = np.random.default_rng(seed).normal(size=rows)
    weights = [shares.weigh_tail(rows, rank) for rank in shares.ranks]
    assert sum(weights) / replicas == pytest.approx(1.0)
    means = [part.mean() for part in shares.split_tail(losses)]
    assert np.dot(weights, means) / replicas == pytest.approx(losses.mean(), abs=1e-12)


@given(replicas=st.integers(2, 9), data=st.data())
def test_a_batch_of_fewer_rows_than_replicas_goes_to_each_whole(replicas, data):
    rows = data.draw(st.integers(1, replicas - 1))
    shares = processes(replicas, replicas)[0]
    assert shares.is_whole(rows)
    assert not shares.is_whole(replicas)
    for rank, own in zip(shares.ranks, shares.split_tail(np.arange(rows)), strict=True):
        np.testing.assert_array_equal(own, np.arange(rows))
        assert (shares.count_tail(rows, rank), shares.weigh_tail(rows, rank)) == (rows, 1.0)


@given(size=st.integers(1, 5000), replicas=st.integers(1, 600))
def test_a_rounded_batch_size_can_be_shared_and_is_the_nearest_below(size, replicas):
    rounded = round_batch_size(size, replicas)
    check_batch_size(rounded, replicas)
    assert rounded <= size < rounded + replicas or rounded == replicas > size


@pytest.mark.parametrize(
    ("size", "replicas", "hint"),
    [(10, 4, "Use 8 or 12."), (3, 4, "Use 4 or 8."), (65, 2, "Use 64 or 66.")],
)
def test_a_batch_that_cannot_be_shared_is_refused_with_those_that_can(size, replicas, hint):
    with pytest.raises(SpecError, match=f"`batch_size` is {size}, which {replicas} rep") as caught:
        check_batch_size(size, replicas)
    assert (caught.value.hint, caught.value.details["arg"]) == (hint, "batch_size")


@pytest.mark.parametrize(
    ("replicas", "first", "devices"),
    [(2, 0, ()), (2, -1, ("CPU:0",)), (2, 2, ("CPU:0",)), (3, 2, ("CPU:0", "CPU:1"))],
)
def test_the_replicas_of_a_process_are_among_all(replicas, first, devices):
    with pytest.raises(SpecError, match="must be among all"):
        BatchSharding(replicas, first, devices)
