"""Tests a device by computing on it: `python -m gpukeras.diagnostics.probes.compute GPU:0`.

The tests run in a child process, because a bad driver or compiler can abort it (tensorflow
#111958). Each stage prints a line of JSON when it begins and one when it ends, which shows in which
stage the process died. The last line is {"stage": "done"}.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.messages import find_reason
from gpukeras.diagnostics import usage

SIZE = 512
IMAGES, PIXELS, CHANNELS, FILTERS, KERNEL = 8, 24, 8, 16, 3
CLASSES, BATCH = 10, 32
# A GPU may multiply float32 as TF32 with 10 bits of mantissa: the relative error of each factor is
# at most 2^-11, of a product 2^-10, and of a sum of products 2^-10 of the sum of absolute products.
# The factor 2 covers float32 rounding (512 * 2^-24). A wrong kernel is off by 0.1.
TOLERANCE = 2.0**-9
UNENDED = "it began and did not end"
UNTOLD = "it did not tell how it ended"


# Stages ------------------------------------------------------------------------------------------


def compute_product(device: str) -> dict[str, Any]:
    """Compares a matrix product on a device, without soft placement, with NumPy in float64."""
    random = np.random.default_rng(1)
    left, right = random.uniform(-1, 1, (2, SIZE, SIZE)).astype("float32")
    with runtime.on_device(device, soft=False):
        result = runtime.keras().ops.matmul(left, right)
        values, placed = np.asarray(result), tensor_ops.place_of(result)
    exact, sizes = multiply_twice(left, right)
    return judge_result(device, placed, measure_deviation(values, exact, sizes))


def compute_convolution(device: str) -> dict[str, Any]:
    """Compares a convolution (cuDNN on a GPU), without soft placement, with NumPy in float64."""
    random = np.random.default_rng(2)
    images = random.uniform(-1, 1, (IMAGES, PIXELS, PIXELS, CHANNELS)).astype("float32")
    filters = random.uniform(-1, 1, (KERNEL, KERNEL, CHANNELS, FILTERS)).astype("float32")
    with runtime.on_device(device, soft=False):
        result = runtime.keras().ops.conv(images, filters, data_format="channels_last")
        values, placed = np.asarray(result), tensor_ops.place_of(result)
    slide: Any = np.lib.stride_tricks.sliding_window_view  # NumPy 1.26's types allow one axis only
    windows = slide(images, (KERNEL, KERNEL), axis=(1, 2))
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, KERNEL * KERNEL * CHANNELS)
    exact, sizes = multiply_twice(patches, filters.reshape(-1, FILTERS))
    return judge_result(
        device, placed, measure_deviation(values.reshape(exact.shape), exact, sizes)
    )


def compute_fit(device: str) -> dict[str, Any]:
    """Trains a small Keras model for some steps and reads its full use of the device."""
    with runtime.on_device(device, soft=True):
        # On JAX no step is fast without XLA, and there is no stage of its own for XLA.
        model, data = make_model(jit=runtime.backend() == "jax"), make_data()
        use = usage.read_use(model, data, device, batch_size=BATCH)
    error = judge_use(device, use)
    return {"ok": not error, "error": error, "use": use}


def compute_fit_xla(device: str) -> dict[str, Any]:
    """Runs one training step of the same model, compiled by XLA."""
    features, labels = make_data()
    with runtime.on_device(device, soft=True):
        model = make_model(jit=True)
        loss = float(model.train_on_batch(features[:BATCH], labels[:BATCH]))
    error = "" if math.isfinite(loss) else f"the loss is {loss}"
    return {"ok": not error, "error": error, "loss": loss}


STAGES: dict[str, Callable[[str], dict[str, Any]]] = {
    "product": compute_product,
    "convolution": compute_convolution,
    "fit": compute_fit,
    "fit_xla": compute_fit_xla,
}


def list_stages() -> list[str]:
    """Returns the stages of the backend."""
    return [name for name in STAGES if name != "fit_xla" or runtime.backend() != "jax"]


def make_model(jit: bool) -> Any:
    """Builds a small image classifier: a convolution and a dense layer."""
    keras = runtime.keras()
    runtime.set_seed(1)
    layers = [
        keras.Input((PIXELS, PIXELS, CHANNELS)),
        keras.layers.Conv2D(FILTERS, KERNEL, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(CLASSES, "softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=jit)
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Generates random images and labels for four batches."""
    random, rows = np.random.default_rng(3), 4 * BATCH
    features = random.normal(size=(rows, PIXELS, PIXELS, CHANNELS)).astype("float32")
    return features, random.integers(0, CLASSES, rows).astype("float32")


# Judging -----------------------------------------------------------------------------------------


