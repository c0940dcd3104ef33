"""Profiles the training of a model: where a step's time goes, what bounds it, and what to do.

    model, rows -> steps (timed, traced) -> shares -> verdict -> advice -> (measured again)

Profiling trains the model and then restores its weights, optimizer, metrics and random state, also
after errors and interrupts.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.backend.oom import explain_exhaustion, memory_errors
from gpukeras.core.errors import DataError, GpuKerasError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of, find_reason
from gpukeras.core.options import (
    ENGINES,
    Spec,
    check_choice,
    check_count,
    check_flag,
    check_text,
    option,
)
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.data.plan import PipelinePlan
from gpukeras.engine.autotune import choose_candidates
from gpukeras.engine.batch_rows import model_device
from gpukeras.engine.engine_cache import ATTRIBUTE
from gpukeras.engine.engine_facts import read_engine_facts
from gpukeras.engine.refusals import (
    engine_refusals,
    explain_inability,
    is_inability,
    raise_explained,
)
from gpukeras.engine.train_step import single_replica
from gpukeras.models import model_checks, model_recipes
from gpukeras.models.losses import weighing_rows
from gpukeras.profiler import placement
from gpukeras.profiler.advice import (
    LAYER_SHARE,
    AdviceFacts,
    explain_short_epoch,
    free_gain,
    plan_advice,
)
from gpukeras.profiler.benchmark import Bench, StepTimes
from gpukeras.profiler.bottleneck import judge, split_step
from gpukeras.profiler.cost.model_cost import model_cost
from gpukeras.profiler.cost.suggestions import Suggestion
from gpukeras.profiler.layer_times import OPTIMIZER, LayerTime, read_layers, top_kernels, top_ops
from gpukeras.profiler.peak_use import measure_peak_use
from gpukeras.profiler.report import Advice, InputCost, ProfileReport, StageTime
from gpukeras.profiler.trace_window import read_window
from gpukeras.training.batch_size import remembered_size
from gpukeras.training.keras_functions import jit_policy
from gpukeras.training.model_guard import untouched

TRACE_S = 10.0  # of traced steps, at most
FEWEST_STEPS = 2  # at least
CHEAP_S = 1e-5  # of an optimizer's whole update: below this its trace lacks some operations
COSTLY = re.compile("Conv|Attention")  # layers for which the model's cost suggests cheaper ones


def _check_size(arg: str, value: Any) -> int | None:
    return None if value == "auto" else check_count(arg, value)


@dataclass(frozen=True)
class ProfileSpec(Spec):
    """Options of a profile.

    Args:
        steps: Steps to trace.
        engine: "auto" is the engine that last trained the model; else the graph loop, or the only
            engine that can train the model.
        batch_size: Rows per step; None or "auto" is the size that `gpu_batch_size()` found, or else
            the dataset's own.
        verify: Whether each piece of advice is tried and its gain measured.
        log_dir: A folder for the trace, where TensorBoard finds it; None keeps no trace.
    """

    steps: int = option(20, check_count, 1, 1000)
    engine: str = option("auto", check_choice, ENGINES)
    batch_size: int | str | None = option(None, _check_size)
    verify: bool = option(False, check_flag)
    log_dir: str | None = option(None, check_text, "the name of a folder")


def profile(
    model: Model, data: Dataset, options: Mapping[str, Any], on_event: OnEvent | None = None
) -> ProfileReport:
    """Trains a model for some steps, reports where their time goes, and restores the model.

    If a function supplies the rows of each epoch, it is called for the profile too.

    Args:
        model: A compiled Keras model.
        data: The dataset.
        options: Fields of `ProfileSpec`.
        on_event: Called between calls with `{kind}`, the current phase; if it returns True, the
            profile ends with a KeyboardInterrupt.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit.
        OutOfMemoryError: if a step does not fit into the device's memory.
    """
    spec = ProfileSpec.from_dict(options)
    folder = _open_folder(spec.log_dir)
    model_checks.check_model(model)
    model_checks.check_rows(model, data)
    model_recipes.check_encoding(model, data.recipe)
    trained = _trained_engine(model)
    guard = untouched(model, partial(sample_rows, data))
    with guard, jit_policy(model), weighing_rows(model), single_replica(model), folder as path:
        plan = _plan(model, data, spec)
        with _memory_errors(plan):
            return _Profile(model, data, plan, spec, path, trained, on_event).run()


# Before the first step ---------------------------------------------------------------------------


def _open_folder(log_dir: str | None) -> Any:
    """Returns the trace's folder as a context manager; a temporary one is deleted on exit."""
    if log_dir is None:
        return tempfile.TemporaryDirectory(prefix="gpukeras-")
    path = Path(log_dir).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"`log_dir`: the folder {path.name} cannot be made: {error.strerror}.",
            hint="Name a folder that may be written to.",
            arg="log_dir",
            path=str(path),
        ) from error
    return nullcontext(str(path))


