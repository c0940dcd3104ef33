"""Faults of workers that are made on purpose, in real processes."""

import pytest

from gpukeras.core.errors import ClusterError, SpecError
from gpukeras.diagnostics import fault_test, fault_worker
from gpukeras.diagnostics.fault_test import FaultSpec, describe


def test_options_are_checked():
    with pytest.raises(SpecError, match='`kind` must be one of "kill", "stop", "slow", not "burn"'):
        FaultSpec(kind="burn")
    with pytest.raises(SpecError, match="`timeout` must be a number from 1 to 600, not 0"):
        FaultSpec(timeout_s=0)


def test_a_fault_counts_as_found_where_the_worker_is_named():
    found = describe(FaultSpec("kill"), "ClusterError: worker 2 (127.0.0.1:1) is lost", 0.25)
    assert found.found
    assert found.sentence == "Worker 2 was killed, and worker 1 named it after 0.2 s."
    other = describe(FaultSpec("slow"), "", 9.0)
    assert not other.found
    assert other.sentence == "Worker 2 was slow, and worker 1 did not name it."


def test_workers_that_do_not_train_are_an_error(monkeypatch, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no such thing')\n")
    monkeypatch.setattr(fault_worker, "__file__", str(script))
    with pytest.raises(ClusterError) as raised:
        fault_test.run_fault_test({})
    assert raised.value.message.startswith("The test's workers did not train: RuntimeError")


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize(
    "kind", ["kill", *(pytest.param(k, marks=pytest.mark.nightly) for k in ("stop", "slow"))]
)
def test_a_fault_of_a_real_worker_is_named_by_the_other(kind):
    found = fault_test.run_fault_test({"kind": kind, "timeout_s": 3.0})
    assert found.found, found
    assert "orker 2 (127.0.0.1:" in found.said
