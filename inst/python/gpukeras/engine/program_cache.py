"""Keeps the programs of a session that were used last, whatever they train or check.

Tracing takes 0.3 to 0.5 s of processor time for a small model, and compiling a second or two. Some
of what is kept holds a model, and all of it some MiB of code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

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
