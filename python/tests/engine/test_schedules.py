import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import SpecError
from gpukeras.backend import runtime
from gpukeras.engine.schedules import (
    KINDS,
    describe_schedule,
    draw_rates,
    draw_rates_at,
    draw_schedule,
    parse_schedule,
)


def draw(kind, steps=100, epoch=10, base=0.1, **options):
    return draw_rates(parse_schedule({"kind": kind, **options}), base, steps, epoch)


# Formulas ----------------------------------------------------------------------------------------


def torch_one_cycle(step, total, top, pct, div, final, linear):
    """PyTorch's OneCycleLR, as its loop over two phases computes one step."""
    first = top / div
    phases = [(pct * total - 1, first, top), (total - 1, top, first / final)]
    start = 0.0
    for place, (end, low, high) in enumerate(phases):
        if step <= end or place == 1:
            share = (step - start) / (end - start)
            if linear:
                return low + (high - low) * share
            return high + (low - high) / 2 * (1 + math.cos(math.pi * share))
        start = end
    return None


@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize(("steps", "pct"), [(100, 0.3), (10, 0.5), (7, 0.45), (1000, 0.123)])
def test_one_cycle_is_that_of_pytorch(anneal, steps, pct):
    rates = draw("one_cycle", steps, max_rate=0.5, pct_start=pct, anneal=anneal)
    expected = [
        torch_one_cycle(step, steps, 0.5, pct, 25, 1e4, anneal == "linear") for step in range(steps)
    ]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_one_cycle_starts_peaks_and_ends_where_its_options_say():
    rates = draw("one_cycle", 100, base=0.2, div_factor=10, final_div=100)
    assert rates[0] == np.float32(0.02)
    assert rates.argmax() == 29
    assert rates[29] == np.float32(0.2)
    np.testing.assert_allclose(rates[-1], 0.0002, rtol=1e-6)
    assert (np.diff(rates[:30]) > 0).all()
    assert (np.diff(rates[29:]) < 0).all()


@pytest.mark.parametrize(("pct", "peak"), [(0, 0), (0.1, 0), (1, 9)])
def test_one_cycle_whose_rise_is_none_or_all(pct, peak):
    rates = draw("one_cycle", 10, pct_start=pct, anneal="linear")
    assert rates.argmax() == peak
    assert np.isfinite(rates).all()


# Leslie Smith's own pseudocode (the paper's section 3.1), with h = 4 steps, from 1 to 5.
TRIANGLE = [1, 2, 3, 4, 5, 4, 3, 2]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("triangular", TRIANGLE * 2),
        ("triangular2", TRIANGLE + [1, 1.5, 2, 2.5, 3, 2.5, 2, 1.5]),
        ("exp_range", [1 + (rate - 1) * 0.9**i for i, rate in enumerate(TRIANGLE * 2)]),
    ],
)
@pytest.mark.parametrize("size", [{"step_size": 4, "unit": "steps"}, {"step_size": 2}])
def test_cyclic_rates_follow_their_policy(policy, expected, size):
    rates = draw("cyclic", 16, 2, policy=policy, min_rate=1, max_rate=5, gamma=0.9, **size)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_cyclic_goes_by_default_from_a_quarter_of_the_optimizers_rate_to_all_of_it():
    rates = draw("cyclic", 100, 10, base=0.4)
    assert (rates.min(), rates.max()) == (np.float32(0.1), np.float32(0.4))
    assert rates.argmax() == 20  # two epochs up


def keras_rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


@pytest.mark.tf
@pytest.mark.parametrize("low", [0.0, 0.02])
def test_warmup_cosine_is_keras_own(low):
    keras = runtime.keras().optimizers.schedules
    rates = draw("warmup_cosine", 60, 10, warmup=1.5, warmup_from=0.1, max_rate=0.2, min_rate=low)
    own = keras.CosineDecay(
        0.02, decay_steps=45, alpha=low / 0.2, warmup_target=0.2, warmup_steps=15
    )
    np.testing.assert_allclose(rates, keras_rates(own, 60), rtol=1e-5, atol=1e-8)


