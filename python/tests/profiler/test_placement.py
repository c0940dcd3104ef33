import numpy as np
import pytest

from gpukeras.backend import tracing
from gpukeras.profiler import placement

KERNELS = {
    "MatMul": {"CPU", "GPU"},
    "UniqueV2": {"CPU"},
    "StringSplitV2": {"CPU", "XLA_CPU"},
    "NoOp": {"DEFAULT"},
    "Shape": {"CPU", "DEFAULT"},
    "CudnnRNNV3": {"GPU"},
}


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ([], []),
        (["MatMul", "NoOp", "Shape", "CudnnRNNV3"], []),
        (["UniqueV2", "MatMul", "StringSplitV2", "UniqueV2"], ["StringSplitV2", "UniqueV2"]),
        (["__inference_step_12"], []),
    ],
)
def test_ops_without_a_gpu_kernel_are_chosen(ops, found):
    assert placement.choose_cpu_only(ops, KERNELS) == found


@pytest.mark.tf
def test_the_kernels_of_this_build_are_known():
    kernels = tracing.registered_kernels()
    assert "CPU" in kernels["MatMul"]
    assert "CPU" in kernels["StringSplitV2"]
    assert "GPU" not in kernels["StringSplitV2"]


@pytest.mark.parametrize(
    ("there", "here", "dtype", "ok"),
    [
        ([1.0, 2.0], [1.0, 2.0], "float32", True),
        ([1.0, 2.01], [1.0, 2.0], "float32", True),
        ([1.0, 2.01], [1.0, 2.0], "float64", False),
        ([1.0, 3.0], [1.0, 2.0], "float32", False),
        ([1.0, 2.3], [1.0, 2.0], "bfloat16", True),
        ([0.0, 0.0], [0.0, 0.0], "float32", True),
        ([0.0, 1.0], [0.0, 0.0], "float32", False),
        ([1.0, np.nan], [1.0, 2.0], "float32", False),
        ([1.0], [1.0, 2.0], "float32", False),
    ],
)
def test_outputs_are_judged(there, here, dtype, ok):
    found = placement.judge_outputs([np.array(there)], [np.array(here)], [dtype])
    assert found["ok"] is ok


def test_the_least_exact_layer_decides():
    there, here = [np.array([1.0, 2.15])], [np.array([1.0, 2.0])]
    assert placement.judge_outputs(there, here, {"float64", "float16"})["ok"] is True
    assert placement.judge_outputs(there, here, {"float64", "float32"})["ok"] is False
    assert placement.judge_outputs(there, here, {"float32"})["tolerance"] == 0.05


@pytest.mark.parametrize(
    ("batch", "gradients", "expected"),
    [
        ([np.zeros(4, "float32")], [], 16.0),
        ([np.zeros(4, "float32"), np.zeros(4, "int32")], [100, 40], 116.0),
        ([], [], 0.0),
    ],
)
def test_the_least_a_step_adds_to_the_memory(batch, gradients, expected):
    assert placement.choose_expected_bytes(batch, gradients) == expected


@pytest.mark.parametrize(
    ("step_s", "most", "count"), [(0.0, 8, 8), (0.01, 8, 8), (0.1, 8, 2), (0.05, 2, 2), (9.0, 8, 1)]
)
def test_slow_steps_are_few(step_s, most, count):
    assert placement.choose_count(step_s, most) == count


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Graph execution error:\n\nCannot assign a device for operation x: GPU", "Cannot assign"),
        ("a\nno device here\nCould not satisfy b", "Could not satisfy"),
        ("first\nsecond", "first"),
        ("", "InvalidArgumentError"),
    ],
)
def test_the_telling_line_of_an_error_is_chosen(text, line):
    assert placement.choose_line(text).startswith(line)


def test_no_outputs_prove_nothing():
    assert placement.judge_outputs([], [], ["float32"])["ok"] is False
