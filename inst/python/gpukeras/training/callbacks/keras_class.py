"""Makes Keras callbacks of classes that are written before Keras is imported."""

from __future__ import annotations

import functools
from typing import Any

from gpukeras.backend import runtime


@functools.cache
def _with_keras(kind: type) -> type:
    return type(kind.__name__, (kind, runtime.keras().callbacks.Callback), {})


def as_callback(kind: type, *arguments: Any, **named: Any) -> Any:
    """Returns an instance of a class that is a Keras callback too, made with these arguments."""
    made: Any = _with_keras(kind)
    callback = made.__new__(made)
    runtime.keras().callbacks.Callback.__init__(callback)
    callback.__init__(*arguments, **named)
    return callback
