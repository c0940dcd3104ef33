"""A worker of `fault_test`: `python fault_worker.py KIND TIMEOUT_S`; what it tells is its log."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.distributed import session
from gpukeras.training.fit import fit

MARK = "gpukeras-fault-test "  # before each line of JSON
ROWS, COLUMNS, BATCH = 256, 4, 32
ENDLESS = 100_000  # epochs of a training that a fault ends
SLOW_EPOCHS, SLOW_S = 4, 0.8  # of a training with a slow worker, and its delay after each epoch


def tell(**values: Any) -> None:
    """Writes a line for `fault_test`."""
    print(f"\n{MARK}{json.dumps(values)}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Joins the cluster, trains, and tells its process, the epochs and the notes at the end."""
    kind, timeout_s = arguments[0], float(arguments[1])
    joined = session.join_cluster({"timeout_s": timeout_s})
    tell(pid=os.getpid())
    epochs = SLOW_EPOCHS if kind == "slow" else ENDLESS
    delay_s = SLOW_S if kind == "slow" and joined["index"] == joined["size"] else 0.0
    callback, options = _make_callback(delay_s), {"epochs": epochs, "engine": "graph_loop"}
    x = np.asfortranarray(np.random.default_rng(1).normal(size=(ROWS, COLUMNS)))
    labels = {"kind": "numeric", "values": x[:, 0]}
    data = build_dataset(
        {"kind": "array", "values": x}, {"batch_size": BATCH, "seed": 1}, labels=labels
    )
    report = fit(_make_model(), data, options, callbacks=[callback])
    tell(notes=list(report.notes))


def _make_model() -> Model:
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _make_callback(delay_s: float) -> Any:
    class TellingCallback(runtime.keras().callbacks.Callback):  # type: ignore[misc] # imported late
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch < 3:
                tell(epoch=epoch + 1)
            time.sleep(delay_s)

    return TellingCallback()


if __name__ == "__main__":
    main(sys.argv[1:])