@pytest.mark.tf
def test_cosine_restarts_are_keras_own():
    keras = runtime.keras().optimizers.schedules
    rates = draw("warmup_cosine", 60, 10, warmup=0, cycles=3)
    own = keras.CosineDecayRestarts(0.1, 20, t_mul=1.0)
    np.testing.assert_allclose(rates, keras_rates(own, 60), rtol=1e-5, atol=1e-8)


@pytest.mark.tf
@pytest.mark.parametrize("staircase", [False, True])
def test_exponential_is_keras_own(staircase):
    keras = runtime.keras().optimizers.schedules
    rates = draw("exponential", 60, 10, decay=0.5, every=1.5, staircase=staircase)
    own = keras.ExponentialDecay(0.1, 15, 0.5, staircase=staircase)
    np.testing.assert_allclose(rates, keras_rates(own, 60), rtol=1e-5)


def test_exponential_stops_at_its_lowest_rate():
    rates = draw("exponential", 100, 10, rate=1, decay=0.1, min_rate=0.01)
    assert rates.min() == np.float32(0.01)
    np.testing.assert_allclose(rates[[0, 10, 15]], [1, 0.1, 0.1**1.5], rtol=1e-6)


@pytest.mark.parametrize("kind", ["constant", "plateau"])
def test_constant_rates_are_the_optimizers_or_the_one_given(kind):
    assert (draw(kind, 5) == np.float32(0.1)).all()
    assert (draw(kind, 5, rate=0.3) == np.float32(0.3)).all()


# Warm-up -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_warmup_stands_in_front_of_every_schedule(kind):
    rates = draw(kind, 100, 10, warmup=2.5, warmup_from=0.2)
    alone = draw(kind, 75, 10, warmup=0)
    np.testing.assert_array_equal(rates[25:], alone)
    shares = 0.2 + 0.8 * np.arange(25) / 25
    np.testing.assert_allclose(rates[:25], alone[0] * shares, rtol=1e-6)


@pytest.mark.parametrize("warmup", [10, 12, 9.96])
def test_a_warmup_as_long_as_the_training_is_refused(warmup):
    with pytest.raises(SpecError, match="leaves nothing of the training's 10[.]") as error:
        draw("constant", 100, 10, warmup=warmup)
    assert error.value.details == {"arg": "warmup"}


# Length ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_length_is_refused_where_it_matters(kind):
    spec = parse_schedule({"kind": kind, "warmup": 1})
    with pytest.raises(SpecError, match="how many batches") as error:
        draw_rates(spec, 0.1, None, None)
    assert error.value.hint == "Give gpu_dataset(steps = )."


@pytest.mark.parametrize("kind", ["constant", "plateau"])
def test_one_rate_for_all_needs_no_length(kind):
    spec = parse_schedule({"kind": kind})
    assert draw_rates(spec, 0.1, None, None).tolist() == [np.float32(0.1)]


options = {
    "one_cycle": st.fixed_dictionaries(
        {
            "pct_start": st.floats(0, 1),
            "div_factor": st.floats(1, 100),
            "anneal": st.sampled_from(["cos", "linear"]),
        }
    ),
    "cyclic": st.fixed_dictionaries(
        {
            "policy": st.sampled_from(["triangular", "triangular2", "exp_range"]),
            "step_size": st.floats(0.01, 5),
            "gamma": st.floats(0.5, 1),
        }
    ),
    "warmup_cosine": st.fixed_dictionaries({"cycles": st.integers(1, 9)}),
    "exponential": st.fixed_dictionaries(
        {"decay": st.floats(0.01, 1), "every": st.floats(0.1, 9), "staircase": st.booleans()}
    ),
    "plateau": st.just({}),
    "constant": st.just({}),
}


@pytest.mark.costly
@settings(max_examples=150)
@given(
    st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), options[kind])),
    st.integers(1, 60),
    st.integers(1, 8),
    st.floats(1e-6, 10),
    st.floats(0, 0.9),
)
def test_rates_are_finite_and_within_bounds(chosen, epoch, epochs, base, warm):
    kind, given_options = chosen
    steps, warmup = epoch * epochs, int(warm * epoch * epochs) / epoch
    rates = draw(kind, steps, epoch, base, warmup=warmup, **given_options)
    assert rates.shape == (steps,)
    assert rates.dtype == np.float32
    assert np.isfinite(rates).all()
    assert (rates >= 0).all()
    assert rates.max() <= base * (1 + 1e-6)
    if kind in ("warmup_cosine", "exponential", "constant", "plateau"):  # they begin at the top
        assert rates[round(warmup * epoch)] == np.float32(base)


