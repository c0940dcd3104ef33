"""Trains by each engine: `python repeat_child.py`, deterministic as gpu_setup() makes it.

Prints a line of JSON: for each case the engine that trained, and whether a training that was
interrupted and resumed, with calls of other lengths, gave the same weights and history, bit by bit.
Determinism cannot be switched off again, hence the process.
"""

import json
import sys
import tempfile

import numpy as np
from kill_child import make_model
from small_fits import make_dataset

from gpukeras.backend import devices, runtime
from gpukeras.engine import autotune
from gpukeras.training import fit as training_fit
from gpukeras.training import listener

# An engine, and whether the model has a step of its own; as many as the argument says.
CASES = [("auto", False), ("keras", False), ("graph_loop", False), ("compiled", False)]
CASES += [("compiled", True)]


class Stop:
    """Interrupts once, at a step of the second epoch."""

    def __init__(self, step):
        self.step = step

    def __call__(self, event):
        if event["epoch"] == 2 and event["step"] >= self.step > 0:
            raise KeyboardInterrupt


def own_step(model):
    """The same model with a step of its own: the last of each call runs outside of the loop."""

    class Own(runtime.keras().Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "more": 1.0}

    made = Own(model.layers)
    made.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def fit(engine, own, call_s, folder=None, step=0):
    autotune.CALL_S, autotune.choose_count.__defaults__ = call_s, (call_s,)
    devices.setup(seed=3, deterministic=True)
    model = make_model(20, 3, seed=None)
    model = own_step(model) if own else model
    data = make_dataset(600, 20, 3, validation=0.1, batch_size=16)
    options = {"epochs": 3, "engine": engine, "ema": 0.9}
    if folder is not None:
        options["checkpoint"] = {"folder": folder, "every_s": 0}
    report = training_fit.fit(model, data, options, on_event=Stop(step))
    values = [*model.get_weights(), *(np.array(v) for v in report.history.values())]
    return report, [value.tobytes() for value in values]


def main():
    listener.EVENT_S = 0.0
    found = []
    for engine, own in CASES[: int(sys.argv[1])]:
        report, expected = fit(engine, own, 0.2)
        with tempfile.TemporaryDirectory() as folder:
            stopped, _ = fit(engine, own, 1e-6, folder, 20)  # a batch a call
            _, again = fit(engine, own, 0.01, folder)
        case = {"engine": engine, "own": own, "trained": report.engine.engine}
        case.update(equal=again == expected, stopped=stopped.stopped)
        found.append({**case, "reason": report.engine.reason})
        print(found[-1], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
