"""A computation that proves a device: `python -m gpukeras.probe GPU:0`.

It runs in a process of its own, because a bad driver or compiler ends the process (tensorflow
#111958). It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from . import runtime

SIZE = 512
# A GPU may multiply float32 as TF32, which keeps 10 bits of the mantissa: each factor is off by
# 2^-11 at most, so a product by 2^-10, and a sum of products by 2^-10 of the sum of their sizes.
# The factor 2 leaves room for float32's own rounding (512 * 2^-24). A wrong kernel is off by 0.1.
TOLERANCE = 2.0**-9


def compute_product(device: str) -> dict[str, Any]:
    """A matrix product on a device without soft placement, against NumPy in float64.

    Returns:
        `device`, `placed` (where the result was), `deviation` (largest error, relative to the sum
        of the products' sizes), `tolerance`, `seconds`, `ok`, `error` ("" if ok).
    """
    random = np.random.default_rng(1)
    left, right = random.uniform(-1, 1, (2, SIZE, SIZE)).astype("float32")
    begin = time.perf_counter()
    with runtime.on_device(device, soft=False):
        result = runtime.tensorflow().linalg.matmul(left, right)
        values, placed = result.numpy(), result.device
    seconds = time.perf_counter() - begin
    deviation = measure_deviation(left.astype(float), right.astype(float), values)
    error = judge_product(device, placed, deviation)
    return {
        "device": device,
        "placed": placed,
        "deviation": deviation,
        "tolerance": TOLERANCE,
        "seconds": seconds,
        "ok": not error,
        "error": error,
    }


def measure_deviation(left: np.ndarray, right: np.ndarray, values: np.ndarray) -> float:
    """Largest error of a product, relative to the sum of the sizes of what was summed."""
    return float(np.max(np.abs(values - left @ right) / (np.abs(left) @ np.abs(right))))


def judge_product(device: str, placed: str, deviation: float) -> str:
    """What is wrong with a product, or ""."""
    if not placed.endswith(device):
        return f"asked for {device}, computed on {placed}"
    if not deviation <= TOLERANCE:  # NaN too
        return f"the result is wrong: off by {deviation:.1e}, tolerance {TOLERANCE:.1e}"
    return ""


def main(arguments: list[str]) -> None:
    """Prints the result for the device named; an exception is a result too."""
    try:
        result = compute_product(arguments[0])
    except Exception as error:  # whatever TensorFlow raises is what is to be told
        first = (str(error).splitlines() or [""])[0][:300]
        result = {
            "device": arguments[0],
            "ok": False,
            "error": f"{type(error).__name__}: {first}",
        }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
