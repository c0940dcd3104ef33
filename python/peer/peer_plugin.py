"""A pytest plugin: Keras' tests train through gpukeras, and what became of each is written down.

`PEER_ENGINE` names the engine; empty, Keras trains, and its calls are only counted. `PEER_RECORDS`
is a file that gets a line of JSON for each test.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import routing

from gpukeras.backend import tensor_ops
from gpukeras.core.errors import GpuKerasError

ENGINE = os.environ.get("PEER_ENGINE", "")
OTHER_BACKENDS = ("jax", "torch", "grain", "pandas", "scipy")  # imported by tests that skip them
INSIDE: list[str] = []  # the call that goes on: what it calls itself is Keras' own
CALLS: list[str] = []  # of the test that runs
RAISED: list[int] = []  # which of these calls ended with an error, counted from 1
REFUSALS: list[str] = []


class Layers:
    """The layers of what is no model; who sets them keeps them."""

    def __get__(self, owner: Any, kind: type) -> Any:
        """Those within."""
        return self if owner is None else list(owner._flatten_layers(False, recursive=False))


def disown(*values: Any) -> None:
    """What Keras' tests define is a user's: they lie among Keras' own modules."""
    for value in values:
        for kind in type(value).__mro__:
            if kind.__module__.endswith("_test"):
                kind.__module__ = "users"


def route(name: str) -> None:
    """Puts the core's function in the place of the trainer's."""
    trainer = next(one for one in keras.Model.__mro__ if name in vars(one))
    own = vars(trainer)[name]
    signature = inspect.signature(own)

    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if INSIDE:
            return own(self, *args, **kwargs)
        CALLS.append(name)
        bound = dict(signature.bind(self, *args, **kwargs).arguments)
        del bound["self"]
        bound.update(bound.pop("kwargs", {}))
        return _call(name, own, self, bound)

    setattr(trainer, name, routed)


def _call(name: str, own: Callable[..., Any], model: Any, given: dict[str, Any]) -> Any:
    INSIDE.append(name)
    try:
        if not ENGINE:
            return own(model, **given)
        engine = [ENGINE] if name == "fit" else []
        disown(*model._flatten_layers(), *routing.as_callbacks(given.get("callbacks")))
        return getattr(routing, name)(model, *engine, **given)
    except BaseException as error:
        RAISED.append(len(CALLS))
        REFUSALS.extend([str(error)] if isinstance(error, GpuKerasError) else [])
        raise
    finally:
        INSIDE.pop()


def pytest_configure(config: pytest.Config) -> None:
    """Keras is loaded by now; what it did not find stays away from it."""
    for name in OTHER_BACKENDS:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    for name in ("fit", "evaluate", "predict"):
        route(name)
    # Keras' tests train layers that have a trainer: no models, and nobody else's either.
    trainer = keras.Model.__mro__[keras.Model.__mro__.index(keras.Model) + 1]
    tensor_ops.is_keras_model = lambda value: isinstance(value, (keras.Model, trainer))
    trainer.layers = Layers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Each test begins with no calls."""
    del CALLS[:], RAISED[:], REFUSALS[:], INSIDE[:]
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes what became of a test, or of what it needs before and after."""
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    record = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "calls": sorted(set(CALLS)),
        "raised": [*RAISED],
        "refusal": REFUSALS[-1] if REFUSALS else "",
        "error": "" if crash is None else crash.message[:400],
    }
    with open(os.environ["PEER_RECORDS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be read has no tests."""
    if report.outcome == "failed":
        record = {"test": report.nodeid, "outcome": "unread", "error": str(report.longrepr)[-300:]}
        with open(os.environ["PEER_RECORDS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
