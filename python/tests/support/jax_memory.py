"""What runs out of memory on JAX; a part of `jax_tools`, whose child it shares."""

import keras
import numpy as np
from small_fits import make_dataset

from gpukeras.backend import tensor_ops
from gpukeras.core.errors import GpuKerasError
from gpukeras.training import evaluate, fit, predict

ROWS = 200


def distance(ones, others):
    return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in zip(ones, others, strict=True))


def make_wide_model(rows):
    """A model that no memory holds where more than `rows` rows go through it at once."""

    class Wide(keras.layers.Layer):
        def call(self, x):
            count = x.shape[0]
            if not isinstance(count, int) or count <= rows:  # another type while it is built
                return x
            many = keras.ops.sort(keras.ops.broadcast_to(x[:, :1], (count, 2**42)), axis=1)
            return x + 0.0 * keras.ops.sum(many, axis=1, keepdims=True)

    keras.utils.set_random_seed(1)
    stack = [keras.Input((5,)), keras.layers.Dense(4), Wide(), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(stack)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def exhausted():
    """Trainings whose memory does not suffice, which XLA says itself, against one that has it."""
    data, found = make_dataset(ROWS, shuffle=False, validation=0.0), {}
    free = make_wide_model(ROWS)
    losses = fit.fit(free, data, {"epochs": 2}).history["loss"]
    for engine in ("keras", "compiled"):
        model = make_wide_model(8)
        report = fit.fit(model, data, {"epochs": 2, "engine": engine})
        found[engine] = {
            "size": report.micro_batch,
            "rows": report.rows,
            "notes": report.notes,
            "loss": distance(losses, report.history["loss"]),
            "weights": distance(free.get_weights(), model.get_weights()),
        }
    model = make_wide_model(8)
    model.set_weights(free.get_weights())
    x = {"kind": "array", "values": data.arrays[0], "names": []}
    losses = [[evaluate.evaluate(one, data)["metrics"]["loss"]] for one in (free, model)]
    outputs = [predict.predict(one, x)["values"] for one in (free, model)]
    found["evaluated"], found["predicted"] = distance(*losses), distance(*outputs)
    found["kept"] = distance(free.get_weights(), model.get_weights())
    tensor_ops.batch_bytes = lambda device: 2**10  # many batches, side by side in threads
    found["threads"] = distance([outputs[0]], [predict.predict(free, x)["values"]])
    try:
        fit.fit(make_wide_model(8), data, {"epochs": 1, "on_oom": "stop"})
    except GpuKerasError as error:
        found["stopped"] = [type(error).__name__, error.message]
    return found
