"""Changes a model's optimizer for one training: its rates come from a table, it clips gradients.

A step looks its rate up by the optimizer's own step counter, without Python: in eager mode, in a
graph, and in a compiled loop of many steps.

Replaced attributes are restored afterwards. The optimizer's variables keep their number and order,
so saved files fit before, during and after the training; and a model that a callback saves during
the training has the optimizer's own settings in its file, nothing of gpukeras.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.core.keras_types import Model, Optimizer
from gpukeras.core.options import check_positive
from gpukeras.engine.schedules import ScheduleSpec, draw_rates_at

# Successive steps without an update that end a training; loss scaling halved its scale each time.
STUCK_STEPS = 100
LONGEST_TABLE = 2**22  # rates (16 MiB); longer trainings share each rate between several steps
CLIPPING = {
    "clip_norm": "clipnorm",
    "clip_value": "clipvalue",
    "clip_global_norm": "global_clipnorm",
}  # from the argument to Keras' attribute


class Rates:
    """The rates of a training, for lookup inside a step.

    A step's rate is `table[(iterations - start) / stride] * factor`; before and beyond the table it
    is the first and the last. All three are variables, so a traced program sees them change.

    Args:
        iterations: The optimizer's step counter.
        base: The optimizer's own rate.
        table: Shape (n,), float32: the rate of every `stride`-th step.
        start: The counter's value at which the training began.
        stride: Steps that share a rate.
    """

    def __init__(
        self, iterations: Any, base: float, table: np.ndarray, start: int, stride: int = 1
    ) -> None:
        """Puts the table on the device of the optimizer's variables."""
        self.base = base
        self._iterations = iterations
        self._stride = stride
        self._last, self._top = len(table) - 1, float(np.max(table))
        self._bound: tuple[Any, ...] = ()
        # XLA refuses variables of another device than the optimizer's.
        self._table = tensor_ops.variable_beside(iterations, table, "float32")
        self._start = tensor_ops.variable_beside(iterations, start)
        self.factor = tensor_ops.variable_beside(iterations, 1.0, "float32")

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables that a step reads here."""
        return self._table, self._start, self.factor

    def at(self, iterations: Any) -> Any:
        """Returns the rate of a step as a tensor; for use inside the step."""
        ops = runtime.keras().ops
        table, start, factor = self._bound or tuple(variable.value for variable in self.variables)
        place = ops.cast(iterations, self._start.dtype) - start
        place = place // self._stride if self._stride > 1 else place
        return ops.take(table, ops.clip(place, 0, self._last)) * factor

    @contextmanager
    def bound_to(self, values: Sequence[Any]) -> Iterator[None]:
        """Takes the values of `variables` from a step's arguments, within the context."""
        self._bound = tuple(values)
        try:
            yield
        finally:
            self._bound = ()

    def current(self) -> float:
        """Returns the rate of the next step."""
        return float(self.at(self._iterations))

    def reduce(self, by: float, lowest: float = 0.0) -> bool:
        """Multiplies all later rates; returns whether that changed them.

        Args:
            by: The factor.
            lowest: Lower bound of the table's highest rate.
        """
        before = np.float32(self.factor.numpy())
        after = reduce_factor(before, by, lowest, self._top)
        self.factor.assign(after)
        return bool(after != before)

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the state for a checkpoint: plain values, and no arrays."""
        return {"start": int(self._start.numpy()), "factor": float(self.factor.numpy())}, {}

    def set_state(self, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `get_state()`."""
        self._start.assign(int(plain["start"]))
        self.factor.assign(float(plain["factor"]))


def reduce_factor(before: np.float32, by: float, lowest: float, highest: float) -> np.float32:
    """Returns the factor of rates after they were multiplied.

    Args:
        before: The factor before.
        by: What to multiply it by.
        lowest: Lower bound of the highest rate.
        highest: The highest rate at a factor of 1.
    """
    floor = np.float32(lowest / highest) if highest > 0 else before
    return max(before * np.float32(by), min(before, floor))


