"""Reads from files which NVIDIA GPUs and software exist, without starting or waking a GPU.

As in `system.host`, None means "not determined", an empty string or list "not found".
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
# Values in nvidia-prime's file, and the matching arguments of its tool `prime-select`.
PRIME = {"on": "nvidia", "off": "intel", "on-demand": "on-demand"}
CUDA_LIBRARY = re.compile(
    r"(libcuda|libnvidia-ml|libcudart|libcublas|libcublasLt|libcudnn|libcufft|libcusolver"
    r"|libcusparse|libcupti|libnccl|libnvrtc|libnvJitLink)\.so\.(\d+)"
)
DRIVER_LIBRARIES = ("libcuda", "libnvidia-ml")


# GPUs and driver ---------------------------------------------------------------------------------


def read_pci_gpus(root: str | Path = "/sys/bus/pci/devices") -> list[dict[str, str]] | None:
    """Returns the NVIDIA GPUs on the PCI bus with slot and kernel driver; None without a bus."""
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
    """Returns the NVIDIA driver's version and device nodes on Linux, with WSL's and Tegra's."""
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
    # access() also applies a container's control group; opening the node would wake a sleeping GPU.
    if os.access(node, os.R_OK | os.W_OK):
        return "ok"
    return "denied" if os.path.lexists(node) else "missing"


# CUDA's libraries --------------------------------------------------------------------------------


def read_toolkits(root: str | Path = "/") -> list[str]:
    """Returns the CUDA toolkits in NVIDIA's default location, such as /usr/local/cuda-13.0."""
    folders = (Path(root) / "usr/local").glob("cuda-[0-9]*")
    return sorted(f"/usr/local/{path.name}" for path in folders if path.is_dir())


def read_loaded_libraries(maps: str | Path = "/proc/self/maps") -> dict[str, str] | None:
    """Returns the CUDA libraries loaded in this process, by soname; None without /proc."""
    text = read_text(maps)
    return None if text is None else parse_loaded_libraries(text)


def parse_loaded_libraries(text: str) -> dict[str, str]:
    """Parses the CUDA libraries in the text of /proc/PID/maps: the file of each soname.

    The map shows full file names: libcudart.so.12.5.82 is the file of libcudart.so.12. Files of the
    driver's libraries carry the driver's version, while their sonames end in 1.
    """
    known = ((CUDA_LIBRARY.match(os.path.basename(path)), path) for path in parse_memory_map(text))
    found: dict[str, str] = {}
    for match, path in known:
        if match:
            major = "1" if match[1] in DRIVER_LIBRARIES else match[2]
            found.setdefault(f"{match[1]}.so.{major}", path)
    return found
