"""Trains in a process that may not take more memory: python memory_child.py ENGINE BATCH MIB"""

import json
import resource
import sys

import numpy as np
from conftest import make_model

from gpukeras import OutOfMemoryError, pipeline, runtime, training

UNITS = 40_000


def wide_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    layers = [keras.Input((5,)), keras.layers.Dense(UNITS, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    return model


def make_rows(batch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4 * batch + batch // 2, 5))
    labels = {"kind": "numeric", "values": x @ np.arange(1.0, 6.0), "levels": []}
    options = {"batch_size": batch, "seed": 1, "shuffle": False}
    return pipeline.build_dataset({"kind": "array", "values": x}, options, labels)


def limit_memory(mebibytes):
    """Beyond what the process has now, TensorFlow's threads included."""
    training.fit(make_model(), make_warm(), {"epochs": 1, "engine": "keras"})
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def make_warm():
    from conftest import make_dataset

    return make_dataset()


def main(engine, batch, mebibytes, on_oom):
    data, model = make_rows(int(batch)), wide_model()
    if int(mebibytes):
        limit_memory(int(mebibytes))
    options = {"epochs": 2, "engine": engine, "on_oom": on_oom}
    try:
        report = training.fit(model, data, options)
    except OutOfMemoryError as error:
        print(json.dumps({"error": error.message}))
        return
    weights = float(sum(np.abs(weight).sum() for weight in model.get_weights()))
    print(
        json.dumps(
            {
                "micro": report.micro_batch,
                "notes": report.notes,
                "loss": report.history["loss"],
                "rows": report.rows,
                "weights": weights,
            }
        )
    )


main(*sys.argv[1:])
