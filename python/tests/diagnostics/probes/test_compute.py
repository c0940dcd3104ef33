import json
import textwrap

import numpy as np
import pytest
from children import run_python
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.diagnostics.probes import compute


def run_probe(*arguments, **variables):
    program = ("-m", "gpukeras.diagnostics.probes.compute")
    child = run_python(*program, *arguments, KERAS_BACKEND="tensorflow", **variables)
    return child, compute.parse_stages(child.stdout)


# The real thing ----------------------------------------------------------------------------------


@pytest.mark.tf
def test_the_cpu_proves_itself_in_all_stages(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    child, proof = run_probe("CPU:0", HOME=str(home), KERAS_HOME=str(tmp_path / "keras"))
    assert child.returncode == 0, child.stderr
    assert list(home.rglob("*")) == []
    assert (proof["ok"], proof["error"]) == (True, "")
    assert [stage["name"] for stage in proof["stages"]] == list(compute.STAGES)
    product, convolution, _, fit_xla = proof["stages"]
    for stage in (product, convolution):
        assert stage["placed"] == "CPU:0"
        assert 0 < stage["deviation"] < 1e-5 < stage["tolerance"]
    assert 1 < fit_xla["loss"] < 10
    use = proof["use"]
    assert set(use["variables"]) == {"CPU:0"}
    assert use["trace"]["kernels"] == 0
    assert use["jit"] is False
    assert any("Conv2D" in op for op in use["placement"]["CPU:0"])
    missing = {"numeric", "peak_rise_bytes", "capability", "card", "cpu_only_ops"}
    assert set(use["unread"]) <= missing


def test_an_unknown_stage_is_refused():
    child, proof = run_probe("CPU:0", "--stages", "product,dance")
    assert child.returncode == 2
    assert "no such stage: dance" in child.stderr
    assert proof == {"stages": [], "use": None, "ok": None, "error": ""}


@pytest.mark.slow
@pytest.mark.tf
def test_a_process_that_dies_leaves_the_stage_it_died_in():
    script = """
    import os
    from gpukeras.diagnostics.probes import compute
    compute.STAGES["convolution"] = lambda device: os.abort()
    compute.main(["CPU:0"])
    """
    child = run_python("-c", textwrap.dedent(script))
    proof = compute.parse_stages(child.stdout)
    assert child.returncode == -6
    ended = {stage["name"]: stage["ok"] for stage in proof["stages"]}
    assert ended == {"product": True, "convolution": None}
    assert proof["ok"] is None
    assert proof["error"] == f"convolution: {compute.UNENDED}"


# Judging -----------------------------------------------------------------------------------------


def round_mantissa(values, bits):
    """float32 with fewer bits of mantissa, as tensor cores read it."""
    step = np.float32(2.0 ** (23 - bits))
    whole = values.view(np.uint32).astype(np.float64)
    return (np.round(whole / step) * step).astype(np.uint32).view(np.float32)


@given(st.integers(0, 2**32 - 1))
def test_tf32_is_within_the_tolerance_and_a_wrong_kernel_is_not(seed):
    random = np.random.default_rng(seed)
    left, right = random.uniform(-1, 1, (2, 64, 64)).astype("float32")
    exact = compute.multiply_twice(left, right)
    reduced = round_mantissa(left, 10) @ round_mantissa(right, 10)
    assert compute.measure_deviation(reduced, *exact) <= compute.TOLERANCE
    for wrong in (np.zeros((64, 64)), left @ right.T, (left @ right) * 1.1):
        assert compute.measure_deviation(wrong, *exact) > compute.TOLERANCE


@pytest.mark.parametrize(
    ("placed", "deviation", "error"),
    [
        ("GPU:0", 1e-4, ""),
        ("GPU:0", float("nan"), "wrong"),
        ("GPU:0", 0.1, "wrong"),
        ("CPU:0", 0.0, "computed on"),
        ("", 0.0, "computed on"),
    ],
)
def test_a_result_is_judged(placed, deviation, error):
    found = compute.judge_result("GPU:0", placed, deviation)
    assert error in found["error"]
    assert found["ok"] == (error == "")


USE = {"first_s": 0.1, "variables": {"GPU:0": 4}, "numeric": None, "unread": {}}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, ""),
        ({"numeric": {"ok": True}}, ""),
        ({"first_s": None, "unread": {"first_s": "InternalError: x"}}, "InternalError: x"),
        ({"first_s": None}, "no step was made"),
        ({"variables": {"CPU:0": 4}}, "variables are on CPU:0"),
        ({"numeric": {"ok": False, "deviation": 1.0}}, "off by 1.0e+00"),
    ],
)
def test_training_steps_are_judged(changes, error):
    found = compute.judge_use("GPU:0", USE | changes)
    assert error in found
    assert bool(found) == bool(error)


