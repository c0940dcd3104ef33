"""Looks up what a card's vendor says of its arithmetic: its peak, and its tensor cores."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("cards.json")
# The number type of the products by Keras' dtype policy.
PRODUCTS = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Peak:
    """The peak of a card.

    Args:
        card: The card's name.
        dtype: The number type of the products: "float32", "tf32", "float16" or "bfloat16".
        tflops: 10^12 floating-point operations per second, dense.
        source: The data sheet.
    """

    card: str
    dtype: str
    tflops: float
    source: str


def find_peak(card: str, policy: str, tf32: bool) -> Peak | None:
    """Returns the peak of a card, or None if the card or the number type is not listed.

    Args:
        card: The name that the driver tells. It must be listed as a whole: a slice of a card, or a
            card for laptops, has a name of its own and another peak.
        policy: Keras' dtype policy of the model.
        tf32: Whether float32 products may be computed as TF32, where a card has that.
    """
    dtype = PRODUCTS.get(policy, "")
    for entry in _read()["cards"]:
        if re.fullmatch(entry["name"], card):
            kind = "tf32" if dtype == "float32" and tf32 and "tf32" in entry else dtype
            if kind in entry:
                return Peak(card, kind, float(entry[kind]), entry["source"])
    return None


def lacks_tensor_cores(card: str) -> bool:
    """Whether a card has none, though others of its compute capability have them.

    Args:
        card: The name that the driver tells.
    """
    return re.fullmatch(_read()["no_tensor_cores"]["names"], card) is not None


@functools.cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found
