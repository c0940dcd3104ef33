"""Which tests run for a fault, and in which order."""

from reach import choose_tests, take_seconds
from sites import Finder

FAULT = Finder("data/rows.py", "def f():\n    x = 1").faults[0]
CONSTANT = Finder("data/rows.py", "x = 1").faults[0]
OWN, OTHER, SLOW = "tests/data/test_rows.py::a", "tests/test_b.py::b", "tests/test_b.py::c"
SECONDS = {SLOW: 9.0, OTHER: 0.1, OWN: 5.0}


def test_tests_of_the_module_come_first_then_the_fastest():
    assert choose_tests(FAULT, {2: {OWN, SLOW, OTHER}}, SECONDS) == [OWN, OTHER, SLOW]
    assert choose_tests(FAULT, {2: {OTHER}, 3: {SLOW}}, SECONDS) == [OTHER]
    assert choose_tests(FAULT, {2: {OTHER, SLOW}}, {SLOW: 9.0}) == [SLOW]  # of another lane


def test_what_counts_on_import_is_reached_by_all_tests_of_its_file():
    lines = {1: {"", OTHER}, 7: {SLOW}, 9: {OWN}}  # a test may have imported it first
    assert choose_tests(CONSTANT, lines, SECONDS) == [OWN, OTHER, SLOW]
    assert choose_tests(CONSTANT, {}, SECONDS) == []


def test_a_line_that_no_test_reaches_is_tried_by_those_of_its_file():
    assert choose_tests(FAULT, {1: {""}, 7: {OTHER}, 9: {OWN}}, SECONDS) == [OWN, OTHER]


def test_defaults_and_decorators_count_on_import():
    source = (
        "@a(1)\ndef f(x=2):\n    y = 3\nclass C:\n    z = 4\n    def g(self, u=5):\n        v = 6"
    )
    found = {fault.old: fault.on_import for fault in Finder("a.py", source).faults}
    assert found == {"1": True, "2": True, "3": False, "4": True, "5": True, "6": False}


def test_a_child_serves_all_tests_of_the_file_that_started_it():
    assert choose_tests(FAULT, {2: {f"child:{OTHER}"}}, SECONDS) == [OTHER, SLOW]


def test_as_many_tests_run_as_take_some_seconds():
    seconds = {f"a.py::{number}": 1.0 for number in range(40)}
    assert take_seconds(list(seconds), seconds, 5) == list(seconds)[:4]  # the file is imported
    assert take_seconds(list(seconds)[:2], seconds, 5) == list(seconds)[:2]
    assert take_seconds(["b.py::0", "b.py::1"], {"b.py::0": 50.0, "b.py::1": 1.0}, 5) == ["b.py::0"]
    assert take_seconds([], {}, 5) == []
