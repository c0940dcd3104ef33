import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ring_costs import (
    Measurement,
    NodesCost,
    RingCost,
    fit_ring,
    plan_link,
    plan_nodes,
    plan_nvlink,
)

from gpukeras.core.errors import DataError, SpecError

LATENCIES = st.floats(1e-7, 1e-2)
SPEEDS = st.floats(1e6, 1e12)
SIZES = st.floats(1.0, 1e10)
COUNTS = st.integers(1, 2000)
RINGS = st.builds(RingCost, LATENCIES, SPEEDS)
NODES = st.builds(NodesCost, RINGS, RINGS, st.integers(1, 16))
EXCHANGES = RINGS | NODES
NOISY = st.lists(
    st.builds(Measurement, st.integers(2, 64), SIZES, st.floats(1e-5, 100.0)),
    min_size=2,
    max_size=12,
)
few = settings(max_examples=40)


@pytest.mark.parametrize(
    ("replicas", "size_bytes", "seconds"),
    [
        (1, 1e9, 0.0),
        (2, 0, 2e-3),
        (2, 1e9, 2e-3 + 1.0),
        (4, 1e9, 6e-3 + 1.5),
        (8, 4e9, 14e-3 + 7.0),
    ],
)
def test_a_ring_worked_out_by_hand(replicas, size_bytes, seconds):
    assert RingCost(1e-3, 1e9).reduce_s(replicas, size_bytes) == pytest.approx(seconds)


def test_computers_of_gpus_worked_out_by_hand():
    cost = NodesCost(RingCost(0.0, 10e9), RingCost(1e-3, 1e9), per_node=4)
    assert cost.reduce_s(4, 1e9) == pytest.approx(0.15)
    # Four computers: 2 * 3 messages of a quarter of the bytes each.
    assert cost.reduce_s(16, 1e9) == pytest.approx(0.15 + 6 * (1e-3 + 0.25))


@few
@given(EXCHANGES, SIZES)
def test_one_replica_exchanges_nothing(cost, size):
    assert cost.reduce_s(1, size) == 0.0


@few
@given(EXCHANGES, COUNTS, SIZES, st.floats(1.0, 10.0))
def test_more_replicas_or_bytes_never_cost_less(cost, replicas, size, times):
    now = cost.reduce_s(replicas, size)
    assert cost.reduce_s(replicas + 1, size) >= now * (1 - 1e-12)
    assert cost.reduce_s(replicas, size * times) >= now


@few
@given(RINGS, COUNTS, SIZES)
def test_bytes_cost_at_most_twice_their_way_over_a_link(ring, replicas, size):
    limit = 2 * size / ring.bytes_per_s
    carried = replace(ring, latency_s=0.0).reduce_s(replicas, size)
    assert carried == pytest.approx(limit * (1 - 1 / replicas), abs=limit * 1e-9)
    assert carried <= limit


@few
@given(RINGS, RINGS, COUNTS, SIZES, st.integers(1, 16))
def test_computers_with_one_gpu_are_a_ring_and_one_computer_is_one(a, b, replicas, size, per_node):
    assert NodesCost(a, b, 1).reduce_s(replicas, size) == b.reduce_s(replicas, size)
    inside = min(replicas, per_node)
    assert NodesCost(a, b, per_node).reduce_s(inside, size) == a.reduce_s(inside, size)


@few
@given(RINGS, st.integers(1, 16), st.integers(1, 64), SIZES, st.floats(1.0, 10.0))
def test_two_levels_beat_one_ring_where_the_inside_is_fast_enough(
    between, per_node, nodes, size, faster
):
    inside = RingCost(between.latency_s, between.bytes_per_s * nodes * faster)
    both = NodesCost(inside, between, per_node).reduce_s(nodes * per_node, size)
    assert both <= between.reduce_s(nodes * per_node, size) * (1 + 1e-9)