def _trained_engine(model: Model) -> str:
    """Returns the engine that last trained a model, or "" if unknown."""
    kept = vars(model).get(ATTRIBUTE) or {}
    if "train" not in kept:
        return ""
    engines = kept["train"][1]
    ran = [name for name in ENGINES if name in engines.ran]
    return engines.chosen or (ran[0] if len(ran) == 1 else "")


def _plan(model: Model, data: Dataset, spec: ProfileSpec) -> PipelinePlan:
    size = spec.batch_size or remembered_size(model, data)
    return data.plan(model_device(model), size)


def _memory_errors(plan: PipelinePlan) -> AbstractContextManager[None]:
    hint = "Use a smaller `batch_size`; gpu_batch_size() finds what fits."
    return memory_errors(lambda: explain_exhaustion(plan.device, plan.batch_size, hint))


# Profiling ---------------------------------------------------------------------------------------


@dataclass
class _Profile:
    """State of one profile, shared by its steps."""

    model: Model
    data: Dataset
    plan: PipelinePlan
    spec: ProfileSpec
    folder: str
    trained: str
    on_event: OnEvent | None
    notes: list[str] = field(default_factory=list)

    def run(self) -> ProfileReport:
        """Measures, traces, judges and advises."""
        bench = self._open_bench()
        times = bench.measure()
        cost = price_input(times, *bench.drain())
        steps = self._choose_steps(bench.step_s)
        window = read_window(bench, self.folder, self.plan.device, steps)
        self.notes += window.explain(times.repeated_s)
        parts = split_step(times.real_s, times.wait_s, window.shares, steps)
        verdict = judge(parts, window.unread)
        kernels_s = (parts["kernels"] or 0.0) * times.real_s
        named = read_layers(self.model)
        layers = window.list_layers(named, kernels_s)
        xla = self.engine == "compiled" or self.model.jit_compile
        if not (xla or self.model.run_eagerly):  # in eager mode no op carries its layer's name
            self.notes += explain_cheap_ops(layers, self.plan.device)
        facts = self._advice_facts(parts, cost, layers)
        self.notes += explain_short_epoch(facts)
        advice = plan_advice(facts)
        size, step_s = self.plan.batch_size, times.real_s
        peak, why = measure_peak_use(self.model, self.plan.device, size, step_s)
        self.notes += [why] if why else []
        if self.spec.verify:
            advice = self._verify(bench, advice)
        return ProfileReport(
            verdict=verdict.verdict,
            sentence=verdict.sentence,
            decided_by=verdict.decided_by,
            device=self.plan.device,
            engine=self.engine,
            reason=self.reason,
            batch_size=self.plan.batch_size,
            steps=steps,
            step_s=times.real_s,
            samples_per_s=self.plan.batch_size / times.real_s,
            shares=parts,
            ops=window.list_ops(partial(top_ops, layers=named), kernels_s),
            layers=layers,
            kernels=window.list_ops(top_kernels, kernels_s),
            bytes=window.count_bytes(self._sent_bytes()),
            input=cost,
            advice=advice,
            timeline=window.draw_timeline(),
            peak=peak,
            trace="" if self.spec.log_dir is None else self.folder,
            notes=tuple(self.notes),
        )

    def _choose_steps(self, step_s: float) -> int:
        """Returns the number of steps to trace: fewer than requested if they take too long."""
        steps = min(self.spec.steps, max(FEWEST_STEPS, int(TRACE_S / step_s)))
        if steps < self.spec.steps:
            traced = count_of(steps, "traced step")
            self.notes.append(f"There are {traced}: {self.spec.steps} would take too long.")
        return steps

    def _sent_bytes(self) -> int:
        """Returns the bytes of a batch that are copied to the device for its step."""
        resident = self.plan.mode == "resident"
        return 0 if resident else self.data.row_bytes * self.plan.batch_size

    def _emit(self, kind: str) -> None:
        if self.on_event is not None and self.on_event({"kind": kind}) is True:
            raise KeyboardInterrupt

    # Steps

    def _open_bench(self) -> Bench:
        """Returns a bench of the engine that would train.

        If the engine was chosen automatically and cannot run the model, it is Keras' own.

        Raises:
            ModelError: if the engine was requested, or is Keras' own, and cannot run the model.
        """
        names, alone = choose_candidates(read_engine_facts(self.model, self.spec.engine))
        self.engine, self.reason = choose_engine(names, alone, self.trained)
        try:
            return self._bench(self.engine, self.plan)
        except engine_refusals() as error:
            if not is_inability(error, self.engine):
                raise_explained(self.model, error)
            if self.spec.engine != "auto" or self.engine == "keras":
                raise explain_inability(self.engine, error) from error
            self.reason = f'"{self.engine}" cannot run this model: {find_reason(error)}'
            self.engine = "keras"
            return self._bench(self.engine, self.plan)

    def _bench(self, engine: str, plan: PipelinePlan) -> Bench:
        return Bench(self.model, self.data, plan, engine, self._emit)

    # Advice

    def _advice_facts(
        self, parts: Mapping[str, float | None], cost: InputCost, layers: tuple[LayerTime, ...]
    ) -> AdviceFacts:
        return AdviceFacts(
            shares=parts,
            engine=self.engine,
            engines=self._others(),
            batch_size=self.plan.batch_size,
            rows=self.data.epoch_rows or None,
            device=self.plan.device,
            gpus=len(runtime.visible_devices("GPU")),
            capability=placement.read_capability(self.plan.device) or "",
            card=placement.read_card(self.plan.device),
            policy=placement.read_policy(self.model),
            input=cost,
            source=self.data.source_kind,
            mode=self.plan.mode,
            eager=bool(self.model.run_eagerly),
            layers=layers,
            suggestions=self._suggest(layers),
        )

    def _suggest(self, layers: tuple[LayerTime, ...]) -> tuple[Suggestion, ...]:
        """Returns cheaper layers if convolutions or attention dominate."""
        costly = sum(row.share for row in layers if COSTLY.search(row.kind))
        if costly < LAYER_SHARE:
            return ()
        try:
            return tuple(model_cost(self.model, self.plan.batch_size).suggestions)
        except GpuKerasError:  # a model whose cost cannot be counted still gets its profile
            return ()

    def _others(self) -> tuple[str, ...]:
        """Returns the other engines that could train this model."""
        names, _ = choose_candidates(read_engine_facts(self.model, "auto"))
        return tuple(name for name in names if name != self.engine)

    def _verify(self, bench: Bench, advice: tuple[Advice, ...]) -> tuple[Advice, ...]:
        """Returns the advice with measured gains, relative to a new measurement of the step."""
        base = self.plan.batch_size / bench.measure().real_s
        return tuple(self._measure_gain(each, base) if each.apply else each for each in advice)

    def _measure_gain(self, advice: Advice, base: float) -> Advice:
        plan, requested = self.plan, advice.apply.get("engine", self.engine)
        if "batch_size" in advice.apply:
            plan = self.data.plan(plan.device, advice.apply["batch_size"])
        rates = []
        for engine in self._others() if requested == "auto" else (requested,):
            try:
                rates.append(plan.batch_size / self._bench(engine, plan).measure().real_s)
            except tensor_ops.exhausted():
                self.notes.append(f'"{advice.id}" with "{engine}" ran out of memory.')
            except engine_refusals(DataError) as error:
                self.notes.append(f'"{advice.id}" with "{engine}" failed: {find_reason(error)}')
        return replace(advice, measured=max(rates) / base) if rates else advice


