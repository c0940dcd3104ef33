"""Each known bug where it is and where it is not, at the edges of its versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import HEALTHY, change

from gpukeras.system import known_issues
from gpukeras.system.facts import parse_facts
from gpukeras.system.known_issues import KNOWN_BUGS, find_bugs

BY_ID = {bug.id: bug for bug in KNOWN_BUGS}
SITE = "/env/lib/python3.11/site-packages"


def build(version, cuda="12.5.1", **parts):
    return {
        "build": {"version": version, "cuda_version": cuda, **parts},
        "tensorflow": {"version": version},
    }


def card(capability):
    return {"cuda": {"devices": [{"name": "a card", "capability": capability}]}}


def cudnn(version):
    return {"cudnn": {"version": version}}


LOST = {
    "build": {"searches_cusolver": False},
    "libraries": {"libcusolver.so.11": f"{SITE}/nvidia/cusolver/lib/libcusolver.so.11"},
}
ELSEWHERE = {"libraries": {"libcusolver.so.11": "/usr/local/cuda-12.5/lib64/libcusolver.so.11"}}
MAC = {"platform": {"system": "Darwin"}, "packages": {"tensorflow-metal": "1.2.0"}}
CPU = {"build": {"is_cuda_build": False, "cuda_version": None}}


@pytest.mark.parametrize(
    ("bug", "changes", "sign"),
    [
        ("cusolver", [LOST], "/nvidia/cusolver/lib/libcusolver.so.11 is there"),
        ("cusolver", [LOST, ELSEWHERE], None),  # found, though not the wheel's
        ("cusolver", [LOST, CPU], None),
        ("cusolver", [LOST, {"build": {"searches_cusolver": None}}], None),
        ("pip paths", [build("2.16.1")], "tensorflow 2.16.1 does not search the folders of 1"),
        ("pip paths", [build("2.16.2")], None),
        ("pip paths", [build("2.16.1"), {"packages": {"nvidia-cudnn-cu12": None}}], "of 1"),
        ("pip paths", [build("2.16.1"), {"packages": None}], None),
        ("new cuDNN", [card("7.0"), cudnn(91100)], "cuDNN 9.11.0 needs compute capability 7.5"),
        ("new cuDNN", [card("7.0"), cudnn(91002)], None),
        ("new cuDNN", [card("7.5"), cudnn(92800)], None),
        ("new cuDNN", [card(""), cudnn(92800)], None),
        (
            "old cuDNN",
            [cudnn(90100)],
            "cuDNN 9.1.0 is loaded, TensorFlow 2.21.0 was compiled with 9.3",
        ),
        ("old cuDNN", [cudnn(90300)], None),
        ("old cuDNN", [build("2.17.1"), cudnn(8907)], None),
        ("old cuDNN", [build("2.17.1"), cudnn(8600)], "cuDNN 8.6.0"),
        ("old cuDNN", [build("2.15.0"), cudnn(8600)], None),  # older than what is known
        ("old cuDNN", [build("odd"), cudnn(8600)], None),
        (
            "Blackwell",
            [card("12.0")],
            "compute capability 12.0, and a TensorFlow built with CUDA 12.5.1",
        ),
        ("Blackwell", [card("10.0")], "10.0"),
        ("Blackwell", [card("9.0")], None),
        ("Blackwell", [card("12.0"), build("2.22.0", "12.8.0")], None),
        ("Blackwell", [card("12.0"), build("2.22.0", "13.0")], None),
        ("Blackwell", [card("12.0"), build("2.22.0", None)], None),
        ("metal", [MAC, build("2.18.0")], "tensorflow-metal 1.2.0 with TensorFlow 2.18.0"),
        ("metal", [MAC, build("2.17.1")], None),
        ("metal", [{"packages": {"tensorflow-metal": "1.2.0"}}, build("2.18.0")], None),
    ],
)
def test_bugs_are_found_in_the_versions_that_have_them(bug, changes, sign):
    found = BY_ID[bug].applies(parse_facts(change(HEALTHY, *changes)))
    assert found is None if sign is None else sign in found


def test_a_healthy_computer_has_only_the_bug_that_everybody_has():
    assert [bug.id for bug, _ in find_bugs(parse_facts(HEALTHY))] == []
    assert find_bugs(parse_facts({})) == ()


def test_bugs_are_found_together():
    facts = change(HEALTHY, LOST, card("6.1"), cudnn(92800))
    assert [bug.id for bug, _ in find_bugs(parse_facts(facts))] == ["cusolver", "new cuDNN"]


def test_records_are_whole():
    assert len(BY_ID) == len(KNOWN_BUGS)
    for bug in KNOWN_BUGS:
        assert bug.mends in ("preload", "jit off", "")
        assert bug.what.endswith(".")
        assert bug.fix


@pytest.mark.parametrize(
    ("number", "version"),
    [
        (91002, (9, 10, 2)),
        (90100, (9, 1, 0)),
        (92800, (9, 28, 0)),
        (8907, (8, 9, 7)),
        (8600, (8, 6, 0)),
        (None, ()),
        (0, ()),
        (9.5, ()),
        (True, ()),
        ("91002", ()),
    ],
)
def test_cudnn_counts_its_versions(number, version):
    assert known_issues.find_cudnn_version(parse_facts({"cudnn": {"version": number}})) == version


ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just([{}])


@given(st.dictionaries(st.sampled_from(sorted(HEALTHY)), ODD), st.sampled_from(KNOWN_BUGS))
def test_odd_facts_have_no_bug_and_end_nothing(odd, bug):
    assert bug.applies(parse_facts(odd)) is None
    bug.applies(parse_facts({**HEALTHY, **odd}))
