import os

import pytest

from gpukeras import machine
from gpukeras.machine import NvmlGpu

A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"


def add_slot(bus, name, vendor, class_code, driver=None):
    slot = bus / name
    slot.mkdir(parents=True)
    (slot / "vendor").write_text(f"{vendor}\n")
    (slot / "class").write_text(f"{class_code}\n")
    (slot / "device").write_text("0x2204\n")
    if driver:
        target = bus.parent / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (slot / "driver").symlink_to(target)


def test_gpus_on_the_bus_are_told_from_their_audio_and_other_vendors(tmp_path):
    bus = tmp_path / "devices"
    add_slot(bus, "0000:01:00.0", "0x10de", "0x030000", "nvidia")
    add_slot(bus, "0000:01:00.1", "0x10de", "0x040300", "snd_hda_intel")  # its audio device
    add_slot(bus, "0000:00:02.0", "0x8086", "0x030000", "i915")
    add_slot(bus, "0000:02:00.0", "0x10de", "0x030200")  # a 3D controller, no driver
    assert machine.read_pci_gpus(bus) == [
        {"slot": "0000:01:00.0", "device": "0x2204", "driver": "nvidia"},
        {"slot": "0000:02:00.0", "device": "0x2204", "driver": ""},
    ]


def test_no_bus_is_not_determined_and_an_empty_one_is_none(tmp_path):
    assert machine.read_pci_gpus(tmp_path / "missing") is None
    assert machine.read_pci_gpus(tmp_path) == []


def test_driver_files_are_read(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 550.54.15\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    found = machine.read_driver(tmp_path)
    assert found["version"] == "NVRM version: 550.54.15"
    assert found["device_nodes"] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert not found["dxg"]


def test_a_missing_driver_is_empty_and_another_system_is_not_determined(tmp_path):
    assert machine.read_driver(tmp_path) == {"version": None, "device_nodes": None}
    (tmp_path / "proc").mkdir()
    found = machine.read_driver(tmp_path)
    assert (found["version"], found["device_nodes"]) == ("", [])


@pytest.mark.parametrize(
    ("name", "content", "marker"),
    [
        (".dockerenv", "", "/.dockerenv"),
        ("run/.containerenv", "", "/run/.containerenv"),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1", "control group kubepods"),
        ("proc/1/cgroup", "0::/init.scope", ""),
    ],
)
def test_containers_are_recognised(tmp_path, name, content, marker):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    assert machine.read_container(tmp_path, {})["marker"] == marker


def test_slurm_jobs_are_recognised():
    assert machine.read_slurm({}) == {"job_id": "", "gpus": ""}
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    assert machine.read_slurm(job) == {"job_id": "7", "gpus": "0,1"}


def test_the_limit_of_a_control_group_counts_without_file_cache(tmp_path):
    group = tmp_path / "sys/fs/cgroup/user.slice"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/user.slice\n")
    assert machine.read_group_memory(tmp_path) is None
    (group / "memory.max").write_text("max\n")
    (group / "memory.stat").write_text("anon 300\nfile 900\n")
    assert machine.read_group_memory(tmp_path) is None
    (group / "memory.max").write_text("1000\n")
    assert machine.read_group_memory(tmp_path) == 700


def test_this_computers_memory_is_plausible():
    total, free = machine.read_total_memory(), machine.read_free_memory()
    now, peak = machine.read_process_memory()
    assert 2**20 < now <= peak < total
    assert 0 < free <= total


def test_memory_grows_with_what_is_held():
    before, _ = machine.read_process_memory()
    block = bytearray(os.urandom(1) * 2**26)
    after, _ = machine.read_process_memory()
    assert after - before > 0.9 * len(block)


def gpu(name, index):
    return NvmlGpu(name, f"GPU-{index}abc", float(index), 0.0)


@pytest.mark.parametrize(
    ("labels", "known", "visible", "matched"),
    [
        ([A100], [A100], None, [0]),
        ([A100, A100], [A100, A100], None, [0, 1]),
        ([A100, T4], [A100, T4], None, [0, 1]),
        ([A100, T4], [T4, A100], None, [1, 0]),  # CUDA: the fastest first
        ([T4], [A100, T4], "1", [1]),
        ([T4, A100], [A100, T4], "1,0", [1, 0]),
        ([A100], [A100, A100], "GPU-1", [1]),
        ([A100], [A100, A100], "MIG-5c", [None]),
        ([A100, T4, T4], [T4, T4, A100], None, [2, None, None]),
        (["NVIDIA A100 MIG 1g.5gb"], [A100], None, [None]),
        ([""], [A100], None, [None]),
    ],
)
def test_tensorflows_gpus_are_found_in_nvml_or_not_determined(labels, known, visible, matched):
    gpus = [gpu(name, index) for index, name in enumerate(known)]
    expected = [None if index is None else gpus[index] for index in matched]
    assert machine.match_nvml(labels, gpus, visible) == expected


def test_nvml_is_not_determined_without_a_driver():
    known = machine.read_nvml()
    assert known is None or all(gpu.total_bytes > 0 for gpu in known)


def test_the_start_environment_and_the_library_cache_are_read():
    assert "PATH" in machine.read_start_environment()
    assert any(name.startswith("libc.so") for name in machine.read_library_cache())
