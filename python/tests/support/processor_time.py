"""Seconds of the processor that tests take, of their own and of processes they have waited for.

Forks of `keras_forks.py` are counted as it tells.

A busy computer changes them far less than the time that passes, so they show which tests make a run
long. `conftest.py` has these hooks. A run ends with the longest; the file that the environment
variable GPUKERAS_SECONDS names gets a line for each case.
"""

import os
from collections import Counter
from pathlib import Path

import keras_forks
import pytest

MOST = 15
BEGAN = pytest.StashKey()


def spent():
    return sum(os.times()[:4]) + keras_forks.seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[BEGAN] = spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        report.processor_s = spent() - item.stash.get(BEGAN, spent())  # none where it is skipped
    return report


def pytest_terminal_summary(terminalreporter):
    reports = [report for group in terminalreporter.stats.values() for report in group]
    cases = Counter(
        {each.nodeid: each.processor_s for each in reports if hasattr(each, "processor_s")}
    )
    if not cases:
        return
    if path := os.environ.get("GPUKERAS_SECONDS"):
        lines = [f"{taken:.2f}\t{name}\n" for name, taken in cases.most_common()]
        Path(path).write_text("".join(lines), encoding="utf-8")
    seconds = Counter()
    for name, taken in cases.items():
        seconds[name.partition("[")[0]] += taken
    terminalreporter.section("seconds of the processor")
    for name, taken in seconds.most_common(MOST):
        terminalreporter.line(f"{taken:6.1f} s  {name}")
    terminalreporter.line(f"{sum(seconds.values()):6.1f} s  {len(seconds)} functions")
