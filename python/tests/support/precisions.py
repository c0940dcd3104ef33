"""The dtype policy that tests make models under, and how near its numbers come to exact ones."""

import os

import numpy as np
import pytest

from gpukeras.core.half_precision import widen_half

# Of the largest number compared, after some layers and epochs: a number of bfloat16 has 8 bits, one
# of float16 has 11.
TOLERANCES = {"float32": 0.0, "mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}
EXACT_CLOSE, EXACT_APPROX = np.testing.assert_allclose, pytest.approx

NAME = "GPUKERAS_PRECISION_OF_TESTS"  # the policy of children, in their environment
asked = "float32"


def set_precision(policy):
    """Makes models under a policy; float32 before any other imports nothing."""
    global asked
    if policy != asked or policy != "float32":
        import keras

        keras.config.set_dtype_policy(policy)
    asked = os.environ[NAME] = policy
    half = policy != "float32"
    np.testing.assert_allclose = assert_allclose if half else EXACT_CLOSE
    pytest.approx = approx if half else EXACT_APPROX


def tolerance(exact=0.0):
    """Returns how far numbers may be apart, as a share of the largest one; `exact` in float32."""
    return max(exact, TOLERANCES[asked])


def widen(values):
    """Returns predictions of a Keras model, or the numbers of one, as NumPy can compare them."""
    if isinstance(values, (list, tuple)):
        return [widen(one) for one in values]
    return widen_half(np.asarray(values))


def assert_allclose(actual, desired, rtol=1e-7, atol=0.0, **options):
    """Compares as NumPy's function does, and allows what the precision allows."""
    actual, desired = widen(actual), widen(desired)
    largest = np.max(np.abs(desired), initial=0.0, where=np.isfinite(desired))
    atol = max(atol, tolerance() * float(largest))
    EXACT_CLOSE(actual, desired, rtol=max(rtol, tolerance()), atol=atol, **options)


def approx(expected, rel=None, abs=None, nan_ok=False):  # noqa: A002 (pytest's names)
    """Compares as pytest's function does, and allows what the precision allows."""
    if rel is None and abs is None:
        rel = 1e-6
    return EXACT_APPROX(expected, max(rel or 0.0, tolerance()), abs, nan_ok)
