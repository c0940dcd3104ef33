"""The history of one of many models."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpukeras.core.metric_values import Value


@dataclass
class ModelHistory:
    """What one model has come to in its training.

    Args:
        metrics: Each metric's value after each epoch.
        stopped: "" while it trains, then "completed", "early", "interrupted", "non_finite" or,
            where a worker could not train it, "failed".
        best_epoch: The epoch, from 1, whose weights it ends with; 0 for the last one.
        rates: The learning rate of each epoch's last step.
        skipped: Steps that loss scaling left out, because gradients were not finite.
    """

    metrics: dict[str, list[Value]] = field(default_factory=dict)
    stopped: str = ""
    best_epoch: int = 0
    rates: list[float] = field(default_factory=list)
    skipped: int = 0

    @property
    def epochs(self) -> int:
        """Epochs in the history."""
        return len(self.metrics.get("loss", ()))
