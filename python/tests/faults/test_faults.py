"""What the tests of a small tree make of faults in it."""

import json

import faults
import pytest
import sites

pytestmark = pytest.mark.process  # forks, in faults.py

SOURCE = """
def double(x):
    while x == 3:
        pass
    return x * 2 if x > 0 else 0
"""
TESTS = """
import sys, time
sys.path.insert(0, "inst/python")
from gpukeras.package.file import double
def test_three(): assert double(4) == 8
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("tree")
    core = tree / faults.CORE / "package"
    core.mkdir(parents=True)
    (core.parent / "__init__.py").touch()
    (core / "file.py").write_text(SOURCE)
    (tree / "test_double.py").write_text(TESTS)
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: none\n")
    return tree


def try_fault(tree, change, in_test):
    test = "test_double.py::test_three"
    suite = faults.Suite(
        reach={"package/file.py": {line: {test} for line in range(2, 6)}},
        seconds={test: 0.01},
        in_test=frozenset([test] if in_test else []),
    )
    drawn = sites.draw_faults(tree / faults.CORE, 99, seed=1)
    (fault,) = [each for each in drawn if each.describe().endswith(change)]
    return faults.try_fault(tree, fault, suite, most_s=9)


def test_a_fault_is_found_by_the_lane_of_the_test_that_fails(tree):
    found = try_fault(tree, "x > 0 -> False", in_test=True)
    assert found["found_by"] == "make test"
    assert found["failure"] == "test_double.py::test_three"
    assert (found["tests"], found["ran"]) == (1, 1)
    assert try_fault(tree, "2 -> (2 + 1)", in_test=False)["found_by"] == "make test-all"


def test_a_fault_that_no_test_sees_is_told_and_the_source_is_as_it_was(tree):
    assert try_fault(tree, "x > 0 -> x >= 0", in_test=True)["found_by"] == ""
    assert (tree / faults.CORE / "package" / "file.py").read_text() == SOURCE


@pytest.mark.slow
def test_tests_that_do_not_end_have_found_the_fault(tree):
    fault = sites.Finder("package/file.py", SOURCE).faults[0]
    assert fault.describe().endswith("x == 3 -> x != 3")
    with faults.with_fault(tree, fault):
        test = ["test_double.py::test_three"]
        assert faults.find_failure(tree, test, limit_s=3) == "they do not end"


def test_the_table_counts_packages_and_names_what_nothing_found():
    lines = [
        '{"fault": "data/a.py:1 x", "found_by": "make test", "ran": 1, "tests": 1}',
        '{"fault": "data/b.py:2 y", "found_by": "make test-all", "ran": 1, "tests": 1}',
        '{"fault": "api.py:3 z", "found_by": "", "ran": 4, "tests": 9}',
    ]
    table = faults.sum_up([json.loads(line) for line in lines]).splitlines()
    assert [line.split() for line in table[1:4]] == [
        ["api.py", "1", "0", "0"],
        ["data", "2", "1", "2"],
        ["all", "3", "1", "2"],
    ]
    assert table[4] == "not found, 4 of 9 tests: api.py:3 z"
