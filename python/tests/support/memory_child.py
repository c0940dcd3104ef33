"""Trains in a process that may not take more memory: memory_child.py MIB ENGINE..., prints JSON.

It may take MIB mebibytes more than TensorFlow and its threads do. The model repeats a number very
often and takes the mean: how often makes no difference to anything but memory, so a narrow one
tells what has to come out. It is elementwise, because there TensorFlow's own allocator is refused,
and says so; where oneDNN, XLA's compiler or a thread's stack is refused, the process ends. Without
oneDNN that allocator refuses at once; with it, it first waits 10 seconds for memory each time. One
tensor takes most of what there is, so that small things still find room.
"""

import json
import resource
import sys
from pathlib import Path

import numpy as np

from gpukeras import OutOfMemoryError
from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset
from gpukeras.training import fit

WIDTH, BATCH = 1_000_000, 128  # 488 MiB a tensor


def make_model(width=WIDTH):
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(1),
        keras.layers.RepeatVector(width),
        keras.layers.ReLU(),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def make_rows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2 * BATCH + BATCH // 4, 4))  # an epoch's last batch is a short one
    labels = {"kind": "numeric", "values": x @ np.arange(1.0, 5.0), "levels": []}
    options = {"batch_size": BATCH, "seed": 1, "validation": 0.4}
    return map_dataset.build_dataset({"kind": "array", "values": x}, options, labels)


def limit_memory(mebibytes):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def train(engine, width=WIDTH, on_oom="halve"):
    model, options = make_model(width), {"epochs": 1, "engine": engine, "on_oom": on_oom}
    try:
        report = fit.fit(model, make_rows(), options)
    except OutOfMemoryError as error:
        return {"error": error.message}
    return {
        "micro": report.micro_batch,
        "notes": report.notes,
        "history": report.history,
        "rows": report.rows,
        "updates": int(model.optimizer.iterations.numpy()),
        "weights": [value for weight in model.get_weights() for value in weight.ravel().tolist()],
    }


def main(mebibytes, engines):
    found = {"free": {engine: train(engine, 10) for engine in engines}}
    limit_memory(mebibytes)
    found["stopped"] = train("keras", on_oom="stop")
    found["limited"] = {engine: train(engine) for engine in engines}
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
