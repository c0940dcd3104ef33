"""Collects the report of a training from its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import truediv

from gpukeras.backend import devices, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.plan import PipelinePlan
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.autotune import EngineChoice
from gpukeras.training.progress import Progress
from gpukeras.training.report import FitReport


@dataclass(frozen=True)
class Outcome:
    """The data of a training, finished or not, for its report; see also `FitReport`.

    Args:
        model: The model.
        device: Its device.
        strategy: The replicas of the model.
        progress: The epochs.
        plan: How the rows reached the device.
        engine: The engine that trained.
        elapsed_s: Seconds since the training began.
        wait_s: Seconds of these spent waiting for rows.
        microbatch_size: Rows that went through the model at once, all replicas together.
        skipped_steps: Steps whose gradients were not finite.
        best_epoch: The epoch, counted from 1, whose weights early stopping kept; 0 without.
        stopped: "completed", "early", "interrupted" or "non_finite".
        why: Why it stopped, or "".
        rate_scaling: How the learning rate depends on the number of replicas, see `FitSpec`.
        notes: Sentences about the training.
        checkpoint: The folder of the checkpoints, or "" where none was saved.
        unsaved: Why checkpoints could not be saved to the end, or "".
        tensorboard: The folder of TensorBoard's files, or "".
    """

    model: Model
    device: str
    strategy: Strategy
    progress: Progress
    plan: PipelinePlan
    engine: EngineChoice
    elapsed_s: float
    wait_s: float
    microbatch_size: int
    skipped_steps: int
    best_epoch: int
    stopped: str
    why: str
    rate_scaling: str
    notes: tuple[str, ...]
    checkpoint: str
    unsaved: str
    tensorboard: str


def summarise(outcome: Outcome) -> FitReport:
    """Returns the report of a training."""
    done, plan, strategy = outcome.progress, outcome.plan, outcome.strategy
    engine = outcome.engine
    reasons = {"engine": engine.reason, "batch_size": plan.batch_reason, "rows": plan.reason}
    if strategy.replicas > 1:
        reasons["learning_rate"] = explain_rate(outcome.rate_scaling, strategy.replicas)
    if outcome.why:
        reasons["stopped"] = outcome.why
    return FitReport(
        history=done.history,
        learning_rate=done.learning_rate,
        epochs=done.epoch,
        rows=sum(done.epoch_rows),
        elapsed_s=outcome.elapsed_s,
        epoch_s=done.epoch_s,
        epoch_rows=done.epoch_rows,
        samples_per_s=max(map(truediv, done.epoch_rows, done.epoch_s), default=0.0),
        input_share=min(1.0, outcome.wait_s / outcome.elapsed_s),
        device=outcome.device,
        variables=dict(Counter(tensor_ops.variable_devices(outcome.model))),
        precision=outcome.model.dtype_policy.name,
        peak_bytes=devices.peak_bytes(outcome.device),
        engine=engine,
        micro_batch=outcome.microbatch_size // strategy.replicas,
        replicas=strategy.replicas,
        workers=strategy.workers,
        devices=strategy.devices or (outcome.device,),
        skipped_steps=outcome.skipped_steps,
        resumed_epochs=done.resumed,
        best_epoch=outcome.best_epoch,
        stopped=outcome.stopped,
        notes=outcome.notes,
        reasons=reasons,
        checkpoint=outcome.checkpoint,
        unsaved=outcome.unsaved,
        tensorboard=outcome.tensorboard,
        plan=plan,
    )


def explain_rate(scaling: str, replicas: int) -> str:
    """Returns a note about how several replicas changed the learning rate."""
    if scaling == "none":
        return "as given: `batch_size` counts the rows of all replicas"
    factor = replicas if scaling == "linear" else replicas**0.5
    return f'{factor:.3g} times the one given: rate_scaling = "{scaling}"'
