"""Builds the monitor record for R from the samples, with means and a verdict; pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.messages import count_of
from gpukeras.monitor.energy import EnergyUse, measure_cpu, measure_gpu
from gpukeras.monitor.fields import DEVICE_UNITS, HOST_UNITS, THROTTLING, Gpu

BUSY_PERCENT = 90.0  # above it, faster input can gain little
OTHERS_SHARE = 0.25  # of the computer's cores; above it, other programs slow this one down
HOST = "host"


@dataclass(frozen=True)
class DeviceSamples(Gpu):
    """A GPU and its samples.

    Args:
        samples: For each column of `fields.DEVICE_UNITS` a float64 array with one value per sample,
            NaN where the card reported none; and `throttling`, a list of strings or None.
    """

    samples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnSummary:
    """Mean, median and maximum of a column; None if it has no values.

    Args:
        device: "host" or a device name such as "GPU:0".
        column: Name of the column.
        unit: Unit such as "bytes/s".
        mean: Mean of the reported values.
        median: Median of the reported values.
        max: Largest reported value.
    """

    device: str
    column: str
    unit: str
    mean: float | None
    median: float | None
    max: float | None


@dataclass(frozen=True)
class MonitorRecord:
    """The record of a monitor.

    Args:
        interval_s: Requested seconds between two samples.
        seconds: Duration of the record.
        samples: `time_s` (seconds from the start) and each column of `fields.HOST_UNITS`, float64
            arrays with one value per sample; NaN where the computer reported none.
        devices: The samples of each visible GPU, at the same times.
        gpu_error: "" or one sentence on why no GPU was sampled.
        cores: Number of cores that the process may use.
        computer_cores: Number of cores of the computer, to which `cpu_percent` refers, or None.
        memory_total_bytes: Memory of the computer.
        energy: The energy of each GPU, and of the processors.
        summary: Summary of each column.
        verdict: One sentence on how busy the GPU was, or the CPU without a GPU.
        notes: Further sentences.
    """

    interval_s: float
    seconds: float
    samples: Mapping[str, np.ndarray]
    devices: Sequence[DeviceSamples] = ()
    gpu_error: str = ""
    cores: int = 1
    computer_cores: int | None = None
    memory_total_bytes: float | None = None
    energy: Sequence[EnergyUse] = ()
    summary: Sequence[ColumnSummary] = field(default=())
    verdict: str = ""
    notes: Sequence[str] = ()


# From the sampler's text --------------------------------------------------------------------------


def parse_samples(text: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """Parses the sampler's header and samples; skips an incomplete line."""
    lines: list[Any] = []
    for line in text.splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    header = lines[0] if lines and isinstance(lines[0], dict) else {}
    return header, [line for line in lines if isinstance(line, list)]


def make_record(
    text: str, interval_s: float, seconds: float, notes: Sequence[str] = ()
) -> MonitorRecord:
    """Builds the record from a sampler's output.

    Args:
        text: The sampler's whole output.
        interval_s: Requested seconds between two samples.
        seconds: Duration of the record.
        notes: Sentences of the caller to put first.
    """
    header, lines = parse_samples(text)
    times = np.array([line[0] for line in lines], dtype=np.float64)
    samples = {"time_s": times, **to_columns([line[1] for line in lines], HOST_UNITS)}
    devices = [
        DeviceSamples(**gpu, samples=to_device_columns([line[2][place] for line in lines]))
        for place, gpu in enumerate(header.get("gpus", []))
    ]
    cores, computer_cores = int(header.get("cores", 1)), header.get("computer_cores")
    return MonitorRecord(
        interval_s=interval_s,
        seconds=seconds,
        samples=samples,
        devices=devices,
        gpu_error=header.get("gpu_error", ""),
        cores=cores,
        computer_cores=computer_cores,
        memory_total_bytes=header.get("memory_total_bytes"),
        energy=read_energy(header, lines, devices),
        summary=summarise(samples, devices),
        verdict=explain_use(samples, devices, cores),
        notes=[*notes, *explain_devices(devices), *explain_others(samples, computer_cores)],
    )


def read_energy(
    header: Mapping[str, Any], lines: Sequence[Sequence[Any]], devices: Sequence[DeviceSamples]
) -> list[EnergyUse]:
    """Returns the energy of each GPU, then of the processors.

    Args:
        header: The sampler's header.
        lines: Its samples; the fourth element has the counters, those of the processors first.
        devices: The samples of each GPU.
    """
    times = [line[0] for line in lines]
    counts = [line[3] if len(line) > 3 else [None] * (1 + len(devices)) for line in lines]
    gpus = [
        measure_gpu(
            sampled.device,
            times,
            [count[place] for count in counts],
            list(sampled.samples["power_w"]),
        )
        for place, sampled in enumerate(devices, 1)
    ]
    joules = [count[0] for count in counts]
    return [*gpus, measure_cpu(times, joules, header.get("energy_error", ""))]


