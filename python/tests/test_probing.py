import json
import sys

import pytest
from stub_driver import stub_environment

from gpukeras import probing
from gpukeras.children import ChildEnd

PYTHON = {"python": {"executable": sys.executable}}


def end(stdout="", problem=""):
    return ChildEnd(0, stdout, "", 0.1, problem)


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
    assert probing.parse_answer(ended) == answer


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
    assert probing.plan_listings(facts, environment) == variations


def test_a_child_takes_little_memory_and_writes_only_where_it_may():
    with probing.quiet_environment() as environment:
        assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
        folder = environment["KERAS_HOME"]
        assert {environment[name] for name in ("TMPDIR", "CUDA_CACHE_PATH")} == {folder}


@pytest.mark.tf
def test_tensorflow_lists_its_gpus_in_a_process_of_its_own():
    facts = {**PYTHON, "build": {}}
    with probing.quiet_environment() as environment:
        hidden = {**environment, "CUDA_VISIBLE_DEVICES": "-1"}
        probing.read_listings(facts, hidden)
    listing = facts["listings"]["as it is"]
    assert (listing["ok"], listing["gpus"], listing["error"]) == (True, [], "")
    assert listing["version"].startswith("2.")
    assert json.dumps(listing)


@pytest.mark.tf
def test_the_cpu_proves_itself_in_a_child_process():
    with probing.quiet_environment() as environment:
        proof = probing.prove_device("CPU:0", PYTHON, environment)
    assert (proof["ok"], proof["ended"], proof["error"]) == (True, "", "")
    assert [stage["name"] for stage in proof["stages"]] == [
        "product",
        "convolution",
        "fit",
        "fit_xla",
    ]
    assert proof["use"]["variables"].keys() == {"CPU:0"}


@pytest.mark.tf
def test_a_device_that_is_not_there_proves_nothing():
    with probing.quiet_environment() as environment:
        proof = probing.prove_device("GPU:31", PYTHON, environment)
    assert proof["ok"] is False
    assert "product: " in proof["error"]


def test_a_python_that_is_not_there_is_no_error():
    facts = {"python": {"executable": "/no/python"}, "unread": {}, "build": {}}
    probing.read_driver_answers(facts, {})
    assert facts["cuda"] is None
    assert "FileNotFoundError" in facts["unread"]["cuda"]
    assert probing.prove_device("GPU:0", facts, {})["ok"] is None


def test_the_driver_is_asked_without_the_variable_too():
    facts = {**PYTHON, "unread": {}, "build": {}}
    probing.read_driver_answers(facts, stub_environment(CUDA_VISIBLE_DEVICES="-1"))
    assert facts["cuda"]["count"] in (0, None)
    assert facts["cuda_shown"]["count"] == 1
