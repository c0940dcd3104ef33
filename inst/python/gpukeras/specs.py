"""Options as frozen records that check themselves.

R's numbers arrive as floats and its vectors of length one as scalars, so every check also
normalises: `10.0` becomes `10`, a lone unit becomes a tuple of one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from .errors import SpecError

RATE_SCALINGS = ("none", "linear", "sqrt")
ENGINES = ("auto", "keras", "superstep", "compiled")
SpecType = TypeVar("SpecType", bound="Spec")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold; TRUE is none."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and -sys.float_info.max <= value <= sys.float_info.max


def check_number(arg: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number within [low, high]; `arg` names it in the error."""
    if not is_number(value) or not low <= value <= high:
        raise SpecError(
            f"`{arg}` must be a number{_range_text(low, high)}, not {describe(value)}.", arg=arg
        )
    return float(value)


def check_positive(arg: str, value: Any, high: float = math.inf) -> float:
    """A number above 0 and at most `high`."""
    if check_number(arg, value) <= 0 or value > high:
        bound = "" if high == math.inf else f" and at most {high:g}"
        raise SpecError(f"`{arg}` must be above 0{bound}, not {describe(value)}.", arg=arg)
    return float(value)


def check_fraction(arg: str, value: Any) -> float:
    """A number between 0 and 1, neither of them."""
    if not 0 < check_number(arg, value) < 1:
        raise SpecError(f"`{arg}` must lie between 0 and 1, not {describe(value)}.", arg=arg)
    return float(value)


def check_count(arg: str, value: Any, low: int = 1, high: float = math.inf) -> int:
    """A whole number within [low, high]; accepts R's `10.0`."""
    if not is_number(value) or value != int(value) or not low <= value <= high:
        raise SpecError(
            f"`{arg}` must be a whole number{_range_text(low, high)}, not {describe(value)}.",
            arg=arg,
        )
    return int(value)


def check_flag(arg: str, value: Any) -> bool:
    """True or false, nothing that merely behaves like it."""
    if not isinstance(value, bool):
        raise SpecError(f"`{arg}` must be TRUE or FALSE, not {describe(value)}.", arg=arg)
    return value


def check_choice(arg: str, value: Any, choices: Sequence[str]) -> str:
    """One of `choices`."""
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise SpecError(f"`{arg}` must be one of {listed}, not {describe(value)}.", arg=arg)
    return str(value)


