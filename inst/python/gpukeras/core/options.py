"""Defines options as frozen records that validate their fields.

R passes numbers as floats and vectors of length one as scalars, so every check also normalises:
`10.0` becomes `10`, and a scalar for `units` becomes a tuple of one.
Each `check_*()` takes the option's name for messages, and the value, which it returns normalised
or refuses with a SpecError.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import count_values, list_names

RATE_SCALINGS = ("none", "linear", "sqrt")
ENGINES = ("auto", "keras", "graph_loop", "compiled", "repeatable")
PRECISIONS = ("auto", "float32", "mixed_float16", "mixed_bfloat16", "float64")
MOST_SEED = 2**31 - 1
A_FOLDER = "the path of a folder"
SpecType = TypeVar("SpecType", bound="Spec")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold; a bool is not a number."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and -sys.float_info.max <= value <= sys.float_info.max


def refused_value(arg: str, value: Any, expected: str, hint: str = "") -> SpecError:
    """Returns the error of an option with another value than expected.

    Args:
        arg: The option's name.
        value: The value.
        expected: What it must be.
        hint: What to do about it, or "".
    """
    return SpecError(f"`{arg}` must be {expected}, not {describe(value)}.", hint=hint, arg=arg)


def check_number(arg: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns a value as a float if it is a finite number within [low, high]."""
    if not is_number(value) or not low <= value <= high:
        raise refused_value(arg, value, f"a number{_range_text(low, high)}")
    return float(value)


def check_positive(arg: str, value: Any, high: float = math.inf) -> float:
    """Returns a value as a float if it is above 0 and at most `high`."""
    if check_number(arg, value) <= 0 or value > high:
        bound = "" if high == math.inf else f" and at most {_number_text(high)}"
        raise refused_value(arg, value, f"above 0{bound}")
    return float(value)


def check_fraction(arg: str, value: Any) -> float:
    """Returns a value as a float if it lies strictly between 0 and 1."""
    if not 0 < check_number(arg, value) < 1:
        raise SpecError(f"`{arg}` must lie between 0 and 1, not {describe(value)}.", arg=arg)
    return float(value)


def check_count(arg: str, value: Any, low: int = 1, high: float = math.inf) -> int:
    """Returns a value as an int if it is a whole number within [low, high]; accepts R's `10.0`."""
    if not is_number(value) or value != int(value) or not low <= value <= high:
        raise refused_value(arg, value, f"a whole number{_range_text(low, high)}")
    return int(value)


def check_flag(arg: str, value: Any) -> bool:
    """Returns a value that is a bool; truthy values of other types raise SpecError."""
    if not isinstance(value, bool):
        raise refused_value(arg, value, "TRUE or FALSE")
    return value


def check_choice(arg: str, value: Any, choices: Sequence[str]) -> str:
    """Returns a value that is one of `choices`."""
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise refused_value(arg, value, f"one of {listed}")
    return str(value)


def check_counts(arg: str, value: Any, low: int = 1) -> tuple[int, ...]:
    """Returns a tuple of whole numbers from a scalar or a sequence.

    Raises:
        SpecError: if one of them is not a whole number or below `low`.
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(check_count(arg, item, low) for item in values)


def check_names(arg: str, value: Any, of: str, optional: bool = True) -> tuple[str, ...]:
    """Returns names from one or several strings; None gives an empty tuple, if `optional`.

    Raises:
        SpecError: for another value; says that `arg` must be names of these, such as "layers".
    """
    several = isinstance(value, (list, tuple))
    names = value if several else [] if optional and value is None else [value]
    if not all(isinstance(name, str) for name in names):
        raise refused_value(arg, value, f"names of {of}")
    return tuple(names)


def describe(value: Any) -> str:
    """Describes a value for an error message: its kind or a short scalar, never an array's data."""
    if value is None:
        return "NULL"
    if isinstance(value, (bool, int, float)):
        huge = isinstance(value, int) and not is_number(int(value))
        plain = "a number that is too large" if huge else _number_text(value)
        return str(value).upper() if isinstance(value, bool) else plain
    if isinstance(value, str):
        return f'"{value[:40]}"'
    if isinstance(value, Mapping):
        return "a list"
    if isinstance(value, list):
        return count_values(value)
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(shape, "__iter__"):  # numpy has a function of that name
        return f"an array of shape {tuple(shape)}"
    return f"a {type(value).__name__}"


