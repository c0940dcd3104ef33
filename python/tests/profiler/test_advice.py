"""Advice: what is said, when, in which order, and what gain is expected."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.profiler.advice import (
    MOST_TIMES,
    AdviceFacts,
    batch_gain,
    choose_times,
    explain_short_epoch,
    free_gain,
    plan_advice,
)
from gpukeras.profiler.cost.suggestions import Suggestion
from gpukeras.profiler.layer_times import LayerTime
from gpukeras.profiler.report import PARTS, InputCost, StageTime


def stages(**seconds):
    whole = sum(seconds.values())
    return tuple(StageTime(name, s, s / whole, f"what {name} does") for name, s in seconds.items())


def facts(shares=None, **changes):
    base = AdviceFacts(
        shares={**dict.fromkeys(PARTS, 0.0), **(shares or {"kernels": 1.0})},
        engine="graph_loop",
        engines=("keras",),
        batch_size=64,
        rows=64_000,
        device="CPU:0",
        gpus=0,
        capability="",
        card="",
        policy="float32",
        input=InputCost(1.0, 0.0, 1.0, 0.1, 1.0, stages(gather=0.1)),
        source="rows",
        mode="staged",
    )
    return replace(base, **changes)


def advice(shares=None, **changes):
    return {one.id: one for one in plan_advice(facts(shares, **changes))}


@pytest.mark.parametrize(
    ("rows", "source", "short"),
    [(15 * 64, "rows", True), (16 * 64, "rows", False), (64, "function", False)],
)
def test_of_a_short_epochs_input_nothing_is_advised_but_said(rows, source, short):
    seen = facts({"input": 0.5, "kernels": 0.5}, rows=rows, source=source)
    assert ("input" not in {one.id for one in plan_advice(seen)}) == short
    assert bool(explain_short_epoch(seen)) == short


def test_a_device_that_is_busy_computing_needs_no_advice():
    assert advice() == {}


def test_a_call_for_each_batch_is_replaced_by_many_batches_a_call():
    found = advice({"host": 0.9, "kernels": 0.1}, engine="keras", engines=("graph_loop",))
    assert found["engine"].apply == {"engine": "auto"}
    assert found["engine"].gain == pytest.approx(10)
    assert "90 %" in found["engine"].why


def test_eager_steps_become_a_graph():
    found = advice({"host": 0.9, "kernels": 0.1}, engine="keras", engines=(), eager=True)
    assert "without `run_eagerly`" in found["eager"].text
    assert "engine" not in found
    assert "eager" not in advice({"kernels": 1.0}, engine="keras", engines=(), eager=True)


def test_a_loop_of_small_ops_is_compiled_where_that_is_allowed():
    parts = {"host": 0.4, "kernels": 0.6}
    assert advice(parts, engines=("keras", "compiled"))["compiled"].apply == {"engine": "compiled"}
    assert "compiled" not in advice(parts, engines=("keras",))
    assert "engine" not in advice(parts, engine="compiled", engines=("graph_loop", "keras"))


def test_a_larger_batch_is_advised_with_its_gain():
    found = advice({"host": 0.7, "kernels": 0.3})["batch_size"]
    assert found.apply == {"batch_size": 2048}
    assert "2048` instead of 64" in found.text
    assert "Launch overhead is 70 %" in found.why
    assert found.gain == pytest.approx(batch_gain(0.7, 32))


def test_a_larger_batch_leaves_an_epoch_its_updates():
    assert advice({"host": 0.7, "kernels": 0.3}, rows=64 * 45)["batch_size"].apply == {
        "batch_size": 256
    }
    assert "batch_size" not in advice({"host": 0.7, "kernels": 0.3}, rows=64 * 15)


def test_an_optimizer_that_takes_most_of_the_kernels_asks_for_larger_batches():
    rows = (
        LayerTime("dense", "Dense", 0.1, 0.2, 0.3, 0.3),
        LayerTime("optimizer", "Adam", 0, 0, 1, 0.7),
    )
    found = advice(layers=rows)["batch_size"]
    assert "The optimizer's update is 70 %" in found.why
    assert found.gain > 2


@settings(max_examples=100)
@given(st.floats(0.15, 1.0), st.integers(1, 4096), st.none() | st.integers(1, 10**7))
def test_a_batch_is_a_power_of_two_larger_and_never_too_large(fixed, batch_size, rows):
    times = choose_times(fixed, batch_size, rows)
    assert 1 <= times <= MOST_TIMES
    assert times & (times - 1) == 0
    assert rows is None or times == 1 or times * batch_size * 10 <= rows
    assert 1.0 <= batch_gain(fixed, times) <= times + 1e-9


WAITING = {"input": 0.5, "kernels": 0.5}


@pytest.mark.parametrize(
    ("slow", "changes", "says"),
    [
        ({"read": 1.0, "decode": 0.1}, {"source": "function"}, "cache = TRUE"),
        ({"read": 0.1, "decode": 1.0}, {"source": "function"}, "cache = TRUE"),
        ({"read": 1.0, "gather": 0.1}, {"mode": "streamed"}, 'cache = "host"'),
        ({"pull": 1.0, "send": 0.1}, {"source": "pipeline"}, "prefetch"),
        ({"gather": 0.1, "augment": 1.0}, {}, "Make `augment` cheaper"),
        ({"gather": 0.1, "augment": 0.5, "map": 1.0}, {}, "Make `map` cheaper"),
        ({"gather": 1.0}, {"mode": "streamed"}, 'cache = "host"'),
        ({"send": 1.0}, {"device": "GPU:0"}, 'cache = "device"'),
        ({"gather": 1.0}, {}, "fewer or smaller columns"),
    ],
)
def test_input_is_mended_where_it_is_slowest(slow, changes, says):
    found = advice(WAITING, input=InputCost(2, 1, 1, 1, 2, stages(**slow)), **changes)["input"]
    assert says in found.text
    assert found.gain == pytest.approx(2)
    assert found.apply == {}
    name = max(slow, key=slow.get)
    assert f"what {name} does" in found.why


def test_input_without_stages_is_advised_without_them():
    found = advice(WAITING, input=InputCost(2, 1, 1, 1, 2))["input"]
    assert found.why == "Waiting for rows takes 50 % of the step."


@pytest.mark.parametrize(
    ("capability", "policy", "device", "wanted"),
    [
        ("8.6", "float32", "GPU:0", "mixed_bfloat16"),
        ("7.0", "float32", "GPU:0", "mixed_float16"),
        ("6.1", "float32", "GPU:0", None),
        ("", "float32", "GPU:0", None),
        ("8.6", "mixed_bfloat16", "GPU:0", None),
        ("8.6", "float32", "CPU:0", None),
    ],
)
def test_mixed_precision_is_advised_where_the_gpu_has_it(capability, policy, device, wanted):
    found = advice(capability=capability, policy=policy, device=device).get("precision")
    assert (found is None) == (wanted is None)
    assert found is None or wanted in found.text


def test_mixed_precision_is_not_advised_for_a_card_without_tensor_cores():
    given = {"capability": "7.5", "policy": "float32", "device": "GPU:0"}
    assert "precision" in advice(**given, card="Tesla T4")
    assert "precision" not in advice(**given, card="NVIDIA GeForce GTX 1660 Ti")


def test_layers_that_dominate_may_be_replaced_by_cheaper_ones():
    rows = (
        LayerTime("conv", "Conv2D", 0.3, 0.4, 0.7, 0.7),
        LayerTime("dense", "Dense", 0.1, 0.2, 0.3, 0.3),
    )
    cheaper = Suggestion("separable", ("conv",), "Use SeparableConv2D.", flops_share=0.6)
    found = advice(layers=rows, suggestions=(cheaper,))["separable"]
    assert found.text == cheaper.text
    assert found.gain == pytest.approx(1 / (1 - 0.6))
    assert "70 % is conv" in found.why
    assert advice(layers=rows, suggestions=(replace(cheaper, layers=("other",)),)) == {}


def test_a_gpu_that_stands_idle_beside_comes_last_without_a_number():
    found = plan_advice(facts(WAITING, gpus=1))
    assert [one.id for one in found] == ["input", "device"]
    assert found[-1].gain is None


def test_the_largest_gain_comes_first():
    parts = {"host": 0.5, "input": 0.3, "kernels": 0.2}
    gains = [one.gain for one in plan_advice(facts(parts, engine="keras", engines=("graph_loop",)))]
    assert len(gains) == 3
    assert gains == sorted(gains, reverse=True)


def test_without_a_trace_only_the_input_is_advised():
    parts = {**dict.fromkeys(PARTS), "input": 0.6}
    assert list(advice(parts, engine="keras", engines=("graph_loop",))) == ["input"]


def test_what_takes_everything_is_not_an_infinite_gain():
    assert free_gain(1.0) == pytest.approx(100)
