"""One worker of bench_scale.py that trains by gpukeras:  scale_fit.py ROUNDS BATCH_SIZE

Who the others are is in TF_CONFIG; without it the worker is alone. BATCH_SIZE is each worker's. The
program prints the seconds of a step, for each epoch but the first, as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from scale_worker import CLASSES, COLUMNS, UNITS

from gpukeras.data.dataset import map_dataset
from gpukeras.training import fit

STEPS = 10  # in an epoch


def main(rounds: int, batch_size: int) -> None:
    """Trains the network of scale_worker.py on all workers and prints the record."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    workers = join()
    data = make_rows(STEPS * workers * batch_size, workers * batch_size)
    report = fit.fit(make_model(), data, {"epochs": rounds + 1, "engine": "graph_loop"})
    seconds = [epoch_s / STEPS for epoch_s in report.epoch_s[1:]]
    print(json.dumps({"seconds": {"together": seconds}}), flush=True)


def join() -> int:
    """Joins the cluster in TF_CONFIG, if any; gives the number of workers."""
    if "TF_CONFIG" not in os.environ:
        return 1
    from gpukeras.distributed import session

    session.join_cluster({})
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])


def make_rows(rows: int, batch_size: int) -> map_dataset.MapDataset:
    """Random rows of all workers, the same on each, with the batch of all of them."""
    rng = np.random.default_rng(1)
    x = np.asfortranarray(rng.normal(size=(rows, COLUMNS)))
    codes = rng.integers(1, CLASSES + 1, size=rows).astype(np.int32)
    levels = [str(code) for code in range(CLASSES)]
    labels = {"kind": "factor", "values": codes, "levels": levels}
    options = {"batch_size": batch_size, "seed": 1}
    return map_dataset.build_dataset({"kind": "array", "values": x}, options, labels)


def make_model() -> keras.Model:
    """The same network, by Keras."""
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(UNITS, "relu") for _ in range(2)]
    output = keras.layers.Dense(CLASSES, "softmax")
    model = keras.Sequential([keras.Input((COLUMNS,)), *hidden, output])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
