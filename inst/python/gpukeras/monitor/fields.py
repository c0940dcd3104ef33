"""Defines the sampled columns with their units, and NVML's reasons for throttling.

A sample is a list of values in the order of these names. A value that the computer or the card
does not report is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Name: unit. 100 percent is one core in `process_cpu_percent`, all cores in `cpu_percent`.
HOST_UNITS: Mapping[str, str] = {
    "process_cpu_percent": "%",
    "process_memory_bytes": "bytes",
    "cpu_percent": "%",
    "available_memory_bytes": "bytes",
    "disk_read_bytes_per_s": "bytes/s",
    "network_read_bytes_per_s": "bytes/s",
}
# `utilization_percent` is the share of time in which at least one kernel ran,
# `memory_utilization_percent` the share in which the memory controller read or wrote
# (nvmlUtilization_t). "received" means host to card.
DEVICE_UNITS: Mapping[str, str] = {
    "utilization_percent": "%",
    "memory_utilization_percent": "%",
    "memory_bytes": "bytes",
    "power_w": "W",
    "temperature_c": "degrees C",
    "clock_mhz": "MHz",
    "pcie_received_bytes_per_s": "bytes/s",
    "pcie_sent_bytes_per_s": "bytes/s",
}
THROTTLING = "throttling"  # a string column after a device's numbers
# Bits of nvmlClocksEventReasons that slow a busy card; without idle (1) and the clocks set by the
# user (2, 0x100).
THROTTLE_REASONS: Mapping[int, str] = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost with another GPU",
    0x20: "temperature",
    0x40: "temperature at the hardware's limit",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Gpu:
    """A sampled GPU.

    Args:
        device: Name by position among the visible GPUs, such as "GPU:0".
        name: Product name such as "Tesla V100-SXM2-16GB"; "" if NVML does not report it.
        uuid: UUID from NVML, or "".
        memory_total_bytes: Memory of the card or the MIG slice, or None.
        power_limit_w: Power at which the driver lowers the clocks, or None.
    """

    device: str
    name: str = ""
    uuid: str = ""
    memory_total_bytes: float | None = None
    power_limit_w: float | None = None


def explain_throttling(bits: int | None) -> str | None:
    """Names the reasons for lower clocks, such as "power limit"; "" for none, None if unknown."""
    if bits is None:
        return None
    return ", ".join(text for bit, text in THROTTLE_REASONS.items() if bits & bit)
