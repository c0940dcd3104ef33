"""A pytest plugin: coverage.py learns which test runs a line, in this process or in a child of it.

Lines of this process get the test's name as their context. A child has `child:` and the name of the
test that started it, as later tests of the file may use it as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import coverage
import pytest

CHILD = "GPUKERAS_COVERAGE_CONTEXT"  # `context` of a child's coverage.py, in coverage.ini


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Names the test while it is set up, called and torn down."""
    running = coverage.Coverage.current()
    os.environ[CHILD] = f"child:{item.nodeid}"
    if running:
        running.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if running:
            running.switch_context("")
