"""A pytest plugin: coverage.py learns which test runs a line, in this process or in a child of it.

Lines of this process get the test's name as their context. A child has `child:` and the name of the
test that started it, as later tests of the file may use it as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import coverage
import pytest

STARTED_BY = "GPUKERAS_COVERAGE_CONTEXT"  # for forks, which have begun before the test


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Names the test while it is set up, called and torn down."""
    running = coverage.Coverage.current()
    if running is None:
        return (yield)
    os.environ[STARTED_BY] = f"child:{item.nodeid}"
    running.set_option("run:context", os.environ[STARTED_BY])
    os.environ["COVERAGE_PROCESS_CONFIG"] = running.config.serialize()
    running.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        running.switch_context("")
