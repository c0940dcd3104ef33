"""Many trainings that are killed: `python kill_many.py FOLDER WAY`: "stack", "alone" or "workers".

Prints "begin", then every number of each trained model. Asks for determinism, so that
trainings can be compared.
"""

import json
import sys
import time

from small_fits import make_dataset, make_model
from stacked import fit_many

from gpukeras import PreemptedError
from gpukeras.backend import devices

# Models whose optimizer averages weights do not stack.
WAYS = {"stack": {"most": 8}, "alone": {}, "workers": {"workers": 2}}


def main(folder, way):
    import keras

    devices.setup(seed=7, deterministic=True)
    print("begin", flush=True)
    optimizer = "sgd" if way == "stack" else keras.optimizers.Adam(use_ema=True)
    try:
        fits = fit_many(
            [make_model(optimizer=optimizer)],
            make_dataset(rows=60),
            epochs=30,
            seeds=[1, 2],
            folds=2,
            early_stopping={"patience": 20, "restore_best": True},
            checkpoint=folder,
            on_event=lambda event: time.sleep(0.03),
            **WAYS[way],
        )
    except PreemptedError as error:
        sys.exit(error.details["status"])
    assert len(fits.plan.alone) == (0 if way == "stack" else 4), fits.plan
    print(json.dumps(list(map(describe, fits.fitted))))


def describe(fitted):
    """Every number of a trained model, as text that keeps all its bits."""
    arrays = [array.tolist() for part in sorted(fitted.state) for array in fitted.state[part]]
    return [*map(repr, arrays), repr(fitted.history)]


if __name__ == "__main__":
    main(*sys.argv[1:])
