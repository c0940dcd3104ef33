"""Records of a profiler trace: works, steps and the activity of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["kernel", "transfer", "host"]
CPU = "CPU"


@dataclass(frozen=True)
class Work:
    """One piece of work.

    Args:
        lane: Where it ran: "GPU:0 stream 15", "CPU 1" (a compute thread), "input 1" (a thread of
            tf.data), "main" (the thread that calls TensorFlow) or "launch 1" (a thread that
            launches work on a GPU).
        name: Name of a kernel, an op or an HLO instruction; "MemcpyH2D"; on "main" the outermost
            call into TensorFlow, or "Python" between two of them.
        kind: "kernel" (computes: a GPU kernel, or an op or thunk on a CPU), "transfer" (a copy or a
            fill by a GPU; the name gives the direction), or "host" (preparing and launching).
        scope: TensorFlow's name of the op, such as "sequential/dense/MatMul"; "" if unknown.
        begin_s: Its begin, in seconds since the trace's first event.
        end_s: Its end, likewise.
        bytes: Bytes copied; None for other work and if the trace does not record them.
        type: The op's type, such as "MatMul"; "" if unknown.
        part: Whether another thread ran it as a part of another work, so that it is not a run of
            its own.
    """

    lane: str
    name: str
    kind: Kind
    scope: str
    begin_s: float
    end_s: float
    bytes: int | None = None
    type: str = ""
    part: bool = False


@dataclass(frozen=True)
class Step:
    """A step marked by `tf.profiler.experimental.Trace("train", step_num=n)`.

    Args:
        number: Its `step_num`.
        begin_s: Its begin, in seconds since the trace's first event.
        end_s: Its end, likewise.
    """

    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Activity:
    """The content of a trace for one device and the thread that feeds it.

    Args:
        works: The device's kernels and transfers and the host's work, by their begin. On a CPU,
            kernels of one lane never overlap.
        steps: The marked steps, by their begin; empty if none was marked.
        device: "GPU:4", the profiler's name, or "CPU".
        devices: The GPUs with events, the busiest first, or "CPU" alone.
        bytes: Bytes copied by direction: "to_device", "to_host", "on_device"; None on a CPU.
        notes: Messages that the profiler wrote into the trace.
        error: A sentence why nothing is known about the device's kernels, or "". With an error, the
            trace supports no shares and no verdict.
    """

    works: tuple[Work, ...]
    steps: tuple[Step, ...]
    device: str
    devices: tuple[str, ...]
    bytes: dict[str, int] | None = None
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def span(self) -> tuple[float, float]:
        """Begin and end of the marked steps, else of the device's work, else (0, 0)."""
        timed = self.steps or [work for work in self.works if work.kind != "host"]
        if not timed:
            return 0.0, 0.0
        return min(event.begin_s for event in timed), max(event.end_s for event in timed)

    @property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """Begin and end of each marked step, or of all work if no step is marked."""
        return tuple((step.begin_s, step.end_s) for step in self.steps) or (self.span,)
