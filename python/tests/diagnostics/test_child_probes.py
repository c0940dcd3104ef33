import json
import sys

import pytest
from children import PATHS
from stub_driver import stub_environment

from gpukeras.core.child_process import ChildEnd
from gpukeras.diagnostics import child_probes
from gpukeras.system.facts import parse_facts

PYTHON = {"python": {"executable": sys.executable}}


def end(stdout="", problem=""):
    return ChildEnd(stdout, "", problem)


@pytest.mark.parametrize(
    ("ended", "answer"),
    [
        (end('noise\n{"gpus": []}\nmore noise\n'), {"gpus": []}),
        (end('{"a": 1}\n{"a": 2}\n'), {"a": 2}),
        (end('{"a": 1}\n{"a": \n'), {"a": 1}),
        (end("[1]\n7\n"), {"error": "the child process gave no answer (no output)"}),
        (
            end("", "killed by SIGSEGV"),
            {"error": "the child process gave no answer (killed by SIGSEGV)"},
        ),
    ],
)
def test_the_last_whole_answer_counts(ended, answer):
    assert child_probes.parse_answer(ended) == answer


@pytest.mark.parametrize(
    ("cuda_build", "environment", "variations"),
    [
        (False, {}, ["as it is"]),
        (True, {}, ["as it is", "preloaded"]),
        (True, {"LD_LIBRARY_PATH": ""}, ["as it is", "preloaded"]),
        (True, {"LD_LIBRARY_PATH": "/x"}, ["as it is", "preloaded", "without LD_LIBRARY_PATH"]),
        (
            True,
            {"CUDA_VISIBLE_DEVICES": ""},
            ["as it is", "preloaded", "without CUDA_VISIBLE_DEVICES"],
        ),
    ],
)
def test_only_what_is_there_is_varied(cuda_build, environment, variations):
    facts = {"build": {"is_cuda_build": cuda_build}}
    assert child_probes.plan_listings(parse_facts(facts), environment) == variations


def test_on_jax_only_what_is_there_is_varied():
    facts = {"packages": {"jax-cuda12-plugin": "0.7.1"}, "keras": {"backend": "jax"}}
    environment = {"LD_LIBRARY_PATH": "/x", "CUDA_VISIBLE_DEVICES": "0"}
    assert child_probes.plan_listings(parse_facts(facts), environment) == [
        "as it is",
        "without LD_LIBRARY_PATH",
        "without CUDA_VISIBLE_DEVICES",
    ]
    assert child_probes.plan_listings(parse_facts({}), {"LD_LIBRARY_PATH": "/x"}) == ["as it is"]


def test_a_child_takes_little_memory_and_writes_only_where_it_may():
    with child_probes.quiet_environment() as environment:
        assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
        assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        folder = environment["KERAS_HOME"]
        assert {environment[name] for name in ("TMPDIR", "CUDA_CACHE_PATH")} == {folder}


@pytest.mark.slow
@pytest.mark.tf
def test_tensorflow_lists_its_gpus_in_a_process_of_its_own():
    facts = {**PYTHON, "build": {}}
    with child_probes.quiet_environment() as environment:
        hidden = {**environment, "PYTHONPATH": PATHS, "CUDA_VISIBLE_DEVICES": "-1"}
        child_probes.read_listings(facts, hidden)
    listing = facts["listings"]["as it is"]
    assert (listing["ok"], listing["gpus"], listing["error"]) == (True, [], "")
    assert listing["version"].startswith("2.")
    assert json.dumps(listing)


@pytest.mark.slow
@pytest.mark.tf
def test_a_device_that_is_not_there_proves_nothing():
    with child_probes.quiet_environment() as environment:
        proof = child_probes.prove_device(
            "GPU:31", sys.executable, {**environment, "PYTHONPATH": PATHS}
        )
    assert proof["ok"] is False
    assert "product: " in proof["error"]


def test_a_python_that_is_not_there_is_no_error():
    facts = {"python": {"executable": "/no/python"}, "unread": {}, "build": {}}
    child_probes.read_driver_answers(facts, {})
    assert facts["cuda"] is None
    assert "FileNotFoundError" in facts["unread"]["cuda"]
    assert child_probes.prove_device("GPU:0", "/no/python", {})["ok"] is None


def test_the_driver_is_asked_without_the_variable_too():
    facts = {**PYTHON, "unread": {}, "build": {}}
    child_probes.read_driver_answers(facts, stub_environment(CUDA_VISIBLE_DEVICES="-1"))
    assert facts["cuda"]["count"] in (0, None)
    assert facts["cuda_shown"]["count"] == 1
