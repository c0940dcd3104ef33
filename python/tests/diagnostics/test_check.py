import json
import sys

import pytest
from children import needs_gpu, needs_no_gpu, run_script

from gpukeras.backend import runtime
from gpukeras.diagnostics import check

SESSION = {
    "python": sys.executable,
    "version": "3.11",
    "forced": "RETICULATE_PYTHON",
    "r": "4.2.2",
    "tensorflow_r_loaded": False,
    "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
}


@pytest.mark.tf
def test_this_computer_is_checked_without_starting_tensorflow():
    script = f"""
    from dataclasses import asdict
    from gpukeras.diagnostics import check as diagnosis
    from gpukeras.backend import runtime
    answer = asdict(diagnosis.check({SESSION!r}))
    answer["started"] = runtime.imported() and runtime.started()
    """
    found = run_script(script, CUDA_VISIBLE_DEVICES="-1")
    assert found["verdict"] == "NOT USED"
    assert found["cause_id"]
    assert found["started"] is False
    facts = found["facts"]
    assert facts["unread"] == {}
    assert facts["python"]["executable"] == sys.executable
    readings = facts["environment"]["CUDA_VISIBLE_DEVICES"]
    assert readings == {"c": "-1", "python": "-1", "r": "-1", "start": "-1"}
    assert isinstance(facts["build"]["is_cuda_build"], bool)
    assert any(name.startswith("tensorflow") for name in facts["packages"])


@needs_no_gpu
def test_without_a_gpu_tensorflow_is_not_even_imported():
    script = """
    from gpukeras.diagnostics import check as diagnosis
    from gpukeras.backend import runtime
    found = diagnosis.check()
    answer = [found.cause_id, found.findings[0].id, runtime.imported()]
    """
    assert run_script(script) == ["A1", "A1", False]


@needs_no_gpu
def test_a_build_for_the_cpu_is_the_second_finding():
    found = check.check()
    cpu = [name for name in found.facts["packages"] if name == "tensorflow-cpu"]
    assert [finding.id for finding in found.findings if finding.id == "C1"] == ["C1"] * len(cpu)


def test_without_tensorflow_the_check_says_so():
    script = """
    import sys
    sys.modules["tensorflow"] = None  # what Python itself does for a module that is not there
    from dataclasses import asdict
    from gpukeras.diagnostics import check as diagnosis
    answer = asdict(diagnosis.check())
    """
    found = run_script(script)
    assert found["verdict"] == "NOT USED"


def test_a_report_holds_all_facts_and_no_names(monkeypatch):
    names = {"users": ["ada"], "hosts": ["node7"], "homes": [sys.prefix]}
    monkeypatch.setattr(check, "read_names", lambda: names)
    text = check.report({**SESSION, "forced": "ada@node7"})
    assert "GPU: NOT USED" in text or "GPU: UNPROVEN" in text
    assert "session.forced: <user>@<host>" in text
    assert "platform.system: " in text
    assert sys.prefix not in text


def test_a_check_is_json():
    found = json.loads(check.to_json(check.check()))
    assert {"verdict", "cause", "cause_id", "fix", "evidence", "findings", "facts"} == found.keys()


@pytest.mark.gpu
@needs_gpu
def test_a_real_gpu_is_confirmed():
    found = check.check()
    assert found.verdict == "CONFIRMED"
    assert found.facts["proof"]["ok"] is True


@pytest.mark.gpu
@needs_gpu
def test_training_of_ones_own_is_confirmed_on_a_real_gpu():
    from small_fits import make_dataset, make_model

    found = check.check(None, make_model(), make_dataset(4096))
    assert found.verdict in ("CONFIRMED", "PARTIAL")
    assert found.facts["use"]["trace"]["kernels"] > 0
    use = found.facts["use"]
    assert use["held_bytes" if runtime.backend() == "jax" else "peak_rise_bytes"] > 0
