"""Looks up the peak of a card's arithmetic, as its vendor's data sheet states it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_name("peak_flops.json")
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
    for entry in json.loads(PATH.read_text(encoding="utf-8"))["cards"]:
        if re.fullmatch(entry["name"], card):
            kind = "tf32" if dtype == "float32" and tf32 and "tf32" in entry else dtype
            if kind in entry:
                return Peak(card, kind, float(entry[kind]), entry["source"])
    return None
