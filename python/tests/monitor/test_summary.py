import json

import numpy as np
import pytest

from gpukeras.api import to_plain
from gpukeras.monitor.fields import DEVICE_UNITS, HOST_UNITS
from gpukeras.monitor.summary import (
    DeviceSamples,
    explain_busy,
    explain_cores,
    explain_devices,
    explain_others,
    explain_slowing,
    explain_use,
    make_record,
    parse_samples,
)

NOT_TOLD = [None] * (len(DEVICE_UNITS) - 1)


def a_gpu(number=0, **changes):
    return {"device": f"GPU:{number}", "name": "Tesla V100", "uuid": f"GPU-{number}", **changes}


def a_text(samples, gpus=(), **header):
    first = {"gpus": list(gpus), "gpu_error": "", "cores": 4, "memory_total_bytes": 8 * 2**30}
    return "\n".join(json.dumps(line) for line in ({**first, **header}, *samples))


def a_host(cpu=150.0):
    return [cpu, 2e9, 40.0, 4e9, 1e6, None]


def busy(*shares, text=""):
    return [[share, *NOT_TOLD, text] for share in shares]


def three_samples():
    shares = [(30.0, "power limit"), (None, None), (50.0, "")]
    return [[0.2 * (i + 1), a_host(), busy(s, text=t)] for i, (s, t) in enumerate(shares)]


def test_a_record_has_a_value_for_each_sample():
    record = make_record(a_text(three_samples(), [a_gpu()]), 0.2, 0.7)
    assert list(record.samples) == ["time_s", *HOST_UNITS]
    np.testing.assert_allclose(record.samples["time_s"], [0.2, 0.4, 0.6])
    assert record.samples["process_cpu_percent"].dtype == np.float64
    assert np.isnan(record.samples["network_read_bytes_per_s"]).all()
    (device,) = record.devices
    assert list(device.samples) == [*DEVICE_UNITS, "throttling"]
    np.testing.assert_array_equal(device.samples["utilization_percent"], [30, np.nan, 50])
    assert device.samples["throttling"] == ["power limit", None, ""]
    assert (device.device, device.name) == ("GPU:0", "Tesla V100")
    assert (record.interval_s, record.seconds, record.cores) == (0.2, 0.7, 4)


def test_the_summary_is_of_what_was_told():
    record = make_record(a_text(three_samples(), [a_gpu()]), 0.2, 0.7)
    found = {(one.device, one.column): (one.mean, one.median, one.max) for one in record.summary}
    assert found["GPU:0", "utilization_percent"] == (40, 40, 50)
    assert found["GPU:0", "power_w"] == (None, None, None)
    assert found["GPU:0", "throttled_percent"] == (50, None, None)
    assert found["host", "process_cpu_percent"] == (150, 150, 150)
    assert found["host", "network_read_bytes_per_s"] == (None, None, None)
    assert len(found) == len(HOST_UNITS) + len(DEVICE_UNITS) + 1


def test_a_record_crosses_as_plain_values():
    record = to_plain(make_record(a_text(three_samples(), [a_gpu()]), 0.2, 0.7))
    assert record["devices"][0]["device"] == "GPU:0"
    assert isinstance(record["devices"][0]["samples"]["power_w"], np.ndarray)
    assert record["memory_total_bytes"] == 8.0 * 2**30
    assert isinstance(record["memory_total_bytes"], float)
    assert {"device", "column", "unit", "mean", "median", "max"} == set(record["summary"][0])


@pytest.mark.parametrize("text", ["", "\n", '{"gpus": [], "gpu_', "[1"])
def test_nothing_sampled_is_no_error(text):
    record = make_record(text, 0.2, 0.1)
    assert all(len(values) == 0 for values in record.samples.values())
    assert record.verdict.startswith("It ended before the first sample")


def test_a_line_cut_off_is_left_out():
    header, samples = parse_samples(a_text(three_samples(), [a_gpu()])[:-20])
    assert header["cores"] == 4
    assert len(samples) == 2


@pytest.mark.parametrize(
    ("rows", "gpus", "sentence"),
    [
        (
            [busy(30), busy(50)],
            1,
            "GPU:0 computed 40 % of the time and had nothing to do in the other 60 %.",
        ),
        ([busy(95), busy(99)], 1, "GPU:0 computed 97 % of the time."),
        (
            [busy(100, 0)],
            2,
            "Each of 2 GPUs computed 50 % of the time on average (GPU:0 100 %, GPU:1 0 %)"
            " and had nothing to do in the other 50 %.",
        ),
        ([busy(None, 80)], 2, "GPU:1 computed 80 % of the time"),
        (
            [busy(None)],
            1,
            "GPU:0 did not tell how busy it was: the process used 1.5 of 4 CPU cores on average.",
        ),
        ([[]], 0, "No GPU was sampled: the process used 1.5 of 4 CPU cores on average."),
    ],
)
def test_the_verdict(rows, gpus, sentence):
    samples = [[0.2 * (i + 1), a_host(), row] for i, row in enumerate(rows)]
    text = a_text(samples, [a_gpu(i) for i in range(gpus)])
    assert make_record(text, 0.2, 1).verdict.startswith(sentence)


def test_a_verdict_without_any_number():
    samples = {"time_s": np.array([0.2]), "process_cpu_percent": np.array([np.nan])}
    assert explain_use(samples, [], 2) == "No GPU was sampled."


def test_a_single_core():
    assert explain_cores(100, 1) == "the process used 1.0 of 1 CPU core on average"


def test_a_busy_gpu_needs_no_second_half():
    assert "nothing to do" not in explain_busy({"GPU:0": 91.0})


def slowed(*texts):
    return DeviceSamples("GPU:0", samples={"throttling": list(texts)})


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([], ""),
        ([None, None], ""),
        (["", ""], ""),
        (
            ["power limit", "", "power limit, temperature", "", None],
            "The clocks of GPU:0 were lowered 50 % of the time (power limit; temperature).",
        ),
    ],
)
def test_lowered_clocks_are_said(texts, sentence):
    assert explain_slowing(slowed(*texts)) == sentence


def test_gpus_of_several_kinds_may_be_numbered_otherwise():
    two = [DeviceSamples("GPU:0", "A", samples={"throttling": []}),
           DeviceSamples("GPU:1", "B", samples={"throttling": []})]  # fmt: skip
    (note,) = explain_devices(two)
    assert "CUDA_DEVICE_ORDER" in note
    assert explain_devices(two[:1]) == []


@pytest.mark.parametrize(
    ("everyone", "own", "cores", "said"),
    [
        (90.0, 100.0, 4, "Other processes used 2.6 of the computer's 4 CPU cores on average."),
        (50.0, 100.0, 4, ""),  # one of four
        (50.0, 200.0, 4, ""),
        (90.0, 100.0, None, ""),
        (np.nan, 100.0, 4, ""),
    ],
)
def test_other_programs_are_said(everyone, own, cores, said):
    samples = {"cpu_percent": np.array([everyone]), "process_cpu_percent": np.array([own])}
    assert "".join(explain_others(samples, cores)) == said
