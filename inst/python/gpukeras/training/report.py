"""What a training did: the record that R makes a `gpu_history` of."""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.core.metric_values import Value
from gpukeras.data.plan import PipelinePlan
from gpukeras.engine.autotune import EngineChoice


@dataclass(frozen=True)
class FitReport:
    """What a training did.

    Args:
        history: Each metric's value after each epoch, see `metrics`.
        learning_rate: The rate of each epoch's last step.
        epochs: Epochs finished, those before a resumption too.
        rows: Rows trained in all.
        elapsed_s: Seconds in all, tracing and compiling included; since the resumption, if any.
        epoch_s: Seconds of each epoch, validation included.
        epoch_rows: Rows trained in each epoch.
        samples_per_s: Rows a second in the fastest epoch.
        input_share: Share of the time spent waiting for rows.
        device: Where the model's first variable is.
        variables: How many of the model's variables each device holds: where it ran.
        precision: Keras' dtype policy of the model.
        peak_bytes: Most that TensorFlow held of the GPU's memory in this training, or None on the
            CPU.
        engine: The engine that trained, why, and what was measured.
        micro_batch: Rows that went through each replica of the model at once: its part of the
            batch, unless memory ran out.
        replicas: Of the model, on all computers.
        workers: Processes that trained together.
        devices: Where the replicas of this process were.
        skipped_steps: Steps that loss scaling left out because of gradients that were not finite.
        resumed_epochs: Epochs that were finished when the training was resumed; 0 otherwise.
        best_epoch: The epoch, counted from 1, whose weights early stopping kept; 0 without.
        stopped: "completed", "early" (by a callback), "interrupted", or "non_finite" (the loss).
        notes: What happened on the way that its owner should know, sentences.
        reasons: Why the engine, the batch size, the place of the rows were chosen, by name.
        checkpoint: The folder of the checkpoints, or "".
        tensorboard: The folder of TensorBoard's files, or "".
        plan: How the rows reached the device.
    """

    history: dict[str, list[Value]]
    learning_rate: list[float]
    epochs: int
    rows: int
    elapsed_s: float
    epoch_s: list[float]
    epoch_rows: list[int]
    samples_per_s: float
    input_share: float
    device: str
    variables: dict[str, int]
    precision: str
    peak_bytes: float | None
    engine: EngineChoice
    micro_batch: int
    replicas: int
    workers: int
    devices: tuple[str, ...]
    skipped_steps: int
    resumed_epochs: int
    best_epoch: int
    stopped: str
    notes: tuple[str, ...]
    reasons: dict[str, str]
    checkpoint: str
    tensorboard: str
    plan: PipelinePlan
