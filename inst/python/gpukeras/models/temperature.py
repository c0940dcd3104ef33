"""Temperature scaling of probabilities, and how well probabilities are calibrated.

Guo, Pleiss, Sun and Weinberger (2017), On calibration of modern neural networks, ICML: the logits
of a classifier are divided by one number, the temperature, which minimises the log loss on rows
that did not train it. The most probable class stays the same. Pure functions of arrays.
"""

from __future__ import annotations

import numpy as np

from gpukeras.data.recipe import decoding

SOFTMAX, LOGITS = "softmax", "logits"  # an output with a column for each class
SIGMOID, LOGIT = "sigmoid", "logit"  # an output with one column for two classes
READINGS = (SOFTMAX, LOGITS, SIGMOID, LOGIT)
BINS = 15  # of the expected calibration error, as in Guo et al. (2017)
LOWEST, HIGHEST = 0.01, 100.0  # of temperatures; rows that are all right would want 0
SMALLEST = 1e-30  # a probability that underflowed counts as this
STEPS, TOLERANCE = 100, 1e-10  # of Newton's method


def name_scale(reading: str, logits: bool) -> str:
    """Returns how probabilities are read from an output: one of `READINGS`.

    Args:
        reading: How classes are read from it, see `decoding`.
        logits: Whether the loss takes logits.
    """
    if reading == decoding.HIGHEST:
        return LOGITS if logits else SOFTMAX
    return LOGIT if reading == decoding.ZERO else SIGMOID


def to_probabilities(output: np.ndarray, reading: str) -> np.ndarray:
    """Returns the probabilities of an output of any shape, classes along its last axis.

    Args:
        output: The model's output.
        reading: One of `READINGS`.
    """
    if reading == LOGITS:
        return soften(output)
    return (1 + np.tanh(output / 2)) / 2 if reading == LOGIT else output


def to_logits(output: np.ndarray, reading: str) -> np.ndarray:
    """Returns logits (float64; rows, classes) of an output; two classes have 0 and the logit.

    Args:
        output: The model's output: (rows, classes), or one number a row for two classes.
        reading: One of `READINGS`.
    """
    output = output.astype(np.float64)
    if reading in (SIGMOID, LOGIT):
        single = output.reshape(-1)
        if reading == SIGMOID:
            with np.errstate(divide="ignore"):
                single = np.log(np.maximum(single, SMALLEST)) - np.log(
                    np.maximum(1 - single, SMALLEST)
                )
        return np.stack([np.zeros_like(single), single], axis=1)
    return output if reading == LOGITS else np.log(np.maximum(output, SMALLEST))


def soften(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Returns the probabilities of logits that are divided by a temperature."""
    scaled = logits / temperature
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    probabilities: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def rescale(output: np.ndarray, reading: str, temperature: float) -> np.ndarray:
    """Returns an output as the model would give it with its logits divided by a temperature.

    Args:
        output: The model's output, see `to_logits()`.
        reading: One of `READINGS`.
        temperature: The temperature.
    """
    if reading in (LOGITS, LOGIT):
        return output / temperature
    probabilities = soften(to_logits(output, reading), temperature)
    return probabilities[:, 1].reshape(output.shape) if reading == SIGMOID else probabilities


def fit_temperature(
    logits: np.ndarray, classes: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Returns the temperature with the lowest log loss, between `LOWEST` and `HIGHEST`.

    The log loss is convex in the inverse of the temperature; its minimum is found by Newton's
    method within a bracket that halves where a step would leave it, so the result is deterministic.

    Args:
        logits: (rows, classes).
        classes: The class of each row, from 0.
        weights: Weights of the rows, or None for equal ones.
    """
    low = 1 / HIGHEST
    high = 1 / LOWEST
    inverse = 1.0
    own = logits[np.arange(len(logits)), classes]
    for _ in range(STEPS):
        probabilities = soften(logits, 1 / inverse)
        means = (probabilities * logits).sum(axis=1)
        slope = float(np.average(means - own, weights=weights))
        if slope > 0:
            high = inverse
        else:
            low = inverse
        bend = (probabilities * logits**2).sum(axis=1) - means**2
        bend = float(np.average(bend, weights=weights))
        step = inverse - slope / bend if bend > 0 else -1.0
        following = step if low < step < high else (low * high) ** 0.5
        if abs(following - inverse) <= TOLERANCE * inverse:
            break
        inverse = following
    return 1 / inverse


def log_loss(
    probabilities: np.ndarray, classes: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Returns the mean of `-log(p)` of the rows' own classes, by weights if there are any."""
    own = probabilities[np.arange(len(probabilities)), classes]
    return float(np.average(-np.log(np.maximum(own, SMALLEST)), weights=weights))


def calibration_error(
    probabilities: np.ndarray,
    classes: np.ndarray,
    bins: int = BINS,
    weights: np.ndarray | None = None,
) -> float:
    """Returns the expected calibration error, from 0 to 1.

    Rows are binned by the probability of their most probable class. The error is the mean over rows
    of the difference between a bin's mean probability and its share of rows that are right
    (equation 3 of Guo et al. 2017).

    Args:
        probabilities: Probabilities (rows, classes).
        classes: The class of each row, from 0.
        bins: Bins of equal width; each holds its upper edge.
        weights: Weights of the rows, or None for equal ones.
    """
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == classes
    places = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    weights = np.ones(len(sure)) if weights is None else weights
    gaps = np.bincount(places, weights=weights * (right - sure), minlength=bins)
    return float(np.abs(gaps).sum() / weights.sum())
