"""What is sampled, as data: the names and units of all columns, and NVML's reasons to slow down.

A sample is a list of values in the order of these names. None is what the computer or the card
does not tell; it is never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Name: unit.  100 percent of `process_cpu_percent` are one core, of `cpu_percent` all of them.
HOST_UNITS: Mapping[str, str] = {
    "process_cpu_percent": "%",
    "process_memory_bytes": "bytes",
    "cpu_percent": "%",
    "available_memory_bytes": "bytes",
    "disk_read_bytes_per_s": "bytes/s",
    "network_read_bytes_per_s": "bytes/s",
}
# The utilization is the share of time in which at least one kernel ran, that of the memory the
# share in which its controller read or wrote (nvmlUtilization_t).  "received" is to the card.
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
THROTTLING = "throttling"  # a text, after the numbers of a device
# Bits of nvmlClocksEventReasons that slow a busy card.  Not that it is idle (1), nor the clocks
# that its owner has set (2, 0x100).
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
    """A GPU that is sampled.

    Args:
        device: Its place among the visible ones, such as "GPU:0".
        name: Such as "Tesla V100-SXM2-16GB"; "" where NVML does not tell.
        uuid: NVML's, or "".
        memory_total_bytes: Of the card or the MIG slice, or None.
        power_limit_w: At which the driver lowers the clocks, or None.
    """

    device: str
    name: str = ""
    uuid: str = ""
    memory_total_bytes: float | None = None
    power_limit_w: float | None = None


def explain_throttling(bits: int | None) -> str | None:
    """The reasons for lower clocks, such as "power limit"; "" for none, None if not known."""
    if bits is None:
        return None
    return ", ".join(text for bit, text in THROTTLE_REASONS.items() if bits & bit)
