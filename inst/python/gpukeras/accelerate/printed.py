"""What Keras prints and tells callbacks of a training, where gpukeras runs many batches a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.training.keras_terms import KerasTerms

Params = Mapping[str, Any]


def build_first(model: Model, callbacks: Sequence[Any], params: Params, terms: KerasTerms) -> Any:
    """Returns a Keras callback, to be the first of a training.

    It tells all others and the history of the training as Keras would: its steps are the batches,
    not the calls that run many of them.

    Args:
        model: The model.
        callbacks: The others.
        params: `epochs`, `steps` (batches of an epoch, or None if unknown) and `verbose`, as
            Keras gives them to callbacks.
        terms: Learns that the training has begun, and that an epoch ends.
    """

    class FirstCallback(runtime.keras().callbacks.Callback):  # type: ignore[misc] # imported late
        def on_train_begin(self, logs: Any = None) -> None:
            terms.began = True
            for each in (*callbacks, model.history):
                each.set_params(dict(params))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            terms.end_epoch()

    return FirstCallback()


def build_last(model: Model) -> Any:
    """Returns a Keras callback, to be the last of a training: it prints as Keras' own does."""

    class LastCallback(runtime.keras().callbacks.ProgbarLogger):  # type: ignore[misc] # imported late
        takes_several_batches = True
        calls: int | None = None

        def set_params(self, params: Params) -> None:
            if self.calls is None:  # the first are those of gpukeras' own call
                self.calls = params["steps"]
            super().set_params(params)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.before = count_updates(model)
            super().on_epoch_begin(epoch, logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done = count_updates(model) - self.before
            if self.target is not None:
                done = self.target * (batch + 1) // (self.calls or self.target)
            super().on_train_batch_end(max(0, done - 1), logs)

    return LastCallback()


def count_updates(model: Model) -> int:
    """Returns the number of batches that a model's optimizer has seen."""
    return int(model.optimizer.iterations.numpy())


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