def multiply_twice(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a matrix product in float64, and the product of the absolute values."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    return left @ right, np.abs(left) @ np.abs(right)


def measure_deviation(values: np.ndarray, exact: np.ndarray, sizes: np.ndarray) -> float:
    """Returns the largest error of a product relative to its sum of absolute terms.

    Args:
        values: The computed product.
        exact: The product in float64.
        sizes: The product of the absolute values.
    """
    return float(np.max(np.abs(values - exact) / sizes))


def judge_result(device: str, placed: str, deviation: float) -> dict[str, Any]:
    """Judges whether a result was computed on the device and is correct.

    Args:
        device: The requested device, such as "GPU:0".
        placed: The device that holds the result.
        deviation: Relative error of the result.
    """
    error = ""
    if placed != device:
        error = f"asked for {device}, computed on {placed}"
    elif not deviation <= TOLERANCE:  # NaN too
        error = f"the result is wrong: off by {deviation:.1e}, tolerance {TOLERANCE:.1e}"
    return {
        "ok": not error,
        "error": error,
        "placed": placed,
        "deviation": deviation,
        "tolerance": TOLERANCE,
    }


def judge_use(device: str, use: Mapping[str, Any]) -> str:
    """Returns what is wrong with the training steps, or ""."""
    if use["first_s"] is None:
        return use["unread"].get("first_s", "no step was made")
    elsewhere = sorted(set(use["variables"] or {}) - {device})
    if elsewhere:
        return f"asked for {device}, the model's variables are on {', '.join(elsewhere)}"
    numeric = use["numeric"] or {"ok": True}
    if not numeric["ok"]:
        return f"the model's output is wrong: off by {numeric['deviation']:.1e}"
    return ""


# Running and reading -----------------------------------------------------------------------------


def run_stage(name: str, device: str) -> None:
    """Runs a stage and prints its two lines; an exception counts as a result."""
    _print({"stage": name, "event": "begin"})
    began = time.perf_counter()
    try:
        runtime.keras()
        began = time.perf_counter()  # excludes the import
        result = STAGES[name](device)
    except Exception as error:  # any error of the backend is reported
        result = {"ok": False, "error": f"{type(error).__name__}: {find_reason(error)}"}
    seconds = time.perf_counter() - began
    _print({"stage": name, "event": "end", "seconds": seconds, **result})


def parse_stages(stdout: str) -> dict[str, Any]:
    """Parses the stages in this program's output, which may be cut off or mixed with other text.

    Returns:
        `stages`: a list of {name, ok, error, seconds, ...}, `ok` None for a stage that did not end;
        `use`: the facts of `compute_fit()`, or None;
        `ok`: True if all stages but `fit_xla` succeeded, False if one of them failed, else None;
        `error`: the first stage that is not ok, with its error.
    """
    stages: dict[str, dict[str, Any]] = {}
    done, use = False, None
    for line in stdout.splitlines():
        message = _parse_line(line)
        name = message.pop("stage", None)
        done = done or name == "done"
        if name not in STAGES:
            continue
        found = message.pop("use", None)
        use = found if isinstance(found, dict) else use
        stages[name] = _parse_stage(name, message)
    # A GPU on which only XLA fails counts as working: gpukeras then trains without XLA.
    needed = [stage["ok"] for name, stage in stages.items() if name != "fit_xla"]
    ended = done or "fit_xla" in stages
    errors = [f"{stage['name']}: {stage['error']}" for stage in stages.values() if not stage["ok"]]
    return {
        "stages": list(stages.values()),
        "use": use,
        "ok": False if False in needed else (ended and bool(needed) and all(needed)) or None,
        "error": errors[0] if errors else "",
    }


def _parse_line(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    known = isinstance(message, dict) and isinstance(message.get("stage"), str)
    return message if known else {}


def _parse_stage(name: str, message: dict[str, Any]) -> dict[str, Any]:
    if message.pop("event", None) != "end":
        return {"name": name, "ok": None, "error": UNENDED, "seconds": None}
    ok, error = message.get("ok"), message.get("error")
    ok = ok if isinstance(ok, bool) else None
    told = error if isinstance(error, str) else ""
    return message | {"name": name, "ok": ok, "error": told or (UNTOLD if not ok else "")}


def _print(message: Mapping[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the requested stages, all by default."""
    parser = argparse.ArgumentParser(prog="gpukeras.diagnostics.probes.compute")
    parser.add_argument("device", help="the device's name, such as GPU:0")
    parser.add_argument("--stages", help="names with commas between")
    options = parser.parse_args(arguments)
    names = options.stages.split(",") if options.stages else list_stages()
    if unknown := sorted(set(names) - set(STAGES)):
        parser.error(f"no such stage: {', '.join(unknown)}")
    for name in names:
        run_stage(name, options.device)
    _print({"stage": "done"})


if __name__ == "__main__":
    main()
