"""Long tables of cases: a few of them in each run, all the others in `make test-nightly`."""

from collections.abc import Iterable
from typing import Any

import pytest

NIGHTLY = pytest.mark.nightly


def few(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """The cases as values of `parametrize()`; all but `kept` are marked `nightly`.

    What is kept differs in kind; the others vary it (another optimizer, another engine).
    """
    cases = list(cases)
    unknown = [case for case in kept if case not in cases]
    assert not unknown, f"not among the cases: {unknown}"
    return [case if case in kept else _at_night(case) for case in cases]


def _at_night(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=NIGHTLY)


def read_runs(request: Any) -> set[str]:
    """Which tests of the file run: "each run", "slow", "nightly".

    For a fixture that makes the cases of a whole file at once.
    """
    items = [item for item in request.session.items if item.path == request.path]
    return {
        next((name for name in ("nightly", "slow") if item.get_closest_marker(name)), "each run")
        for item in items
    }