@settings(max_examples=60)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 7), st.integers(20, 300))
def test_some_rates_are_those_of_all(kind, stride, steps):
    spec, at = parse_schedule({"kind": kind, "warmup": 1}), np.arange(0, steps, stride)
    some = draw_rates_at(spec, 0.1, at, steps, 10)
    np.testing.assert_array_equal(some, draw_rates(spec, 0.1, steps, 10)[at])


# Options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arg", "value"),
    [
        ("one_cycle", "max_rate", 0),
        ("one_cycle", "max_rate", "high"),
        ("one_cycle", "max_rate", 1e4),
        ("one_cycle", "pct_start", 1.1),
        ("one_cycle", "div_factor", 0.5),
        ("one_cycle", "final_div", 0),
        ("one_cycle", "anneal", "exp"),
        ("cyclic", "policy", "square"),
        ("cyclic", "step_size", 0),
        ("cyclic", "unit", "days"),
        ("cyclic", "gamma", 1.5),
        ("cyclic", "min_rate", -1),
        ("warmup_cosine", "cycles", 1.5),
        ("warmup_cosine", "cycles", 0),
        ("warmup_cosine", "min_rate", float("nan")),
        ("exponential", "decay", 0),
        ("exponential", "decay", 1.01),
        ("exponential", "every", -1),
        ("exponential", "staircase", 1),
        ("exponential", "rate", True),
        ("plateau", "factor", 1),
        ("plateau", "factor", 0),
        ("plateau", "patience", 0),
        ("plateau", "cooldown", -1),
        ("plateau", "min_delta", -0.1),
        ("plateau", "monitor", 3),
        ("plateau", "monitor", ""),
        ("plateau", "mode", "auto"),
        ("constant", "rate", -0.1),
        ("constant", "warmup", -1),
        ("cyclic", "warmup_from", 2),
        ("constant", "momentum", 0.9),
    ],
)
def test_a_bad_option_is_refused_by_name(kind, arg, value):
    with pytest.raises(SpecError, match=f"`{arg}`") as error:
        parse_schedule({"kind": kind, arg: value})
    assert error.value.details == {"arg": arg}


@pytest.mark.parametrize("kind", ["cyclic", "warmup_cosine", "exponential", "plateau"])
def test_a_lowest_rate_above_the_highest_is_refused(kind):
    with pytest.raises(SpecError, match=r"`min_rate` is 0.2, above the highest rate, 0.1"):
        draw(kind, min_rate=0.2)
    top = {name: 0.1 for name in ("max_rate", "rate") if hasattr(KINDS[kind], name)}
    with pytest.raises(SpecError, match=r"`min_rate` is 10, above the highest rate, 0.1"):
        parse_schedule({"kind": kind, "min_rate": 10, **top})


@pytest.mark.parametrize("given_schedule", [None, 0.1, "one_cycle", {}, {"kind": "step"}, [1]])
def test_what_is_no_schedule_is_refused(given_schedule):
    with pytest.raises(SpecError, match="`schedule` must be what a schedule_") as error:
        parse_schedule(given_schedule)
    assert error.value.details == {"arg": "schedule"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_description_is_plain_and_makes_the_same_schedule(kind):
    described = describe_schedule({"kind": kind, "warmup": 2})
    assert described["kind"] == kind
    assert described["warmup"] == 2.0
    assert parse_schedule(described) == parse_schedule({"kind": kind, "warmup": 2})


def test_a_schedule_is_drawn_for_r():
    rates = draw_schedule({"kind": "exponential", "decay": 0.5}, 0.1, 3.0, 4.0)
    np.testing.assert_array_equal(rates, draw("exponential", 12, 4, decay=0.5))
    for arg, values in {
        "rate": (-1, 2, 3),
        "epochs": (1, 0, 3),
        "steps_per_epoch": (1, 2, 0.5),
    }.items():
        with pytest.raises(SpecError, match=f"`{arg}`"):
            draw_schedule({"kind": "constant"}, *values)
