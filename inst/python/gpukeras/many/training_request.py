"""The request of a training among others, and its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from gpukeras.backend import devices, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.engine.autotune import EngineChoice
from gpukeras.many.batches import count_steps
from gpukeras.many.copies import write_state
from gpukeras.many.fits import Fitted
from gpukeras.many.members import Member
from gpukeras.many.options import ManySpec
from gpukeras.many.plan import ModelFacts
from gpukeras.many.structure import Structure
from gpukeras.many.training import Task
from gpukeras.training.baseline import fill_baseline
from gpukeras.training.fit import tie_data
from gpukeras.training.history_registry import keep_history
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.nan_guard import explain_stop
from gpukeras.training.report import FitReport

STACKED = "stacked"  # the engine of models that train as one program


@dataclass(frozen=True)
class TrainingRequest:
    """The request of a training.

    Args:
        place: Its place among all requests.
        model: The model, which is trained in place.
        data: Its rows.
        seed: Seed of the order of its rows.
        spec: The options.
        batch_size: Rows per step.
        structure: The model's structure.
        facts: What the model needs.
        alone: Why the model does not stack, or "".
    """

    place: int
    model: Model
    data: MapDataset
    seed: int
    spec: ManySpec
    batch_size: int
    structure: Structure
    facts: ModelFacts
    alone: str = ""

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        short = self.data.spec.drop_last
        each = count_steps(len(self.data.train_rows), self.batch_size, short)
        return each * self.spec.epochs

    @property
    def layout(self) -> str:
        """Equal for trainings whose rows may be put one after another."""
        recipe, spec = self.data.recipe, self.data.spec
        sources = [(source.shape[1:], str(source.dtype)) for source in self.data.sources]
        outputs = recipe.label.outputs if recipe.label else ()
        parts = sources, recipe.parts, outputs, recipe.features.listed, recipe.shape
        return repr((parts, spec.shuffle, spec.drop_last))

    @property
    def key(self) -> str:
        """Equal for trainings that may share a program."""
        return repr((self.layout, self.spec, self.batch_size, self.structure.key))

    def make_task(self, data: MapDataset, device: str, listener: ProgressReporter) -> Task:
        """Returns the training, on rows among which its own are."""
        spec = replace(self.spec, repeats=True)
        return Task(data, spec, self.batch_size, device, listener)

    def make_member(self, first: int) -> Member:
        """Returns its rows, which begin at a first row."""
        train, held = self.data.train_rows + first, self.data.validation_rows + first
        return Member(self.place + 1, self.place, self.seed, "", "", train, held)


def finish(
    request: TrainingRequest, fitted: Fitted, device: str, seconds: float, engine: EngineChoice
) -> FitReport:
    """Gives a model its state, as `fit()` would leave it, and reports its training.

    Args:
        request: The request of the training.
        fitted: What the model has become.
        device: Where this process trains.
        seconds: Seconds of the training, or its share of those of all models of its program.
        engine: What trained it, and why.
    """
    model, data = request.model, request.data
    write_state(model, fitted.state)
    tie_data(model, data)
    report = _report(request, fitted, device, seconds, engine)
    fill_baseline(model, data)
    keep_history(model, report)
    return report


def _report(
    request: TrainingRequest, fitted: Fitted, device: str, seconds: float, engine: EngineChoice
) -> FitReport:
    own, rows = fitted.history, len(request.data.train_rows)
    epochs, plan = own.epochs, request.data.plan(device)
    if fitted.ran is not None:
        device, engine = fitted.ran.device, replace(engine, engine=fitted.ran.engine)
    each = seconds / max(1, epochs)
    reasons = {"engine": engine.reason, "batch_size": plan.batch_reason, "rows": plan.reason}
    notes: tuple[str, ...] = ()
    if own.stopped == "non_finite":
        which = f"after epoch {epochs}" if epochs else "that it began with"
        why = f"the loss was no finite number in epoch {epochs + 1}"
        notes, reasons = (explain_stop(why, which),), {**reasons, "stopped": why}
    return FitReport(
        history=own.metrics,
        learning_rate=own.rates,
        epochs=epochs,
        rows=rows * epochs,
        elapsed_s=seconds,
        epoch_s=[each] * epochs,
        epoch_rows=[rows] * epochs,
        samples_per_s=rows / each if epochs and each else 0.0,
        device=device,
        variables=dict(Counter(tensor_ops.variable_devices(request.model))),
        precision=request.model.dtype_policy.name,
        peak_bytes=fitted.ran.peak_bytes if fitted.ran else devices.peak_bytes(device),
        engine=engine,
        micro_batch=request.batch_size,
        devices=(device,),
        skipped_steps=own.skipped,
        best_epoch=own.best_epoch,
        stopped=own.stopped,
        notes=notes,
        reasons=reasons,
        plan=plan,
    )
