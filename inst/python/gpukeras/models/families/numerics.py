"""Functions that Keras lacks, sound in float32: tails of the normal, Stirling's error, log ratios.

All take and return tensors of any shape and work under XLA, on TensorFlow and on JAX. Where a
branch is not taken, its input is replaced before, so that its gradient is 0 and not NaN.

References:
    Loader, C. (2000). Fast and accurate computation of binomial probabilities. (R's `dpois()`.)
    Press, W. H. et al. (1992). Numerical Recipes in C, 2nd ed., section 6.2. (`erfc`.)
"""

from __future__ import annotations

import math
from typing import Any

from gpukeras.backend import runtime

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
SHIFT = 8  # Stirling's series is used from here on: three terms give 1e-9
SMALLEST = 1e-30  # of a probability before its logarithm
# Coefficients of log(erfc(z) * exp(z^2) / t) in t = 1 / (1 + z / 2), the highest power first.
ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)


def clip(values: Any, low: float, high: float) -> Any:
    """Returns values within a range; the gradient is 0 outside."""
    return runtime.keras().ops.clip(values, low, high)


def safe_log(values: Any) -> Any:
    """Returns the logarithm of probabilities, which may be 0."""
    ops = runtime.keras().ops
    return ops.log(ops.maximum(values, SMALLEST))


def positive(values: Any, floor: float) -> Any:
    """Returns values above a floor as they are, and smaller ones as ever smaller positive numbers.

    The function and its derivative are continuous, so that a mean that must be positive comes back
    when it has left its range.
    """
    ops = runtime.keras().ops
    low = ops.minimum(values, floor)
    return ops.maximum(values, floor) - floor + floor * ops.exp(clip(low / floor - 1.0, -20.0, 0.0))


def log_ratio(numerator: Any, denominator: Any) -> Any:
    """Returns log(a / b) of positive numbers with small relative error where they are close."""
    ops = runtime.keras().ops
    distance = numerator - denominator
    near = ops.abs(distance) < 0.5 * denominator
    share = ops.where(near, distance, 0.0) / ops.where(near, denominator, 1.0)
    far = ops.log(numerator) - ops.log(denominator)
    return ops.where(near, ops.log1p(share), far)


def stirling_error(x: Any) -> Any:
    """Returns log gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2) for x > 0.

    The recurrence gamma(x + 1) = x gamma(x) leads to x + 8, from where Stirling's series is used.
    Its absolute error is about 1e-6 in float32, also for large x, where that of a difference of two
    log gammas would grow.
    """
    ops = runtime.keras().ops
    small = x < 1.0
    least, most = ops.where(small, x, 1.0), ops.where(small, 1.0, x)
    step = ops.where(small, ops.log1p(least) - ops.log(least), ops.log1p(1.0 / most))
    total = (x + 0.5) * step - 1.0
    for place in range(1, SHIFT):
        total = total + (x + place + 0.5) * ops.log1p(1.0 / (x + place)) - 1.0
    inverse = 1.0 / (x + SHIFT)
    square = inverse * inverse
    return total + inverse * (1 / 12 - square * (1 / 360 - square / 1260))


def normal_cdf(x: Any) -> Any:
    """Returns the standard normal distribution function; its relative error is 2e-7 in the tail."""
    ops = runtime.keras().ops
    z = ops.where(x < 0, -x, x) * math.sqrt(0.5)  # whose derivative at 0 is 1, unlike that of abs()
    t, total = 1.0 / (1.0 + 0.5 * z), 0.0
    for coefficient in ERFC[:-1]:
        total = t * (coefficient + total)
    tail = 0.5 * t * ops.exp(ERFC[-1] - z * z + total)
    return ops.where(x < 0, tail, 1.0 - tail)
