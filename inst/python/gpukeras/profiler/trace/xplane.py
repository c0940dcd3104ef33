"""Converts a profiler trace to works: kernels, transfers and the host's dispatch, on one clock.

    xplane file -> planes -> lines -> entries -> Activity (of one device and its host)

On a CPU, kernels are the ops that its threads computed; on a GPU, what ran on its streams. The
host's concurrent work is "host": the outermost calls of the thread that calls TensorFlow, Python
between them, and, for a GPU, the threads that ran the graph and launched kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpukeras.core.errors import DataError
from gpukeras.profiler.trace import gpu
from gpukeras.profiler.trace import host as trace_host
from gpukeras.profiler.trace.activity import CPU, Activity, Kind, Step, Work
from gpukeras.profiler.trace.events import (
    PS_A_SECOND,
    Entry,
    Line,
    Plane,
    measure_union,
    read_space,
)
from gpukeras.profiler.trace.hlo import METADATA_PLANE, Program, read_programs

HOST_PLANE = "/host:CPU"
OTHER_DEVICE = re.compile(r"^/device:((?!GPU|CPU|CUSTOM)\w+:\d+)")
TF_DATA = "tf_data"  # prefix of the names of tf.data's threads
NO_OPS = (
    "the trace holds no op that TensorFlow ran on the CPU; nothing ran while it was recorded, the "
    "profiler recorded no ops (host_tracer_level = 0), or its version names them differently"
)


@dataclass(frozen=True)
class _Clock:
    """Converts a trace's times to seconds since its first event."""

    origin: int

    def seconds(self, moment: int) -> float:
        return (moment - self.origin) / PS_A_SECOND


def read_activity(path: str | Path, device: str | None = None) -> Activity:
    """Reads an xplane file, or the newest one in a folder.

    Args:
        path: The file or folder.
        device: The device to read: "CPU" or "GPU:4", the profiler's name. By default the GPU with
            the most kernel time; the CPU if the trace has no GPU at all.

    Returns:
        The activity. If the trace has no work of the device (the profiler had no access to the GPU,
        or nothing ran), it has an `error` and no kernels.

    Raises:
        DataError: if there is no trace, or it is unreadable, empty, damaged, or not a trace of
            TensorFlow.
    """
    space = read_space(path)
    messages = (*space.errors, *space.warnings)
    planes = [Plane(plane) for plane in space.planes if plane.name != METADATA_PLANE]
    gpus = {match[1]: plane for plane in planes if (match := gpu.GPU_PLANE.match(plane.name))}
    host = next((plane for plane in planes if plane.name == HOST_PLANE), None)
    check_planes([plane.name for plane in planes], path, device)
    busy = _rank_devices(gpus)
    chosen = device or choose_device(busy, list(gpus), messages)
    programs = read_programs(space.planes)
    if chosen == CPU:
        return _read_cpu(host, programs, messages)
    return _read_gpu(chosen, busy, gpus.get(chosen), host, programs, messages)


def check_planes(names: Sequence[str], path: str | Path, device: str | None = None) -> None:
    """Checks by their names that the planes are of a supported kind.

    Args:
        names: The planes' names.
        path: The trace, for error messages.
        device: The requested device, or None.

    Raises:
        DataError: if they are of another accelerator, or of no computer at all.
    """
    if any(gpu.GPU_PLANE.match(name) for name in names) or (device == CPU and HOST_PLANE in names):
        return
    others = [match[1] for name in names if (match := OTHER_DEVICE.match(name))]
    if others:
        raise DataError(
            f"{Path(path).name} is a trace of {others[0]}; only GPUs and CPUs are read.",
            hint="TensorBoard's profile tab shows it: gpu_tensorboard().",
            path=str(path),
        )
    if HOST_PLANE not in names:
        raise DataError(
            f"{Path(path).name} holds neither the host nor a GPU, so it is no trace of TensorFlow, "
            "or one of a version that is not known.",
            hint="Record it again: gpu_profile().",
            path=str(path),
        )


def choose_device(busy: Sequence[str], gpus: Sequence[str], messages: Sequence[str]) -> str:
    """Returns the busiest GPU; if none was busy, a GPU that was not recorded; else the CPU.

    Args:
        busy: The GPUs with events, the busiest first.
        gpus: All GPUs of the trace.
        messages: Messages of the profiler.
    """
    if busy or gpus:
        return (list(busy) or sorted(gpus))[0]
    return "GPU:0" if any("cupti" in text.lower() for text in messages) else CPU


def _rank_devices(gpus: Mapping[str, Plane]) -> tuple[str, ...]:
    """Returns the GPUs with events, those with the most kernel time first."""
    ranked = []
    for name, plane in gpus.items():
        entries = [entry for _, entry in gpu.read_stream_entries(plane)]
        kernels = [entry for entry in entries if not gpu.is_copy(entry.name)]
        if entries:
            ranked.append((_union(kernels), _union(entries), name))
    return tuple(name for *_, name in sorted(ranked, key=lambda entry: entry[:2], reverse=True))


