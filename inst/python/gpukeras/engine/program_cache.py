"""Keeps the programs of a session that were used last, whatever they train or check.

Tracing takes 0.3 to 0.5 s of processor time for a small model, and compiling a second or two. Some
of what is kept holds a model, and all of it some MiB of code.

A program that was traced from one model refers to it by captured variables alone, so those of an
equal model can take their place, and TensorFlow finds what XLA has compiled for it. Programs are
shared only between models that are provably equal, see `describe_model()`. A shared program holds
no variables, and so none of the first model's memory.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.backend import keras_private
from gpukeras.backend.graph_reader import read_program
from gpukeras.core.keras_types import Model
from gpukeras.engine.row_guard import RowGuard
from gpukeras.engine.value_ranges import CHECKED
from gpukeras.models.identity import describe_model, list_state

MOST = 24
_kept: OrderedDict[Hashable, Any] = OrderedDict()


def find_program(key: Hashable) -> Any:
    """Returns what is kept under a key, or None."""
    if key in _kept:
        _kept.move_to_end(key)
    return _kept.get(key)


def keep_program(key: Hashable, program: Any) -> Any:
    """Keeps a program under a key, which begins with its kind, and returns it."""
    _kept[key] = program
    while len(_kept) > MOST:
        _kept.popitem(last=False)
    return program


@dataclass(frozen=True)
class Traced:
    """A traced function, and what it is called on.

    Args:
        function: A concrete function, or, where it is shared, what `drop_captures()` returned.
        captured: Its captured inputs: variables, or tensors of other kinds.
        saved_s: Seconds of tracing that an earlier model has saved this one.
        shared: Whether it holds no variables itself.
        guard: Keeps rows off it whose checks XLA would drop; None where XLA does not run it.
    """

    function: Any
    captured: tuple[Any, ...]
    saved_s: float = 0.0
    shared: bool = False
    guard: RowGuard | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Runs it."""
        return self.call_on(self.captured, arguments) if self.shared else self.function(*arguments)

    def call_on(self, captured: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Runs it on other captured inputs.

        Args:
            captured: As many, of the same shapes.
            arguments: Its arguments.
        """
        handles = [getattr(each, "handle", each) for each in captured]
        return keras_private.call_captured(self.function, arguments, handles)


def open_traced(
    model: Model,
    step: Any,
    terms: Sequence[Any],
    trace: Callable[[], Any],
    *,
    guarded: bool = False,
) -> Traced:
    """Returns a program on a model's variables: an equal model's, or a new one.

    Args:
        model: A compiled model whose variables exist.
        step: What is traced, see `Engines`.
        terms: What the program depends on besides them.
        trace: Returns a concrete function of the model's step.
        guarded: Whether XLA runs it, so that its rows are to be checked.
    """
    state, key = list_state(model, step), make_key(model, step, terms)
    shared = None if key is None else find_program(key)
    if shared is not None:
        traced, places = shared
        return replace(traced, captured=tuple(state[place] for place in places))
    began = time.perf_counter()
    concrete = trace()
    guard = RowGuard(read_program(concrete, CHECKED)) if guarded else None
    traced = replace(hold(concrete), guard=guard)
    return traced if key is None else _share(key, traced, state, time.perf_counter() - began)


def hold(concrete: Any) -> Traced:
    """Returns a concrete function with its own captured inputs."""
    variables = {id(variable.handle): variable for variable in concrete.graph.variables}
    captured = concrete.captured_inputs
    return Traced(concrete, tuple(variables.get(id(each), each) for each in captured))


def make_key(model: Model, step: Any, terms: Sequence[Any]) -> Hashable | None:
    """Returns what equal programs have in common; None for a step that is not only Keras' own.

    Args:
        model: A compiled model whose variables exist.
        step: What is traced, see `Engines`.
        terms: What the program depends on besides them.
    """
    if not getattr(step, "is_plain", getattr(step, "__self__", None) is model):
        return None
    described = describe_model(model, step)
    return None if described is None else ("traced", described, str(terms))


def _share(key: Hashable, traced: Traced, state: Sequence[Any], seconds: float) -> Traced:
    """Lets equal models use a program, unless it captures more than their variables."""
    places = {id(variable): place for place, variable in enumerate(state)}
    if not all(id(each) in places for each in traced.captured):
        return traced
    try:
        shared = replace(traced, function=keras_private.drop_captures(traced.function), shared=True)
    except AttributeError:  # another TensorFlow's insides
        return traced
    taken = tuple(places[id(each)] for each in traced.captured)
    keep_program(key, (replace(shared, captured=(), saved_s=seconds), taken))
    return shared


# Names that repeat --------------------------------------------------------------------------------
# Equal programs of a session still have different names: TensorFlow allows each name once.


NAMES = 2**20  # more than the functions within a program
_traced: Counter[bytes] = Counter()


def repeatable_names(model: Model, program: str) -> AbstractContextManager[None]:
    """Names the functions that are traced inside by the model's structure and by their order.

    Args:
        model: A model whose variables exist.
        program: What distinguishes the programs of a model.
    """
    variables = [(variable.path, tuple(variable.shape)) for variable in model.variables]
    described = hashlib.sha256(f"{model.name} {variables} {program}".encode()).digest()
    _traced[described] += 1
    digest = hashlib.sha256(described + b"%d" % _traced[described]).digest()
    return keras_private.numbered_from(int.from_bytes(digest[:5], "big") * NAMES)
