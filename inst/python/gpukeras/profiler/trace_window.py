"""A traced window of steps, and what it says of an untraced one.

A tracer slows down what it watches. So a trace gives shares, and the clock gives the step: all
seconds here are scaled to the untraced step's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.profiler.attribution import StepShares, shares
from gpukeras.profiler.benchmark import Bench
from gpukeras.profiler.layer_times import LayerTime, ModelLayer, OpTime, attribute_layers
from gpukeras.profiler.timeline import Bar, timeline
from gpukeras.profiler.trace.xplane import Activity, read_activity

SHOWN_STEPS = 2  # of the timeline
SLOWED = 1.5  # a tracer that makes steps so many times longer is worth a note


@dataclass(frozen=True)
class Window:
    """A traced window.

    Args:
        activity: What the trace says, or None where it says nothing of the device.
        shares: Where its wall time went; None as `activity`.
        unread: Why the trace says nothing, or "".
        steps: Steps that were traced.
    """

    activity: Activity | None
    shares: StepShares | None
    unread: str
    steps: int

    def list_layers(self, layers: Sequence[ModelLayer], kernels_s: float) -> tuple[LayerTime, ...]:
        """Kernel time by layer.

        Args:
            layers: The model's.
            kernels_s: Seconds of an untraced step's kernels; the layers sum to it.
        """
        if self.activity is None:
            return ()
        scale = self._scale(kernels_s)
        return tuple(
            replace(
                row,
                forward_s=row.forward_s * scale,
                backward_s=row.backward_s * scale,
                total_s=row.total_s * scale,
            )
            for row in attribute_layers(self.activity, layers)
        )

    def list_ops(
        self, top: Callable[[Activity], list[OpTime]], kernels_s: float
    ) -> tuple[OpTime, ...]:
        """Ops or kernels by `top`, with count and seconds of one untraced step."""
        if self.activity is None:
            return ()
        scale = self._scale(kernels_s)
        return tuple(
            replace(op, count=max(1, round(op.count / self.steps)), total_s=op.total_s * scale)
            for op in top(self.activity)
        )

    def count_bytes(self, sent: int) -> dict[str, float] | None:
        """Bytes copied a step, "to_device" and "to_host"; None on a CPU.

        Args:
            sent: Bytes of a batch that is sent to the device for its step; the traced steps found
                theirs there.
        """
        copied = None if self.activity is None else self.activity.bytes
        if copied is None:
            return None
        found = {way: copied.get(way, 0) / self.steps for way in ("to_device", "to_host")}
        return {**found, "to_device": found["to_device"] + sent}

    def draw_timeline(self) -> tuple[Bar, ...]:
        """The bars of steps in the middle: where many make a call, it begins with none."""
        if self.activity is None:
            return ()
        begin_s, end_s = self.activity.span
        half_s = min(1.0, SHOWN_STEPS / self.steps) * (end_s - begin_s) / 2
        middle_s = (begin_s + end_s) / 2
        return tuple(timeline(self.activity, middle_s - half_s, middle_s + half_s))

    def explain(self, step_s: float) -> tuple[str, ...]:
        """What its reader should know, given the seconds of an untraced step on repeated rows."""
        if self.activity is None or self.shares is None:
            return ()
        slowed = self.shares.wall_s / self.steps / step_s
        note = (
            f"Traced steps took {slowed:.1f} times as long as untraced ones; that time lies "
            "between the kernels and is left out of the shares."
        )
        return (*self.activity.notes, *([note] if slowed > SLOWED else []))

    def _scale(self, kernels_s: float) -> float:
        return kernels_s / self.shares.kernels_s if self.shares else 0.0


def read_window(bench: Bench, folder: str, device: str, steps: int) -> Window:
    """Traces steps into a folder and reads the trace.

    What prevents that is a reason in the window, not an error: the clock has spoken already.
    """
    unavailable: tuple[Any, ...] = (OSError, runtime.tensorflow().errors.OpError)
    memory = runtime.tensorflow().errors.ResourceExhaustedError
    before = list_traces(folder)
    try:
        calls = bench.trace(folder, steps)
        written = list_traces(folder).items() - before.items()
        if not written:
            return Window(None, None, "the profiler wrote no trace", steps)
        activity = read_activity(max(written, key=lambda each: each[1])[0])
    except memory:
        raise
    except DataError as error:
        return Window(None, None, error.message.rstrip("."), steps)
    except unavailable as error:
        return Window(None, None, f"no trace could be recorded: {find_reason(error)}", steps)
    return open_window(activity, device, steps, calls)


def list_traces(folder: str) -> dict[Path, int]:
    """The traces below a folder, with the time of their last change in nanoseconds."""
    return {file: file.stat().st_mtime_ns for file in Path(folder).rglob("*.xplane.pb")}


def open_window(activity: Activity, device: str, steps: int, calls: int) -> Window:
    """The quietest round of a trace, if it tells anything of the device.

    Args:
        activity: The trace.
        device: The device that trained.
        steps: Steps of a round.
        calls: Marks of a round.
    """
    unread = activity.error or explain_missing(activity, device, calls)
    if unread:
        return Window(None, None, unread, steps)
    quiet = choose_round(activity, calls)
    found = shares(quiet)
    if found.kernels_s <= 0:
        return Window(None, None, "the trace holds no kernels", steps)
    return Window(quiet, found, "", steps)


def choose_round(activity: Activity, calls: int) -> Activity:
    """A trace of which only the round that took least counts: a busy computer slows the others."""
    marks, rounds = activity.steps, len(activity.steps) // calls
    parts = [marks[first : first + calls] for first in range(0, len(marks), calls)]
    quietest = min(parts, key=lambda part: sum(mark.end_s - mark.begin_s for mark in part))
    copied = activity.bytes and {way: each // rounds for way, each in activity.bytes.items()}
    return replace(activity, steps=quietest, bytes=copied)


def explain_missing(activity: Activity, device: str, calls: int) -> str:
    """Why a trace that was read tells nothing about a device, or "".

    Args:
        activity: The trace.
        device: The device that trained.
        calls: Marks of a round.
    """
    if device.startswith("GPU") and not activity.device.startswith("GPU"):
        return f"the trace shows no work of {device}"
    if not activity.steps or len(activity.steps) % calls:
        return "the trace does not hold the steps that were marked"
    return ""