class _TableSchedule:
    # The schedule that Keras calls for a rate; its base class is added once Keras is imported.
    def __init__(self, rates: Rates) -> None:
        self.rates = rates

    def __call__(self, step: Any) -> Any:
        return self.rates.at(step)


@functools.cache
def _schedule_class() -> type:
    base = runtime.keras().optimizers.schedules.LearningRateSchedule
    return type("TableSchedule", (_TableSchedule, base), {})


def find_rates(model: Model) -> Rates | None:
    """Returns the rates that `override_schedule()` has given a model's optimizer, or None."""
    inner = keras_private.without_scaling(model.optimizer)
    return getattr(keras_private.learning_rate(inner), "rates", None)


# Holding -----------------------------------------------------------------------------------------


def count_steps(model: Model) -> int:
    """Returns the number of steps that a model's optimizer has made.

    Raises:
        ModelError: if the model has several optimizers.
    """
    return int(keras_private.step_count(find_optimizer(model, "schedule")).numpy())


@contextmanager
def override_schedule(
    model: Model,
    spec: ScheduleSpec,
    steps_per_epoch: int | None,
    epochs: int,
    start: int | None = None,
) -> Iterator[Rates]:
    """Gives a compiled model's optimizer the rates of a schedule; restores its own afterwards.

    Args:
        model: A compiled Keras model.
        spec: The schedule.
        steps_per_epoch: Steps per epoch, or None if unknown.
        epochs: Epochs of the whole training, those before a resumption included.
        start: The optimizer's step counter where the training began, or None for now.

    Raises:
        SpecError: if the schedule needs a number of steps that is unknown, or does not fit.
        ModelError: if the optimizer has several rates.
    """
    optimizer = find_optimizer(model, "schedule")
    start = count_steps(model) if start is None else start
    base = read_own_rate(optimizer, start)
    steps = None if steps_per_epoch is None else steps_per_epoch * epochs
    stride = -(-(steps or 1) // LONGEST_TABLE)
    table = draw_rates_at(spec, base, np.arange(0, steps or 1, stride), steps, steps_per_epoch)
    rates = Rates(keras_private.step_count(optimizer), base, table, start, stride)
    with _hold_rates(optimizer, rates):
        yield rates


@contextmanager
def override_rate(model: Model) -> Iterator[Rates]:
    """Gives a compiled model's optimizer a rate that is set before each step.

    Args:
        model: A compiled Keras model.

    Yields:
        Rates whose `factor` is the rate of the next steps.

    Raises:
        ModelError: if the optimizer has several rates.
    """
    optimizer = find_optimizer(model, "learning_rate")
    rates = Rates(keras_private.step_count(optimizer), 1.0, np.ones(1, np.float32), 0)
    with _hold_rates(optimizer, rates):
        yield rates


def _hold_rates(optimizer: Optimizer, rates: Rates) -> AbstractContextManager[None]:
    # Not the public `learning_rate`: its setter removes the rate from the optimizer's variables.
    return _held(optimizer, **{keras_private.LEARNING_RATE: _schedule_class()(rates)})


@contextmanager
def hold_clipping(
    model: Model,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    clip_global_norm: float | None = None,
) -> Iterator[None]:
    """Clips gradients within the context, as Keras' optimizers do.

    Args:
        model: A compiled Keras model.
        clip_norm: Highest norm of each variable's gradient.
        clip_value: Highest absolute value of each element.
        clip_global_norm: Highest norm of all gradients together.

    Raises:
        SpecError: if more than one is given, or the model's optimizer clips already.
        ModelError: if the model has several optimizers.
    """
    requested = check_clipping(clip_norm, clip_value, clip_global_norm)
    if not requested:
        yield
        return
    optimizer = find_optimizer(model, next(iter(requested)))
    _check_own_clipping(optimizer, *requested)
    with _held(optimizer, **{CLIPPING[arg]: value for arg, value in requested.items()}):
        yield


@contextmanager
def _held(optimizer: Optimizer, **values: Any) -> Iterator[None]:
    """Sets attributes of an optimizer that a saved configuration does not show."""
    before = {name: getattr(optimizer, name) for name in values}
    get_config, nested = optimizer.get_config, "get_config" in vars(optimizer)

    def own_config() -> dict[str, Any]:
        _assign(optimizer, before)
        try:
            return get_config()
        finally:
            _assign(optimizer, values)

    _assign(optimizer, {**values, "get_config": own_config})
    try:
        yield
    finally:
        _assign(optimizer, before)
        if nested:
            optimizer.get_config = get_config
        else:
            del optimizer.get_config


def _assign(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(target, name, value)


# Reading -----------------------------------------------------------------------------------------


def find_optimizer(model: Model, arg: str) -> Any:
    """Returns the optimizer that updates a compiled model: the inner one under loss scaling.

    Raises:
        ModelError: if there are several; `arg` is the option that needs a single one.
    """
    several = getattr(runtime.keras().optimizers, "MultiOptimizer", ())  # not in every Keras 3
    optimizer = keras_private.without_scaling(model.optimizer)
    if isinstance(optimizer, several):
        raise ModelError(
            f"`{arg}` needs a model with one optimizer, and this one has a MultiOptimizer.",
            hint="Give each of its optimizers a schedule and clipping of its own in compile().",
            arg=arg,
        )
    return optimizer


def read_rate(model: Model, ahead: int = 0) -> float:
    """Returns the rate of a compiled model's step; NaN if the model has several optimizers.

    Args:
        model: A compiled Keras model.
        ahead: Which step: 0 is the next one, -1 the last one that was done.
    """
    try:
        optimizer = find_optimizer(model, "schedule")
    except ModelError:
        return float("nan")
    return read_own_rate(
        optimizer, max(0, int(keras_private.step_count(optimizer).numpy()) + ahead)
    )


def read_own_rate(optimizer: Optimizer, step: int) -> float:
    """Returns an optimizer's rate at a step: from its variable, its schedule or its function."""
    rate = keras_private.learning_rate(optimizer)
    if isinstance(rate, runtime.keras().optimizers.schedules.LearningRateSchedule):
        return float(rate(step))
    return float(rate.numpy() if hasattr(rate, "numpy") else rate())


# Checks ------------------------------------------------------------------------------------------


def check_clipping(
    clip_norm: float | None, clip_value: float | None, clip_global_norm: float | None
) -> dict[str, float]:
    """Returns the clipping option that is given, if any, by its argument.

    Args:
        clip_norm: See `hold_clipping()`.
        clip_value: See `hold_clipping()`.
        clip_global_norm: See `hold_clipping()`.

    Raises:
        SpecError: if it is not a number above 0, or if two are given.
    """
    values = zip(CLIPPING, (clip_norm, clip_value, clip_global_norm), strict=True)
    limits = {arg: check_positive(arg, value) for arg, value in values if value is not None}
    if len(limits) > 1:
        first, second, *_ = limits
        raise SpecError(
            f"`{first}` and `{second}` are given, but gradients are clipped in one way only.",
            hint="Give one of them.",
            arg=first,
        )
    return limits


def _check_own_clipping(optimizer: Optimizer, arg: str) -> None:
    for name in CLIPPING.values():
        if name != CLIPPING[arg] and getattr(optimizer, name) is not None:
            raise SpecError(
                f"`{arg}` is given, but the model was compiled with `{name}`, and gradients are "
                "clipped in one way only.",
                hint=f"Compile the model without `{name}`, or leave out `{arg}`.",
                arg=arg,
            )


def require_plain_rate(model: Model, arg: str) -> None:
    """Checks that an optimizer's rate is a number, not a Keras schedule.

    Raises:
        SpecError: naming `arg`, otherwise.
    """
    optimizer = find_optimizer(model, arg)
    schedule = runtime.keras().optimizers.schedules.LearningRateSchedule
    if isinstance(keras_private.learning_rate(optimizer), schedule):
        raise SpecError(
            f"`{arg}` multiplies a rate, and the optimizer has a schedule of Keras'.",
            hint="Give `schedule`, such as schedule_one_cycle(), instead.",
            arg=arg,
        )
