"""Gives traced programs names that repeat in each session, so that XLA finds them on disk.

Equal programs of a session still have different names: TensorFlow allows each name once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import AbstractContextManager

from gpukeras.backend import keras_private
from gpukeras.core.keras_types import Model

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
