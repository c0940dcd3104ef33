"""What files show of NVIDIA GPUs and their software: nothing is started, nothing is woken up.

As in `system.host`, None means "not determined", an empty text or list "it is not there".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gpukeras.diagnostics.probes.driver import parse_memory_map
from gpukeras.system.host import read_text

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"  # PCI base class of VGA and 3D controllers
# As nvidia-prime's file says it, and as its tool `prime-select` does.
PRIME = {"on": "nvidia", "off": "intel", "on-demand": "on-demand"}
CUDA_LIBRARY = re.compile(
    r"(libcuda|libnvidia-ml|libcudart|libcublas|libcublasLt|libcudnn|libcufft|libcusolver"
    r"|libcusparse|libcupti|libnccl|libnvrtc|libnvJitLink)\.so\.(\d+)"
)
DRIVER_LIBRARIES = ("libcuda", "libnvidia-ml")


# GPUs and driver ---------------------------------------------------------------------------------


def read_pci_gpus(root: str | Path = "/sys/bus/pci/devices") -> list[dict[str, str]] | None:
    """NVIDIA GPUs on the PCI bus, each with its slot and kernel driver; None without a bus."""
    try:
        slots = sorted(Path(root).iterdir())
    except OSError:
        return None
    return [_read_slot(slot) for slot in slots if _is_nvidia_gpu(slot)]


def _is_nvidia_gpu(slot: Path) -> bool:
    is_display = (read_text(slot / "class") or "").startswith(DISPLAY_CLASS)
    return is_display and read_text(slot / "vendor") == NVIDIA_VENDOR


def _read_slot(slot: Path) -> dict[str, str]:
    driver = slot / "driver"
    power = read_text(slot / "power/runtime_status")
    return {
        "slot": slot.name,
        "device": read_text(slot / "device") or "",
        "driver": driver.resolve().name if driver.exists() else "",
        "power": power if power in ("active", "suspended") else "",
    }


def read_driver(root: str | Path = "/") -> dict[str, Any]:
    """What Linux shows of the NVIDIA driver: its version, its device nodes, WSL's and Tegra's."""
    root = Path(root)
    if not (root / "proc").is_dir():  # not Linux
        return {"version": None, "device_nodes": None}
    nodes = sorted(f"/dev/{path.name}" for path in (root / "dev").glob("nvidia[0-9]*"))
    needed = ("/dev/nvidiactl", "/dev/nvidia-uvm", *nodes)
    return {
        "version": read_text(root / "proc/driver/nvidia/version") or "",
        "device_nodes": nodes,
        "access": {node: _read_access(root / node[1:]) for node in needed},
        "dxg": (root / "dev/dxg").exists(),
        "wsl_libcuda": (root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        "tegra": (root / "etc/nv_tegra_release").exists() or (root / "dev/nvhost-gpu").exists(),
        "prime": PRIME.get(read_text(root / "etc/prime-discrete") or "", ""),
    }


def _read_access(node: Path) -> str:
    # The kernel is asked, and so heeds the control group of a container too; opening the node
    # would wake a GPU that sleeps.
    if os.access(node, os.R_OK | os.W_OK):
        return "ok"
    return "denied" if os.path.lexists(node) else "missing"


# CUDA's libraries --------------------------------------------------------------------------------


def read_toolkits(root: str | Path = "/") -> list[str]:
    """The CUDA toolkits where NVIDIA's packages put them, such as /usr/local/cuda-13.0."""
    found = (Path(root) / "usr/local").glob("cuda-[0-9]*")
    return sorted(f"/usr/local/{path.name}" for path in found if path.is_dir())


def read_loaded_libraries(maps: str | Path = "/proc/self/maps") -> dict[str, str] | None:
    """CUDA libraries in this process's memory, by soname; None where this is not shown."""
    text = read_text(maps)
    return None if text is None else parse_loaded_libraries(text)


def parse_loaded_libraries(text: str) -> dict[str, str]:
    """The CUDA libraries in the text of /proc/PID/maps: the file of each soname.

    The map shows a file's full name: libcudart.so.12.5.82 is the file of libcudart.so.12. The
    driver's libraries count their files by the driver's version, and their sonames by 1.
    """
    known = ((CUDA_LIBRARY.match(os.path.basename(path)), path) for path in parse_memory_map(text))
    found: dict[str, str] = {}
    for match, path in known:
        if match:
            major = "1" if match[1] in DRIVER_LIBRARIES else match[2]
            found.setdefault(f"{match[1]}.so.{major}", path)
    return found
