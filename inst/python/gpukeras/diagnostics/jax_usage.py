"""Measures how training steps on JAX use a device, for `usage.read_use()`.

JAX never moves an operation to another device: a step computes where its arrays are. So the devices
of a step's results tell where it ran, and no graph has to be read.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.backend.jax_module import jax
from gpukeras.core.keras_types import Model
from gpukeras.diagnostics.batches import Source, read_parts
from gpukeras.profiler import placement

NO_PEAK = "JAX keeps the memory's peak of the whole session, not of a step"


def read_steps(model: Model, source: Source, device: str, batches: int) -> dict[str, Any]:
    """Trains a model for some steps and reports how it used the device.

    Args:
        model: A compiled Keras model, which the caller restores.
        source: Its batches.
        device: The device to train on, such as "GPU:0".
        batches: Number of steps to time and to trace.

    Returns:
        Facts as of `usage.read_use()`; those of TensorFlow's graphs are missing. `held_bytes`
        takes the place of `peak_rise_bytes`: what JAX holds on the GPU while a step's rows are
        there, beyond what it held before.
    """
    use: dict[str, Any] = {"device": device, "batch_size": source.batch_size}
    use["unread"] = {"peak_rise_bytes": NO_PEAK}
    passes = source.passes(1)
    readers: dict[str, Callable[[], Any]] = {
        "first_s": lambda: _time_step(model, next(passes)[0]),
        "median_s": lambda: median(_time_step(model, next(passes)[0]) for _ in range(batches)),
        "variables": lambda: dict(Counter(tensor_ops.variable_devices(model))),
        "held_bytes": lambda: _read_held(model, source, device),
        "expected_bytes": lambda: placement.choose_expected_bytes(
            source.batch(source.batch_size), []
        ),
        "trace": lambda: _read_trace(model, source, batches),
        "numeric": lambda: (
            placement.compare_outputs(model, source.batch(source.batch_size)[0], device)
            if device.startswith("GPU")
            else None
        ),
        "jit": lambda: bool(model.jit_compile),
        "tf32": runtime.tensor_float_32,
        "policy": lambda: placement.read_policy(model),
        "capability": lambda: placement.read_capability(device),
        "card": lambda: placement.read_card(device) or None,
    }
    read_parts(use, readers)
    return use


def _run(model: Model, batch: Any) -> None:
    """Runs a step and waits for it: Keras returns its logs as numbers."""
    model.train_on_batch(*(batch if isinstance(batch, tuple) else (batch,)))


def _time_step(model: Model, batch: Any) -> float:
    began = time.perf_counter()
    _run(model, batch)
    return time.perf_counter() - began


def _read_held(model: Model, source: Source, device: str) -> float | None:
    if not device.startswith("GPU"):
        return None
    before = runtime.memory_info(device)["current"]
    batch = source.place(source.batch(source.batch_size))
    _run(model, batch)
    held = float(runtime.memory_info(device)["current"] - before)
    del batch  # counted until here
    return held


def _read_trace(model: Model, source: Source, batches: int) -> dict[str, Any]:
    """Traces steps and counts the kernels on the streams of GPUs."""
    steps = next(source.passes(batches))
    with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
        with jax().profiler.trace(folder):
            for batch in steps:
                _run(model, batch)
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        planes = jax().profiler.ProfileData.from_file(str(files[0])).planes if files else ()
        return count_kernels(planes)


def count_kernels(planes: Any) -> dict[str, Any]:
    """Returns number and seconds of the events on the streams of GPUs in a profiler trace.

    Args:
        planes: Planes of `jax.profiler.ProfileData`: objects with `name` and `lines`, which have
            `name` and `events` with `duration_ns`.
    """
    gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    streams = [line for gpu in gpus for line in gpu.lines if line.name.startswith("Stream #")]
    lengths = [event.duration_ns for stream in streams for event in stream.events]
    return {"kernels": len(lengths), "kernel_s": sum(lengths) / 1e9, "gpu_planes": len(gpus)}