def check_text(arg: str, value: Any, what: str, hint: str = "") -> str:
    """Returns a value that is a non-empty string.

    Args:
        arg: Name of the option in the error.
        value: The value to check.
        what: Description of the expected value in the error.
        hint: Hint of the error, or "".

    Raises:
        SpecError: if it is not a string, or is empty.
    """
    if not isinstance(value, str) or not value:
        raise refused_value(arg, value, what, hint)
    return value


def _number_text(number: float) -> str:
    """Writes whole numbers with all their digits, and what is no number as R does."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Inf" if number > 0 else "-Inf"
    return f"{number:.15g}" if number == int(number) else f"{number:g}"


def _range_text(low: float, high: float) -> str:
    if low == -math.inf and high == math.inf:
        return ""
    if high == math.inf:
        return f" of at least {_number_text(low)}"
    return f" from {_number_text(low)} to {_number_text(high)}"


def option(default: Any, check: Callable[..., Any], *limits: Any, arg: str = "") -> Any:
    """Returns a dataclass field that is checked and normalised when the record is created.

    Args:
        default: Default value; a default of None or "auto" is accepted without a check.
        check: Function of the field's name and value that returns the value to store or raises
            SpecError.
        limits: Further positional arguments of `check`.
        arg: Name of the option in errors; the field's name by default.
    """
    return field(default=default, metadata={"check": check, "limits": limits, "arg": arg})


@dataclass(frozen=True)
class Spec:
    """Base of all options records; `option()` creates their fields."""

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        for each in fields(self):
            value, how = getattr(self, each.name), each.metadata
            unset = each.default in (None, "auto") and type(value) is type(each.default)
            if how and not (unset and value == each.default):
                checked = how["check"](how["arg"] or each.name, value, *how["limits"])
                self._set(**{each.name: checked})

    @classmethod
    def from_dict(cls: type[SpecType], options: Mapping[str, Any]) -> SpecType:
        """Builds the record from a mapping of options.

        Raises:
            SpecError: for an unknown name; the hint lists the known names.
        """
        known = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise SpecError(
                f"Unknown option `{unknown[0]}`.",
                hint=f"Options are {list_names(known)}.",
                arg=unknown[0],
            )
        return cls(**options)

    @classmethod
    def parse(cls: type[SpecType], value: Any) -> SpecType:
        """Builds the record from a mapping of options, or from the value of the first one alone.

        Raises:
            SpecError: naming the option.
        """
        alone = {fields(cls)[0].name: value}
        return cls.from_dict(value if isinstance(value, Mapping) else alone)

    def _set(self, **values: Any) -> None:
        # The only place that writes to a frozen record.
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _check_memory(arg: str, value: Any) -> str | int:
    choices = ("growth", "all")
    return (
        check_choice(arg, value, choices) if isinstance(value, str) else check_count(arg, value, 64)
    )


@dataclass(frozen=True)
class WaitSpec(Spec):
    """What `gpu_setup(wait = )` waits for.

    Args:
        free_gib: GiB of a card that must be free.
        seconds: Seconds after which it gives up.
    """

    free_gib: float = option(1.0, check_number, 0.0, arg="wait")
    seconds: float = option(3600.0, check_number, 0.0)


@dataclass(frozen=True)
class SetupSpec(Spec):
    """Options of `gpu_setup()`.

    Args:
        device: "auto" (a GPU if usable, else the CPU with a message), "gpu" (fails without one),
            "cpu", or one device such as "GPU:1".
        memory: "growth" (allocate as needed and leave the rest to other sessions), "all", or MiB.
        precision: "auto" (by compute capability), "float32", "mixed_float16", "mixed_bfloat16",
            "float64".
        jit: "auto" (chosen by measuring in `gpu_fit()`), true or false.
        threads: Intra-op threads, or None for TensorFlow's choice (all cores).
        seed: Seed of Python, NumPy and TensorFlow, or None.
        deterministic: Only deterministic kernels; slower on a GPU.
        tf32: Whether products of float32 may be computed as TF32: "auto" (TensorFlow's default,
            which is yes), true or false.
        backend: "tensorflow", "jax", or "auto" for the one that Keras is configured with.
    """

    device: str = option("auto", check_text, 'a string such as "auto", "gpu", "cpu" or "GPU:0"')
    memory: str | int = option("growth", _check_memory)
    precision: str = option("auto", check_choice, PRECISIONS)
    jit: str | bool = option("auto", check_flag)
    threads: int | None = option(None, check_count, 1, 4096)
    seed: int | None = option(None, check_count, 0, MOST_SEED)
    deterministic: bool = option(False, check_flag)
    tf32: str | bool = option("auto", check_flag)
    backend: str = option("auto", check_choice, ("auto", "tensorflow", "jax"))


CACHES = ("auto", "device", "host", "disk", "none")


def _check_validation(arg: str, value: Any) -> float:
    if check_number(arg, value, 0.0, 1.0) == 1.0:
        raise SpecError(f"`{arg}` must leave rows to train on, not 1.", arg=arg)
    return float(value)


def _check_cache(arg: str, cache: Any) -> str:
    if isinstance(cache, bool):
        return "keep" if cache else "none"
    return cache if cache == "keep" else check_choice(arg, cache, CACHES)


def _check_encode(arg: str, encode: Any) -> str | dict[str, str]:
    if isinstance(encode, Mapping):
        return {str(name): way for name, way in encode.items()}  # checked once columns are known
    return check_choice(arg, encode, ("onehot", "codes", "hash", "none"))


def _check_shard(arg: str, shard: Any) -> tuple[int, int]:
    values = check_counts(arg, shard)
    if len(values) != 2 or values[0] > values[1]:
        raise SpecError(
            "`shard` must be this worker's number, counted from 1, and the number of workers.",
            hint="Such as c(1, 4) for the first of four.",
            arg="shard",
        )
    return values[0], values[1]


@dataclass(frozen=True)
class DatasetSpec(Spec):
    """Options of a dataset: how rows become batches.

    Args:
        batch_size: Rows per training step, or "auto" (by the number of rows).
        shuffle: A new random order each epoch: a true shuffle where rows are addressable.
        cache: "device" (rows stay in device memory), "host" (gathered in host memory and sent in
            blocks), "disk" (in a scratch file of the session), "none" (recomputed each epoch), or
            "auto" (the fastest that fits); `TRUE` means "keep" and `FALSE` means "none".
        validation: Share of the rows held out for validation, in [0, 1).
        encode: Categories as "onehot" columns, as "codes" (0, 1, ...), or "hash" (0/1 columns of
            `hash_bins` bins); or a mapping from column name to one of these; or "none": the model
            gets columns unchanged, strings as strings.
        hash_bins: Bins of a hashed category.
        new_levels: Levels that training did not see: "error" refuses them, "own" gives them zeros
            in all one-hot columns, or the code after the last level.
        scale: Standardise numeric features by the training rows' mean and standard deviation,
            those of a sparse matrix by the standard deviation alone; scales images to [0, 1].
        na: Handling of missing values: "error", "impute" (median or most frequent value of the
            training rows, with indicator columns), or "drop" (drops rows with missing values);
            a `.npy` file and a sparse matrix accept "error" only.
        drop_last: Drop an epoch's last batch if it is short.
        shard: This worker's share of the rows: its number from 1, and the number of workers.
        on_error: Handling of a broken file or row: "stop", or "skip" (dropped and counted).
        buffer: Rows of the shuffle buffer of a sequential source, or "auto".
        seed: Seed of the split and of the shuffles.
    """

    batch_size: str | int = option("auto", check_count)
    shuffle: bool = option(True, check_flag)
    cache: str = option("auto", _check_cache)
    validation: float = option(0.0, _check_validation)
    encode: str | Mapping[str, str] = option("onehot", _check_encode)
    hash_bins: int = option(64, check_count, 2, 2**20)
    new_levels: str = option("error", check_choice, ("error", "own"))
    scale: bool = option(False, check_flag)
    na: str = option("error", check_choice, ("error", "impute", "drop"))
    drop_last: bool = option(False, check_flag)
    shard: tuple[int, int] = option((1, 1), _check_shard)
    on_error: str = option("stop", check_choice, ("stop", "skip"))
    buffer: str | int = option("auto", check_count)
    seed: int = option(0, check_count, 0, MOST_SEED)


@dataclass(frozen=True)
class MlpSpec(Spec):
    """Options of a multilayer perceptron.

    Args:
        units: Units of each hidden layer.
        activation: Keras activation of the hidden layers.
        dropout: Share of each hidden layer's outputs dropped in training, in [0, 1).
        batch_norm: Batch normalisation before each activation.
        penalty: L2 penalty: the loss gains this factor times the squared weights of hidden layers,
            or of the output without hidden layers.
        optimizer: Keras optimizer name.
        learning_rate: The optimizer's learning rate, or None for its default.
        seed: Seed of initial weights and dropout.
        family: The statistical family of the labels, by name or as a mapping of options, see
            `models.families`; None chooses output and loss by the kind of labels.
    """

    units: tuple[int, ...] = option((64,), check_counts)
    activation: str = option("relu", check_text, "the name of a Keras activation")
    dropout: float = option(0.0, check_number, 0.0, 0.99)
    batch_norm: bool = option(False, check_flag)
    penalty: float = option(0.0, check_number, 0.0)
    optimizer: str = option("adam", check_text, "the name of a Keras optimizer")
    learning_rate: float | None = option(None, check_number, 1e-12, 1e3)
    seed: int = option(0, check_count, 0, MOST_SEED)

    @property
    def last_penalty(self) -> float:
        """The penalty on the output's weights."""
        return 0.0 if self.units else self.penalty

    family: str | Mapping[str, Any] | None = None  # checked by `models.families`


