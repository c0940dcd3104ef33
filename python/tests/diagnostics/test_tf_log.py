"""The parser on real logs of TensorFlow 2.21 over simulated drivers, and on whatever comes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.diagnostics.tf_log import FLAGS, LINES_KEPT, VERBOSE, parse_log

LOGS = {
    path.stem: path.read_text()
    for path in (Path(__file__).parents[1] / "support" / "logs").glob("*.txt")
}
SILENT = {"missing_libraries": {}, "cuinit": "", "capability": "", "ignored": [], "cudnn": ""}
SILENT |= dict.fromkeys(FLAGS, False)


def find_facts(name):
    """What the log says beyond silence, without its lines."""
    facts = parse_log(LOGS[name])
    return {key: value for key, value in facts.items() if key != "lines" and value != SILENT[key]}


NOT_FOUND = "cannot open shared object file: No such file or directory"
CUSOLVER = {"libcusolver.so.11": f"libcusolver.so.11: {NOT_FOUND}"}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("healthy-preload-compute", {}),
        ("nvml-init-18", {}),  # TensorFlow says nothing: NVML must be asked
        ("no-preload-cusolver", {"missing_libraries": CUSOLVER, "skipped": True}),
        ("default-level-no-preload-cusolver", {"skipped": True}),
        ("cuinit-100", {"cuinit": "CUDA_ERROR_NO_DEVICE"}),
        ("cuinit-803", {"cuinit": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}),
        ("cuinit-804", {"cuinit": "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"}),
        ("cuinit-999", {"cuinit": "CUDA_ERROR_UNKNOWN"}),
        ("visible-minus-1", {"cuinit": "CUDA_ERROR_NO_DEVICE"}),
        ("capability-12.0", {"capability": "12.0a"}),
        ("driver-11.4-too-old", {"insufficient_driver": True}),
    ],
)
def test_real_logs_say_what_happened(name, facts):
    assert find_facts(name) == facts


def test_a_library_that_is_missing_has_the_loaders_reason():
    facts = find_facts("no-libcuda")
    assert facts["missing_libraries"] == {"libcuda.so.1": f"libcuda.so.1: {NOT_FOUND}"}
    assert facts["cuinit"] == "UNKNOWN ERROR (303)"
    nvml = find_facts("no-nvml")["missing_libraries"]
    assert nvml == {"libnvidia-ml.so.1": f"libnvidia-ml.so.1: {NOT_FOUND}"}


def test_a_gpu_that_was_left_out_is_named():
    (line,) = find_facts("two-gpus-one-small")["ignored"]
    assert "Quadro T400" in line
    assert "minimum required count is 8" in line


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LLVM ERROR: PTX version 8.5 does not support target 'sm_120'", "ptx"),
        ("libdevice not found at ./libdevice.10.bc", "libdevice"),
        ("No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink", "ptxas"),
        ("all CUDA-capable device(s) is/are busy or unavailable", "busy"),
        ("failed to allocate 2.00GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "out_of_memory"),
        (
            "cuDevicePrimaryCtxRetain: CUDA_ERROR_NOT_INITIALIZED: initialization error",
            "not_initialized",
        ),
        (
            "function cupti_interface_->Subscribe failed: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
            "cupti",
        ),
    ],
)
def test_words_of_reported_failures_are_known(text, name):
    facts = parse_log(f"I0000 00:00:1.0 1 x.cc:1] begin\n{text}\nend")
    assert [flag for flag in FLAGS if facts[flag]] == [name]
    assert any(text[:20] in line for line in facts["lines"])


def test_an_older_cudnn_is_compared_with_the_one_built_for():
    text = "Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.3.0.  CuDNN library"
    assert parse_log(text)["cudnn"] == "9.1.0 < 9.3.0"


def test_the_lines_kept_are_few_short_and_without_clock():
    lines = parse_log(LOGS["no-preload-cusolver"])["lines"]
    assert len(lines) <= LINES_KEPT
    assert any(line.startswith("dso_loader.cc") for line in lines)
    assert max(map(len, parse_log("CUDA " * 1000)["lines"])) <= 300


def test_the_childs_log_is_turned_on():
    assert VERBOSE["TF_CPP_MIN_LOG_LEVEL"] == "0"


@given(st.text())
def test_any_text_is_parsed_to_the_same_names(text):
    assert parse_log(text).keys() == SILENT.keys() | {"lines"}
