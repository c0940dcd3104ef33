import json
import sys

import numpy as np
import pytest
from children import needs_gpu, run_script
from hypothesis import given
from hypothesis import strategies as st

from gpukeras import diagnosis, probe

SESSION = {
    "python": sys.executable,
    "version": "3.11",
    "forced": "RETICULATE_PYTHON",
    "r": "4.2.2",
    "tensorflow_r_loaded": False,
    "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
}


# The proof ---------------------------------------------------------------------------------------


@pytest.mark.tf
def test_the_cpu_proves_itself_in_a_child_process():
    proof = diagnosis.prove_device("CPU:0")
    assert proof["ok"] is True
    assert proof["placed"].endswith("CPU:0")
    assert proof["deviation"] < 1e-5 < proof["tolerance"]


@pytest.mark.tf
def test_a_device_that_is_not_there_proves_nothing():
    proof = diagnosis.prove_device("GPU:31")
    assert proof["ok"] is False
    assert "Could not satisfy device specification" in proof["error"]


def test_a_python_that_is_not_there_does_not_end_the_check():
    facts = {"unread": {}}
    diagnosis._read_into(facts, "proof", lambda: diagnosis.prove_device("GPU:0", "/no/python"))
    assert facts["proof"] is None
    assert "FileNotFoundError" in facts["unread"]["proof"]


ABORT = "start\nLLVM ERROR: PTX version 8.5 does not support target 'sm_120'\n*** end\n"


@pytest.mark.parametrize(
    ("returncode", "stdout", "stderr", "error"),
    [
        (-6, "", ABORT, "killed by SIGABRT): LLVM ERROR: PTX version 8.5"),
        (-9, "", "", "killed by SIGKILL): no message"),
        (-99, "", "", "killed by signal 99): no message"),
        (1, "", "Traceback\nValueError: x\n", "exit status 1): ValueError: x"),
        (0, "no JSON", "", "exit status 0): no message"),
    ],
)
def test_how_a_child_ended_is_told(returncode, stdout, stderr, error):
    proof = diagnosis.parse_proof("GPU:0", returncode, stdout, stderr)
    assert proof["ok"] is False
    assert error in proof["error"]


def test_a_childs_answer_is_read_behind_other_output():
    answer = {"device": "GPU:0", "ok": True}
    assert diagnosis.parse_proof("GPU:0", 0, f"noise\n{json.dumps(answer)}\n", "") == answer


def round_mantissa(values, bits):
    """float32 with fewer bits of mantissa, as tensor cores read it."""
    step = np.float32(2.0 ** (23 - bits))
    whole = values.view(np.uint32).astype(np.float64)
    return (np.round(whole / step) * step).astype(np.uint32).view(np.float32)


@given(st.integers(0, 2**32 - 1))
def test_tf32_is_within_the_tolerance_and_a_wrong_kernel_is_not(seed):
    random = np.random.default_rng(seed)
    left, right = random.uniform(-1, 1, (2, 64, 64)).astype("float32")
    exact = left.astype(float), right.astype(float)
    reduced = round_mantissa(left, 10) @ round_mantissa(right, 10)
    assert probe.measure_deviation(*exact, reduced) <= probe.TOLERANCE
    for wrong in (np.zeros((64, 64)), left @ right.T, (left @ right) * 1.1):
        assert probe.measure_deviation(*exact, wrong) > probe.TOLERANCE


def test_nan_and_another_device_are_no_proof():
    assert "wrong" in probe.judge_product("GPU:0", "/device:GPU:0", float("nan"))
    assert "computed on" in probe.judge_product("GPU:0", "/device:CPU:0", 0.0)
    assert probe.judge_product("GPU:0", "/job:localhost/device:GPU:0", 1e-4) == ""


# The facts ---------------------------------------------------------------------------------------


@pytest.mark.tf
def test_this_computer_is_checked_without_starting_tensorflow():
    script = f"""
    from dataclasses import asdict
    from gpukeras import diagnosis, runtime
    answer = asdict(diagnosis.check({SESSION!r})) | {{"started": runtime.started()}}
    """
    found = run_script(script, CUDA_VISIBLE_DEVICES="-1")
    assert found["verdict"] == "NOT USED"
    assert found["cause_id"]
    assert found["started"] is False
    facts = found["facts"]
    assert facts["unread"] == {}
    assert facts["python"]["executable"] == sys.executable
    assert facts["environment"]["CUDA_VISIBLE_DEVICES"] == {"c": "-1", "python": "-1", "r": "-1"}
    assert facts["tensorflow"]["physical_gpus"] == []
    assert facts["proof"] is None
    assert isinstance(facts["build"]["is_cuda_build"], bool)
    assert any(name.startswith("tensorflow") for name in facts["packages"])


@pytest.mark.tf
@pytest.mark.parametrize("session", [None, {}, [], {"environment": []}, {"python": None}, "odd"])
def test_an_odd_session_is_no_obstacle(session):
    facts = diagnosis.read_facts(session)
    assert facts["unread"] == {}


def test_without_tensorflow_the_check_says_so():
    script = """
    import sys
    sys.modules["tensorflow"] = None  # what Python itself does for a module that is not there
    from dataclasses import asdict
    from gpukeras import diagnosis
    answer = asdict(diagnosis.check())
    """
    found = run_script(script)
    assert found["verdict"] == "NOT USED"
    assert {finding["id"]: finding["status"] for finding in found["findings"]}["C0"] == "problem"


def test_a_reader_that_fails_is_not_determined():
    facts = {"unread": {}}
    diagnosis._read_into(facts, "driver", lambda: 1 / 0)
    assert facts == {"driver": None, "unread": {"driver": "ZeroDivisionError: division by zero"}}


@pytest.mark.tf
def test_a_report_holds_all_facts_and_no_names(monkeypatch):
    names = {"users": ["ada"], "hosts": ["node7"], "homes": [sys.prefix]}
    monkeypatch.setattr(diagnosis, "read_names", lambda: names)
    text = diagnosis.report({**SESSION, "forced": "ada@node7"})
    assert "GPU: NOT USED" in text or "GPU: UNPROVEN" in text
    assert "session.forced: <user>@<host>" in text
    assert "platform.system: " in text
    assert sys.prefix not in text


def test_bytes_are_found_in_a_library(tmp_path):
    library = tmp_path / "lib.so"
    library.write_bytes(b"\0$ORIGIN/../nvidia/cusolver/lib:\0")
    assert diagnosis.contains(library, b"nvidia/cusolver/lib") is True
    assert diagnosis.contains(library, b"nvidia/cublas/lib") is False
    assert diagnosis.contains(tmp_path / "none.so", b"x") is None


def test_libraries_of_an_unknown_build_are_not_determined():
    assert diagnosis.read_libraries({}) is None
    assert diagnosis.read_libraries({"cuda_version": "99.1"}) is None


def test_libraries_of_a_cuda_build_are_looked_for_by_name():
    found = diagnosis.read_libraries({"cuda_version": "12.5.1", "cudnn_version": "9"})
    assert found is None or {"libcudart.so.12", "libcudnn.so.9"} <= found.keys()


@pytest.mark.gpu
@needs_gpu
def test_a_real_gpu_computes():
    found = diagnosis.check()
    assert found.verdict == "UNPROVEN"
    assert found.facts["proof"]["ok"] is True
