"""Ties to a model what rows that did not train it say about its predictions."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.models.temperature import HIGHEST, LOGIT, LOWEST, READINGS, rescale

NUMBERS = "numbers"
QUANTILES = "quantiles"
CLASSES = "classes"


@dataclass(frozen=True)
class Calibration:
    """What was learned from held-out rows.

    Args:
        kind: "numbers", "quantiles" (each output is a quantile) or "classes".
        rows: Number of the rows.
        scores: Scores of the rows in ascending order, one tuple for "numbers", one for each pair of
            "quantiles", see `conformal`.
        quantiles: Probabilities of the outputs, in ascending order, for "quantiles".
        reading: How probabilities are read from the output, see `temperature`, for "classes"; how
            shares are, for "numbers" that are logits of shares; else "".
        temperature: Divides the logits of "classes".
    """

    kind: str
    rows: int
    scores: tuple[tuple[float, ...], ...] = ()
    quantiles: tuple[float, ...] = ()
    reading: str = ""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Checks itself, as it may come from a file.

        Raises:
            SpecError: if it holds something else.
        """
        pairs = {NUMBERS: 1, QUANTILES: len(self.quantiles) // 2, CLASSES: 0}.get(self.kind)
        sound = pairs is not None and len(self.scores) == pairs and self.rows > 0
        sound = sound and all(_rises(scores) and len(scores) > 0 for scores in self.scores)
        sound = sound and _rises(self.quantiles)
        readings = {NUMBERS: ("", LOGIT), QUANTILES: ("",), CLASSES: READINGS}
        sound = sound and self.reading in readings[self.kind]
        if not (sound and LOWEST / 2 <= self.temperature <= HIGHEST * 2):
            raise SpecError("This is no calibration of gpu_calibrate().", arg="calibration")


def _rises(values: tuple[float, ...]) -> bool:
    """Whether numbers are finite and in ascending order."""
    return all(map(math.isfinite, values)) and all(
        lower <= other for lower, other in pairwise(values)
    )


_CALIBRATIONS: weakref.WeakKeyDictionary[Any, Calibration] = weakref.WeakKeyDictionary()


def tie_calibration(model: Model, calibration: Calibration | None) -> None:
    """Ties a calibration to a model; None unties it, as after a training it no longer holds."""
    if calibration is None:
        _CALIBRATIONS.pop(model, None)
    else:
        _CALIBRATIONS[model] = calibration


def calibration_of(model: Model) -> Calibration | None:
    """Returns the calibration that is tied to a model, or None."""
    return _CALIBRATIONS.get(model)


def adjust(model: Model, output: Any) -> Any:
    """Returns a model's output with calibrated probabilities, in the same memory.

    Outputs of models without a calibration of classes stay as they are.
    """
    calibration = _CALIBRATIONS.get(model)
    if calibration is None or calibration.kind != CLASSES or not isinstance(output, np.ndarray):
        return output
    output[...] = rescale(output, calibration.reading, calibration.temperature)
    return output


def to_portable(model: Model) -> dict[str, Any] | None:
    """Returns a model's calibration as JSON values, or None."""
    calibration = _CALIBRATIONS.get(model)
    return None if calibration is None else asdict(calibration)


def tie_stored(model: Model, plain: Any) -> None:
    """Ties a calibration from a file of unknown origin to a model; None is none.

    Raises:
        SpecError, TypeError, ValueError, KeyError, OverflowError: if it is damaged.
    """
    if plain is None:
        return
    if not isinstance(plain, Mapping):
        raise TypeError
    numbers = [tuple(map(float, scores)) for scores in plain["scores"]]
    calibration = Calibration(
        kind=str(plain["kind"]),
        rows=int(plain["rows"]),
        scores=tuple(numbers),
        quantiles=tuple(map(float, plain["quantiles"])),
        reading=str(plain["reading"]),
        temperature=float(plain["temperature"]),
    )
    tie_calibration(model, calibration)
