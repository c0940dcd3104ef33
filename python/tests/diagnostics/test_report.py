import pytest

from gpukeras.diagnostics.check import SCREEN, format_check, format_facts, redact
from gpukeras.diagnostics.findings import Finding
from gpukeras.diagnostics.verdict import Diagnosis


def make_diagnosis(notes=0):
    problem = Finding("D1", "problem", "It is hidden.", "-1", "Unset it.")
    other = Finding("D6", "problem", "Another backend.", "jax", "Restart R.")
    parts = [Finding("driver", "ok", "NVIDIA driver", "550.54.15")]
    told = [Finding(f"C{index}", "note", "A note.", f"seen {index}") for index in range(notes)]
    findings = (problem, other, *told, *parts)
    return Diagnosis("NOT USED", "It is hidden.", "D1", "Unset it.", ("-1",), findings)


def test_the_verdict_comes_first_then_problems_parts_and_notes():
    assert format_check(make_diagnosis(notes=1)) == [
        "GPU: NOT USED",
        "Cause: It is hidden. [D1]",
        "Evidence: -1",
        "Fix: Unset it.",
        "! Another backend: jax",
        "  Fix: Restart R.",
        "- NVIDIA driver: 550.54.15",
        "? A note: seen 0",
    ]


def test_notes_that_do_not_fit_are_counted():
    lines = format_check(make_diagnosis(notes=40), SCREEN)
    assert len(lines) == SCREEN
    assert lines[-1] == "... and 24 more: --json lists all"
    assert len(format_check(make_diagnosis(notes=17), SCREEN)) == SCREEN
    assert len(format_check(make_diagnosis(notes=40))) == 47


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
