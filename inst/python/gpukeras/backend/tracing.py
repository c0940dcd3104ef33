"""Reads evidence of what TensorFlow does: traces, graphs and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpukeras.backend import runtime
from gpukeras.backend.runtime import by_backend


def trace_message(program: bool = False) -> Any:
    """Returns an empty message: a profiler trace (XSpace), or a compiled program (HloProto)."""
    runtime.reader()
    from tensorflow.compiler.xla.service import hlo_pb2
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    return hlo_pb2.HloProto() if program else xplane_pb2.XSpace()


@by_backend
@contextmanager
def profile(folder: str) -> Iterator[None]:
    """Writes a profiler trace of the work inside the context into a folder."""
    profiler = runtime.tensorflow().profiler.experimental
    profiler.start(folder, profiler.ProfilerOptions(host_tracer_level=1, python_tracer_level=0))
    try:
        yield
    finally:
        profiler.stop()


@by_backend
def mark_step(number: int) -> AbstractContextManager[None]:
    """Returns a context whose work a trace shows as a step of a number."""
    trace = runtime.tensorflow().profiler.experimental.Trace
    marked: AbstractContextManager[None] = trace("train", step_num=number, _r=1)
    return marked


@by_backend
def trace_errors() -> tuple[type[BaseException], ...]:
    """Returns the errors of a profiler that cannot record."""
    return (OSError, runtime.tensorflow().errors.OpError)


@contextmanager
def collect_graphs() -> Iterator[list[Any]]:
    """Yields a list that collects the graphs, each on its device, of functions first run inside."""
    graphs: list[Any] = []
    # Not enable_run_metadata(): in TensorFlow 2.21, ending it does not stop the collection.
    runtime.eager_context().enable_graph_collection()
    try:
        yield graphs
        graphs.extend(runtime.eager_context().export_run_metadata().partition_graphs)
    finally:
        runtime.eager_context().disable_graph_collection()


def registered_kernels() -> dict[str, set[str]]:
    """Returns for each op the kinds of devices that this build has kernels for."""
    runtime.tensorflow()
    from tensorflow.python.framework import kernels

    devices: dict[str, set[str]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        devices.setdefault(kernel.op, set()).add(kernel.device_type)
    return devices


def deterministic() -> bool:
    """Whether only deterministic kernels run."""
    runtime.tensorflow()
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())
