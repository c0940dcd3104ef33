"""Measures many models at once against one after another: `make bench-many`.

Each case trains 10 folds x 5 seeds of a perceptron: by `fit_many()`, by a bare vmapped scan of the
same models on JAX, which is the limit, by `fit()` for some of them (the rest is reckoned as the
later ones of these), by Keras' `fit()` as it comes, and at a large `steps_per_execution`. Then time
and memory against the number of models at a time, each number in a process of its own. Then models
of different shapes, in worker processes and one after another, each way in a process of its own
(`--only workers`). The load is printed, because ratios of a busy computer mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CASES = {"100,000 x 20": (100_000, 20), "53,940 x 26, the size of diamonds": (53_940, 26)}
FOLDS, SEEDS, BATCH = 10, 5, 32
OURS = 10  # models trained alone by `fit()`
WORKER_ROWS = 50_000
KERAS_STEPS = 256  # steps per execution; `steps_search.py` finds no better one for such models


def make_data(rows, columns):
    from gpukeras.data.dataset.map_dataset import build_dataset

    rng = np.random.default_rng(1)
    x = np.asfortranarray(rng.normal(size=(rows, columns)))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + rng.normal(size=rows) / 5
    labels = {"kind": "numeric", "values": y}
    return build_dataset({"kind": "array", "values": x}, {"batch_size": BATCH, "seed": 1}, labels)


def make_model(columns, steps=1, units=64):
    import keras

    model = keras.Sequential(
        [
            keras.Input((columns,)),
            keras.layers.Dense(units, "relu"),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", steps_per_execution=steps)
    return model


def seconds_of(work):
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def train_many(data, columns, epochs, seeds=SEEDS, folds=FOLDS):
    from gpukeras.many.fit_many import fit_many

    options = {"epochs": epochs, "batch_size": BATCH, "predictions": False}
    options["most"] = seeds * folds  # also beyond what "auto" takes
    return fit_many([make_model(columns)], data, options, seeds=range(seeds), folds=folds)


def train_alone(fits, number, epochs):
    from gpukeras.training.fit import fit

    model, rows = fits.initial(number)
    return fit(model, rows, {"epochs": epochs}, batch_size=BATCH)


def train_keras(fits, number, epochs, steps):
    member = fits.members[number - 1]
    x, y = (source.gather(slice(None)) for source in fits.data.sources)
    model = make_model(x.shape[1], steps)
    held = x[member.held_out], y[member.held_out]
    model.fit(
        x[member.train],
        y[member.train],
        batch_size=BATCH,
        epochs=epochs,
        validation_data=held,
        verbose=0,
    )


def run_case(name, epochs, sample):
    rows, columns = CASES[name]
    data = make_data(rows, columns)
    make_model(columns)  # imports Keras
    took, fits = seconds_of(lambda: train_many(data, columns, epochs))
    models = len(fits.members)
    print(f"\n{name}, {models} models, {epochs} epochs of batches of {BATCH}")
    print(f"  at once: {took:.1f} s, {took / models:.3f} s a model ({fits.plan.reason})")
    compare_limit(data, fits, columns, epochs, took)
    ways = {
        "gpu_fit() in a row": lambda number: train_alone(fits, number, epochs),
        "Keras' fit()": lambda number: train_keras(fits, number, epochs, 1),
        f"Keras' fit(), {KERAS_STEPS} steps per execution": lambda number: train_keras(
            fits, number, epochs, KERAS_STEPS
        ),
    }
    for way, work in ways.items():
        few = sample if way.startswith("Keras") else OURS
        each = [seconds_of(lambda n=n, work=work: work(n))[0] for n in range(1, few + 1)]
        middle = statistics.median(each[few // 2 :])  # what the first ones compile is there
        total = sum(each) + middle * (models - few)
        print(
            f"  {way}: {total:.1f} s ({few} models trained: the first {each[0]:.2f} s, later ones "
            f"{middle:.2f} s), {total / took:.1f} times as long"
        )


def compare_limit(data, fits, columns, epochs, took):
    """Prints what a bare scan of the same models takes, in a process of its own, on JAX."""
    shortest, _ = seconds_of(lambda: train_many(data, columns, 1))
    longest, _ = seconds_of(lambda: train_many(data, columns, 1 + epochs))
    warm = (longest - shortest) / epochs
    x, y = (source.gather(slice(None)) for source in data.sources)
    train, held = (
        np.stack([rows[: min(map(len, parts))] for rows in parts])
        for parts in (
            [member.train for member in fits.members],
            [member.held_out for member in fits.members],
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "models.npz")
        options = {"batch": BATCH, "epochs": epochs, "cores": os.cpu_count() or 1}
        np.savez(path, x=x, y=y.reshape(-1), train=train, held=held, **options)
        command = [sys.executable, str(Path(__file__).with_name("bench_limit_many.py")), str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    losses = [fit.history.metrics["val_loss"][-1] for fit in fits.fitted]
    print(f"  a warm epoch {warm:.2f} s; mean loss of the rows held out {np.mean(losses):.4f}")
    for parts, found in json.loads(answer.splitlines()[-1]).items():
        print(
            f"  a bare vmapped scan, {parts} side by side: {found['total_s']:.1f} s, a warm epoch "
            f"{found['warm_s']:.2f} s: at once takes {took / found['total_s']:.2f} and "
            f"{warm / found['warm_s']:.2f} times as long; mean loss {found['loss']:.4f}"
        )


def run_curve(name, sizes):
    """Time and memory of models at a time, each number in a process of its own."""
    print(f"\n{name}: models at a time; a warm epoch, and the memory that the models add")
    for size in sizes:
        command = [sys.executable, __file__, "--one", str(size), "--only", name]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(answer.splitlines()[-1])
        print(
            f"  {size:5d} models: {found['epoch_s']:6.2f} s an epoch, "
            f"{found['epoch_s'] / size * 1000:6.1f} ms a model, first epoch {found['first_s']:5.1f}"
            f" s, {found['added'] / 2**20:6.0f} MiB"
        )


def read_bytes(name):
    """Memory of this process: now ("VmRSS"), or at most so far ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure_one(name, size):
    """Prints what `size` models of two folds take, as JSON."""
    rows, columns = CASES[name]
    data = make_data(rows, columns)
    train_many(make_data(200, columns), columns, 1, 1, 2)  # whatever is loaded once
    before = read_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    first, _ = seconds_of(lambda: train_many(data, columns, 1, size // 2, 2))
    one, _ = seconds_of(lambda: train_many(data, columns, 1, size // 2, 2))
    more, _ = seconds_of(lambda: train_many(data, columns, 3, size // 2, 2))
    added = read_bytes("VmHWM") - before
    print(json.dumps({"first_s": first, "epoch_s": (more - one) / 2, "added": added}))


def run_workers(shapes, epochs, ways=(1, 2)):
    """Models of different shapes, one after another and by workers; each way twice, in turn."""
    print(f"\n{shapes} models of different shapes, {WORKER_ROWS:,} x 20, {epochs} epochs")
    for workers in [*ways, *ways]:
        command = [sys.executable, __file__, "--workers", str(workers), "--shapes", str(shapes)]
        command += ["--epochs", str(epochs)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(answer.splitlines()[-1])
        print(
            f"  {workers} at a time: {found['wall_s']:6.1f} s, of the processor "
            f"{found['cpu_s']:6.1f} s; load {os.getloadavg()[0]:.1f} ({found['reason']})",
            flush=True,
        )


def measure_workers(workers, shapes, epochs):
    """Prints what models of different shapes take in turns (1) or by workers, as JSON."""
    from gpukeras.many.fit_many import fit_many

    data = make_data(WORKER_ROWS, 20)
    models = [make_model(20, units=64 + 8 * shape) for shape in range(shapes)]
    options = {"epochs": epochs, "batch_size": BATCH, "predictions": False, "workers": workers}
    before = os.times()
    wall, fits = seconds_of(lambda: fit_many(models, data, options))
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])  # of this process and its children
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "reason": fits.plan.reason}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sample", type=int, default=3, help="models trained by Keras")
    sizes = [2, 8, 32, 64, 128, 256, 512]
    parser.add_argument("--sizes", type=int, nargs="*", default=sizes, help="models at a time")
    parser.add_argument("--one", type=int, help="measure one number of models, in this process")
    parser.add_argument("--shapes", type=int, default=8, help="models of different shapes")
    parser.add_argument("--workers", type=int, help="train them by so many, in this process")
    options = parser.parse_args()
    if options.workers:
        measure_workers(options.workers, options.shapes, options.epochs)
        return
    if options.one:
        measure_one(options.only, options.one)
        return
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name in CASES:
        if options.only in name:
            run_case(name, options.epochs, options.sample)
    if options.only in "workers":
        run_workers(options.shapes, options.epochs)
    if options.sizes and options.only != "workers":
        run_curve("53,940 x 26, the size of diamonds", options.sizes)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
