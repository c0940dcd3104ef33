"""Compiles with XLA in a background thread, while another engine trains.

A program is called once on stand-ins, variables of the same shapes as the model's: with a batch
count of zero, or, where the count is part of the program, once with each count. XLA caches
executables by function and shapes, not by variable, so the program's first real call finds its
executable. The model's own variables cannot be used: such a call writes back the values that it
read before compiling, and the updates made meanwhile would be lost.

For 64 and 10 units on 20 columns, compiling takes 1.0 s on two free cores, and the first real call
then 0.01 to 0.05 s more than a later one. Tracing (0.3 s) stays in the foreground, because the
state that Keras keeps of a call in progress is thread-local.

The threads are not daemons. TensorFlow may crash if it is torn down while a thread uses it, so
Python waits for them on exit; a training does not.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from gpukeras.backend import cpp_log, keras_private, runtime, tensor_ops
from gpukeras.engine.program_cache import Traced

STAND_IN_BYTES = 256 * 2**20  # of variables to duplicate; larger models compile in the foreground


class Compilation:
    """The compilation of a traced program, in its own thread.

    Args:
        traced: The program, made with `jit_compile`.
        calls: Arguments of each call; one call compiles one executable.
        captured: The replacements of its captured inputs, and the stand-ins that own them.
    """

    def __init__(
        self, traced: Traced, calls: Sequence[Sequence[Any]], captured: Sequence[Any]
    ) -> None:
        """Starts the thread."""
        self._work: tuple[Any, ...] | None = (traced, calls, list(captured))
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._compile, name="gpukeras-xla", daemon=False)
        self._thread.start()

    def _compile(self) -> None:
        assert self._work is not None  # set to None only below
        traced, calls, captured = self._work
        try:
            with (
                cpp_log.muted_cpp_log(),
                runtime.tensorflow().device(captured[0].device if captured else None),
            ):
                for arguments in calls:
                    traced.call_on(captured, arguments)
        except Exception as error:
            self._error = error
        finally:
            self._work = None  # frees the memory of the stand-ins

    def is_done(self) -> bool:
        """Whether the program can run without waiting.

        Raises:
            One of `tensor_ops.refusals()`: if XLA cannot compile it.
        """
        if self._thread.is_alive():
            return False
        if isinstance(self._error, tensor_ops.refusals()):
            raise self._error
        return True  # after any other error the first real call compiles, or raises the error

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self._error is not None

    def wait(self) -> None:
        """Waits until the thread has ended."""
        self._thread.join()


def begin_compiling(traced: Traced, calls: Sequence[Sequence[Any]]) -> Compilation | None:
    """Starts to compile a program in the background.

    Args:
        traced: A program that was made with `jit_compile`.
        calls: Arguments of each call, see `Compilation`.

    Returns:
        The compilation, or None where the first call must compile: the model is large, the
        program captures more than variables, or this TensorFlow has other internals.
    """
    try:
        captured = _make_stand_ins(traced.captured)
        if captured is None or not keras_private.can_call_captured(traced.function):
            return None
        return Compilation(traced, calls, captured)
    except (AttributeError, TypeError, runtime.tensorflow().errors.ResourceExhaustedError):
        return None


def _make_stand_ins(known: Sequence[Any]) -> list[Any] | None:
    """Returns a stand-in for each captured variable; other tensors stay as they are."""
    tf = runtime.tensorflow()
    if not all(_can_stand_in(each) for each in known):
        return None
    if sum(_count_bytes(each) for each in known if hasattr(each, "handle")) > STAND_IN_BYTES:
        return None
    stand_ins = []
    for each in known:
        if hasattr(each, "handle"):
            with tf.device(each.device):
                each = tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False)
        stand_ins.append(each)
    return stand_ins


def _can_stand_in(value: Any) -> bool:
    if hasattr(value, "handle"):
        return bool(value.shape.is_fully_defined())
    return value.dtype not in (runtime.tensorflow().resource, runtime.tensorflow().variant)


def _count_bytes(variable: Any) -> int:
    return math.prod(variable.shape) * variable.dtype.size
