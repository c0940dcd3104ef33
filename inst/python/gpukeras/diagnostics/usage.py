"""Measures how a user's model and data use the GPU by running real training steps.

    model, batches -> steps (timed, traced) -> placement -> numbers -> facts["use"]

The model is restored afterwards: its variables get their values back, and what Keras builds in a
first step (optimizer, metrics, loss) is built in copies. Only a model without weights gets its
weights built, as fit() would build them.

Each part is read separately: a fact that cannot be read is None, with the reason in `unread`.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from statistics import median
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops, tracing
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.diagnostics import jax_usage
from gpukeras.diagnostics.batches import Source, UnreadError, read_parts
from gpukeras.engine.epoch_loop import wait_for
from gpukeras.models import model_checks
from gpukeras.profiler import placement
from gpukeras.profiler.trace.gpu_summary import read_trace
from gpukeras.system.facts import UseFacts
from gpukeras.training.keras_functions import jit_policy
from gpukeras.training.model_guard import untouched

PASSES = 3  # one outlier does not change a median of three
PASS_BATCHES = 8
NONE_MEANS = {
    "capability": "the device is not a GPU of this computer",
    "card": "the device is not a GPU of this computer",
    "cpu_only_ops": "a TensorFlow built for the CPU has no GPU kernels at all",
}
OTHERS = ("device", "held_bytes", "error", "unread")  # of `UseFacts`, which are no readings here
FACTS = [each.name for each in fields(UseFacts) if each.name not in OTHERS] + ["host_s", "jit"]


def read_use(
    model: Model,
    data: Dataset | Sequence[np.ndarray],
    device: str,
    batches: int = 6,
    batch_size: int | None = None,
) -> dict[str, Any]:
    """Trains a model for some steps and reports how it used the device; restores the model.

    Args:
        model: A compiled Keras model.
        data: A dataset with labels, or arrays (features, labels and optionally weights).
        device: TensorFlow's name of the device to train on, such as "GPU:0".
        batches: Number of steps to trace.
        batch_size: Rows per step, or None for the dataset's batch size.

    Returns:
        `facts["use"]`: each name of `FACTS`, `device`, and `unread`, the reasons for facts that are
        None.

    Raises:
        SpecError, DataError, ModelError: if the model cannot be trained on the data.
    """
    model_checks.check_model(model)
    if isinstance(data, Dataset):
        model_checks.check_rows(model, data)
    source = Source(data, device, batch_size)
    placed = runtime.on_device(device, soft=True)
    with placed, jit_policy(model), untouched(model, source.batch):
        if runtime.backend() == "jax":
            return jax_usage.read_steps(model, source, device, batches)
        return _Reading(model, source, device, batches).read()


# Reading -----------------------------------------------------------------------------------------


class _Reading:
    """The shared state of one reading."""

    def __init__(self, model: Model, source: Source, device: str, batches: int) -> None:
        self.model, self.source, self.device, self.batches = model, source, device, batches
        self.gpu = device.startswith("GPU")
        self.use: dict[str, Any] = dict.fromkeys(FACTS)
        self.step_s = 0.0
        self.tracings = 0
        self.ops: set[str] | None = None

    def read(self) -> dict[str, Any]:
        """Reads all parts, the real steps first so that later parts run on a warm device."""
        self.use.update(device=self.device, unread={}, batch_size=self.source.batch_size)
        read_parts(self.use, {"first_s": self._read_first})
        if self.use["first_s"] is not None:
            trained: dict[str, Callable[[], Any]] = {
                "median_s": self._read_speed,
                "peak_rise_bytes": self._read_memory,
                "trace": self._read_trace,
            }
            read_parts(self.use, trained)
        read_parts(
            self.use,
            {
                "placement": self._read_placement,
                "hard_placement_error": self._read_hard_placement,
                "numeric": self._read_numeric,
            },
        )
        self._read_settings()
        return self.use

    def _read_settings(self) -> None:
        model = self.model
        eager = bool(model.run_eagerly)
        readers: dict[str, Callable[[], Any]] = {
            "variables": lambda: dict(Counter(tensor_ops.variable_devices(model))),
            "eager": lambda: eager,
            "jit": lambda: bool(model.jit_compile) and not eager,
            "deterministic": tracing.deterministic,
            "tf32": runtime.tensor_float_32,
            "policy": lambda: placement.read_policy(model),
            "capability": lambda: placement.read_capability(self.device),
            "card": lambda: placement.read_card(self.device) or None,
            "input_dtypes": lambda: [str(self.source.sources[0].dtype)],
            "rnn": lambda: placement.read_rnn(model),
            "py_function": lambda: bool(self._traced() & placement.PYTHON_OPS),
            "cpu_only_ops": lambda: placement.read_cpu_only(self._traced()),
            "expected_bytes": self._expected_bytes,
            "gpus": lambda: len(runtime.visible_devices("GPU")),
            "gpus_used": self._count_gpus,
        }
        read_parts(self.use, readers)
        for part in readers:
            if self.use[part] is None:
                self.use["unread"].setdefault(part, NONE_MEANS.get(part, "not told"))

    # Steps

    def _run(self, batches: Iterable[tuple[Any, ...]]) -> float:
        """Runs steps of the model and returns the seconds until the last was dispatched."""
        began = time.perf_counter()
        for batch in batches:
            logs = self._function(iter([batch]))
        handed = time.perf_counter() - began
        wait_for(logs)
        return handed

    def _read_first(self) -> float:
        """Times the first step, including tracing and compiling, then a warm step."""
        model, step = self.model, self.model.train_step

        @functools.wraps(step)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.tracings += 1
            return step(*args, **kwargs)

        vars(model)["train_step"] = counted
        model.steps_per_execution = 1
        model.make_train_function(force=True)
        self._function = model.train_function
        vars(model)["train_step"] = step
        batches = next(self.source.passes(1))
        first_s = _seconds(lambda: self._run(batches))
        self._run(batches)
        self.step_s = _seconds(lambda: self._run(batches))
        return first_s

    def _read_speed(self) -> float:
        """Returns the median seconds of a step, and notes what else such steps tell."""
        count = placement.choose_count(self.step_s, PASS_BATCHES)
        passes = self.source.passes(count)
        real, repeated, host, steps = [], [], [], 0
        for _ in range(PASSES):
            batches = next(passes)
            again = [batches[0]] * len(batches)
            seconds = _seconds(
                functools.partial(lambda some: host.append(self._run(some)), batches)
            )
            real.append((self.source.wait_s + seconds) / len(batches))
            repeated.append(_seconds(functools.partial(self._run, again)) / len(again))
            host[-1] /= len(batches)
            steps += 2 * len(batches)
        eager = bool(self.model.run_eagerly)
        self.use.update(
            repeated_s=median(repeated),
            host_s=median(host),
            steps=steps,
            retraces=None if eager else max(0, self.tracings - 1),
        )
        return median(real)

    def _read_memory(self) -> float:
        """Measures by how much a step, including its batch, raises the peak of device memory."""
        if not self.gpu:
            raise UnreadError("TensorFlow does not count the CPU's memory")
        arrays = self.source.batch(self.source.batch_size)
        before = runtime.memory_info(self.device)["current"]
        runtime.reset_memory_peak(self.device)
        self._run([self.source.place(arrays)])
        return float(runtime.memory_info(self.device)["peak"] - before)

    def _expected_bytes(self) -> float:
        model, ops = self.model, self._traced()
        weights = [each.value for each in model.trainable_variables]
        gradients = [int(np.prod(each.shape)) * each.dtype.size for each in weights]
        whole = not (model.jit_compile or ops & placement.ROW_OPS)
        return placement.choose_expected_bytes(
            self.source.batch(self.source.batch_size), gradients if whole else []
        )

    def _read_trace(self) -> dict[str, Any]:
        tf = runtime.tensorflow()
        count = max(2, placement.choose_count(self.step_s, self.batches))
        batches = itertools.islice(itertools.cycle(next(self.source.passes(count))), count)
        with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
            with tracing.profile(folder):
                for number, batch in enumerate(batches):
                    with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                        self._run([batch])
            found = read_trace(folder).to_facts()
        if self.gpu and not found["events"] and not found["error"]:
            found.update(kernels=None, kernel_s=None, busy_s=None, events=None)
            found["error"] = "the profiler recorded no GPU"
        return found

    # Graphs

    def _read_placement(self) -> dict[str, Any]:
        """Reads the device of each op of a step, without XLA, which would fuse them into one op."""
        batch = next(self.source.passes(1))[0]
        step = runtime.tensorflow().function(self.model.train_step, autograph=False)
        self.ops = placement.read_ops(step.get_concrete_function(batch).graph.as_graph_def())
        with tracing.collect_graphs() as graphs:
            wait_for(step(batch))
        if not graphs:
            raise UnreadError("TensorFlow did not tell the graphs that it ran")
        return placement.count_placement(graphs)

    def _read_hard_placement(self) -> str:
        """Returns the error of a step without soft placement, or ""."""
        if self.use["placement"] is None:
            raise UnreadError("a step without this demand does not run either")
        tf = runtime.tensorflow()
        logical = runtime.logical_devices(self.device.partition(":")[0])
        if not any(each.name.endswith(f":{self.device}") for each in logical):
            raise UnreadError(f"TensorFlow has no {self.device}")
        batch = next(self.source.passes(1))[0]

        @functools.partial(tf.function, autograph=False)
        def step(batch: Any) -> Any:
            with tf.device(f"/{self.device}"):
                return self.model.train_step(batch)

        try:
            with runtime.on_device(self.device, soft=False):
                wait_for(step(batch))
        except tf.errors.InvalidArgumentError as error:
            return placement.choose_line(str(error))
        return ""

    def _traced(self) -> set[str]:
        if self.ops is None:
            raise UnreadError("the training step was not traced")
        return self.ops

    def _count_gpus(self) -> int:
        trace, places = self.use["trace"] or {}, self.use["placement"] or {}
        named = {name for name in [*places, *(self.use["variables"] or ())] if "GPU" in name}
        return max(len(named), trace.get("gpus") or 0)

    # Numbers

    def _read_numeric(self) -> dict[str, Any]:
        if not self.gpu:
            raise UnreadError("the device is the CPU itself, there is nothing to compare with")
        features = self.source.batch(self.source.batch_size)[0]
        return placement.compare_outputs(self.model, features, self.device)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
