"""What searches, measures and keeps models does on JAX, in a process of its own: see `jax_runs`."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras  # noqa: E402
import numpy as np  # noqa: E402
from jax_runs import report  # noqa: E402
from small_fits import make_dataset, make_model  # noqa: E402

from gpukeras.backend import keras_private  # noqa: E402
from gpukeras.engine.optimizer import find_optimizer  # noqa: E402
from gpukeras.profiler import profile  # noqa: E402
from gpukeras.tuner import batch_size, lr_finder  # noqa: E402

ROWS = 200


def distance(ones, others):
    return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in zip(ones, others, strict=True))


# Searches ----------------------------------------------------------------------------------------

STEPS = {"low": 1e-4, "high": 0.1, "steps": 10}


def rates():
    """The losses of a search against those of Keras' single steps at the same rates."""
    data, found = make_dataset(ROWS, shuffle=False), {}
    x, y = data.arrays
    for eager in (False, True):
        model, twin = make_model(optimizer="adam"), make_model(optimizer="adam")
        model.run_eagerly = eager
        search = lr_finder.find_learning_rate(model, data, STEPS)
        losses = []
        for step, rate in enumerate(np.geomspace(1e-4, 0.1, 10)):
            rows = slice(32 * (step % 6), 32 * (step % 6) + 32)
            twin.optimizer.learning_rate = rate
            losses.append(float(twin.train_on_batch(x[rows], y[rows])[0]))
            twin.reset_metrics()
        found[str(eager)] = distance(search.losses, losses)
    return found


def rates_of_optimizers():
    """A search leaves any optimizer and the weights as they were, and moves them meanwhile."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.5)
    made = {
        "rate": "adam",
        "schedule": keras.optimizers.Adam(schedule),
        "scaling": keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.003)),
    }
    found = {}
    for name, optimizer in made.items():
        model, moved = make_model(optimizer=optimizer), []
        before = model.get_weights()
        own = keras_private.learning_rate(find_optimizer(model, "rate"))

        def listen(event, model=model, before=before, moved=moved):
            if event["kind"] == "rates":
                moved.append(distance(before, model.get_weights()))

        options = {"low": 1e3, "high": 1e4, "steps": 10}
        lr_finder.find_learning_rate(model, make_dataset(ROWS), options, listen)
        same = keras_private.learning_rate(find_optimizer(model, "rate")) is own
        found[name] = [max(moved), distance(before, model.get_weights()), same]
    return found


def sizes():
    """A search of the batch size."""
    model = make_model()
    before = model.get_weights()
    found = batch_size.find_batch_size(model, make_dataset(2000), {"seconds": 1.0})
    return {
        "sizes": [point.batch_size for point in found.points],
        "rates": [point.rows_per_s for point in found.points],
        "recommended": found.recommended,
        "engine": found.engine,
        "changed": distance(before, model.get_weights()),
    }


# Measurements ------------------------------------------------------------------------------------


def profiled():
    """A profile with the kernels of the layers, of one in another too."""
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, name="deep")], name="inner")
    stack = [keras.Input((5,)), keras.layers.Dense(8, name="first"), inner]
    model = keras.Sequential([*stack, keras.layers.Dense(3, "softmax", name="last")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    before = model.get_weights()
    found = profile.profile(model, make_dataset(2000), {})
    return {
        "verdict": found.verdict,
        "sum": sum(share for share in found.shares.values() if share),
        "layers": {row.layer: [row.forward_s, row.backward_s] for row in found.layers},
        "notes": found.notes,
        "changed": distance(before, model.get_weights()),
    }


if __name__ == "__main__":
    report(lambda name: globals()[name](), sys.argv[1:])