# Reading what a process printed ------------------------------------------------------------------

BEGIN = {"stage": "product", "event": "begin"}
END = {"stage": "product", "event": "end", "ok": True, "error": "", "seconds": 0.5}
FIT = {"stage": "fit", "event": "end", "ok": True, "error": "", "seconds": 1, "use": {"steps": 3}}
XLA = {"stage": "fit_xla", "event": "begin"}
DONE = {"stage": "done"}


def lines(*messages):
    return "\n".join(m if isinstance(m, str) else json.dumps(m) for m in messages)


@pytest.mark.parametrize(
    ("stdout", "ok", "error"),
    [
        (lines(BEGIN, END, DONE), True, ""),
        (lines("noise", BEGIN, "{", END, "[1]", "null", DONE, "more"), True, ""),
        (lines(BEGIN, END), None, ""),
        (lines(BEGIN, END, XLA), True, f"fit_xla: {compute.UNENDED}"),
        (lines(BEGIN, DONE), None, f"product: {compute.UNENDED}"),
        (lines(BEGIN), None, f"product: {compute.UNENDED}"),
        (lines(BEGIN, json.dumps(END)[:40]), None, f"product: {compute.UNENDED}"),
        (lines(DONE), None, ""),
        ("", None, ""),
        (lines(BEGIN, END | {"ok": False, "error": "bad"}, DONE), False, "product: bad"),
        (lines(BEGIN, END | {"ok": "yes"}, DONE), None, "product: it did not tell how it ended"),
        (lines(BEGIN, END | {"ok": False, "error": 3}), False, "product: it did not tell"),
    ],
)
def test_stages_are_read(stdout, ok, error):
    proof = compute.parse_stages(stdout)
    assert proof["ok"] is ok
    assert proof["error"].startswith(error)
    assert bool(proof["error"]) == bool(error)


def test_a_stage_keeps_its_numbers_and_the_use_is_apart():
    proof = compute.parse_stages(lines(END | {"deviation": 1e-7}, FIT, DONE))
    kept = {"ok": True, "error": "", "seconds": 0.5}
    assert proof["stages"][0] == {"name": "product", "deviation": 1e-7, **kept}
    assert proof["use"] == {"steps": 3}
    assert "use" not in proof["stages"][1]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = st.sampled_from([*compute.STAGES, "done", "other"]) | JSON
MESSAGES = st.fixed_dictionaries(
    {"stage": NAMES},
    optional={
        "event": st.sampled_from(["begin", "end"]) | JSON,
        "ok": JSON,
        "error": JSON,
        "seconds": JSON,
        "use": JSON,
        "name": JSON,
    },
)


@given(st.lists(MESSAGES.map(json.dumps) | st.text(max_size=20)), st.integers(0, 300))
def test_whatever_is_printed_is_read(printed, cut):
    text = "\n".join(printed)
    proof = compute.parse_stages(text[: len(text) - cut] if cut < len(text) else text)
    assert set(proof) == {"stages", "use", "ok", "error"}
    assert proof["use"] is None or isinstance(proof["use"], dict)
    assert isinstance(proof["error"], str)
    for stage in proof["stages"]:
        assert stage["name"] in compute.STAGES
        assert stage["ok"] in (True, False, None)
        assert isinstance(stage["error"], str)
        assert (stage["ok"] is True) or stage["error"]
    if proof["ok"]:
        assert all(stage["ok"] for stage in proof["stages"])


def test_deep_nesting_and_huge_numbers_are_noise():
    odd = ["[" * 100_000, '{"stage": ' + "9" * 5000 + "}"]
    assert compute.parse_stages(lines(*odd, END, DONE))["ok"] is True
