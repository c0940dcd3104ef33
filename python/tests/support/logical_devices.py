"""Four devices of this process, and how far apart trainings on one and on several end.

The CPU is split before TensorFlow starts, hence for a process of its own: `distributed_child`.
"""

import numpy as np
import tensorflow as tf
from small_fits import make_dataset
from small_fits import make_model as make_plain

DEVICES = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)

import keras  # noqa: E402

from gpukeras.training import fit as training_fit  # noqa: E402

ROWS, BATCH, EPOCHS = 256, 32, 2
ODD = {"rows": 331, "validation": 0.2}  # of 265 training rows 8 batches and 9 rows more
layers, optimizers = keras.layers, keras.optimizers


def make_data(rows=ROWS, **options):
    return make_dataset(rows, **{"batch_size": BATCH, **options})


def make_model(*between, optimizer=None, loss="sparse_categorical_crossentropy", base=None):
    """A small classifier with layers between, always of the same weights."""
    model = make_plain(layers=list(between))
    if base is not None:
        model = base(inputs=model.inputs, outputs=model.outputs)
    made = optimizers.Adam(0.01) if optimizer is None else optimizer
    model.compile(made, loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


def fit(model, data, devices=None, options=None, **more):
    options = {"epochs": EPOCHS, "engine": "graph_loop", **(options or {})}
    return training_fit.fit(model, data, options, devices=devices, **more)


def differ(one, other):
    """The largest difference of two models' weights, in absolute terms."""
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def differ_history(one, other):
    assert one.history.keys() == other.history.keys()
    return max(
        abs(a - b)
        for name in one.history
        for a, b in zip(one.history[name], other.history[name], strict=True)
    )


def compare(build, data=make_data, devices=2, fitted=fit, **more):
    """A training on one device and on several: how far apart they end."""
    alone, several = build(), build()
    before = several.get_weights()
    first = fitted(alone, data(), **more)
    second = fitted(several, data(), DEVICES[:devices], **more)
    moved = max(
        float(np.abs(a - b).max()) for a, b in zip(before, several.get_weights(), strict=True)
    )
    return {
        "weights": differ(alone, several),
        "history": differ_history(first, second),
        "moved": moved,
        "replicas": second.replicas,
        "part": second.micro_batch,
        "devices": list(second.devices),
        "engine": second.engine.engine,
        "rows": [first.rows, second.rows],
        "skipped": [first.skipped_steps, second.skipped_steps],
    }


def refuse(what, **expected):
    """The error that something ends with."""
    try:
        what()
    except Exception as error:
        told = {"kind": type(error).__name__, "message": getattr(error, "message", str(error))}
        return {**told, "hint": getattr(error, "hint", "")}
    return {"kind": "none"}
