"""Calls a user's functions between epochs, through a Keras callback.

The functions come from R and are wrapped there: a wrapper never raises. It returns `{stop: bool}`,
or `{failed: True}` or `{interrupted: True}` when its function did not return; R keeps the condition
and raises it again, unchanged, when Python has ended cleanly.

No function is called per batch, so these callbacks never slow down an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpukeras.core.errors import GeneratorError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.data.dataset.chunks import GeneratorInterrupt
from gpukeras.distributed import session

HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")

Functions = Mapping[str, Callable[..., Any]]


class FunctionHooks:
    """Calls the functions and evaluates their answers; `as_callback()` makes it a Keras callback.

    Args:
        functions: Functions by hook, with these arguments: `on_train_begin()`,
            `on_epoch_begin(epoch)`, `on_epoch_end(epoch, metrics)`, `on_train_end(metrics)`, epochs
            counted from 1.

    Attributes:
        stopped: "early" when a function asked for an end, "interrupted" when the user interrupted
            one after an epoch; "" otherwise.
        reason: Which function asked for the end, and after which epoch; "" otherwise.
    """

    model: Model  # set by Keras

    def __init__(self, functions: Functions) -> None:
        """Keeps the functions."""
        check_hooks(functions)
        self._functions = dict(functions)
        self.stopped, self.reason = "", ""
        self._wish = ""
        self._epoch = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Runs the hook `on_train_begin()`."""
        self._call("on_train_begin")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Runs the hook `on_epoch_begin()`; `epoch` counts from 0."""
        self._epoch = epoch + 1
        self._call("on_epoch_begin", self._epoch)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Runs the hook `on_epoch_end()`, whose function may end the training.

        The epoch is over, so an interrupt here ends the training without losing its record.
        """
        try:
            self._call("on_epoch_end", self._epoch, split_components(read_metrics(logs)))
        except GeneratorInterrupt:
            self.stopped = "interrupted"
        if self._wish and not self.stopped:
            self.stopped = "early"
            self.reason = f'{self._wish}() said "stop" in epoch {self._epoch}'
        if self.stopped:
            self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Runs the hook `on_train_end()`; only records an interrupt, as nothing is left to stop."""
        try:
            self._call("on_train_end", split_components(read_metrics(logs)))
        except GeneratorInterrupt:
            self.stopped = "interrupted"

    def _call(self, hook: str, *args: Any) -> None:
        if hook not in self._functions:
            return
        with session.resting():
            answer = self._functions[hook](*args)
        if answer.get("failed"):
            raise GeneratorError(f"The function `{hook}` failed{self._place()}.")
        if answer.get("interrupted"):
            raise GeneratorInterrupt(f"Interrupted in the function `{hook}`{self._place()}.")
        if answer.get("stop"):
            self._wish = hook

    def _place(self) -> str:
        return f" in epoch {self._epoch}" if self._epoch else ""


def check_hooks(functions: Functions) -> None:
    """Refuses unknown hooks, and values that are not callable.

    Raises:
        SpecError: naming `callbacks`.
    """
    for name, function in functions.items():
        if name not in HOOKS:
            raise SpecError(
                f"`callbacks` has a function for `{name}`, which is not called.",
                hint=f"Functions are called for {', '.join(HOOKS)}.",
                arg="callbacks",
            )
        if not callable(function):
            raise SpecError(f"`callbacks` must have a function for `{name}`.", arg="callbacks")


def end_callbacks(
    callbacks: Sequence[Any], epoch: int, steps: int, logs: Mapping[str, Any]
) -> None:
    """Calls the end hooks of Keras callbacks for a training that ended within an epoch.

    As in Keras' own `fit()`, the hooks for the end of the epoch run too, with its logs.

    Args:
        callbacks: The user's callbacks, and Keras' own history.
        epoch: Counted from 0.
        steps: Number of its batches that were done.
        logs: The logs passed to them, including the loss.
    """
    for callback in callbacks:
        callback.on_train_batch_end(max(0, steps - 1), dict(logs))
    for callback in callbacks:
        callback.on_epoch_end(epoch, dict(logs))
    for callback in callbacks:
        callback.on_train_end(dict(logs))
