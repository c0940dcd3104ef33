import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xspaces import Builder, content_of

from gpukeras.core.errors import DataError
from gpukeras.profiler.trace import gpu_summary
from gpukeras.profiler.trace.events import measure_union
from gpukeras.profiler.trace.gpu_summary import Event

MS = 10**9  # picoseconds


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "v100x8.xplane.pb"
    path.write_bytes(content_of("v100x8"))
    return path


# A real trace ------------------------------------------------------------------------------------


@pytest.mark.tf
def test_a_real_trace_of_eight_gpus(recorded):
    trace = gpu_summary.read_trace(recorded)
    assert (trace.gpu_planes, trace.empty_planes) == (8, 5)
    assert (trace.cupti, trace.error) == (True, "")
    found = {device.device: device for device in trace.devices}
    events = {name: device.events for name, device in found.items()}
    assert events == {"GPU:1": 19, "GPU:4": 759, "GPU:6": 778}
    fourth = found["GPU:4"]
    assert fourth.kernels == 665
    assert fourth.busy_s == pytest.approx(0.0150, abs=5e-5)
    assert fourth.span_s == pytest.approx(0.1193, abs=5e-5)
    assert fourth.busy_share == pytest.approx(0.126, abs=5e-4)
    assert 650 < sum(kernel.count for kernel in fourth.top) <= 665
    assert fourth.kernel_s <= fourth.busy_s
    assert 1 < fourth.median_kernel_us < 100
    assert found["GPU:1"].kernels == 0
    assert found["GPU:1"].median_kernel_us is None
    assert found["GPU:1"].copied_bytes > 0


@pytest.mark.tf
def test_the_busiest_gpu_speaks_for_the_trace(recorded):
    facts = gpu_summary.read_trace(recorded.parent).to_facts()
    assert facts["device"] == "GPU:6"
    assert facts["kernels"] == 665
    assert facts["busy_share"] == facts["busy_s"] / facts["span_s"]
    assert facts["gpus"] == 3
    assert facts["top"][0]["count"] > 0
    assert [kernel["total_s"] for kernel in facts["top"]] == sorted(
        (kernel["total_s"] for kernel in facts["top"]), reverse=True
    )


# Damaged files -----------------------------------------------------------------------------------


@pytest.mark.tf
def test_damaged_bytes_give_a_trace_or_an_error_of_its_own(tmp_path):
    copies = [("MemcpyH2D", 0, 1, {"memcpy_details": "size:8 dest:4 async:0"})] * 20
    builder = Builder().plane("/device:GPU:0").line("Stream #1(MemcpyH2D)", *copies)
    whole, path = builder.space.SerializeToString(), tmp_path / "x.xplane.pb"
    path.write_bytes(whole)
    assert gpu_summary.read_trace(path).devices[0].copied_bytes == 160
    random = np.random.default_rng(1)
    outcomes = set()
    for _ in range(400):
        cut = random.choice([len(whole), random.integers(len(whole))])
        damaged = bytearray(whole[:cut])
        for _ in range(random.integers(3)):
            if damaged:
                damaged[random.integers(len(damaged))] = random.integers(256)
        path.write_bytes(damaged)
        try:
            gpu_summary.read_trace(path).to_facts()
            outcomes.add("trace")
        except DataError:
            outcomes.add("error")
    assert outcomes == {"trace", "error"}


# Measuring ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)))
def test_a_union_is_what_counting_gives(intervals):
    covered = {moment for begin, end in intervals for moment in range(begin, end)}
    assert measure_union(map(tuple, intervals)) == len(covered)


def test_copies_and_kernels_at_the_same_time_are_busy_once():
    events = [
        Event("sgemm", 0, 4 * MS),
        Event("MemcpyH2D", 2 * MS, 6 * MS, 1024),
        Event("sgemm", 8 * MS, 10 * MS),
        Event("Memset", 19 * MS, 20 * MS),
    ]
    found = gpu_summary.measure_device("GPU:0", events)
    assert (found.events, found.kernels, found.copied_bytes) == (4, 2, 1024)
    assert found.busy_s == pytest.approx(0.009)
    assert found.kernel_s == pytest.approx(0.006)
    assert found.span_s == pytest.approx(0.020)
    assert found.busy_share == pytest.approx(0.45)
    assert found.median_kernel_us == pytest.approx(3000)
    assert found.top == (gpu_summary.Kernel("sgemm", 2, pytest.approx(0.006)),)


@pytest.mark.parametrize(
    ("planes", "messages", "cupti", "error"),
    [
        ([], [], None, ""),
        ([], ["CUPTI needs root access"], False, "CUPTI needs root access"),
        ([("GPU:0", [])], [], None, "1 GPU planes without any event"),
        (
            [("GPU:0", [])],
            ["Insufficient privilege to run libcupti (you need root permission)."],
            False,
            "Insufficient privilege",
        ),
        ([("GPU:0", [])], ["CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"], False, "INSUFFICIENT"),
        ([("GPU:0", [])], ["1000 events dropped"], None, "events dropped"),
        ([("GPU:0", [Event("k", 0, 1)])], ["CUPTI: 3 events dropped"], True, ""),
    ],
)
def test_a_trace_without_kernels_is_not_determined(planes, messages, cupti, error):
    trace = gpu_summary.measure_trace(planes, messages)
    assert trace.cupti is cupti
    assert error in trace.error
    assert bool(error) == bool(trace.error)
    facts = trace.to_facts()
    unknown = bool(error)
    assert (facts["kernels"] is None) == unknown
    assert (facts["kernel_s"] is None) == unknown
