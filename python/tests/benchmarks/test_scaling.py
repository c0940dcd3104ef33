import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ring_costs import NodesCost, RingCost, plan_link
from scaling import count_gradient_bytes, find_step_s, predict, predict_strong, predict_table

from gpukeras.core.errors import SpecError

LATENCIES = st.floats(1e-7, 1e-2)
SPEEDS = st.floats(1e6, 1e12)
SIZES = st.floats(1.0, 1e10)
SECONDS = st.floats(1e-4, 10.0)
COUNTS = st.integers(1, 2000)
RINGS = st.builds(RingCost, LATENCIES, SPEEDS)
NODES = st.builds(NodesCost, RINGS, RINGS, st.integers(1, 16))
EXCHANGES = RINGS | NODES
SHARES = st.floats(0.0, 1.0)
few = settings(max_examples=40)


@few
@given(SECONDS, SIZES, COUNTS, EXCHANGES, SHARES, st.integers(1, 512))
def test_what_any_prediction_keeps_to(step_s, size, replicas, cost, overlap, batch):
    found = predict(step_s, size, replicas, cost, overlap, batch)
    assert 0 < found.efficiency <= 1
    assert found.step_s >= found.compute_s == step_s
    assert found.step_s <= found.compute_s + found.reduce_s
    assert found.batch_size == replicas * batch
    ideal = replicas * batch / step_s
    assert found.samples_per_s == pytest.approx(ideal * found.efficiency)
    assert predict(step_s, size, 1, cost, overlap, batch).efficiency == 1.0
    more = predict(step_s, size, replicas + 1, cost, overlap, batch)
    assert more.efficiency <= found.efficiency * (1 + 1e-12)
    assert predict(step_s, size, replicas, cost, 1.0).efficiency >= found.efficiency


def test_a_prediction_worked_out_by_hand():
    found = predict(0.3, 1e9, 2, RingCost(0.0, 10e9), batch_size=32)
    assert found.reduce_s == pytest.approx(0.1)
    assert found.efficiency == pytest.approx(0.75)
    assert found.samples_per_s == pytest.approx(160)
    assert predict(0.3, 1e9, 2, RingCost(0.0, 10e9), overlap=0.2).efficiency == pytest.approx(
        0.3 / 0.34
    )


@few
@given(SECONDS, SIZES, COUNTS, EXCHANGES, SHARES, SHARES)
def test_a_batch_that_is_divided(step_s, size, replicas, cost, overlap, fixed):
    found = predict_strong(step_s, size, replicas, cost, overlap, 1024, step_s * fixed)
    assert 0 < found.efficiency <= 1
    assert found.batch_size == 1024
    assert step_s / replicas * (1 - 1e-12) <= found.compute_s <= step_s * (1 + 1e-12)
    assert found.efficiency == pytest.approx(step_s / replicas / found.step_s)
    # Each replica has less to compute than with a batch of its own, and as much to exchange.
    weak = predict(step_s, size, replicas, cost, overlap, 1024)
    assert found.efficiency <= weak.efficiency * (1 + 1e-9)
    assert predict_strong(step_s, size, 1, cost, overlap).step_s == pytest.approx(step_s)


@few
@given(SIZES, st.integers(2, 2000), EXCHANGES, st.floats(0.05, 0.99), SHARES)
def test_the_step_that_is_long_enough_is_no_longer_than_needed(
    size, replicas, cost, efficiency, overlap
):
    step_s = find_step_s(size, replicas, cost, efficiency, overlap)
    assume(step_s > 0)
    found = predict(step_s, size, replicas, cost, overlap)
    assert found.efficiency == pytest.approx(efficiency)
    assert find_step_s(size, 1, cost, efficiency, overlap) == 0.0


def test_a_parameter_has_four_bytes_or_two():
    assert count_gradient_bytes(25e6) == 100e6
    assert count_gradient_bytes(25e6, "float16") == 50e6


def test_a_table_has_a_row_for_all_that_was_asked():
    links = {"slow": plan_link(10), "fast": plan_link(400)}
    rows = predict_table([1e6, 100e6], links, [8, 64, 512], 0.1, ("float32", "float16"))
    assert len(rows) == 8
    found = {(row.parameters, row.dtype, row.link): row.predictions for row in rows}
    assert [each.replicas for each in found[1e6, "float32", "slow"]] == [8, 64, 512]
    for at in range(3):
        whole, half = (found[100e6, dtype, "slow"][at] for dtype in ("float32", "float16"))
        fast = found[100e6, "float32", "fast"][at]
        assert whole.efficiency < half.efficiency < fast.efficiency


@pytest.mark.parametrize(
    ("call", "arg"),
    [
        (lambda: count_gradient_bytes(10, "int8"), "dtype"),
        (lambda: predict(0.0, 1, 2, plan_link(10)), "step_s"),
        (lambda: predict(1.0, 1, 2.5, plan_link(10)), "replicas"),
        (lambda: predict(1.0, 1, 2, plan_link(10), 1.5), "overlap"),
        (lambda: predict_strong(1.0, 1, 2, plan_link(10), fixed_s=2.0), "fixed_s"),
        (lambda: find_step_s(1, 2, plan_link(10), 1.0), "efficiency"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, arg):
    with pytest.raises(SpecError) as caught:
        call()
    assert caught.value.details["arg"] == arg
