"""Functions of the user's, called between epochs as Keras calls a callback.

The functions are R's and wrapped there: a wrapper never raises. It answers `{stop: bool}`, or
`{failed: True}` or `{interrupted: True}` when its function did not come to an end; R keeps the
condition and raises it again, as it was, when Python has ended cleanly.

None is called for a batch, so these callbacks never slow down an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import GeneratorError, SpecError
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.data.streams.generator import GeneratorInterrupt
from gpukeras.distributed import session

HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")

Functions = Mapping[str, Callable[..., Any]]


class FunctionHooks:
    """Calls the functions and judges their answers; a Keras callback hands on to it.

    Args:
        functions: By hook; called with what follows: `on_train_begin()`, `on_epoch_begin(epoch)`,
            `on_epoch_end(epoch, metrics)`, `on_train_end(metrics)`, epochs counted from 1.

    Attributes:
        stopped: "early" when a function asked for an end, "interrupted" when the user interrupted
            one after an epoch; "" otherwise.
        reason: Which function asked for the end, and after which epoch; "" otherwise.
    """

    def __init__(self, functions: Functions) -> None:
        """Calls nothing yet."""
        check_hooks(functions)
        self._functions = dict(functions)
        self.stopped, self.reason = "", ""
        self._wish = ""
        self._epoch = 0

    def begin_training(self) -> None:
        """Keras' `on_train_begin()`."""
        self._call("on_train_begin")

    def begin_epoch(self, epoch: int) -> None:
        """Keras' `on_epoch_begin()`; `epoch` counts from 0."""
        self._epoch = epoch + 1
        self._call("on_epoch_begin", self._epoch)

    def end_epoch(self, logs: Mapping[str, Any] | None) -> bool:
        """Keras' `on_epoch_end()`; true when training is to stop.

        The epoch is over, so an interrupt here ends the training without losing its record.
        """
        try:
            self._call("on_epoch_end", self._epoch, split_components(read_metrics(logs)))
        except GeneratorInterrupt:
            self.stopped = "interrupted"
            return True
        if not self._wish:
            return False
        self.stopped = "early"
        self.reason = f'{self._wish}() said "stop" in epoch {self._epoch}'
        return True

    def end_training(self, logs: Mapping[str, Any] | None) -> None:
        """Keras' `on_train_end()`; nothing is left to stop, so an interrupt is only noted."""
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


def build_function_callback(functions: Functions) -> Any:
    """A Keras callback that calls functions between epochs.

    Args:
        functions: See `FunctionHooks`.

    Returns:
        A `keras.callbacks.Callback` with the attribute `hooks`, its `FunctionHooks`. An interrupt
        at the end of an epoch is no exception: callbacks that come later still record the epoch.

    Raises:
        SpecError: for a hook that does not exist or something that cannot be called.
        GeneratorError: later, from Keras' `fit()`, if a function failed.
        GeneratorInterrupt: later, if a function was interrupted before an epoch's end.
    """
    hooks = FunctionHooks(functions)

    class FunctionCallback(runtime.keras().callbacks.Callback):  # type: ignore[misc] # imported late
        def on_train_begin(self, logs: Any = None) -> None:
            hooks.begin_training()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            hooks.begin_epoch(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if hooks.end_epoch(logs):
                self.model.stop_training = True

        def on_train_end(self, logs: Any = None) -> None:
            hooks.end_training(logs)

    callback = FunctionCallback()
    callback.hooks = hooks
    return callback


def check_hooks(functions: Functions) -> None:
    """Refuses names that are no hook, and values that are no function.

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


def tell_next_batch(callbacks: Sequence[Any], step: int, logs: Mapping[str, Any]) -> None:
    """Tells Keras callbacks that a batch, counted from 0, has ended, and the next one begins."""
    for callback in callbacks:
        callback.on_train_batch_end(step, logs)
    for callback in callbacks:
        callback.on_train_batch_begin(step + 1)


def end_callbacks(
    callbacks: Sequence[Any], epoch: int, steps: int, logs: Mapping[str, Any]
) -> None:
    """Tells Keras callbacks of the end of a training that ended within an epoch.

    Keras' own `fit()` ends the epoch, and they see what it ended with.

    Args:
        callbacks: Those that the user gave, and Keras' own history.
        epoch: Counted from 0.
        steps: Batches of it that were done.
        logs: What they are told, the loss among it.
    """
    for callback in callbacks:
        callback.on_train_batch_end(max(0, steps - 1), dict(logs))
    for callback in callbacks:
        callback.on_epoch_end(epoch, dict(logs))
    for callback in callbacks:
        callback.on_train_end(dict(logs))
