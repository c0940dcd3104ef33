import pytest
from recorded import HEALTHY, JAX, JAX_UNLISTED, UNLISTED, change

from gpukeras.diagnostics.findings import (
    describe_driver,
    describe_gpus,
    describe_hardware,
    describe_product,
    describe_proof,
    describe_python,
    describe_tensorflow,
    take_inventory,
)
from gpukeras.system.facts import parse_facts


def test_a_healthy_computer_is_told_part_by_part():
    found = {finding.id: finding.evidence for finding in take_inventory(parse_facts(HEALTHY))}
    assert found == {
        "platform": "Linux 6.8.0-45-generic x86_64",
        "hardware": "NVIDIA GeForce RTX 3090",
        "driver": "550.54.15, cuInit returns 0",
        "python": "3.11.2 /env/bin/python",
        "tensorflow": "2.21.0, built with CUDA 12.5.1",
        "gpus": "GPU:0",
        "compute": "matrix product right, convolution right, training right, "
        "training with XLA right",
    }
    assert {finding.status for finding in take_inventory(parse_facts(HEALTHY))} == {"ok"}


def test_on_jax_the_parts_name_jax():
    found = {finding.id: finding.evidence for finding in take_inventory(parse_facts(JAX))}
    assert list(found)[4:] == ["jax", "gpus", "memory", "compute"]
    assert found["jax"] == "0.7.1, jaxlib 0.7.1, CUDA 12 plugin 0.7.1"
    assert found["gpus"] == "GPU:0 (in a new process)"
    assert found["memory"] == "XLA_PYTHON_CLIENT_PREALLOCATE is false"
    assert describe_gpus(parse_facts(JAX_UNLISTED)) == "none listed (in a new process)"
    facts = parse_facts({"keras": {"backend": "jax"}, "skipped": {"listings": "A1"}})
    assert describe_gpus(facts) == "not asked for (A1)"


def test_what_is_missing_is_a_note_and_never_a_no():
    found = take_inventory(parse_facts({}))
    assert {finding.evidence for finding in found} == {"not determined"}
    assert {finding.status for finding in found} == {"note"}


@pytest.mark.parametrize(
    ("describe", "changes", "said"),
    [
        (describe_hardware, {"nvml": None}, "NVIDIA GeForce RTX 3090"),  # libcuda tells it too
        (describe_hardware, {"nvml": None, "cuda": None}, "1 NVIDIA GPU"),
        (describe_driver, {"nvml": None, "cuda": {"init": 803}}, "550.54.15, cuInit returns 803"),
        (describe_driver, {"nvml": None, "driver": {"version": ""}}, "of unknown version, cuInit"),
        (describe_driver, {"cuda": {"simulated": True}}, "550.54.15, cuInit returns 0 (simulated)"),
        (
            describe_python,
            {"session": {"forced": "use_virtualenv()"}},
            "chosen by use_virtualenv()",
        ),
        (describe_tensorflow, {"tensorflow": None}, "2.21.0, built with CUDA 12.5.1"),
        (describe_tensorflow, {"build": {"is_cuda_build": False}}, "2.21.0, built without CUDA"),
        (describe_gpus, {"tensorflow": {"visible_gpus": []}}, "GPU:0 (0 visible)"),
        (describe_proof, {"proof": None, "skipped": {"compute": "so"}}, "not made (so)"),
        (describe_proof, {"proof": {"ended": "killed by SIGABRT"}}, "(killed by SIGABRT)"),
    ],
)
def test_each_part_tells_what_is_known(describe, changes, said):
    assert said in describe(parse_facts(change(HEALTHY, changes)))


def test_a_list_that_was_not_asked_for_says_why():
    facts = change(UNLISTED, {"tensorflow": {"physical_gpus": None}, "skipped": {"session": "A1"}})
    assert describe_gpus(parse_facts(facts)) == "not asked for (A1)"


def test_no_card_and_no_driver_are_none():
    facts = parse_facts({"hardware": {"nvidia_gpus": []}, "cuda": {"loaded": False}})
    assert describe_hardware(facts) == "none on the PCI bus"
    assert describe_driver(facts) == "none loaded"


@pytest.mark.parametrize(
    "stage", [{"ok": False}, {"ok": None}, {"deviation": None}, {"name": "fit"}]
)
def test_a_product_without_its_figures_is_none(stage):
    right = HEALTHY["proof"]["stages"][0]
    assert describe_product(parse_facts(HEALTHY))
    assert describe_product(parse_facts({"proof": {"stages": [{**right, **stage}]}})) is None


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "ok", "550.54.15, cuInit returns 0"),
        ({"cuda": {"init": 3}}, "note", "550.54.15, cuInit returns 3"),
        ({"cuda": {"count_status": 100}}, "note", "cuInit returns 0, cuDeviceGetCount returns 100"),
        ({"nvml": {"init": 999}}, "note", "cuInit returns 0, NVML returns 999"),
        ({"nvml": {"loaded": False, "init": None}}, "note", "550.54.15, cuInit returns 0"),
    ],
)
def test_a_driver_is_right_only_if_all_of_its_answers_are(changes, status, said):
    (row,) = [
        part
        for part in take_inventory(parse_facts(change(HEALTHY, changes)))
        if part.id == "driver"
    ]
    assert (row.status, said in row.evidence) == (status, True)
