"""Looks up what a card's vendor says of it: its chip, memory and arithmetic.

Each card names its data sheet. All figures were checked with a second published source, see "about"
in `cards.json`; a figure that none confirmed is named in the card's source.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpukeras.core.errors import SpecError

PATH = Path(__file__).with_name("cards.json")
TENSOR_CORES_FROM = 7.0  # compute capability
# The number type of the products by Keras' dtype policy.
PRODUCTS = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
PEAKS = ("float32", "tf32", "float16", "bfloat16")
_MAKER = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")


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


@dataclass(frozen=True)
class Card:
    """A card, as its data sheet describes it.

    Args:
        name: Its short name, such as "RTX 3060".
        driver: A regular expression for the whole name that its driver tells.
        chip: Such as "GA106".
        capability: Compute capability.
        sms: Streaming multiprocessors.
        memory_mib: MiB of memory that a program may use.
        bandwidth_gbs: 10^9 bytes per second of that memory.
        l2_kib: KiB of L2 cache.
        clock_mhz: Boost clock.
        peaks: Peak TFLOP/s by number type.
        source: The data sheet.
        also: Other names of it.
    """

    name: str
    driver: str
    chip: str
    capability: tuple[int, int]
    sms: int
    memory_mib: int
    bandwidth_gbs: float
    l2_kib: int
    clock_mhz: int
    peaks: Mapping[str, float]
    source: str
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that each figure is positive, and that there is a source."""
        figures = (self.sms, self.memory_mib, self.bandwidth_gbs, self.l2_kib, self.clock_mhz)
        if min(*figures, *self.peaks.values()) <= 0 or not self.source:
            raise ValueError(f"{self.name} has a figure that is not positive, or no source")

    @property
    def memory_bytes(self) -> int:
        """Bytes of its memory."""
        return self.memory_mib * 2**20

    @property
    def tensor_cores(self) -> bool:
        """Whether it has tensor cores."""
        without = self.chip in _read()["no_tensor_cores"]
        return not without and self.capability >= (TENSOR_CORES_FROM, 0)

    def find_peak(self, policy: str, tf32: bool) -> Peak | None:
        """Returns its peak, or None if the number type is not listed.

        Args:
            policy: Keras' dtype policy of the model.
            tf32: Whether float32 products may be computed as TF32, where a card has that.
        """
        dtype = PRODUCTS.get(policy, "")
        if dtype == "float32" and tf32 and "tf32" in self.peaks:
            dtype = "tf32"
        if dtype not in self.peaks:
            return None
        return Peak(self.name, dtype, self.peaks[dtype], self.source)


@functools.cache
def list_cards() -> tuple[Card, ...]:
    """Returns all cards of the table, from the oldest on."""
    return tuple(_as_card(entry) for entry in _read()["cards"])


def find_card(name: str) -> Card | None:
    """Returns the card of a driver's name, or None if it is not listed.

    Args:
        name: The name that the driver tells. It must be listed as a whole: a slice of a card, or a
            card for laptops, has a name of its own and other figures.
    """
    return next((card for card in list_cards() if re.fullmatch(card.driver, name)), None)


def choose_card(name: str) -> Card:
    """Returns the card that a user means.

    Args:
        name: A name of the table, such as "A100" or "RTX 3060", or the driver's; the maker's words,
            case, spaces and hyphens do not matter.

    Raises:
        SpecError: if no card has that name.
    """
    wanted = _MAKER.sub("", name.lower())
    cards = list_cards()
    for card in cards:
        if wanted in [_MAKER.sub("", title.lower()) for title in (card.name, *card.also)]:
            return card
    entry = find_card(name)
    if entry is None:
        known = ", ".join(card.name for card in cards)
        raise SpecError(
            f'`card` is "{name[:60]}", which the table of cards does not have.',
            hint=f"It has {known}.",
            arg="card",
        )
    return entry


def find_peak(card: str, policy: str, tf32: bool) -> Peak | None:
    """Returns the peak of a card, or None if the card or the number type is not listed.

    Args:
        card: The name that the driver tells; see `find_card()`.
        policy: Keras' dtype policy of the model.
        tf32: Whether float32 products may be computed as TF32, where a card has that.
    """
    entry = find_card(card)
    peak = None if entry is None else entry.find_peak(policy, tf32)
    return None if peak is None else replace(peak, card=card)


def find_chip_without_tensor_cores(card: str) -> str:
    """Returns a card's chip if it has no tensor cores, though others of its capability do; or "".

    Args:
        card: The name that the driver tells.
    """
    names = _read()["no_tensor_cores"]
    return next((chip for chip, driver in names.items() if re.fullmatch(driver, card)), "")


def _as_card(entry: Mapping[str, Any]) -> Card:
    facts = {key: value for key, value in entry.items() if key not in PEAKS}
    major, _, minor = entry["capability"].partition(".")
    facts |= {"capability": (int(major), int(minor)), "also": tuple(entry.get("also", ()))}
    return Card(**facts, peaks={dtype: float(entry[dtype]) for dtype in PEAKS if dtype in entry})


@functools.cache
def _read() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return parsed
