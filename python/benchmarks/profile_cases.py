"""One case of bench_profile.py:  profile_cases.py CASE ARGUMENT...  prints a record as JSON."""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import psutil

from gpukeras.backend import runtime
from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset
from gpukeras.monitor.monitor import start_monitor
from gpukeras.profiler.profile import profile
from gpukeras.training import fit

STEP_S = 0.02  # of the model whose step takes a known time


def monitor(pairs: str) -> dict[str, Any]:
    """Seconds of the same training, watched and not, in turns."""
    model = make_dense((20,), [64])
    data = make_rows(20_000, 20)
    train = {"epochs": 15, "engine": "graph_loop"}
    fit.fit(model, data, train)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    shares = []
    for turn in range(int(pairs)):
        for watched in (turn % 2 == 0, turn % 2 == 1):
            watch = start_monitor(0.2) if watched else None
            before = time.perf_counter()
            fit.fit(model, data, train)
            took_s = time.perf_counter() - before
            seconds[watched].append(took_s)
            if watch is not None:
                used = psutil.Process(watch.pid).cpu_times()
                begun_s = time.time() - psutil.Process(watch.pid).create_time()
                shares.append((used.user + used.system - starting_s()) / begun_s)
                watch.stop()
    ratios = [with_ / alone for with_, alone in zip(seconds[True], seconds[False], strict=True)]
    return {
        "pairs": len(ratios),
        "slower": median(ratios),
        "watched_s": median(seconds[True]),
        "alone_s": median(seconds[False]),
        "sampler_share": median(shares),
    }


def starting_s() -> float:
    """Processor seconds of a sampler's start."""
    watch = start_monitor(60)
    used = psutil.Process(watch.pid).cpu_times()
    watch.stop()
    return used.user + used.system


def input(*delays_ms: str) -> list[tuple[float, float, float, str]]:  # noqa: A001 (a case's name)
    """Delay, true share of waiting, the profile's and its verdict."""
    found = []
    for delay_ms in map(float, delays_ms):
        data = make_delayed(delay_ms / 1000)
        report = profile(make_sleeping(), data, {})
        true = delay_ms / 1000 / (delay_ms / 1000 + STEP_S)
        found.append((delay_ms, true, report.shares["input"] or 0.0, report.verdict))
    return found


def verdicts(*engines: str) -> list[dict[str, Any]]:
    """Verdict, shares and sums for a model of large matrix products."""
    found = []
    for engine in engines:
        model, data = make_dense((256,), [1024, 1024]), make_rows(20_000, 256)
        report = profile(model, data, {"engine": engine, "batch_size": 256})
        found.append(
            {
                "engine": engine,
                "verdict": report.verdict,
                "kernels": report.shares["kernels"],
                "layers_s": sum(layer.total_s for layer in report.layers),
                "step_s": report.step_s,
            }
        )
    return found


def advice(epochs: str) -> dict[str, Any]:
    """Rows a second of gpu_fit() before and after the first advice that it can follow."""
    data, train = make_rows(20_000, 5, batch_size=32), {"epochs": int(epochs), "engine": "keras"}
    report = profile(make_dense((5,), [8]), data, {"engine": "keras"})
    before = fit.fit(make_dense((5,), [8]), data, train)
    best = next(each for each in report.advice if each.apply)
    apply = dict(best.apply)
    size = apply.pop("batch_size", None)
    train = {**train, "epochs": 4 * int(epochs), **apply}
    after = fit.fit(make_dense((5,), [8]), data, train, batch_size=size)
    return {
        "verdict": report.verdict,
        "advice": ", ".join(f"{name} = {value}" for name, value in best.apply.items()),
        "before": before.samples_per_s,
        "after": after.samples_per_s,
    }


def make_rows(rows: int, columns: int, batch_size: int = 32) -> Any:
    """A dataset of ten classes."""
    rng = np.random.default_rng(1)
    values = np.asfortranarray(rng.normal(size=(rows, columns)))
    codes = rng.integers(1, 11, rows).astype(np.int32)
    labels = {"kind": "factor", "values": codes, "levels": [str(level) for level in range(10)]}
    options = {"batch_size": batch_size, "seed": 1}
    return map_dataset.build_dataset({"kind": "array", "values": values}, options, labels)


def make_delayed(delay_s: float) -> Any:
    """A dataset of a function that sleeps before each batch of 32 rows."""
    rng = np.random.default_rng(1)

    def call(epoch: int, batch: int) -> dict[str, Any]:
        time.sleep(delay_s)
        codes = rng.integers(1, 11, 32).astype(np.int32)
        labels = {"kind": "factor", "values": codes, "levels": [str(level) for level in range(10)]}
        values = {"kind": "array", "values": rng.normal(size=(32, 5)), "names": []}
        return {"features": values, "labels": labels, "weights": None}

    return builder.assemble({"kind": "generator", "call": call, "steps": 20}, {"batch_size": 32})


def make_dense(shape: tuple[int, ...], units: list[int], layers: list[Any] | None = None) -> Any:
    """A compiled classifier of ten classes."""
    keras = runtime.keras()
    hidden = [keras.layers.Dense(size, activation="relu") for size in units]
    output = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input(shape), *(layers or ()), *hidden, output])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def make_sleeping() -> Any:
    """A small model whose step takes `STEP_S`, whatever else the computer does."""
    tf, keras = runtime.tensorflow(), runtime.keras()

    def wait(values: Any) -> Any:
        time.sleep(STEP_S)
        return values

    class Sleep(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            slow = tf.grad_pass_through(lambda x: tf.numpy_function(wait, [x], x.dtype))
            return tf.ensure_shape(slow(x), x.shape)

    return make_dense((5,), [8], [Sleep()])


if __name__ == "__main__":
    cases = {each.__name__: each for each in (monitor, input, verdicts, advice)}
    print(json.dumps(cases[sys.argv[1]](*sys.argv[2:])))
