"""Collects the report of a training from its parts."""

from __future__ import annotations

from collections import Counter
from operator import truediv
from typing import Any

from gpukeras.backend import devices, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.plan import PipelinePlan
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.autotune import EngineChoice
from gpukeras.training.progress import Progress
from gpukeras.training.report import FitReport


def summarise(
    *,
    model: Model,
    device: str,
    strategy: Strategy,
    progress: Progress,
    plan: PipelinePlan,
    engine: EngineChoice,
    elapsed_s: float,
    wait_s: float,
    microbatch_size: int,
    rate_scaling: str,
    **more: Any,
) -> FitReport:
    """Returns the report of a training, finished or not.

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
        rate_scaling: How the learning rate depends on the number of replicas, see `FitSpec`.
        more: Further fields of `FitReport`.
    """
    reasons = {"engine": engine.reason, "batch_size": plan.batch_reason, "rows": plan.reason}
    if strategy.replicas > 1:
        reasons["learning_rate"] = explain_rate(rate_scaling, strategy.replicas)
    if progress.reason:
        reasons["stopped"] = progress.reason
    return FitReport(
        history=progress.history,
        learning_rate=progress.learning_rate,
        epochs=progress.epoch,
        rows=sum(progress.epoch_rows),
        elapsed_s=elapsed_s,
        epoch_s=progress.epoch_s,
        epoch_rows=progress.epoch_rows,
        samples_per_s=max(map(truediv, progress.epoch_rows, progress.epoch_s), default=0.0),
        input_share=min(1.0, wait_s / elapsed_s),
        device=device,
        variables=dict(Counter(tensor_ops.variable_devices(model))),
        precision=model.dtype_policy.name,
        peak_bytes=devices.peak_bytes(device),
        engine=engine,
        micro_batch=microbatch_size // strategy.replicas,
        replicas=strategy.replicas,
        workers=strategy.workers,
        devices=strategy.devices or (device,),
        resumed_epochs=progress.resumed,
        stopped=progress.stopped,
        reasons=reasons,
        plan=plan,
        **more,
    )


def explain_rate(scaling: str, replicas: int) -> str:
    """Returns a note about how several replicas changed the learning rate."""
    if scaling == "none":
        return "as given: `batch_size` counts the rows of all replicas"
    factor = replicas if scaling == "linear" else replicas**0.5
    return f'{factor:.3g} times the one given: rate_scaling = "{scaling}"'
