"""Traces a window of steps and scales the result to untraced steps.

A tracer slows down the program. So the trace gives shares, the clock gives the step time, and all
seconds here are scaled to an untraced step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpukeras.backend import tensor_ops, tracing
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.profiler.attribution import StepShares, shares
from gpukeras.profiler.benchmark import Bench
from gpukeras.profiler.layer_times import LayerTime, ModelLayer, OpTime, attribute_layers
from gpukeras.profiler.timeline import Bar, timeline
from gpukeras.profiler.trace.activity import Activity, Step
from gpukeras.profiler.trace.xplane import read_activity

SHOWN_STEPS = 2  # of the timeline
SLOWED = 1.5  # slowdown by the tracer from which on the report has a note


@dataclass(frozen=True)
class Window:
    """A traced window.

    Args:
        activity: The trace, or None if it shows nothing of the device.
        shares: Its wall time by what ran; None if `activity` is None.
        unread: Why the trace is unusable, or "".
        steps: Number of traced steps.
    """

    activity: Activity | None
    shares: StepShares | None
    unread: str
    steps: int

    def list_layers(self, layers: Sequence[ModelLayer], kernels_s: float) -> tuple[LayerTime, ...]:
        """Returns kernel time by layer.

        Args:
            layers: The model's layers.
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
        """Returns ops or kernels ranked by `top`, with count and seconds of one untraced step."""
        if self.activity is None:
            return ()
        scale = self._scale(kernels_s)
        return tuple(
            replace(op, count=max(1, round(op.count / self.steps)), total_s=op.total_s * scale)
            for op in top(self.activity)
        )

    def count_bytes(self, sent: int) -> dict[str, float] | None:
        """Returns the bytes copied per step, "to_device" and "to_host"; None on a CPU.

        Args:
            sent: Bytes of a batch that is sent to the device for its step; the traced steps reused
                a batch that was already there.
        """
        copied = None if self.activity is None else self.activity.bytes
        if copied is None:
            return None
        moved = {way: copied.get(way, 0) / self.steps for way in ("to_device", "to_host")}
        return {**moved, "to_device": moved["to_device"] + sent}

    def draw_timeline(self) -> tuple[Bar, ...]:
        """Returns the bars of steps in the middle of the window.

        It takes the middle because a call that runs many steps begins without bars.
        """
        if self.activity is None:
            return ()
        begin_s, end_s = self.activity.span
        half_s = min(1.0, SHOWN_STEPS / self.steps) * (end_s - begin_s) / 2
        middle_s = (begin_s + end_s) / 2
        return tuple(timeline(self.activity, middle_s - half_s, middle_s + half_s))

    def explain(self, step_s: float) -> tuple[str, ...]:
        """Returns notes for the reader, given the seconds of an untraced step on repeated rows."""
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

    If that fails, the window holds the reason instead of raising: the clock's results remain valid.

    Args:
        bench: The bench that runs the steps.
        folder: The folder of the trace.
        device: The device that trains.
        steps: Number of steps per round.

    Raises:
        ResourceExhaustedError: if a step does not fit into the device's memory.
    """
    before = list_traces(folder)
    try:
        calls = bench.trace(folder, steps)
        written = list_traces(folder).items() - before.items()
        if not written:
            return Window(None, None, "the profiler wrote no trace", steps)
        activity = read_activity(max(written, key=lambda each: each[1])[0])
    except tensor_ops.exhausted():
        raise
    except DataError as error:
        return Window(None, None, error.message.rstrip("."), steps)
    except tracing.trace_errors() as error:
        return Window(None, None, f"no trace could be recorded: {find_reason(error)}", steps)
    return open_window(activity, device, steps, calls)


def list_traces(folder: str) -> dict[Path, int]:
    """Returns the traces below a folder, with their modification time in nanoseconds."""
    return {file: file.stat().st_mtime_ns for file in Path(folder).rglob("*.xplane.pb")}


def open_window(activity: Activity, device: str, steps: int, calls: int) -> Window:
    """Returns the fastest round of a trace, if the trace shows work of the device.

    Args:
        activity: The trace.
        device: The device that trained.
        steps: Steps per round.
        calls: Marks per round.
    """
    unread = activity.error or explain_missing(activity, device, calls)
    if unread:
        return Window(None, None, unread, steps)
    quiet = choose_round(activity, calls)
    quiet_shares = shares(quiet)
    if quiet_shares.kernels_s <= 0:
        return Window(None, None, "the trace holds no kernels", steps)
    return Window(quiet, quiet_shares, "", steps)


def choose_round(activity: Activity, calls: int) -> Activity:
    """Returns the trace with only its fastest round: a busy computer slows the others.

    A mark lasts up to the next one of its round: on a GPU, and on JAX, a call may return before the
    device has computed. The last call of a round was waited for.

    Args:
        activity: The trace.
        calls: Marks per round.
    """
    marks, rounds = activity.steps, len(activity.steps) // calls
    parts = [_join(marks[first : first + calls]) for first in range(0, len(marks), calls)]
    quietest = min(parts, key=lambda part: part[-1].end_s - part[0].begin_s)
    copied = activity.bytes and {way: each // rounds for way, each in activity.bytes.items()}
    return replace(activity, steps=quietest, bytes=copied)


def _join(marks: Sequence[Step]) -> tuple[Step, ...]:
    ends = [*(mark.begin_s for mark in marks[1:]), marks[-1].end_s]
    return tuple(replace(mark, end_s=end) for mark, end in zip(marks, ends, strict=True))


def explain_missing(activity: Activity, device: str, calls: int) -> str:
    """Returns why a trace shows nothing of a device, or "".

    Args:
        activity: The trace.
        device: The device that trained.
        calls: Marks per round.
    """
    if device.startswith("GPU") and not activity.device.startswith("GPU"):
        return f"the trace shows no work of {device}"
    if not activity.steps or len(activity.steps) % calls:
        return "the trace does not hold the steps that were marked"
    return ""
