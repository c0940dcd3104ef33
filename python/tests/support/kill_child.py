"""A training that is killed: `python kill_child.py FOLDER WEIGHTS ENGINE EPOCHS ROWS [THEN]`.

Asks for determinism, as gpu_setup(seed = , deterministic = TRUE) does.
Trains with all that has a state: dropout, Adam, batch normalisation, shuffling, and a decaying
rate. Prints "begin", then "epoch 3" after each epoch, and writes the final weights to WEIGHTS,
whole or not at all. Ends with status 75 if it was asked to end. With FOLDER "none" nothing is
saved. THEN is an epoch in which the process kills itself, or a file for the weights of a second
training, which nothing disturbs.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from small_fits import make_dataset

from gpukeras.backend import devices, runtime
from gpukeras.core.errors import PreemptedError
from gpukeras.training import fit


def make_model(columns, units, seed=7):
    keras = runtime.keras()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((columns,)),
            layers.Dense(32, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3, seed=5),
            layers.Dropout(0.1),  # whose seed is Keras' own
            layers.Dense(units, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def tell(event):
    if event["kind"] == "epoch":
        print("epoch", event["epoch"], flush=True)


def main(folder, weights, engine, epochs, rows, then=""):
    def listen(event):
        tell(event)
        if str(event["epoch"]) == then:
            os.kill(os.getpid(), signal.SIGKILL)

    data = make_dataset(int(rows), 20, 3, validation=0.1)
    options = {"epochs": int(epochs), "engine": engine}
    options["schedule"] = {"kind": "exponential", "decay": 0.9}
    if folder != "none":
        options["checkpoint"] = {"folder": folder, "every_s": 0.1}
    devices.setup(seed=7, deterministic=True)
    model = make_model(20, 3, seed=None)
    print("begin", flush=True)
    try:
        report = fit.fit(model, data, options, on_event=listen)
    except PreemptedError as error:
        sys.exit(error.details["status"])
    assert (report.stopped, report.epochs) == ("completed", int(epochs))
    values = {f"{place:03d}": value for place, value in enumerate(model.get_weights())}
    for name, history in report.history.items():
        values[f"history {name}"] = np.array(history)
    partial = Path(weights).with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **values)
    partial.replace(weights)
    if then.endswith(".npz"):
        main("none", then, engine, epochs, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