def choose_engine(names: tuple[str, ...], alone: str, trained: str) -> tuple[str, str]:
    """Returns the engine to profile, and why.

    Args:
        names: The engines that can be chosen.
        alone: Why only one engine can be chosen, or "".
        trained: The engine that last trained the model, or "".
    """
    if len(names) == 1:
        return names[0], alone
    if trained in names:
        return trained, "it trained the model last"
    return "graph_loop", "the first that gpu_fit() tries"


def explain_cheap_ops(layers: Sequence[LayerTime], device: str) -> list[str]:
    """Returns a note on small operations that a CPU's trace lacks.

    From about the 90th run on, TensorFlow's executor runs an operation that takes less than some
    8,000 cycles without reporting it to the profiler (TensorFlow 2.21, at any profiler level).
    """
    updated_s = sum(row.total_s for row in layers if row.layer == OPTIMIZER)
    quick = layers and updated_s < CHEAP_S
    if not quick or not device.startswith("CPU"):
        return []
    return [
        "Operations of a few microseconds, the optimizer's for example, are not in the trace: "
        "their time counts as the host's."
    ]


def price_input(times: StepTimes, alone_s: float, stages: tuple[StageTime, ...]) -> InputCost:
    """Returns the cost of the input.

    The speedup uses the waiting time, which one clock measured within the same steps. The steps on
    repeated rows ran at another time, and a busy computer may slow down one of the two.

    Args:
        times: Seconds of a step.
        alone_s: Seconds per batch of the input without training.
        stages: The stages of the input.
    """
    return InputCost(
        real_s=times.real_s,
        wait_s=times.wait_s,
        repeated_s=times.repeated_s,
        alone_s=alone_s,
        speedup_if_free=free_gain(times.wait_s / times.real_s),
        stages=stages,
    )
