"""What a training has done, collected from its parts."""

from __future__ import annotations

from collections import Counter
from operator import truediv
from typing import Any

from gpukeras.backend import devices, runtime
from gpukeras.training.report import FitReport


def summarise(job: Any, elapsed_s: float) -> FitReport:
    """The report of a job, finished or not.

    Args:
        job: A `job.Job` that has begun.
        elapsed_s: Seconds since then.
    """
    done, engine, team = job.progress, job.runner.chooser.finish(), job.team
    plan = job.feed.settle(job.plan)
    reasons = {"engine": engine.reason, "batch_size": plan.batch_reason, "rows": plan.reason}
    if team.replicas > 1:
        reasons["learning_rate"] = explain_rate(job.spec.rate_scaling, team.replicas)
    if job.reason:
        reasons["stopped"] = job.reason
    return FitReport(
        history=done.history,
        learning_rate=done.learning_rate,
        epochs=done.epoch,
        rows=sum(done.epoch_rows),
        elapsed_s=elapsed_s,
        epoch_s=done.epoch_s,
        epoch_rows=done.epoch_rows,
        samples_per_s=max(map(truediv, done.epoch_rows, done.epoch_s), default=0.0),
        input_share=min(1.0, job.feed.wait_s / elapsed_s),
        device=job.device,
        variables=dict(Counter(runtime.variable_devices(job.model))),
        precision=job.model.dtype_policy.name,
        peak_bytes=devices.peak_bytes(job.device),
        engine=engine,
        micro_batch=job.micro // team.replicas,
        replicas=team.replicas,
        workers=team.workers,
        devices=team.devices or (job.device,),
        skipped_steps=job.health.skipped,
        resumed_epochs=done.resumed,
        best_epoch=job.aids.best_epoch,
        stopped=job.stopped,
        notes=(*team.notes, *job.notes, *job.saver.notes),
        reasons=reasons,
        checkpoint=job.saver.folder,
        tensorboard=job.aids.folder,
        plan=plan,
    )


def explain_rate(scaling: str, replicas: int) -> str:
    """What several replicas did to the learning rate."""
    if scaling == "none":
        return "as given: `batch_size` counts the rows of all replicas"
    factor = replicas if scaling == "linear" else replicas**0.5
    return f'{factor:.3g} times the one given: rate_scaling = "{scaling}"'