def _check_shorthand(arg: str, value: Any, *plain: type) -> Any:
    """Returns a plain value or a mapping of options."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, plain) or isinstance(value, bool):
        form = "a folder" if str in plain else "a number of epochs"
        raise refused_value(arg, value, f"{form} or a list of options")
    return value


def _check_frequency(arg: str, value: Any) -> int | tuple[int, ...]:
    """Returns a number of epochs, or the epochs of a list."""
    several = isinstance(value, (list, tuple))
    return check_counts(arg, value) if several else check_count(arg, value)


def _check_schedule(arg: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise refused_value(arg, value, "made by a schedule_*()")
    return value


@dataclass(frozen=True)
class FitSpec(Spec):
    """Options of training.

    Args:
        epochs: Passes over the training rows.
        engine: "auto" (the fastest by measurement), "keras", "graph_loop", "compiled", or
            "repeatable" (as "auto", without measuring).
        schedule: Learning rate schedule, see `schedules`, or None for the optimizer's rate.
        clip_norm: Largest norm of each variable's gradient, or None.
        clip_value: Largest absolute value in a gradient, or None.
        clip_global_norm: Largest norm of all gradients together, or None.
        ema: Momentum of the weights' exponential moving averages, in (0, 1), or None for none.
        early_stopping: Patience in epochs, or options, see `early_stopping`; None for none.
        checkpoint: A folder, or options, see `checkpoint.manager`; None for none.
        on_oom: When memory runs out: "halve" the rows per forward pass and keep the batch size by
            accumulating gradients, or "stop".
        tensorboard: A folder, or options, see `callbacks.tensorboard`; None for none.
        rate_scaling: Scaling of the learning rate with several replicas: "none"; "linear", times
            their number (Goyal et al. 2017); "sqrt", times its square root (Krizhevsky 2014).
        initial_epoch: Epochs that an earlier training has done: schedules and callbacks go on from
            there, and `epochs` counts them.
        steps_per_epoch: Steps of an epoch, for rows by number; None for a pass over all rows. As in
            Keras, a pass goes on in the next epoch, and its last epoch takes the steps that are
            left.
        validation_freq: Epochs between validations, or the epochs, from 1, that are validated.
        validation_batch_size: Rows per batch of the validation, or None to choose.
        validation_steps: Batches of a validation, of `validation_batch_size` rows or else as many
            as training takes, from the first row on; None for all rows.
    """

    epochs: int = option(10, check_count)
    engine: str = option("auto", check_choice, ENGINES)
    schedule: Mapping[str, Any] | None = option(None, _check_schedule)
    clip_norm: float | None = option(None, check_positive)
    clip_value: float | None = option(None, check_positive)
    clip_global_norm: float | None = option(None, check_positive)
    ema: float | None = option(None, check_fraction)
    early_stopping: int | Mapping[str, Any] | None = option(None, _check_shorthand, int, float)
    checkpoint: str | Mapping[str, Any] | None = option(None, _check_shorthand, str)
    on_oom: str = option("halve", check_choice, ("halve", "stop"))
    tensorboard: str | Mapping[str, Any] | None = option(None, _check_shorthand, str)
    rate_scaling: str = option("none", check_choice, RATE_SCALINGS)
    initial_epoch: int = option(0, check_count, 0)
    steps_per_epoch: int | None = option(None, check_count)
    validation_freq: int | tuple[int, ...] = option(1, _check_frequency)
    validation_batch_size: int | None = option(None, check_count)
    validation_steps: int | None = option(None, check_count)
