"""The report of a training, from which R makes a `gpu_history`."""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.core.metric_values import Value
from gpukeras.data.plan import PipelinePlan
from gpukeras.engine.autotune import EngineChoice


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """The report of a training.

    Args:
        history: Each metric's value after each epoch, see `metrics`.
        learning_rate: The rate of each epoch's last step.
        epochs: Epochs finished, including those before a resumption.
        rows: Total number of rows trained.
        elapsed_s: Total seconds, including tracing and compiling; since the resumption, if any.
        epoch_s: Seconds of each epoch, including validation.
        epoch_rows: Rows trained in each epoch.
        samples_per_s: Rows per second in the fastest epoch.
        input_share: Share of the time spent waiting for rows.
        device: The device of the model's first variable.
        variables: Number of the model's variables on each device: where it ran.
        precision: Keras' dtype policy of the model.
        peak_bytes: Most GPU memory that was held in this training; None on the CPU, or if unknown.
        engine: The engine that trained, the reason, and the measurements.
        micro_batch: Rows that went through each replica of the model at once: its part of the
            batch, unless memory ran out.
        replicas: Number of replicas of the model, on all computers.
        workers: Number of processes that trained together.
        devices: Devices of this process's replicas.
        skipped_steps: Steps that loss scaling skipped because gradients were not finite.
        resumed_epochs: Epochs that were finished when the training was resumed; 0 otherwise.
        best_epoch: The epoch, counted from 1, whose weights early stopping kept; 0 without.
        validation_freq: Epochs from one validation to the next, or which are validated, from 1.
        stopped: "completed", "early" (by a callback), "interrupted", or "non_finite" (the loss).
        notes: Notes for the user, as sentences.
        reasons: Why the engine, the batch size and the place of the rows were chosen, by name.
        checkpoint: The folder of the checkpoints, or "" where none was saved.
        unsaved: Why checkpoints could not be saved to the end, or "".
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
    input_share: float = 0.0
    device: str
    variables: dict[str, int]
    precision: str
    peak_bytes: float | None
    engine: EngineChoice
    micro_batch: int
    replicas: int = 1
    workers: int = 1
    devices: tuple[str, ...]
    skipped_steps: int
    resumed_epochs: int = 0
    best_epoch: int
    validation_freq: int | tuple[int, ...] = 1
    stopped: str
    notes: tuple[str, ...]
    reasons: dict[str, str]
    checkpoint: str = ""
    unsaved: str = ""
    tensorboard: str = ""
    plan: PipelinePlan


def explain_rate(scaling: str, replicas: int) -> str:
    """Returns a note about how several replicas changed the learning rate."""
    if scaling == "none":
        return "as given: `batch_size` counts the rows of all replicas"
    factor = replicas if scaling == "linear" else replicas**0.5
    return f'{factor:.3g} times the one given: rate_scaling = "{scaling}"'