@few
@given(RINGS, st.sets(st.integers(10, 26), min_size=2, max_size=6), st.sampled_from([2, 4, 9]))
def test_a_fit_finds_the_ring_behind_exact_times(ring, powers, replicas):
    sizes = [2.0**power for power in powers]
    # Where a part is lost in the digits of the other, nothing can find it again.
    parts = [ring.latency_s * ring.bytes_per_s * replicas / size for size in sizes]
    assume(min(parts) < 1e4)
    assume(max(parts) > 1e-4)
    fit = fit_ring([Measurement(replicas, s, ring.reduce_s(replicas, s)) for s in sizes])
    assert fit.ring.latency_s == pytest.approx(ring.latency_s, rel=1e-4)
    assert fit.ring.bytes_per_s == pytest.approx(ring.bytes_per_s, rel=1e-4)
    assert fit.worst_error < 1e-6


@few
@given(NOISY, st.floats(0.9, 1.1), st.floats(0.9, 1.1))
def test_no_ring_near_the_fit_explains_more(points, latency, speed):
    try:
        fit = fit_ring(points)
    except DataError:
        assume(False)

    def loss(ring):
        return sum((1 - ring.reduce_s(p.replicas, p.size_bytes) / p.seconds) ** 2 for p in points)

    best = loss(fit.ring)
    assert best == pytest.approx(sum(residual**2 for residual in fit.residuals))
    other = RingCost(fit.ring.latency_s * latency + 1e-9, fit.ring.bytes_per_s * speed)
    assert loss(other) >= best * (1 - 1e-9) - 1e-12
    assert fit.ring.latency_s >= 0
    assert fit.ring.bytes_per_s > 0
    assert fit.typical_error <= fit.worst_error


@few
@given(NOISY, st.floats(0.1, 10.0))
def test_a_fit_does_not_depend_on_the_unit_of_time(points, times):
    try:
        fit = fit_ring(points)
    except DataError:
        assume(False)
    slower = fit_ring([replace(point, seconds=point.seconds * times) for point in points])
    assert slower.ring.latency_s == pytest.approx(fit.ring.latency_s * times, rel=1e-4, abs=1e-12)
    assert slower.ring.bytes_per_s == pytest.approx(fit.ring.bytes_per_s / times, rel=1e-4)


@pytest.mark.parametrize(
    ("seconds", "ring"),
    [
        ((3.0, 2.0), (1.1538, math.inf)),  # larger was faster: size costs nothing
        ((1e-9, 1.0), (0.0, 1000.0)),  # more than in proportion: no latency
    ],
)
def test_no_part_of_a_fit_is_below_zero(seconds, ring):
    fit = fit_ring([Measurement(2, 1e-6, seconds[0]), Measurement(2, 1000.0, seconds[1])])
    assert (fit.ring.latency_s, fit.ring.bytes_per_s) == pytest.approx(ring, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [Measurement(2, 1024, 1e-3)],
        [Measurement(2, 1024, 1e-3), Measurement(2, 1024, 2e-3)],
        [Measurement(2, 0, 1e-3), Measurement(4, 0, 1e-3)],
    ],
    ids=["none", "one", "one size", "no bytes"],
)
def test_too_few_measurements_are_refused(points):
    with pytest.raises(DataError, match="latency from bandwidth"):
        fit_ring(points)


def test_links_as_they_are_printed_on_the_box():
    assert plan_link(100, reached=1.0).bytes_per_s == 12.5e9
    assert plan_link(100).bytes_per_s == pytest.approx(10e9)
    assert plan_nvlink().bytes_per_s == pytest.approx(240e9)
    assert plan_nodes(100) == NodesCost(plan_nvlink(), plan_link(100), 8)


@pytest.mark.parametrize(
    ("call", "arg"),
    [
        (lambda: RingCost(-1e-6, 1e9), "latency_s"),
        (lambda: RingCost(0.0, 0.0), "bytes_per_s"),
        (lambda: NodesCost(plan_link(10), plan_link(10), 0), "per_node"),
        (lambda: RingCost(0.0, 1e9).reduce_s(0, 1), "replicas"),
        (lambda: RingCost(0.0, 1e9).reduce_s(2, -1), "size_bytes"),
        (lambda: Measurement(1, 10, 1.0), "replicas"),
        (lambda: Measurement(2, 10, 0.0), "seconds"),
        (lambda: plan_link(0), "gbit_per_s"),
        (lambda: plan_link(10, reached=1.5), "reached"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, arg):
    with pytest.raises(SpecError) as caught:
        call()
    assert caught.value.details["arg"] == arg
