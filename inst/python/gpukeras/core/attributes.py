"""Replaces attributes of objects for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """Gives an object attributes of its own inside the context; afterwards it has those before.

    Not by setattr(): Keras would track the values, and save them with the model.

    Args:
        target: The object, which has a dictionary.
        values: The attributes.
    """
    own = vars(target)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            own.pop(name, None)
        own.update(before)
