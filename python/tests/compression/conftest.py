"""Latencies are measured with the least runs: no test asserts a time."""

import pytest

from gpukeras.compression import latency


@pytest.fixture(scope="module", autouse=True)
def few_runs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "BUDGET_S", 0.0)
        yield
