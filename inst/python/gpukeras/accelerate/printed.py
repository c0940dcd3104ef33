"""What Keras prints and tells callbacks of a training, where gpukeras runs many batches a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.engine.train_step import step_counter


def build_last(model: Model) -> Any:
    """Returns a Keras callback, to be the last of a training: it prints as Keras' own does."""

    class LastCallback(runtime.keras().callbacks.ProgbarLogger):  # type: ignore[misc] # imported late
        takes_several_batches = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.before = count_updates(model)
            super().on_epoch_begin(epoch, logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(max(0, count_updates(model) - self.before - 1), logs)

    return LastCallback()


def count_updates(model: Model) -> int:
    """Returns the number of batches that a model's optimizer has seen."""
    return int(step_counter(model).numpy())


def print_steps(kind: str, steps: int, verbose: Any) -> Any:
    """Returns Keras' progress bar of an evaluation or prediction, begun; `end_steps()` ends it.

    Args:
        kind: "test" or "predict".
        steps: Batches as Keras counts them.
        verbose: As in Keras; 0 gives None.
    """
    if not verbose:
        return None
    bar = runtime.keras().callbacks.ProgbarLogger()
    bar.set_params({"verbose": verbose, "epochs": 1, "steps": steps})
    getattr(bar, f"on_{kind}_begin")()
    return bar


def end_steps(bar: Any, kind: str, steps: int, logs: Mapping[str, Any] | None = None) -> None:
    """Prints what Keras prints at the end of an evaluation or prediction."""
    if bar is not None:
        getattr(bar, f"on_{kind}_batch_end")(steps - 1, logs)
        getattr(bar, f"on_{kind}_end")(logs)
