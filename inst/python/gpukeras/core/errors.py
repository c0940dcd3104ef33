"""Defines the errors that gpukeras raises on purpose.

GpuKerasError                  R: gpukeras_error
├── SpecError                  gpukeras_error_spec             an option is unknown or out of range
├── DataError                  gpukeras_error_data             values, shapes, lengths, levels
├── ModelError                 gpukeras_error_model            uncompiled, or does not fit the data
├── NoDeviceError              gpukeras_error_no_device        the requested device is missing
├── DeviceBusyError            gpukeras_error_device_busy      others use the card
├── OutOfMemoryError           gpukeras_error_out_of_memory    the device's memory is exhausted
├── CheckpointError            gpukeras_error_checkpoint       cannot be written, read or resumed
├── ClusterError               gpukeras_error_cluster
├── CompressionError           gpukeras_error_compression
├── ForkError                  gpukeras_error_fork             TensorFlow in a forked process
├── GeneratorError             gpukeras_error_generator        the user's function failed
├── PreemptedError             gpukeras_error_preempted        the process is asked to end
├── BackendError               gpukeras_error_backend          needs another backend of Keras
├── RuntimeMissingError        gpukeras_error_runtime_missing  TensorFlow or pyarrow is missing
└── ServiceError               gpukeras_error_service          the server refuses, or does not run

Messages name what was expected and what was found (types, shapes, counts, names), never data.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any, ClassVar


class GpuKerasError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: One sentence: what was expected and what was found.
        hint: One sentence on how to fix it, or "".
        **details: Plain values that programs can read, such as `arg` or `column`.
    """

    code: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        """Stores message, hint and details separately, as R receives them."""
        super().__init__(message if not hint else f"{message} {hint}")
        self.message = message
        self.hint = hint
        self.details = details


class SpecError(GpuKerasError):
    """An option is unknown, of the wrong type, or out of range (`arg`)."""

    code = "spec"


class DataError(GpuKerasError):
    """The data has the wrong shape, type, length, values or levels (`arg`, `column`)."""

    code = "data"


class NotSavedWarning(RuntimeWarning):
    """What lets a training go on, or be found again, cannot be written; the training continues."""


def warn_not_saved(message: str) -> None:
    """Says at once what is not saved any more; where warnings are errors too, it raises nothing."""
    with suppress(NotSavedWarning):
        warnings.warn(message, NotSavedWarning, stacklevel=3)


class EndedEarlyWarning(UserWarning):
    """Rows in sequence ended before the steps of an epoch; as in Keras, the epoch is shorter."""


def warn_ended_early(what: str, batch: int, epoch: int) -> None:
    """Says that rows ended before a batch of an epoch, both counted from 1.

    Args:
        what: The rows' source, as the beginning of a sentence.
        batch: The batch that is missing.
        epoch: The epoch, which ends without it.
    """
    message = (
        f"{what} ended before batch {batch} of epoch {epoch}, so this epoch is shorter. "
        "Use fewer `steps`, or repeat the data."
    )
    warnings.warn(message, EndedEarlyWarning, stacklevel=3)


class RefusedRowsError(DataError):
    """A layer, a loss or a metric does not take values of the rows (`layer`, `found`).

    Args:
        message: As of `GpuKerasError`.
        hint: As of `GpuKerasError`.
        origin: TensorFlow's own error, or None where a check came before it.
        **details: As of `GpuKerasError`.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        origin: BaseException | None = None,
        **details: Any,
    ) -> None:
        """Keeps TensorFlow's error: Keras' functions drop the cause of what passes them."""
        super().__init__(message, hint=hint, **details)
        self.origin = origin


class ModelError(GpuKerasError):
    """The model is not compiled, or does not fit the data."""

    code = "model"


class NoDeviceError(GpuKerasError):
    """The requested device does not exist (`requested`, `found`)."""

    code = "no_device"


class DeviceBusyError(GpuKerasError):
    """Others use every card that was waited for (`arg`)."""

    code = "device_busy"


class OutOfMemoryError(GpuKerasError):
    """The device ran out of memory (`device`, `batch_size`)."""

    code = "out_of_memory"


class CheckpointError(GpuKerasError):
    """A checkpoint cannot be written or read, or belongs to another training run (`path`)."""

    code = "checkpoint"


class PreemptedError(GpuKerasError):
    """The process was asked to end, and what it did is saved (`signal`, `status`, `checkpoint`)."""

    code = "preempted"
    told = True  # the other workers of a cluster end at the same step


class GeneratorError(GpuKerasError):
    """The user's function failed; R signals the function's own condition instead of this error."""

    code = "generator"


class ClusterError(GpuKerasError):
    """A worker differs from the others, failed, or is lost (`worker`, `address`, `reason`)."""

    code = "cluster"


class CompressionError(GpuKerasError):
    """A compressed model is worse than the tolerance allows (`metric`, `before`, `after`)."""

    code = "compression"


class BackendError(GpuKerasError):
    """The work is possible on another backend of Keras only."""

    code = "backend"


class ForkError(GpuKerasError):
    """This process is a fork of one that runs TensorFlow."""

    code = "fork"


class RuntimeMissingError(GpuKerasError):
    """TensorFlow, Keras or pyarrow cannot be imported."""

    code = "runtime_missing"


class ServiceError(GpuKerasError):
    """A server of predictions refuses a request (`status`), or does not run."""

    code = "service"


for _error in (GpuKerasError, *GpuKerasError.__subclasses__()):
    _error.__module__ = "gpukeras"  # keeps the public name stable when files move
