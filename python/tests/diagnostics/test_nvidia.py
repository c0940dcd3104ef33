import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from children import run_script
from stub_driver import build_stubs

from gpukeras.diagnostics import nvidia


def add_slot(bus, name, vendor, class_code, driver=None, power=None):
    slot = bus / name
    slot.mkdir(parents=True)
    (slot / "vendor").write_text(f"{vendor}\n")
    (slot / "class").write_text(f"{class_code}\n")
    (slot / "device").write_text("0x2204\n")
    if driver:
        target = bus.parent / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (slot / "driver").symlink_to(target)
    if power:
        (slot / "power").mkdir()
        (slot / "power/runtime_status").write_text(f"{power}\n")


def test_gpus_on_the_bus_are_told_from_their_audio_and_other_vendors(tmp_path):
    bus = tmp_path / "devices"
    add_slot(bus, "0000:01:00.0", "0x10de", "0x030000", "nvidia")
    add_slot(bus, "0000:01:00.1", "0x10de", "0x040300", "snd_hda_intel")  # its audio device
    add_slot(bus, "0000:00:02.0", "0x8086", "0x030000", "i915")
    add_slot(bus, "0000:02:00.0", "0x10de", "0x030200")  # a 3D controller, no driver
    assert nvidia.read_pci_gpus(bus) == [
        {"slot": "0000:01:00.0", "device": "0x2204", "driver": "nvidia", "power": ""},
        {"slot": "0000:02:00.0", "device": "0x2204", "driver": "", "power": ""},
    ]


@pytest.mark.parametrize(
    ("status", "power"),
    [("active", "active"), ("suspended", "suspended"), ("unsupported", ""), (None, "")],
)
def test_a_gpu_that_sleeps_is_told_from_one_that_is_awake(tmp_path, status, power):
    add_slot(tmp_path / "devices", "0000:01:00.0", "0x10de", "0x030000", "nvidia", status)
    (found,) = nvidia.read_pci_gpus(tmp_path / "devices")
    assert found["power"] == power


def test_no_bus_is_not_determined_and_an_empty_one_is_none(tmp_path):
    assert nvidia.read_pci_gpus(tmp_path / "missing") is None
    assert nvidia.read_pci_gpus(tmp_path) == []


def test_driver_files_are_read(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 550.54.15\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    found = nvidia.read_driver(tmp_path)
    assert found["version"] == "NVRM version: 550.54.15"
    assert found["device_nodes"] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert not found["dxg"]


def test_a_missing_driver_is_empty_and_another_system_is_not_determined(tmp_path):
    assert nvidia.read_driver(tmp_path) == {"version": None, "device_nodes": None}
    (tmp_path / "proc").mkdir()
    found = nvidia.read_driver(tmp_path)
    assert (found["version"], found["device_nodes"]) == ("", [])


@contextmanager
def as_somebody():
    """Root may open everything, so what is refused is asked as nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.setreuid(65534, 0)  # who is asked about is the real user; the other stays root
    try:
        yield
    finally:
        os.setreuid(0, 0)


@pytest.mark.skipif(not hasattr(os, "setreuid"), reason="Windows has no such permissions")
def test_device_nodes_are_open_closed_or_missing():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to nobody
        root = Path(folder)
        for path in (root, root / "proc", root / "dev"):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        for name, mode in (("nvidiactl", 0o666), ("nvidia0", 0o000), ("nvidia1", 0o444)):
            (root / "dev" / name).touch()
            (root / "dev" / name).chmod(mode)
        with as_somebody():
            found = nvidia.read_driver(root)["access"]
    assert found == {
        "/dev/nvidiactl": "ok",
        "/dev/nvidia-uvm": "missing",
        "/dev/nvidia0": "denied",
        "/dev/nvidia1": "denied",  # it must be written too
    }


@pytest.mark.parametrize(
    ("content", "prime"),
    [("on\n", "nvidia"), ("off\n", "intel"), ("on-demand\n", "on-demand"), ("?", ""), (None, "")],
)
def test_the_card_that_a_laptop_chose_is_read(tmp_path, content, prime):
    (tmp_path / "proc").mkdir()
    (tmp_path / "etc").mkdir()
    if content is not None:
        (tmp_path / "etc/prime-discrete").write_text(content)
    assert nvidia.read_driver(tmp_path)["prime"] == prime


def test_toolkits_are_found_where_nvidia_puts_them(tmp_path):
    assert nvidia.read_toolkits(tmp_path) == []
    for name in ("cuda-13.0", "cuda-12.5", "cuda-keyring"):
        (tmp_path / "usr/local" / name).mkdir(parents=True)
    (tmp_path / "usr/local/cuda-11.8").touch()  # no folder
    assert nvidia.read_toolkits(tmp_path) == ["/usr/local/cuda-12.5", "/usr/local/cuda-13.0"]


MAPS = """\
7f10-7f20 r--p 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
7f20-7f30 r-xp 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
7f30-7f40 r--p 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15 (deleted)
7f40-7f50 r--p 00000000 fe:00 3 /home/a b/site-packages/nvidia/cudnn/lib/libcudnn.so.9
7f50-7f60 r--p 00000000 fe:00 4 /home/a b/site-packages/nvidia/cudnn/lib/libcudnn_ops.so.9
7f60-7f70 r--p 00000000 fe:00 5 /usr/local/cuda-12.5/lib64/libcudart.so.12.5.82
7f70-7f80 r--p 00000000 fe:00 6 /usr/local/cuda-12.5/lib64/libcublasLt.so.12.5.3.2
7f80-7f90 rw-p 00000000 00:00 0
7f90-7fa0 rw-p 00000000 00:00 0 [heap]
"""


def test_cuda_libraries_are_found_in_a_memory_map():
    assert nvidia.parse_loaded_libraries(MAPS) == {
        "libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
        "libnvidia-ml.so.1": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15",
        "libcudnn.so.9": "/home/a b/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "libcudart.so.12": "/usr/local/cuda-12.5/lib64/libcudart.so.12.5.82",
        "libcublasLt.so.12": "/usr/local/cuda-12.5/lib64/libcublasLt.so.12.5.3.2",
    }


def test_a_library_is_seen_once_a_process_has_loaded_it(tmp_path):
    library = build_stubs() / "nvml/libnvidia-ml.so.1"
    before, after = run_script(
        f"""
        import ctypes
        from gpukeras.diagnostics import nvidia
        answer = [nvidia.read_loaded_libraries()]
        ctypes.CDLL({str(library)!r})
        answer.append(nvidia.read_loaded_libraries())
        """
    )
    assert (before, after) == ({}, {"libnvidia-ml.so.1": str(library)})
    assert nvidia.read_loaded_libraries(tmp_path / "maps") is None
