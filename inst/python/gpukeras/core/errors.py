"""Every error that gpukeras raises on purpose.

GpuKerasError                  R: gpukeras_error
├── SpecError                  gpukeras_error_spec             an option is unknown or out of range
├── DataError                  gpukeras_error_data             values, shapes, lengths, levels
├── ModelError                 gpukeras_error_model            uncompiled, or does not fit the data
├── NoDeviceError              gpukeras_error_no_device        the device asked for is not there
├── OutOfMemoryError           gpukeras_error_out_of_memory    the device's memory is exhausted
├── CheckpointError            gpukeras_error_checkpoint       cannot be written, read or resumed
├── ClusterError               gpukeras_error_cluster
├── CompressionError           gpukeras_error_compression
├── ForkError                  gpukeras_error_fork             not in a fork of TensorFlow's process
├── GeneratorError             gpukeras_error_generator        the user's own function failed
└── RuntimeMissingError        gpukeras_error_runtime_missing  TensorFlow or pyarrow is missing

Messages say what was expected and what was found (types, shapes, counts, names), never the data.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GpuKerasError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: What was expected and what was found, one sentence.
        hint: What to do about it, one sentence, or "".
        **details: Plain values for programs, such as `arg` or `column`.
    """

    code: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        """Keeps the parts that cross to R apart from the printed text."""
        super().__init__(message if not hint else f"{message} {hint}")
        self.message = message
        self.hint = hint
        self.details = details


class SpecError(GpuKerasError):
    """An option is unknown, of the wrong type, or out of range (`arg`)."""

    code = "spec"


class DataError(GpuKerasError):
    """Data has the wrong shape, type, length, values or levels (`arg`, `column`)."""

    code = "data"


class ModelError(GpuKerasError):
    """A model is not compiled, or does not fit the data."""

    code = "model"


class NoDeviceError(GpuKerasError):
    """The device that was asked for is not there (`requested`, `found`)."""

    code = "no_device"


class OutOfMemoryError(GpuKerasError):
    """The device ran out of memory (`device`, `batch_size`)."""

    code = "out_of_memory"


class CheckpointError(GpuKerasError):
    """A checkpoint cannot be written or read, or is that of another training (`path`)."""

    code = "checkpoint"


class GeneratorError(GpuKerasError):
    """The user's function failed; R raises its own condition in place of this one."""

    code = "generator"


class ClusterError(GpuKerasError):
    """A worker differs from the others, failed, or is lost (`worker`, `address`, `reason`)."""

    code = "cluster"


class CompressionError(GpuKerasError):
    """A smaller model is worse than was allowed (`metric`, `before`, `after`)."""

    code = "compression"


class ForkError(GpuKerasError):
    """This process was forked off one in which TensorFlow runs."""

    code = "fork"


class RuntimeMissingError(GpuKerasError):
    """TensorFlow, Keras or pyarrow cannot be imported."""

    code = "runtime_missing"


for _error in (GpuKerasError, *GpuKerasError.__subclasses__()):
    _error.__module__ = "gpukeras"  # the name that users see stays when a file moves
