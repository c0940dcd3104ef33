import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import HEALTHY, change

from gpukeras.system.facts import (
    WHEELS,
    count_gpus,
    describe_readings,
    hides_gpus,
    is_heavy,
    is_simulated,
    list_uncoded,
    parse_facts,
    parse_numbers,
)

ANY = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


NOTHING = parse_facts({})


@given(ANY, st.sampled_from([field.name for field in fields(NOTHING)]))
def test_what_is_no_fact_is_not_determined(odd, group):
    assert parse_facts(odd) == NOTHING
    found = getattr(parse_facts({group: odd}), group)
    assert found == getattr(NOTHING, group) or group == "toolkits"


def test_facts_are_read_by_their_type():
    facts = parse_facts(
        {
            "driver": {"version": "x", "device_nodes": [], "access": {"a": "ok", "b": 7}, "dxg": 1},
            "nvml": {
                "init": 4.0,
                "count": True,
                "devices": [7, {"free_bytes": 2.5, "status": 0.5}],
            },
            "cuda": {"init": math.nan, "error": 3, "devices": None},
            "hardware": {"nvidia_gpus": None},
            "environment": {"X": {"c": None, "python": "1"}},
        }
    )
    assert (facts.driver.version, facts.driver.device_nodes, facts.driver.dxg) == ("x", (), None)
    assert facts.driver.access == {"a": "ok"}
    assert (facts.nvml.init, facts.nvml.count) == (4, None)
    assert [(gpu.free_bytes, gpu.status) for gpu in facts.nvml.devices] == [(2.5, None)]
    assert (facts.cuda.init, facts.cuda.error, facts.cuda.devices) == (None, None, ())
    assert facts.hardware.nvidia_gpus is None
    assert facts.readings("X") == {"c": None, "python": "1"}
    assert facts.readings("Y") == {}


@pytest.mark.parametrize(
    ("value", "gpus", "hidden"),
    [
        (None, 1, False),
        ("", 1, True),
        ("-1", 1, True),
        ("-1,0", 1, True),  # CUDA stops at the first that is none
        ("NoDevFiles", 1, True),
        ("0", 1, False),
        ("0,-1", 1, False),
        ("1", 1, True),
        ("1", 2, False),
        ("7", None, False),  # how many there are is not determined
        ("GPU-8932f937", 1, False),
        ("MIG-5c5d", 1, False),
    ],
)
def test_values_that_hide_all_gpus(value, gpus, hidden):
    assert hides_gpus(value, gpus) is hidden


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("12.5.1", (12, 5, 1)), ("8.6", (8, 6)), ("12.0a", (12, 0)), ("", ()), ("x", ()), (None, ())],
)
def test_numbers_of_a_version(text, numbers):
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize(
    ("capability", "uncoded"),
    [("8.6", False), ("7.5", False), ("9.0", False), ("12.0", True), ("10.0", True), ("5.2", True)],
)
def test_cards_without_code_in_the_build_are_known(capability, uncoded):
    card = {"cuda": {"devices": [{"capability": capability}]}}
    facts = change(HEALTHY, card, {"listings": None})
    assert bool(list_uncoded(parse_facts(facts))) == uncoded
    assert list_uncoded(parse_facts(change(facts, {"build": None}))) == []


def test_gpus_are_counted_by_device_nodes_or_on_the_bus():
    assert count_gpus(parse_facts(HEALTHY)) == 1
    assert count_gpus(parse_facts(change(HEALTHY, {"driver": {"device_nodes": []}}))) == 1
    assert count_gpus(parse_facts({})) is None


def test_the_readings_of_a_variable_are_told_apart():
    facts = {"environment": {"X": {"c": "-1", "python": None, "r": "-1", "start": None}}}
    assert (
        describe_readings(parse_facts(facts), "X")
        == "of X C reads '-1', Python reads nothing, R reads '-1'"
    )


@pytest.mark.parametrize("op", ["MatMul", "_MklMatMul", "_FusedConv2D", "CudnnRNNV3", "XlaLaunch"])
def test_ops_that_compute(op):
    assert is_heavy(op)


@pytest.mark.parametrize("op", ["Cast", "ReadVariableOp", "Placeholder", "StringSplitV2", "_Arg"])
def test_ops_that_do_not_compute(op):
    assert not is_heavy(op)


def test_a_driver_that_says_so_is_simulated():
    assert not is_simulated(parse_facts(HEALTHY))
    assert is_simulated(parse_facts(change(HEALTHY, {"nvml": {"simulated": True}})))


def test_wheels_are_the_names_that_own_the_module():
    assert "tensorflow-intel" not in WHEELS  # a part of `tensorflow` on Windows
