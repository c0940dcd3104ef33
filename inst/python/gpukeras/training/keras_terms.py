"""What Keras' `fit()` has and `gpu_fit()` has not, for scripts that run unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class KerasTerms:
    """The terms of one training; the defaults are those of `gpu_fit()`.

    Args:
        validation_rows: Rows per batch of the validation where it depends on them; None for those
            of the training.
        params: What callbacks are told of the training; None for what gpu_fit() tells them.
        continue_on_nan: Whether the training goes on with a loss that is not finite, as in Keras.

    Attributes:
        taken: Whether batches were taken from an iterator that does not give them again.
        began: Whether callbacks have been told that the training begins.
        calls: Calls of the engine that have returned.
        failed: The error of such a call, or None.
        once_built: The state of NumPy's global generator after Keras has built the model, whose
            rows it shuffles by that generator on JAX; None where they are not shuffled.
    """

    validation_rows: int | None = None
    params: Mapping[str, Any] | None = None
    continue_on_nan: bool = False
    taken: bool = False
    began: bool = False
    calls: int = 0
    failed: Exception | None = None
    once_built: Any = None

    @property
    def failed_at_first(self) -> bool:
        """Whether the first call failed, after which the model gets its state from before it."""
        return self.continue_on_nan and self.failed is not None and not self.calls

    def run(self, advance: Callable[[], Any]) -> Any:
        """Runs one call of the engine, and records whether and how it failed.

        Args:
            advance: Runs its batches, and returns the logs.
        """
        try:
            logs = advance()
        except Exception as error:
            self.failed = error
            raise
        self.calls += 1
        return logs