def _union(entries: Iterable[Entry]) -> float:
    return measure_union((entry.begin, entry.end) for entry in entries)


# One device --------------------------------------------------------------------------------------


def _read_cpu(
    host: Plane | None, programs: Mapping[str, Program], messages: tuple[str, ...]
) -> Activity:
    if host is None:
        return Activity((), (), CPU, (), notes=messages, error=NO_OPS)
    clock = _Clock(_first_moment([host]))
    works = list(_cpu_kernels(host, programs, clock))
    error = "" if works else NO_OPS
    steps, calls = _read_host(host, clock, launching=False)
    return _assemble([*works, *calls], steps, CPU, (CPU,) if works else (), messages, error)


def _read_gpu(
    device: str,
    busy: tuple[str, ...],
    plane: Plane | None,
    host: Plane | None,
    programs: Mapping[str, Program],
    messages: tuple[str, ...],
) -> Activity:
    clock = _Clock(_first_moment([each for each in (plane, host) if each]))
    works = list(_stream_works(device, plane, programs, clock)) if plane else []
    steps, calls = _read_host(host, clock, launching=True) if host else ((), [])
    error = "" if any(work.kind == "kernel" for work in works) else explain_none(device, messages)
    copied = gpu.sum_bytes((w.name, w.bytes) for w in works if w.kind == "transfer")
    return _assemble([*works, *calls], steps, device, busy, messages, error, copied)


def explain_none(device: str, messages: Sequence[str]) -> str:
    """Returns why a trace has no kernels of a GPU."""
    failures = [text for text in messages if "cupti" in text.lower()] or list(messages)
    if failures:
        return f"the profiler did not see {device}: {failures[0]}"[:300]
    return f"the trace has no kernel of {device}, and does not say why"


def _assemble(
    works: list[Work],
    steps: tuple[Step, ...],
    device: str,
    devices: tuple[str, ...],
    notes: tuple[str, ...],
    error: str,
    copied: dict[str, int] | None = None,
) -> Activity:
    works.sort(key=lambda work: (work.begin_s, work.lane))
    return Activity(tuple(works), steps, device, devices, copied, notes, error)


def _first_moment(planes: Iterable[Plane]) -> int:
    firsts = [line.entries[0].begin for plane in planes for line in plane.lines]
    return min(firsts, default=0)


# Work --------------------------------------------------------------------------------------------


def _cpu_kernels(host: Plane, programs: Mapping[str, Program], clock: _Clock) -> Iterator[Work]:
    counts = {CPU: 0, "input": 0}
    for line, ops in trace_host.read_ops(host, programs):
        if not ops:
            continue
        group = "input" if line.name.startswith(TF_DATA) else CPU
        counts[group] += 1
        lane = f"{group} {counts[group]}"
        for op in ops:
            begin, end = clock.seconds(op.begin), clock.seconds(op.end)
            yield Work(lane, op.name, "kernel", op.scope, begin, end, None, op.type, op.part)


def _stream_works(
    device: str, plane: Plane, programs: Mapping[str, Program], clock: _Clock
) -> Iterator[Work]:
    for stream, entry in gpu.read_stream_entries(plane):
        copy = gpu.is_copy(entry.name)
        scope, op = gpu.read_scope(plane, entry, programs)
        copied = gpu.read_copied(plane, entry) if copy else None
        kind: Kind = "transfer" if copy else "kernel"
        begin, end = clock.seconds(entry.begin), clock.seconds(entry.end)
        yield Work(f"{device} stream {stream}", entry.name, kind, scope, begin, end, copied, op)


def _read_host(host: Plane, clock: _Clock, launching: bool) -> tuple[tuple[Step, ...], list[Work]]:
    """Returns the steps and the host's work."""
    marking, marked = trace_host.read_steps(host)
    caller = marking or trace_host.find_caller(host)
    steps = tuple(
        Step(number, clock.seconds(entry.begin), clock.seconds(entry.end))
        for number, entry in marked
    )
    works = []
    if caller:
        calls = trace_host.read_calls(host, caller, [entry for _, entry in marked])
        works = list(_host_works("main", calls, clock))
    if launching or caller is None:
        works += _launches([line for line in host.lines if line is not caller], clock)
    return steps, works


def _launches(lines: Iterable[Line], clock: _Clock) -> Iterator[Work]:
    """Yields the times in which launching threads ran a graph; those of tf.data do not launch."""
    count = 0
    for line in lines:
        entries = trace_host.read_processing(line)
        if entries and not line.name.startswith(TF_DATA):
            count += 1
            yield from _host_works(f"launch {count}", entries, clock)


def _host_works(lane: str, entries: Iterable[Entry], clock: _Clock) -> Iterator[Work]:
    for entry in entries:
        begin, end = clock.seconds(entry.begin), clock.seconds(entry.end)
        yield Work(lane, entry.name, "host", "", begin, end)


__all__ = ["Activity", "Kind", "Step", "Work", "read_activity"]
