"""The GPU's reader in a real child process, over a stand-in for the driver's library."""

import json
import subprocess
import sys
import time

import pytest
from stub_driver import stub_environment

from gpukeras.monitor.fields import DEVICE_UNITS, THROTTLING
from gpukeras.monitor.nvml import Pcie, explain_error, explain_none
from gpukeras.system.host import choose_visible

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the stand-ins for the driver are for Linux"
)
SCRIPT = """
import dataclasses, json, os, time
from gpukeras.monitor.nvml import open_gpus
gpus, error = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
time.sleep(0.1)  # in which PCIe is measured
print(json.dumps({
    "error": error,
    "gpus": [dataclasses.asdict(reader.gpu) for reader in gpus],
    "samples": [reader.read() for reader in gpus],
    "joules": [reader.read_joules() for reader in gpus],
}))
"""


def read_gpus(libraries=("nvml",), **settings):
    environment = stub_environment(libraries, **settings)
    command = [sys.executable, "-c", SCRIPT]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@linux_only
def test_every_column_is_read():
    answer = read_gpus(STUB_UTILIZATION=35, STUB_THROTTLE=0x4, STUB_POWER_MW=123456)
    (sample,) = answer["samples"]
    assert dict(zip([*DEVICE_UNITS, THROTTLING], sample, strict=True)) == {
        "utilization_percent": 35,
        "memory_utilization_percent": 35,
        "memory_bytes": 384 * 2**20,
        "power_w": 123.456,
        "temperature_c": 45,
        "clock_mhz": 1380,
        "pcie_received_bytes_per_s": 2048 * 1024,
        "pcie_sent_bytes_per_s": 1024 * 1024,
        "throttling": "power limit",
    }
    (gpu,) = answer["gpus"]
    assert gpu["device"] == "GPU:0"
    assert gpu["name"] == "Simulated GPU (simulated)"
    assert gpu["memory_total_bytes"] == 16384 * 2**20
    assert gpu["power_limit_w"] == 300
    assert answer["error"] == ""


@linux_only
def test_what_a_card_refuses_is_none():
    answer = read_gpus(
        STUB_UTILIZATION=-1, STUB_POWER_MW=-1, STUB_PCIE_KIB=-1, STUB_POWER_LIMIT_MW=-1
    )
    sample = dict(zip([*DEVICE_UNITS, THROTTLING], answer["samples"][0], strict=True))
    refused = {name for name, value in sample.items() if value is None}
    assert refused == {
        "utilization_percent",
        "memory_utilization_percent",
        "power_w",
        "pcie_received_bytes_per_s",
        "pcie_sent_bytes_per_s",
    }
    assert sample["temperature_c"] == 45
    assert answer["gpus"][0]["power_limit_w"] is None


@linux_only
def test_the_counter_of_energy_counts_from_the_start():
    assert read_gpus(STUB_ENERGY_MJ=2500)["joules"] == [2.5]
    assert read_gpus()["joules"] == [None]  # cards before Volta


@linux_only
def test_a_lost_card_tells_nothing():
    assert read_gpus(STUB_NVML_DEVICE=15)["samples"] == [[None] * (len(DEVICE_UNITS) + 1)]


@linux_only
def test_an_old_driver_has_the_older_name_of_the_reasons():
    answer = read_gpus(("nvml-old",), STUB_THROTTLE=0x20)
    assert answer["samples"][0][-1] == "temperature"


@linux_only
def test_hidden_cards_are_not_sampled():
    answer = read_gpus(STUB_COUNT=3, STUB_UTILIZATION="10,20,30", CUDA_VISIBLE_DEVICES="2,0")
    assert [gpu["device"] for gpu in answer["gpus"]] == ["GPU:0", "GPU:1"]
    assert [sample[0] for sample in answer["samples"]] == [30, 10]


MIXED = {
    "STUB_COUNT": 3,
    "STUB_NAME": "T400,RTX 3090,T400",
    "STUB_ORDER": "1,0,2",  # the fastest first
    "STUB_UTILIZATION": "10,20,30",
}


@linux_only
@pytest.mark.parametrize(
    ("libraries", "settings", "sampled"),
    [
        (("cuda", "nvml"), {}, [20, 10, 30]),
        (("cuda", "nvml"), {"CUDA_VISIBLE_DEVICES": "0"}, [20]),
        (("cuda", "nvml"), {"CUDA_VISIBLE_DEVICES": "1,0"}, [10, 20]),
        (("cuda", "nvml"), {"STUB_NAME": "T400", "CUDA_VISIBLE_DEVICES": "0"}, [10]),
        (("cuda", "nvml"), {"STUB_CUINIT": 999}, [10, 20, 30]),
        (("cuda-old", "nvml"), {}, [10, 20, 30]),
        (("nvml",), {"CUDA_VISIBLE_DEVICES": "1"}, [20]),
    ],
)
def test_cards_of_different_kinds_are_counted_as_by_cuda(libraries, settings, sampled):
    answer = read_gpus(libraries, **{**MIXED, **settings})
    assert [sample[0] for sample in answer["samples"]] == sampled
    assert [gpu["device"] for gpu in answer["gpus"]] == [f"GPU:{i}" for i in range(len(sampled))]


@linux_only
def test_a_slice_of_a_card_is_found_by_its_name():
    answer = read_gpus(STUB_UTILIZATION=-1, CUDA_VISIBLE_DEVICES="MIG-1f2e3d4c")
    assert answer["samples"][0][:3] == [None, None, 384 * 2**20]


@pytest.mark.varies
@linux_only
@pytest.mark.parametrize(
    ("libraries", "settings", "text"),
    [
        (("nvml",), {"STUB_NVML_INIT": 9}, "installed but not loaded"),
        (("nvml",), {"STUB_NVML_INIT": 18}, "says: "),
        (("nvml",), {"STUB_NVML_HANDLE": 4}, "may not ask"),
        (("nvml",), {"STUB_COUNT": 0}, "shows no GPU"),
        (("nvml",), {"CUDA_VISIBLE_DEVICES": "-1"}, 'CUDA_VISIBLE_DEVICES is "-1"'),
    ],
)
def test_why_no_gpu_is_there(libraries, settings, text):
    answer = read_gpus(libraries, **settings)
    assert answer["samples"] == []
    assert text in answer["error"]
    assert answer["error"].endswith(".")


UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        ("0,1,2", [0, 1, 2]),
        (" 2 , 0 ", [2, 0]),
        ("GPU-bb33,0", [2, 0]),
        ("GPU-bb", [2]),
        ("GPU-aa", []),  # of two cards
        ("1,9,0", [1]),  # as CUDA: nothing after the first that is none
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
        ("MIG-77,0", ["MIG-77", 0]),
    ],
)
def test_visible_cards_are_chosen_as_cuda_does(visible, chosen):
    assert choose_visible(UUIDS, visible) == chosen


def test_the_sentences_without_a_gpu():
    assert "no NVIDIA driver" in explain_error(12, "NVML Shared Library Not Found")
    assert "GPU is lost" in explain_error(15, "GPU is lost")
    assert explain_none(None) == "The NVIDIA driver shows no GPU."


def test_pcie_is_measured_beside_the_samples():
    measured = []
    pcie = Pcie(lambda: measured.append(1) or (float(len(measured)), 0.0))
    deadline, asked = time.monotonic() + 600, 1
    while (pcie.take()[0] or 0) < 3 and time.monotonic() < deadline:
        asked += 1
        time.sleep(0.001)
    assert pcie.take()[0] >= 3
    time.sleep(0.05)
    assert len(measured) <= asked + 2  # the first, and at most one each time that somebody asked