def to_columns(
    rows: Sequence[Sequence[float | None]], units: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Converts rows to one float64 array per column name, None to NaN."""
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(units))
    return {name: table[:, place].copy() for place, name in enumerate(units)}


def to_device_columns(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Converts a GPU's rows to columns, the throttling text last."""
    columns: dict[str, Any] = to_columns([row[:-1] for row in rows], DEVICE_UNITS)
    return {**columns, THROTTLING: [row[-1] for row in rows]}


# Summaries ----------------------------------------------------------------------------------------


def summarise(
    samples: Mapping[str, np.ndarray], devices: Sequence[DeviceSamples]
) -> list[ColumnSummary]:
    """Returns mean, median and maximum of each column, and the share of throttled samples."""
    summaries = [_sum_up(HOST, name, unit, samples[name]) for name, unit in HOST_UNITS.items()]
    for sampled in devices:
        device = sampled.device
        summaries += [
            _sum_up(device, n, unit, sampled.samples[n]) for n, unit in DEVICE_UNITS.items()
        ]
        slowed = find_mean(np.array([100.0 * bool(text) for text in told_texts(sampled)]))
        summaries.append(ColumnSummary(device, "throttled_percent", "%", slowed, None, None))
    return summaries


def _sum_up(device: str, column: str, unit: str, values: np.ndarray) -> ColumnSummary:
    told = values[np.isfinite(values)]
    if not len(told):
        return ColumnSummary(device, column, unit, None, None, None)
    numbers = (float(told.mean()), float(np.median(told)), float(told.max()))
    return ColumnSummary(device, column, unit, *numbers)


def told_texts(device: DeviceSamples) -> list[str]:
    """Returns the throttling texts of the samples that have one."""
    return [text for text in device.samples[THROTTLING] if text is not None]


def find_mean(values: np.ndarray) -> float | None:
    """Returns the mean of the finite values, or None if there are none."""
    told = values[np.isfinite(values)]
    return float(told.mean()) if len(told) else None


# Wording ------------------------------------------------------------------------------------------


def explain_use(
    samples: Mapping[str, np.ndarray], devices: Sequence[DeviceSamples], cores: int
) -> str:
    """Describes in one sentence how busy the GPUs were, or the CPU without a reported GPU.

    Args:
        samples: Columns of the computer and the process.
        devices: Samples of each GPU.
        cores: Number of cores that the process may use.
    """
    if not len(samples["time_s"]):
        return "It ended before the first sample: a shorter `interval` would show more."
    busy = {
        sampled.device: find_mean(sampled.samples["utilization_percent"]) for sampled in devices
    }
    told = {device: share for device, share in busy.items() if share is not None}
    if told:
        return explain_busy(told)
    used = find_mean(samples["process_cpu_percent"])
    processor = "" if used is None else f": {explain_cores(used, cores)}"
    if devices:
        return f"{' and '.join(busy)} did not tell how busy it was{processor}."
    return f"No GPU was sampled{processor}."


def explain_busy(busy: Mapping[str, float]) -> str:
    """Describes in one sentence how busy the GPUs were.

    Args:
        busy: Mean utilization in percent, by device.
    """
    mean = sum(busy.values()) / len(busy)
    if len(busy) == 1:
        who = next(iter(busy))
        each = ""
    else:
        who = f"Each of {len(busy)} GPUs"
        each = " on average (" + ", ".join(f"{name} {v:.0f} %" for name, v in busy.items()) + ")"
    rest = "" if mean >= BUSY_PERCENT else f" and had nothing to do in the other {100 - mean:.0f} %"
    return f"{who} computed {mean:.0f} % of the time{each}{rest}."


def explain_cores(percent: float, cores: int) -> str:
    """Describes how many cores a process used.

    Args:
        percent: CPU use in percent of one core.
        cores: Number of cores that the process may use.
    """
    return f"the process used {percent / 100:.1f} of {count_of(cores, 'CPU core')} on average"


def explain_devices(devices: Sequence[DeviceSamples]) -> list[str]:
    """Returns notes on lowered clocks and on the numbering of different cards."""
    notes = [note for sampled in devices for note in (explain_slowing(sampled),) if note]
    if len({sampled.name for sampled in devices}) > 1:
        notes.append(
            "The GPUs are of several kinds and numbered as on the PCI bus, as TensorFlow does"
            " where CUDA_DEVICE_ORDER is PCI_BUS_ID; else it counts the fastest first."
        )
    return notes


def explain_slowing(device: DeviceSamples) -> str:
    """Describes in one sentence how often and why a card's clocks were lowered; "" if never."""
    texts = told_texts(device)
    slowed = [text for text in texts if text]
    if not slowed:
        return ""
    reasons = list(dict.fromkeys(reason for text in slowed for reason in text.split(", ")))
    share = 100 * len(slowed) / len(texts)
    name = device.device
    return f"The clocks of {name} were lowered {share:.0f} % of the time ({'; '.join(reasons)})."


def explain_others(samples: Mapping[str, np.ndarray], cores: int | None) -> list[str]:
    """Returns a note if other programs used more than `OTHERS_SHARE` of the computer's cores.

    Args:
        samples: Columns of the computer and the process.
        cores: Number of cores of the computer, or None.
    """
    everyone, own = find_mean(samples["cpu_percent"]), find_mean(samples["process_cpu_percent"])
    if not cores or everyone is None or own is None:
        return []
    others = (everyone * cores - own) / 100
    if others <= OTHERS_SHARE * cores:
        return []
    return [f"Other processes used {others:.1f} of the computer's {cores} CPU cores on average."]
