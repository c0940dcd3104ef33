import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import HEALTHY, JAX, UNLISTED, change, judge

from gpukeras.diagnostics.check import format_check
from gpukeras.diagnostics.verdict import name_situation
from gpukeras.system.facts import parse_facts

NO_HARDWARE = {
    "hardware": {"nvidia_gpus": []},
    "driver": {"version": "", "device_nodes": []},
    "cuda": {"loaded": False, "init": None, "devices": None},
    "nvml": {"loaded": False, "count": None, "devices": None},
}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(ODD)
def test_facts_that_are_no_facts_are_unproven(facts):
    diagnosis = judge(facts)
    assert (diagnosis.verdict, diagnosis.cause) == ("UNPROVEN", None)


NO_GPU = {
    "tensorflow": {"physical_gpus": [], "visible_gpus": []},
    "listings": {"as it is": {"gpus": []}},
}
NO_SESSION = {"tensorflow": {"imported": False, "physical_gpus": None, "visible_gpus": None}}


@pytest.mark.parametrize(
    ("changes", "situation", "verdict"),
    [
        ({}, "works", "CONFIRMED"),
        ({"proof": {"ok": False, "error": "off by 1.0"}}, "failed", "NOT USED"),
        ({"proof": {"ok": None, "error": "did not end within 120 s"}}, "untested", "UNPROVEN"),
        ({"proof": None}, "untested", "UNPROVEN"),
        ({"tensorflow": {"visible_gpus": []}}, "hidden", "NOT USED"),
        ({"tensorflow": {"visible_gpus": None}}, "works", "CONFIRMED"),
        (NO_GPU, "unlisted", "NOT USED"),
        ({"tensorflow": NO_GPU["tensorflow"]}, "late", "NOT USED"),
        (NO_SESSION, "works", "CONFIRMED"),  # the child lists and computes
        (NO_SESSION | {"listings": None}, "unknown", "UNPROVEN"),
        (
            NO_SESSION | {"listings": {"as it is": {"gpus": []}, "preloaded": None}},
            "unlisted",
            "NOT USED",
        ),
    ],
)
def test_situations_lead_to_verdicts(changes, situation, verdict):
    facts = change(HEALTHY, changes)
    assert name_situation(parse_facts(facts)) == situation
    assert judge(facts).verdict == verdict


# The proof of use --------------------------------------------------------------------------------


def test_a_confirmed_gpu_shows_result_memory_kernels_and_whose_training_it_was():
    product, memory, kernels, whose = judge(HEALTHY).evidence
    assert "1.0e-07, tolerance 2.0e-03" in product
    assert "took 3.8 MiB of the GPU's memory; its rows and gradients need 0.4 MiB" in memory
    assert "saw 420 kernels on the GPU's streams, 62 % of the time" in kernels
    assert whose == "Trained was a small model, in a child process."


OWN = {
    "device": "GPU:0",
    "variables": {"GPU:0": 4},
    "placement": {"GPU:0": {"MatMul": 6}, "CPU:0": {"Placeholder": 2}},
    "peak_rise_bytes": 2.0**21,
    "expected_bytes": 2.0**20,
    "trace": {"kernel_s": 0.004, "kernels": 90, "busy_share": 0.5, "cupti": True},
}


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({}, "CONFIRMED", "your model"),
        ({"trace": None}, "CONFIRMED", "placed on the GPU: 6 MatMul"),  # profiling is forbidden
        ({"trace": {"kernel_s": 0.0, "kernels": 0}}, "CONFIRMED", "placed on the GPU: 6 MatMul"),
        ({"trace": None, "placement": None}, "UNPROVEN", "kernels or ops"),
        ({"peak_rise_bytes": 1000.0}, "UNPROVEN", "its memory in a training step"),
        ({"peak_rise_bytes": None}, "UNPROVEN", "its memory in a training step"),
        ({"peak_rise_bytes": 0.0, "expected_bytes": 0.0}, "UNPROVEN", "its memory"),
        ({"placement": {"CPU:0": {"Conv2D": 1}}}, "PARTIAL", "on the CPU too: 1 Conv2D"),
        ({"placement": {"CPU:0": {"Cast": 9, "Placeholder": 2}}}, "CONFIRMED", "your model"),
    ],
)
def test_three_things_prove_the_use_of_a_gpu(changes, verdict, said):
    diagnosis = judge(change(HEALTHY, {"use": change(OWN, changes)}))
    assert diagnosis.verdict == verdict
    assert said in " ".join(diagnosis.evidence)


def test_no_right_product_is_no_proof():
    nothing = {"stages": [{"name": "product", "ok": None}], "use": {"numeric": None}}
    facts = change(HEALTHY, {"proof": nothing})
    diagnosis = judge(facts)
    assert diagnosis.verdict == "UNPROVEN"
    assert diagnosis.evidence[-1] == "Not determined: a right result."


