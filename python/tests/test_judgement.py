import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_causes import HEALTHY, NO_DRIVER, NO_PCI_GPU, UNLISTED, change

from gpukeras.judgement import format_check, format_facts, judge, name_situation, redact

VERDICTS = {"CONFIRMED", "PARTIAL", "UNPROVEN", "NOT USED"}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def list_paths(facts, path=()):
    """All paths of keys into nested dicts."""
    paths = [path] if path else []
    for key in facts if isinstance(facts, dict) else ():
        paths += list_paths(facts[key], (*path, key))
    return paths


def replace_fact(facts, path, value):
    for key in path[:-1]:
        facts = facts[key] if isinstance(facts, dict) and key in facts else {}
    if isinstance(facts, dict):
        facts[path[-1]] = value


@given(st.data())
def test_missing_and_odd_facts_never_crash_and_never_confirm(data):
    facts = copy.deepcopy(data.draw(st.sampled_from([HEALTHY, UNLISTED])))
    for path in data.draw(st.lists(st.sampled_from(list_paths(HEALTHY)), max_size=6)):
        replace_fact(facts, path, data.draw(ODD))
    diagnosis = judge(facts)
    assert diagnosis.verdict in VERDICTS - {"CONFIRMED", "PARTIAL"}
    assert (diagnosis.cause is None) == (diagnosis.cause_id is None) == (diagnosis.fix == "")
    assert diagnosis.evidence
    assert all(line for line in format_check(diagnosis))


@given(ODD)
def test_facts_that_are_no_facts_are_unproven(facts):
    diagnosis = judge(facts)
    assert (diagnosis.verdict, diagnosis.cause) == ("UNPROVEN", None)


@pytest.mark.parametrize(
    ("changes", "situation", "verdict"),
    [
        ({}, "works", "UNPROVEN"),
        ({"proof": {"ok": False}}, "failed", "NOT USED"),
        ({"proof": {"ok": None, "error": "no answer within 120 s"}}, "untested", "UNPROVEN"),
        ({"tensorflow": {"visible_gpus": []}}, "hidden", "NOT USED"),
        ({"tensorflow": {"visible_gpus": None}}, "works", "UNPROVEN"),
        ({"tensorflow": {"physical_gpus": [], "visible_gpus": []}}, "unlisted", "NOT USED"),
        ({"tensorflow": {"physical_gpus": None, "visible_gpus": None}}, "unknown", "UNPROVEN"),
    ],
)
def test_situations_lead_to_verdicts(changes, situation, verdict):
    facts = change(HEALTHY, changes)
    assert name_situation(facts) == situation
    assert judge(facts).verdict == verdict


def test_a_gpu_that_computes_is_unproven_because_no_training_was_traced():
    diagnosis = judge(HEALTHY)
    assert diagnosis.cause is None
    assert "1.0e-07, tolerance 2.0e-03" in diagnosis.evidence[0]
    assert "no training step has been traced" in diagnosis.evidence[1]


def test_a_listed_gpu_that_was_not_tried_is_not_determined():
    facts = change(HEALTHY, {"proof": {"ok": None, "error": "no answer within 120 s"}})
    assert judge(facts).evidence[0].endswith("not determined: no answer within 120 s")


def test_no_gpu_and_no_proven_cause_is_not_determined():
    diagnosis = judge(UNLISTED)
    assert (diagnosis.verdict, diagnosis.cause) == ("NOT USED", None)
    assert diagnosis.evidence == ("TensorFlow lists no GPU; the cause is not determined.",)
    assert format_check(diagnosis)[1] == "Cause: not determined"


def test_the_childs_words_are_the_cause_of_a_failed_computation():
    error = "the child process ended (killed by SIGABRT): LLVM ERROR: PTX version 8.5"
    diagnosis = judge(change(HEALTHY, {"proof": {"ok": False, "error": error}}))
    assert diagnosis.cause.endswith(error)


def test_the_inventory_is_always_whole():
    shown = ["platform", "hardware", "driver", "python", "tensorflow", "gpus", "compute"]
    for facts in (HEALTHY, UNLISTED, {}):
        found = [finding for finding in judge(facts).findings if finding.id in shown]
        assert [finding.id for finding in found] == shown
    assert {finding.evidence for finding in judge({}).findings} == {"not determined"}


def test_a_check_is_one_screen_of_lines():
    lines = format_check(judge(change(UNLISTED, NO_PCI_GPU, NO_DRIVER)))
    assert lines[:4] == [
        "GPU: NOT USED",
        "Cause: This computer has no NVIDIA GPU. [A1]",
        "Evidence: the PCI bus lists no display device of NVIDIA (vendor 0x10de, class 0x03)",
        "Fix: Train on the CPU, or on a computer with an NVIDIA GPU.",
    ]
    assert len(lines) < 25
    assert not any("[A1]" in line for line in lines[4:])


def test_facts_become_lines():
    facts = {"a": {"b": 1, "c": None}, "environment": {"X": {"c": None}}, "d": [], "e": {}}
    assert format_facts(facts) == [
        "a.b: 1",
        "a.c: not determined",
        "environment.X.c: unset",
        "d: []",
        "e: {}",
    ]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/ada/env/bin/python", "~/env/bin/python"),
        ("/home/ada.old/x", "/home/<user>/x"),
        ("/home/bob/x:/Users/eve/y", "/home/<user>/x:/Users/<user>/y"),
        (r"C:\Users\eve\x", r"C:\Users\<user>\x"),
        ("/scratch/ada/job on node7.cluster.org", "/scratch/<user>/job on <host>"),
        ("node7:1234", "<host>:1234"),
        ("adapter, ada-lib", "adapter, ada-lib"),
        ("root at localhost", "root at localhost"),
    ],
)
def test_reports_name_neither_user_nor_host_nor_home(text, redacted):
    hosts = ["node7.cluster.org", "node7", "localhost", ""]
    assert redact(text, ["ada", "root", ""], hosts, ["/home/ada", "", "/"]) == redacted
