"""What bounds a step: shares from clock and trace, and the verdict that rests on them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.profiler.attribution import StepShares
from gpukeras.profiler.bottleneck import CAUSES, group_shares, judge, split_step
from gpukeras.profiler.report import PARTS, VERDICTS

SECONDS = st.floats(0, 10, allow_nan=False)


def window(kernels_s=0.0, transfers_s=0.0, host_s=0.0, idle_s=0.0, steps=1):
    wall_s = kernels_s + transfers_s + host_s + idle_s
    return StepShares(wall_s, kernels_s, transfers_s, host_s, idle_s, steps)


def shares(**parts):
    return {**dict.fromkeys(PARTS, 0.0), **parts}


def test_a_step_is_its_waiting_and_what_the_trace_says_of_the_rest():
    found = split_step(1.0, 0.2, window(kernels_s=4.8, host_s=1.6, idle_s=1.6), 10)
    assert found == pytest.approx(shares(input=0.2, kernels=0.48, host=0.16, idle=0.16))


def test_what_the_tracer_adds_is_left_out_between_the_kernels():
    traced = window(kernels_s=4.0, transfers_s=1.0, host_s=9.0, idle_s=6.0)  # 20 s of 10 steps
    found = split_step(1.0, 0.0, traced, 10)  # untraced 10 s
    assert found == pytest.approx(shares(kernels=0.4, transfers=0.1, host=0.3, idle=0.2))


def test_kernels_that_took_longer_than_the_untraced_step_are_all_of_it():
    assert split_step(1.0, 0.0, window(kernels_s=15.0, host_s=5.0), 10)["kernels"] == 1.0


@settings(max_examples=100)
@given(st.floats(1e-6, 10), SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 100))
def test_shares_sum_to_one(real_s, waited, kernels_s, transfers_s, host_s, idle_s, steps):
    found = split_step(real_s, waited, window(kernels_s, transfers_s, host_s, idle_s), steps)
    assert list(found) == list(PARTS)
    if found["kernels"] is None:
        assert kernels_s + transfers_s == 0
    else:
        assert sum(found.values()) == pytest.approx(1.0)
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in found.values())


@pytest.mark.parametrize("traced", [None, window()], ids=["no trace", "an empty one"])
def test_without_a_trace_only_the_waiting_is_known(traced):
    found = split_step(2.0, 0.5, traced, 10)
    assert found == {**dict.fromkeys(PARTS), "input": 0.25}


@pytest.mark.parametrize(
    ("parts", "verdict", "name", "value", "threshold"),
    [
        (shares(input=0.6, kernels=0.4), "input-bound", "input", 0.6, 0.2),
        (shares(input=0.25, kernels=0.75), "input-bound", "input", 0.25, 0.2),
        (shares(input=0.15, transfers=0.1, kernels=0.75), "input-bound", "input", 0.25, 0.2),
        (shares(input=0.3, host=0.4, kernels=0.3), "launch-bound", "launch", 0.4, 0.2),
        (shares(host=0.4, idle=0.2, kernels=0.4), "launch-bound", "launch", 0.6, 0.2),
        (shares(host=0.15, idle=0.1, kernels=0.75), "launch-bound", "launch", 0.25, 0.2),
        (shares(kernels=0.9, host=0.1), "compute-bound", "compute", 0.9, 0.6),
        (shares(kernels=0.64, host=0.18, input=0.18), "compute-bound", "compute", 0.64, 0.6),
    ],
)
def test_the_larger_bottleneck_is_the_verdict(parts, verdict, name, value, threshold):
    found = judge(parts)
    assert found.verdict == verdict
    assert found.decided_by.name == name
    assert found.decided_by.value == pytest.approx(value)
    assert found.decided_by.threshold == pytest.approx(threshold)
    assert f" takes {100 * value:.0f} % of a step (" in found.sentence
    assert found.sentence.endswith(").")


@settings(max_examples=100)
@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0.001, 10))
def test_what_decides_reaches_its_threshold(waited, transfers, host, idle, kernels):
    whole = waited + transfers + host + idle + kernels
    parts = {"input": waited, "host": host, "kernels": kernels, "transfers": transfers}
    found = judge({part: s / whole for part, s in {**parts, "idle": idle}.items()})
    assert found.decided_by.value >= found.decided_by.threshold - 1e-9


def test_without_a_trace_nothing_is_claimed():
    parts = {**dict.fromkeys(PARTS), "input": 0.3}
    found = judge(parts, "CUPTI may not be used")
    assert found.verdict == "undetermined"
    assert found.decided_by.value is None
    assert found.sentence == "What bounds a step cannot be told: CUPTI may not be used."


def test_waiting_for_most_of_a_step_is_told_by_the_clock_alone():
    found = judge({**dict.fromkeys(PARTS), "input": 0.8}, "the trace is damaged")
    assert found.verdict == "input-bound"
    assert (found.decided_by.value, found.decided_by.threshold) == (0.8, 0.5)
    assert "the trace is damaged" in found.sentence


def test_every_part_of_a_step_counts_for_one_verdict():
    assert sorted(part for parts in CAUSES.values() for part in parts) == sorted(PARTS)
    assert set(CAUSES) < set(VERDICTS)
    assert sum(group_shares(shares(input=0.1, host=0.2, kernels=0.7)).values()) == 1.0
