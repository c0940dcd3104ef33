"""The memory of a training's device: what it has to hold, and less where that is too much."""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.backend.oom import explain_exhaustion
from gpukeras.core.errors import OutOfMemoryError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.engine.rowwise import explain_loss
from gpukeras.engine.train_step import why_not_split


@dataclass
class MemoryUse:
    """The rows that a model takes at once.

    Args:
        model: The model.
        batch_size: Rows per batch, or what was asked for before they are known.
        device: The device of the model.
        microbatch_size: Rows that go through the model at once, all replicas together; 0 while
            unknown.
        peak_before: See `devices.reset_peak()`.
    """

    model: Model
    batch_size: int | str | None
    device: str = "the device"
    microbatch_size: int = 0
    peak_before: float = 0.0

    def resume(self, microbatch_size: int | None) -> None:
        """Takes as many rows at once as before the interruption, if these were fewer."""
        self.microbatch_size = min(self.microbatch_size, microbatch_size or self.microbatch_size)

    def halve(self) -> str:
        """Takes half as many rows at once; returns a note."""
        self.microbatch_size = -(-self.microbatch_size // 2)
        rows = count_of(int(self.batch_size or 0), "row")
        differs = explain_loss(self.model)
        return (
            f"{self.device} ran out of memory: batches of {rows} "
            f"go through the model {self.microbatch_size:,} at a time, and their gradients are "
            "added up." + f" That may differ from whole batches: {differs}." * bool(differs)
        )

    def explain(self) -> OutOfMemoryError:
        """Returns the error of a training that does not fit into memory."""
        part = self.microbatch_size
        halved = f", {count_of(part, 'row')} at a time" if part not in (0, self.batch_size) else ""
        why = why_not_split(self.model)
        hint = 'Use a smaller `batch_size` or model, or gpu_dataset(cache = "host").'
        return explain_exhaustion(
            self.device, self.batch_size, hint, halved + f", and {why}" * bool(why)
        )
