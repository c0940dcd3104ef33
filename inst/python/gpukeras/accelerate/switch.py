"""Puts functions in the place of Keras' `fit()`, `evaluate()` and `predict()`, and takes them away.

A call is decided on when it is made, and what became of it is kept for the report.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from gpukeras.accelerate import calls
from gpukeras.accelerate.decide import BATCHES, GPUKERAS, KERAS, ROWS, CallPlan, plan_call
from gpukeras.accelerate.facts import read_facts
from gpukeras.backend import import_hook, keras_private, runtime
from gpukeras.core.errors import DataError, GpuKerasError, RefusedRowsError, RuntimeMissingError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.training.keras_terms import KerasTerms

FUNCTIONS = ("fit", "evaluate", "predict")
CACHED = "_use_cached_eval_dataset"  # an argument of the evaluation that Keras' own fit() makes
MOST_CALLS = 10_000  # in the report; a script that predicts row by row makes more
KERAS_2 = "accelerate() takes over no call of tf_keras, which is Keras 2."


@dataclass(frozen=True)
class Call:
    """A call that was made.

    Args:
        function: "fit", "evaluate" or "predict".
        model: The model's name.
        engine: "gpukeras" or "keras".
        reason: How gpukeras ran it, or why Keras did.
        rows: Number of rows; None if unknown.
        seconds: How long it took.
    """

    function: str
    model: str
    engine: str
    reason: str
    rows: int | None
    seconds: float


class _Here(threading.local):
    """What goes on in a thread."""

    depth = 0


@dataclass
class _Switch:
    """Whether acceleration is on, and what became of it.

    Args:
        on: Whether it is on.
        placed: The functions in the place of Keras' own, by name, with the class that has them.
        problem: Why Keras' functions could not be replaced when Keras was imported; "" if they
            could.
    """

    on: bool = False
    placed: dict[str, tuple[Any, Callable[..., Any]]] = field(default_factory=dict)
    problem: str = ""


CALLS: list[Call] = []
_switch = _Switch()
_here, _busy = _Here(), threading.Lock()


def switch(on: bool = True) -> bool:
    """Turns acceleration on or off, also before Keras is imported; returns whether it was on.

    Raises:
        RuntimeMissingError: if the Keras that is imported is not one that gpukeras works with. It
            is off then.
    """
    was = _switch.on
    _switch.on = on
    _switch.problem = ""
    import_hook.follow("keras", _replace_or_warn if on else None)
    import_hook.follow("tf_keras", _warn_of_keras_2 if on else None)
    if not on:
        _restore()
        return was
    try:
        if "keras" in sys.modules:
            _replace(sys.modules["keras"])
    except Exception:
        switch(False)
        raise
    if "tf_keras" in sys.modules:
        _warn_of_keras_2(sys.modules["tf_keras"])
    return was


def _warn_of_keras_2(module: ModuleType) -> None:
    warnings.warn(KERAS_2, RuntimeWarning, stacklevel=2)


def _replace_or_warn(module: ModuleType) -> None:
    """Follows an import of Keras, which must not fail for what accelerate() cannot do."""
    _switch.problem = ""
    try:
        _replace(module)
    except Exception as error:
        _switch.problem = _explain(error).rstrip(".")
        warnings.warn(read_state().note, RuntimeWarning, stacklevel=2)


def _replace(module: ModuleType) -> None:
    if runtime.keras() is not module:  # by `keras.config.set_backend()`
        raise RuntimeMissingError("Keras was imported a second time in this process.")
    kind = runtime.keras().Model
    for name in FUNCTIONS:
        if not _is_placed(name):
            _switch.placed[name] = kind, _wrap(name, getattr(kind, name))
            setattr(kind, name, _switch.placed[name][1])


def _restore() -> None:
    """Gives Keras its functions back, but for one that another package has wrapped."""
    for name, (kind, ours) in list(_switch.placed.items()):
        if vars(kind).get(name) is ours:
            theirs = ours.__wrapped__
            delattr(kind, name)
            if getattr(kind, name) is not theirs:  # another package's, on this class
                setattr(kind, name, theirs)
            del _switch.placed[name]


def _is_placed(name: str) -> bool:
    """Whether a call of Keras' function reaches ours, also through another package's wrapper."""
    kind, ours = _switch.placed.get(name, (None, None))
    link = getattr(kind, name, None)
    while link is not None and link is not ours:
        link = getattr(link, "__wrapped__", None)
    return ours is not None and link is ours


@dataclass(frozen=True)
class State:
    """Whether calls are looked at.

    Args:
        on: Whether acceleration is on.
        lost: Whether it is on, and calls of a Keras that is imported are not looked at.
        note: Which calls are not looked at, and why, as sentences; "" if all are.
    """

    on: bool
    lost: bool
    note: str


def read_state() -> State:
    """Returns whether calls are looked at."""
    if not _switch.on:
        return State(False, False, "accelerate() is off: calls are not looked at.")
    replaced = [f"{name}()" for name in FUNCTIONS if not _is_placed(name)]
    told = []
    if _switch.problem:
        told.append(f"accelerate() is on, but takes over no call: {_switch.problem}.")
    elif "keras" in sys.modules and replaced:
        names = " and ".join(replaced)
        told.append(f"accelerate() is on, but another package has replaced Keras' {names}.")
    if "tf_keras" in sys.modules:
        told.append(KERAS_2)
    if not told and "keras" not in sys.modules:
        return State(True, False, "accelerate() is on, and Keras is not imported yet.")
    return State(True, bool(told), " ".join(told))


def describe(clear: bool = False) -> dict[str, Any]:
    """Returns `calls`, those so far, and `state`.

    Args:
        clear: Whether to forget the calls.
    """
    return {"calls": report(clear), "state": read_state()}


def report(clear: bool = False) -> list[Call]:
    """Returns the calls so far, the earliest first.

    Args:
        clear: Whether to forget them.
    """
    told = list(CALLS)
    if clear:
        CALLS.clear()
    return told


def _wrap(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    @functools.wraps(own)
    def accelerated(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _switch.on or CACHED in kwargs:
            return own(self, *args, **kwargs)  # a part of another call
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return own(self, *args, **kwargs)
        bound.apply_defaults()
        call = {key: value for key, value in bound.arguments.items() if key != "self"}
        plain = functools.partial(own, self, *args, **kwargs)
        return _run(name, self, call, plain)

    return accelerated


def _run(name: str, model: Model, call: dict[str, Any], plain: Callable[[], Any]) -> Any:
    began, nested = time.perf_counter(), _here.depth > 0
    rows: int | None = None
    try:
        facts = read_facts(model, name, call, nested=nested, busy=not nested and _busy.locked())
        plan, rows = plan_call(facts), facts.count
    except Exception as error:  # what cannot be read, Keras will refuse or take
        plan = CallPlan(KERAS, _explain(error))
    with _entered():
        if plan.engine == GPUKERAS and _busy.acquire(blocking=False):
            try:
                done, value, why = _try(name, model, call, plan.way)
            finally:
                _busy.release()
            plan = CallPlan(GPUKERAS if done else KERAS, why)
            if done:
                _keep(name, model, plan, rows, began)
                return value
        value = plain()
    _keep(name, model, plan, rows, began)
    return value


def _try(name: str, model: Model, call: dict[str, Any], way: str) -> tuple[bool, Any, str]:
    """Runs a call through gpukeras; in Keras' batches, if it cannot gather the rows itself.

    Returns:
        Whether it ran, its value, and how it ran or why it did not. It did not if nothing was
        trained, so that Keras can run it.
    """
    terms, drawn = KerasTerms(), np.random.get_state()
    try:
        with calls.unnoticed(model):
            if name != "fit":
                return True, *getattr(calls, name)(model, call, way)
            terms = calls.terms_of(model, call)
            return True, *calls.fit(model, call, terms, way)
    except Exception as error:
        _raise_where_keras_cannot_run(error, name, model, call, terms)
        # Keras draws orders of rows again on JAX, but for that by which a model is built.
        built = terms.once_built is not None and keras_private.is_ready(model)
        np.random.set_state(terms.once_built if built else drawn)
        refused = isinstance(error, DataError) and not isinstance(error, RefusedRowsError)
        batches = name != "predict" and runtime.backend() == "tensorflow"
        if way == ROWS and refused and not terms.began and batches:
            return _try(name, model, call, BATCHES)
        return False, None, _explain(error)


def _raise_where_keras_cannot_run(
    error: Exception, name: str, model: Model, call: dict[str, Any], terms: KerasTerms
) -> None:
    """Raises an error, unless the model is as it was before, so that Keras can run the call.

    Rows that TensorFlow refuses are refused by Keras too: its own error is raised at once.
    """
    cause = None if terms.failed is None else terms.failed.__cause__
    if isinstance(error, RefusedRowsError):
        if error.origin is not None:
            raise error.origin from None
    elif name == "fit" and terms.began and not (error_of(terms, error) and terms.failed_at_first):
        if isinstance(error, GpuKerasError) and cause is not None:
            raise cause from None
        if isinstance(error, GpuKerasError) and terms.failed is None:  # in the validation
            calls.validate_by_keras(model, call)
        raise error
    if terms.taken:  # Keras would go on where the iterator is now
        raise cause or error from None


def error_of(terms: KerasTerms, error: BaseException) -> bool:
    """Whether an error is that of a failed call of the train function, or was raised from it."""
    link: BaseException | None = error
    while link is not None:
        if link is terms.failed:
            return True
        link = link.__cause__ or link.__context__
    return False


def _explain(error: BaseException) -> str:
    if isinstance(error, DataError):
        return f"gpukeras takes no such rows: {error.message}"
    if isinstance(error, GpuKerasError):
        return error.message
    return f"gpukeras could not: {find_reason(error)}"


def _keep(name: str, model: Model, plan: CallPlan, rows: int | None, began: float) -> None:
    seconds = time.perf_counter() - began
    CALLS.append(Call(name, str(model.name), plan.engine, plan.reason, rows, seconds))
    del CALLS[:-MOST_CALLS]


@contextmanager
def _entered() -> Iterator[None]:
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
