"""JSON values of checkpoints: their digests, and numbers of NumPy."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import numpy as np

DIGITS = 6  # digits of learned numbers: sums on another processor differ in later ones


def digest(value: Any) -> str:
    """Returns a short digest of JSON values, of whose numbers 6 digits count."""
    text = json.dumps(_rounded(value), sort_keys=True, default=as_number)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def as_number(value: Any) -> Any:
    """Converts a NumPy number to a Python number, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")
