"""Trains in a process that may not take more memory: memory_child.py ENGINE BATCH MIB ON_OOM

The model is wide and elementwise: there TensorFlow's own allocator is refused, and says so. Where
oneDNN or XLA's compiler is refused, the process ends.
"""

import json
import resource
import sys
from pathlib import Path

import numpy as np
from conftest import make_dataset, make_model

from gpukeras import OutOfMemoryError, pipeline, runtime, training

WIDTH = 20_000


def make_wide_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(4),
        keras.layers.RepeatVector(WIDTH),
        keras.layers.Activation("gelu"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def make_rows(batch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4 * batch + batch // 2, 4))
    labels = {"kind": "numeric", "values": x @ np.arange(1.0, 5.0), "levels": []}
    options = {"batch_size": batch, "seed": 1, "validation": 0.1}
    return pipeline.build_dataset({"kind": "array", "values": x}, options, labels)


def limit_memory(mebibytes):
    """Beyond what the process has once TensorFlow's threads are there."""
    training.fit(make_model(), make_dataset(), {"epochs": 1, "engine": "keras"})
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def train(engine, batch, mebibytes, on_oom):
    model, data = make_wide_model(), make_rows(batch)
    if mebibytes:
        limit_memory(mebibytes)
    options = {"epochs": 2, "engine": engine, "on_oom": on_oom}
    try:
        report = training.fit(model, data, options)
    except OutOfMemoryError as error:
        return {"error": error.message}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    return {
        "micro": report.micro_batch,
        "notes": report.notes,
        "history": report.history,
        "rows": report.rows,
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


if __name__ == "__main__":
    found = train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    print(json.dumps(found))
