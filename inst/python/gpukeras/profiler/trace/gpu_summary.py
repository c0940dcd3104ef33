"""Summarizes the work of the GPUs in a profiler trace: kernel times, top kernels, busy shares.

A trace (an "xplane" file) has a plane for each GPU, also for idle ones, so a plane is no evidence
of work. Only events on a plane's lines "Stream #..." are work of the GPU: kernels, copies, fills.
Other lines ("Steps", "TensorFlow Ops") are derived from these and would count the same time twice.

A trace without kernels may mean that the profiler had no permission to record them. So its result
is "not determined" (None), never "ran on the CPU".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpukeras.profiler.trace.events import PS_A_SECOND, Plane, measure_union, read_space
from gpukeras.profiler.trace.gpu import GPU_PLANE, is_copy, read_copied, read_stream_entries

TOP = 10


@dataclass(frozen=True)
class Event:
    """A piece of work on a GPU's stream.

    Args:
        name: The kernel's name, or "MemcpyH2D" and the like.
        begin_ps: Its begin, in picoseconds.
        end_ps: Its end, likewise.
        copied_bytes: Bytes copied; None for kernels and if the trace does not record them.
    """

    name: str
    begin_ps: int
    end_ps: int
    copied_bytes: int | None = None


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel.

    Args:
        name: Its name.
        count: Number of runs.
        total_s: Total seconds.
    """

    name: str
    count: int
    total_s: float


@dataclass(frozen=True)
class DeviceTime:
    """The work of one GPU.

    Args:
        device: The profiler's name for it, such as "GPU:4".
        events: Number of kernels and copies.
        kernels: Number of kernels alone.
        kernel_s: Seconds in which at least one kernel ran.
        busy_s: Seconds in which a kernel or a copy ran.
        span_s: Seconds from the begin of this GPU's first event to the end of its last.
        busy_share: `busy_s / span_s`.
        median_kernel_us: Median duration of a kernel in microseconds, or None without kernels.
        copied_bytes: Bytes copied, as far as the trace records them.
        top: The kernels with the most time.
    """

    device: str
    events: int
    kernels: int
    kernel_s: float
    busy_s: float
    span_s: float
    busy_share: float
    median_kernel_us: float | None
    copied_bytes: int
    top: tuple[Kernel, ...]


@dataclass(frozen=True)
class Trace:
    """The summary of a trace.

    Args:
        devices: The GPUs with events, the busiest first.
        gpu_planes: Number of GPUs in the trace.
        empty_planes: Number of GPUs in the trace without any event.
        cupti: Whether NVIDIA's profiling library worked: True if GPU events were recorded, False if
            the trace reports its failure, None if unknown.
        error: Why nothing is known about the GPUs, or "".
    """

    devices: tuple[DeviceTime, ...]
    gpu_planes: int
    empty_planes: int
    cupti: bool | None
    error: str

    @property
    def busiest(self) -> DeviceTime | None:
        """The GPU with the most kernel time, or None."""
        return self.devices[0] if self.devices else None

    def to_facts(self) -> dict[str, Any]:
        """Returns the trace as a plain dict; what is not determined is None."""
        nothing = None if self.error else 0
        counts = ("events", "kernels", "kernel_s", "busy_s", "copied_bytes")
        shares = ("span_s", "busy_share", "median_kernel_us")
        busiest: dict[str, Any] = {"device": "", "top": (), **dict.fromkeys(counts, nothing)}
        busiest |= dict.fromkeys(shares) if self.busiest is None else asdict(self.busiest)
        return {
            **busiest,
            "top": list(busiest["top"]),
            "gpus": len(self.devices),
            "gpu_planes": self.gpu_planes,
            "empty_planes": self.empty_planes,
            "cupti": self.cupti,
            "error": self.error,
        }


# Reading -----------------------------------------------------------------------------------------


def read_trace(path: str | Path) -> Trace:
    """Reads an xplane file, or the newest one in a folder.

    Raises:
        DataError: if there is none, or it is damaged.
    """
    space = read_space(path)
    planes = [
        (match[1], list(_read_events(Plane(plane))))
        for plane in space.planes
        if (match := GPU_PLANE.match(plane.name))
    ]
    return measure_trace(planes, [*space.errors, *space.warnings])


def _read_events(plane: Plane) -> Iterator[Event]:
    for _, entry in read_stream_entries(plane):
        copied = read_copied(plane, entry) if is_copy(entry.name) else None
        yield Event(entry.name, entry.begin, entry.end, copied)


# Measuring ---------------------------------------------------------------------------------------


def measure_trace(
    planes: Sequence[tuple[str, Sequence[Event]]], messages: Sequence[str] = ()
) -> Trace:
    """Returns the summary of a trace, from each GPU's events and the profiler's messages."""
    devices = [measure_device(name, events) for name, events in planes if events]
    devices.sort(key=lambda device: (device.kernel_s, device.busy_s), reverse=True)
    failures = [text for text in messages if "cupti" in text.lower()]
    return Trace(
        devices=tuple(devices),
        gpu_planes=len(planes),
        empty_planes=len(planes) - len(devices),
        cupti=True if devices else (False if failures else None),
        error="" if devices else _explain_nothing(len(planes), failures or messages),
    )


def _explain_nothing(planes: int, messages: Sequence[str]) -> str:
    if messages:
        return f"the profiler saw no GPU: {messages[0]}"[:300]
    if planes:
        return f"the trace has {planes} GPU planes without any event"
    return ""


def measure_device(device: str, events: Sequence[Event]) -> DeviceTime:
    """Returns the work of a GPU, from its events (at least one)."""
    kernels = [event for event in events if not is_copy(event.name)]
    busy = measure_union((event.begin_ps, event.end_ps) for event in events)
    begin = min(event.begin_ps for event in events)
    span = max(event.end_ps for event in events) - begin
    lengths = [event.end_ps - event.begin_ps for event in kernels]
    return DeviceTime(
        device=device,
        events=len(events),
        kernels=len(kernels),
        kernel_s=measure_union((k.begin_ps, k.end_ps) for k in kernels) / PS_A_SECOND,
        busy_s=busy / PS_A_SECOND,
        span_s=span / PS_A_SECOND,
        busy_share=busy / span if span > 0 else 1.0,
        median_kernel_us=median(lengths) / 1e6 if lengths else None,
        copied_bytes=sum(event.copied_bytes or 0 for event in events),
        top=_top_kernels(kernels),
    )


def _top_kernels(kernels: Sequence[Event]) -> tuple[Kernel, ...]:
    lengths: dict[str, list[int]] = defaultdict(list)
    for kernel in kernels:
        lengths[kernel.name].append(kernel.end_ps - kernel.begin_ps)
    busiest = [
        Kernel(name[:200], len(each), sum(each) / PS_A_SECOND) for name, each in lengths.items()
    ]
    return tuple(sorted(busiest, key=lambda kernel: -kernel.total_s)[:TOP])
