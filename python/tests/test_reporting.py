import pytest

from gpukeras.reporting import format_facts, redact


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