def check_counts(arg: str, value: Any, low: int = 1) -> tuple[int, ...]:
    """A tuple of whole numbers from a scalar or a sequence."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(check_count(arg, item, low) for item in values)


def describe(value: Any) -> str:
    """A value's kind for an error message: short, and never a user's data."""
    if value is None:
        return "NULL"
    if isinstance(value, (bool, int, float)):
        huge = isinstance(value, int) and not is_number(int(value))
        plain = "a number that is too large" if huge else f"{value:g}"
        return str(value).upper() if isinstance(value, bool) else plain
    if isinstance(value, str):
        return f'"{value[:40]}"'
    if isinstance(value, Mapping):
        return "a list"
    shape = getattr(value, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape is not None else f"a {type(value).__name__}"


def _range_text(low: float, high: float) -> str:
    if low == -math.inf and high == math.inf:
        return ""
    if high == math.inf:
        return f" of at least {low:g}"
    return f" from {low:g} to {high:g}"


@dataclass(frozen=True)
class Spec:
    """Base of all options records."""

    @classmethod
    def from_dict(cls: type[SpecType], options: Mapping[str, Any]) -> SpecType:
        """Builds the record from plain options.

        Raises:
            SpecError: for a name that the record does not have, naming the nearest ones.
        """
        known = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise SpecError(
                f"Unknown option `{unknown[0]}`.",
                hint=f"Options are {', '.join(known)}.",
                arg=unknown[0],
            )
        return cls(**options)

    def _set(self, **values: Any) -> None:
        # The one place that writes to a frozen record: normalising inside __post_init__.
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class SetupSpec(Spec):
    """What `gpu_setup()` is asked for.

    Args:
        device: "auto" (a GPU if usable, else the CPU, and says so), "gpu" (fails without one),
            "cpu", or one device such as "GPU:1".
        memory: "growth" (take what is needed, so that other sessions live), "all", or MiB.
        precision: "auto" (by compute capability), "float32", "mixed_float16", "mixed_bfloat16",
            "float64".
        jit: "auto" (chosen by measuring in `gpu_fit()`), true or false.
        threads: Intra-op threads, or None for TensorFlow's choice (all cores).
        seed: Seed of Python, NumPy and TensorFlow, or None.
        deterministic: Only deterministic kernels; slower on a GPU.
        tf32: Whether products of float32 may be computed as TF32: "auto" (as TensorFlow has it:
            yes), true or false.
    """

    device: str = "auto"
    memory: str | int = "growth"
    precision: str = "auto"
    jit: str | bool = "auto"
    threads: int | None = None
    seed: int | None = None
    deterministic: bool = False
    tf32: str | bool = "auto"

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        precisions = ("auto", "float32", "mixed_float16", "mixed_bfloat16", "float64")
        if not isinstance(self.device, str):
            raise SpecError(
                f'`device` must be a string such as "auto", "gpu", "cpu" or "GPU:0", '
                f"not {describe(self.device)}.",
                arg="device",
            )
        check_choice("precision", self.precision, precisions)
        check_flag("deterministic", self.deterministic)
        for arg in ("jit", "tf32"):
            if getattr(self, arg) != "auto":
                check_flag(arg, getattr(self, arg))
        if self.memory not in ("growth", "all"):
            if isinstance(self.memory, str):
                check_choice("memory", self.memory, ("growth", "all"))
            self._set(memory=check_count("memory", self.memory, 64))
        if self.threads is not None:
            self._set(threads=check_count("threads", self.threads, 1, 4096))
        if self.seed is not None:
            self._set(seed=check_count("seed", self.seed, 0, 2**31 - 1))


CACHES = ("auto", "device", "host", "disk", "none")


@dataclass(frozen=True)
class DatasetSpec(Spec):
    """How rows become batches.

    Args:
        batch_size: Rows a training step, or "auto" (by the number of rows).
        shuffle: A new random order each epoch: a true shuffle where rows are addressable.
        cache: "device" (rows live in the device's memory), "host" (gathered in host memory and
            sent in blocks), "disk" (in a scratch file), "none" (made anew each epoch), or "auto"
            (the fastest that fits; what `TRUE` and `FALSE` mean is "keep" and "none").
        validation: Share of the rows kept for validation, in [0, 1).
        encode: Categories as "onehot" columns, as "codes" (0, 1, ...), or "hash" (0/1 columns of
            `hash_bins` bins); or one of these for each column by name; or "none": columns are given
            to the model as they are, texts as texts.
        hash_bins: Bins of a hashed category.
        scale: Standardise numeric features by the training rows' mean and standard deviation;
            those of a sparse matrix by the standard deviation alone; images become 0 to 1.
        na: What happens to missing values: "error", "impute" (median or most frequent value of
            the training rows, with indicators), or "drop" (rows that have some are left out);
            rows of a `.npy` file or a sparse matrix take "error" only.
        drop_last: Leave out an epoch's last batch if it is short.
        shard: This worker's share of the rows: its number from 1, and the number of workers.
        on_error: What a broken file or row does: "stop", or "skip" (left out and counted).
        buffer: Rows of the shuffle buffer where rows come in sequence, or "auto".
        seed: Seed of the split and of the shuffles.
    """

    batch_size: str | int = "auto"
    shuffle: bool = True
    cache: str | bool = "auto"
    validation: float = 0.0
    encode: str | Mapping[str, str] = "onehot"
    hash_bins: int = 64
    scale: bool = False
    na: str = "error"
    drop_last: bool = False
    shard: tuple[int, int] = (1, 1)
    on_error: str = "stop"
    buffer: str | int = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        check_choice("na", self.na, ("error", "impute", "drop"))
        check_choice("on_error", self.on_error, ("stop", "skip"))
        check_flag("shuffle", self.shuffle)
        check_flag("scale", self.scale)
        check_flag("drop_last", self.drop_last)
        validation = check_number("validation", self.validation, 0.0, 1.0)
        if validation == 1.0:
            raise SpecError("`validation` must leave rows to train on, not 1.", arg="validation")
        self._set(
            validation=validation,
            cache=_check_cache(self.cache),
            encode=_check_encode(self.encode),
            hash_bins=check_count("hash_bins", self.hash_bins, 2, 2**20),
            batch_size=_check_auto("batch_size", self.batch_size),
            buffer=_check_auto("buffer", self.buffer),
            shard=_check_shard(self.shard),
            seed=check_count("seed", self.seed, 0, 2**31 - 1),
        )


def _check_auto(arg: str, value: Any) -> str | int:
    return value if value == "auto" else check_count(arg, value)


def _check_cache(cache: Any) -> str:
    if isinstance(cache, bool):
        return "keep" if cache else "none"
    return cache if cache == "keep" else check_choice("cache", cache, CACHES)


def _check_encode(encode: Any) -> str | dict[str, str]:
    if isinstance(encode, Mapping):
        return {str(name): way for name, way in encode.items()}  # checked where columns are known
    return check_choice("encode", encode, ("onehot", "codes", "hash", "none"))


def _check_shard(shard: Any) -> tuple[int, int]:
    values = check_counts("shard", shard)
    if len(values) != 2 or values[0] > values[1]:
        raise SpecError(
            "`shard` must be this worker's number, counted from 1, and the number of workers.",
            hint="Such as c(1, 4) for the first of four.",
            arg="shard",
        )
    return values[0], values[1]


@dataclass(frozen=True)
class MlpSpec(Spec):
    """A multilayer perceptron.

    Args:
        units: Units of each hidden layer.
        activation: Keras activation of the hidden layers.
        dropout: Share of each hidden layer's outputs dropped in training, in [0, 1).
        batch_norm: Batch normalisation before each activation.
        penalty: Added to the loss: it times the squares of the hidden layers' weights (L2).
        optimizer: Keras optimizer name.
        learning_rate: The optimizer's learning rate, or None for its default.
        seed: Seed of initial weights and dropout.
    """

    units: tuple[int, ...] = (64,)
    activation: str = "relu"
    dropout: float = 0.0
    batch_norm: bool = False
    penalty: float = 0.0
    optimizer: str = "adam"
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        check_flag("batch_norm", self.batch_norm)
        dropout = check_number("dropout", self.dropout, 0.0, 0.99)
        penalty = check_number("penalty", self.penalty, 0.0)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, 1e-12, 1e3)
        for arg in ("activation", "optimizer"):
            if not isinstance(getattr(self, arg), str):
                raise SpecError(
                    f"`{arg}` must be the name of a Keras {arg}, "
                    f"not {describe(getattr(self, arg))}.",
                    arg=arg,
                )
        self._set(
            units=check_counts("units", self.units),
            dropout=dropout,
            penalty=penalty,
            seed=check_count("seed", self.seed, 0, 2**31 - 1),
        )


@dataclass(frozen=True)
class FitSpec(Spec):
    """How a model is trained.

    Args:
        epochs: Passes over the training rows.
        engine: "auto" (chosen by measuring), "keras", "superstep" or "compiled".
        schedule: The learning rate's schedule, see `schedules`, or None for the optimizer's own.
        clip_norm: Largest norm of each variable's gradient, or None.
        clip_value: Largest absolute value in a gradient, or None.
        clip_global_norm: Largest norm of all gradients together, or None.
        ema: Momentum of the weights' moving averages, in (0, 1), or None for none.
        early_stopping: Epochs without improvement, or options, see `stopping`; None for never.
        checkpoint: A folder, or options, see `checkpoints`; None for none.
        on_oom: When memory runs out: "halve" the rows that go through the model at once and keep
            the batch size by adding up gradients, or "stop".
        tensorboard: A folder, or options, see `tensorboards`; None for none.
        rate_scaling: What several replicas do to the learning rate: "none"; "linear", times their
            number (Goyal et al. 2017); "sqrt", times its square root (Krizhevsky 2014).
    """

    epochs: int = 10
    engine: str = "auto"
    schedule: Mapping[str, Any] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    clip_global_norm: float | None = None
    ema: float | None = None
    early_stopping: int | Mapping[str, Any] | None = None
    checkpoint: str | Mapping[str, Any] | None = None
    on_oom: str = "halve"
    tensorboard: str | Mapping[str, Any] | None = None
    rate_scaling: str = "none"

    def __post_init__(self) -> None:
        """Checks and normalises every field; options of other records are checked there."""
        check_choice("engine", self.engine, ENGINES)
        check_choice("on_oom", self.on_oom, ("halve", "stop"))
        check_choice("rate_scaling", self.rate_scaling, RATE_SCALINGS)
        for arg in ("clip_norm", "clip_value", "clip_global_norm"):
            if getattr(self, arg) is not None:
                self._set(**{arg: check_positive(arg, getattr(self, arg))})
        if self.ema is not None:
            self._set(ema=check_fraction("ema", self.ema))
        if self.schedule is not None and not isinstance(self.schedule, Mapping):
            message = f"`schedule` must be made by a schedule_*(), not {describe(self.schedule)}."
            raise SpecError(message, arg="schedule")
        numbers, folder = (int, float), (str,)
        shorthands = {"early_stopping": numbers, "checkpoint": folder, "tensorboard": folder}
        for arg, plain in shorthands.items():
            _check_shorthand(arg, getattr(self, arg), plain)
        self._set(epochs=check_count("epochs", self.epochs))


def _check_shorthand(arg: str, value: Any, plain: tuple[type, ...]) -> None:
    """None, a plain value, or options by name."""
    if value is None or isinstance(value, Mapping):
        return
    if not isinstance(value, plain) or isinstance(value, bool):
        wanted = "a folder" if str in plain else "a number of epochs"
        message = f"`{arg}` must be {wanted} or a list of options, not {describe(value)}."
        raise SpecError(message, arg=arg)