def test_a_models_own_right_output_is_a_right_result_too():
    numeric = {"ok": True, "deviation": 2e-4, "tolerance": 0.05}
    facts = change(HEALTHY, {"proof": None, "use": change(OWN, {"numeric": numeric})})
    assert name_situation(parse_facts(facts)) == "works"
    assert judge(facts).verdict == "CONFIRMED"
    assert "deviates from the CPU's by 2.0e-04" in judge(facts).evidence[0]
    for other in ({"device": "CPU:0"}, {"numeric": {"ok": False}}, {"numeric": None}):
        assert name_situation(parse_facts(change(facts, {"use": other}))) == "untested"


@pytest.mark.parametrize("part", ["cuda", "nvml"])
def test_a_simulated_driver_confirms_nothing(part):
    diagnosis = judge(change(HEALTHY, {part: {"simulated": True}}))
    assert diagnosis.verdict == "UNPROVEN"
    assert "simulated" in diagnosis.evidence[-1]
    findings = {finding.id: finding.evidence for finding in diagnosis.findings}
    assert "(simulated)" in findings["driver"]


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({}, "CONFIRMED", "saw 420 kernels"),
        ({"trace": None}, "CONFIRMED", "steps computed are there: 6 on GPU:0"),
        ({"trace": None, "variables": {"CPU:0": 6}}, "UNPROVEN", "kernels or ops"),
        ({"held_bytes": 100.0}, "UNPROVEN", "its memory in a training step"),
        ({"held_bytes": None}, "UNPROVEN", "its memory in a training step"),
    ],
)
def test_on_jax_rows_and_results_on_the_gpu_are_the_proof(changes, verdict, said):
    use = change(JAX["proof"]["use"], changes)
    if changes.get("variables"):
        use["variables"] = changes["variables"]
    diagnosis = judge({**JAX, "proof": {**JAX["proof"], "use": use}})
    assert diagnosis.verdict == verdict
    assert said in " ".join(diagnosis.evidence)
    assert "TensorFlow" not in " ".join(diagnosis.evidence)
    assert "soft placement" not in " ".join(diagnosis.evidence)


@pytest.mark.parametrize(
    ("listing", "situation"),
    [
        ({"gpus": [], "error": ""}, "unlisted"),
        ({"gpus": [], "error": "RuntimeError: Unable to initialize backend 'cuda'"}, "failed"),
        ({"gpus": None, "error": "killed by SIGSEGV"}, "unknown"),
    ],
)
def test_a_plugin_that_cannot_start_is_a_gpu_that_fails(listing, situation):
    facts = change(JAX, {"listings": {"as it is": listing}, "proof": None})
    assert name_situation(parse_facts(facts)) == situation


# What is not determined --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"proof": {"ok": None, "error": "no answer within 120 s"}}, ": no answer within 120 s."),
        ({"proof": {"ok": None, "ended": "killed by SIGKILL"}}, ": killed by SIGKILL."),
        (
            {"proof": None, "skipped": {"compute": "one process at a time"}},
            ": one process at a time.",
        ),
        ({"proof": None}, ": no test was run."),
    ],
)
def test_a_listed_gpu_that_was_not_tried_is_not_determined(changes, said):
    assert judge(change(HEALTHY, changes)).evidence[0].endswith("not determined" + said)


def test_a_listing_that_ended_badly_says_how():
    tried = {"as it is": {"ok": None, "gpus": None, "error": "killed by SIGSEGV"}}
    diagnosis = judge(change(HEALTHY, NO_SESSION, {"listings": tried, "proof": None}))
    assert diagnosis.verdict == "UNPROVEN"
    assert diagnosis.evidence == (
        "Whether TensorFlow sees a GPU is not determined: killed by SIGSEGV.",
    )


def test_no_gpu_and_no_proven_cause_is_not_determined():
    diagnosis = judge(UNLISTED)
    assert (diagnosis.verdict, diagnosis.cause) == ("NOT USED", None)
    assert diagnosis.evidence == ("TensorFlow lists no GPU; the cause is not determined.",)
    assert format_check(diagnosis)[1] == "Cause: not determined"


def test_the_inventory_is_always_whole():
    shown = ["platform", "hardware", "driver", "python", "tensorflow", "gpus", "compute"]
    for facts in (HEALTHY, UNLISTED, {}):
        found = [finding for finding in judge(facts).findings if finding.id in shown]
        assert [finding.id for finding in found] == shown
    assert {finding.evidence for finding in judge({}).findings} == {"not determined"}


def test_a_check_is_one_screen_of_lines():
    lines = format_check(judge(change(UNLISTED, NO_HARDWARE)))
    assert lines[:4] == [
        "GPU: NOT USED",
        "Cause: This computer has no NVIDIA GPU. [A1]",
        "Evidence: the PCI bus lists no display device of NVIDIA (vendor 0x10de, class 0x03)",
        "Fix: Train on the CPU, or on a computer with an NVIDIA GPU.",
    ]
    assert len(lines) < 25
    assert not any("[A1]" in line for line in lines[4:])
