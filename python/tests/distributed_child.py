"""Trainings on four devices of one process: `python distributed_child.py CASE...`.

The CPU is split before TensorFlow starts, hence a process of its own. Each case prints a line of
JSON: its name, and what it found or the error that it ended with.
"""

import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import tensorflow as tf
from conftest import make_dataset
from conftest import make_model as make_plain

DEVICES = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)

import keras  # noqa: E402
from test_streams_dataset import CODES, Function, X, stream  # noqa: E402

from gpukeras import inference, listening, pipeline, training  # noqa: E402

ROWS, BATCH, EPOCHS = 331, 32, 2  # of 265 training rows 8 batches and 9 rows more
layers, optimizers = keras.layers, keras.optimizers


def make_data(rows=ROWS, **options):
    return make_dataset(rows, **{"validation": 0.2, "batch_size": BATCH, **options})


def make_model(*between, optimizer=None, loss="sparse_categorical_crossentropy", base=None):
    """A small classifier with layers between, always of the same weights."""
    model = make_plain(layers=list(between))
    if base is not None:
        model = base(inputs=model.inputs, outputs=model.outputs)
    made = optimizers.Adam(0.01) if optimizer is None else optimizer
    model.compile(made, loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


def fit(model, data, devices=None, options=None, **more):
    options = {"epochs": EPOCHS, "engine": "superstep", **(options or {})}
    return training.fit(model, data, options, devices=devices, **more)


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


# The same as on one device ------------------------------------------------------------------------


def dense():
    return compare(make_model, devices=4)


def odd_devices():
    """One row is left for three devices."""
    return compare(make_model, devices=3, data=lambda: make_data(batch_size=33))


def batch_norm():
    return compare(
        lambda: make_model(layers.BatchNormalization()), options={"clip_global_norm": 0.05}
    )


def averages():
    """Averages of ours, while gradients of two batches are added up."""
    made = {"gradient_accumulation_steps": 2}
    return compare(
        lambda: make_model(optimizer=optimizers.AdamW(0.01, **made)), options={"ema": 0.9}
    )


def keras_averages():
    """Of rows that the host gathers."""
    made = {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3}
    build = lambda: make_model(optimizer=optimizers.SGD(0.1, momentum=0.9, **made))  # noqa: E731
    return compare(build, lambda: make_data(cache="host"))


def loss_scale():
    def build():
        scale = {"initial_scale": 2.0**14, "dynamic_growth_steps": 3}
        return make_model(optimizer=optimizers.LossScaleOptimizer(optimizers.Adam(0.01), **scale))

    return compare(build)


def regularizer():
    """Of rows with weights, with a schedule of the rate."""

    def build():
        penalty = keras.regularizers.L2(0.1)
        return make_model(
            layers.Dense(8, kernel_initializer="identity", kernel_regularizer=penalty)
        )

    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(211, 5)), rng.integers(0, 3, 211).astype(np.int32)

    def data():
        features = {"kind": "array", "values": np.asfortranarray(x)}
        labels = {"kind": "factor", "values": y + 1, "levels": ["a", "b", "c"]}
        return pipeline.build_dataset(
            features, {"batch_size": BATCH, "seed": 1}, labels, weights=weights
        )

    weights = rng.uniform(0.1, 3, 211)
    schedule = {"kind": "one_cycle", "max_rate": 0.02}
    return compare(build, data, options={"schedule": schedule})


def scalar_loss():
    """A loss of the user's own that gives a mean instead of one value a row."""

    def mean_loss(y, predicted):
        return keras.ops.mean(keras.ops.square(y - predicted))

    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(1)])
        model.compile(optimizers.Adam(0.01), mean_loss)
        return model

    def data():
        rng = np.random.default_rng(1)
        x = rng.normal(size=(331, 5))
        labels = {"kind": "numeric", "values": x[:, 0] + rng.normal(size=331), "levels": []}
        features = {"kind": "array", "values": np.asfortranarray(x)}
        return pipeline.build_dataset(features, {"batch_size": BATCH, "seed": 1}, labels)

    return compare(build, data)


def sum_loss():
    """With a penalty, and a last batch of three rows for two devices."""
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")

    def build():
        penalty = keras.regularizers.L2(0.1)
        between = layers.Dense(8, kernel_initializer="identity", kernel_regularizer=penalty)
        return make_model(between, loss=loss, optimizer=optimizers.SGD(0.001))

    return compare(build, lambda: make_data(35, validation=0))


class OwnStep(keras.Model):
    """Trains by a step of its own, which logs a metric, a loss that is none, and a norm."""

    def train_step(self, data):
        x, y = data[0], data[1]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        accuracy = self.compute_metrics(x, y, predicted)["accuracy"]
        norm = tf.linalg.global_norm(self.trainable_variables)
        return {"loss": loss, "accuracy": accuracy, "norm": norm}


def own_step():
    return compare(lambda: make_model(base=OwnStep), lambda: make_data(282, validation=0))


def embedding():
    """Gradients of embeddings are few rows of a table."""

    def build():
        keras.utils.set_random_seed(1)
        parts = [keras.Input((4,)), layers.Embedding(20, 3), layers.Flatten()]
        model = keras.Sequential([*parts, layers.Dense(3, "softmax")])
        model.compile(optimizers.Adam(0.05), "sparse_categorical_crossentropy")
        return model

    def data():
        rng = np.random.default_rng(1)
        x = rng.integers(0, 20, (200, 4)).astype(float)
        labels = {"kind": "factor", "values": 1 + (x[:, 0] > 9), "levels": ["a", "b", "c"]}
        labels["values"] = labels["values"].astype(np.int32)
        features = {"kind": "array", "values": np.asfortranarray(x)}
        return pipeline.build_dataset(features, {"batch_size": BATCH, "seed": 1}, labels)

    return compare(build, data)


def streamed():
    """Rows that come in sequence, in pieces of odd sizes."""
    return compare(make_model, lambda: stream(Function(X, CODES, [7, 60, 1, 32]), batch_size=BATCH))


def every_batch():
    """A callback that must see each batch."""
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen[-1].append(float(logs["loss"]))

    def fitted(*args, **more):
        seen.append([])
        return fit(*args, callbacks=[Watch()], **more)

    found = compare(make_model, fitted=fitted, options={"engine": "auto"})
    alone, several = seen
    found["batches"] = [len(alone), len(several)]
    found["losses"] = max(abs(a - b) for a, b in zip(alone, several, strict=True))
    return found


def rate_scaling():
    """Twice the devices train as one does at twice the rate."""
    alone, several = (make_model(optimizer=optimizers.SGD(rate)) for rate in (0.2, 0.1))
    first = fit(alone, make_data())
    second = fit(several, make_data(), DEVICES[:2], {"rate_scaling": "linear"})
    rate = float(several.optimizer.learning_rate)
    return {
        "weights": differ(alone, several),
        "history": differ_history(first, second),
        "rate": rate,
        "told": second.reasons["learning_rate"],
        "rates": second.learning_rate,
    }


# Around a training --------------------------------------------------------------------------------


def evaluation():
    """A model's figures on one device and on four, of rows that leave one over."""
    model = make_model(layers.BatchNormalization())
    fit(model, make_data(), options={"epochs": 1})
    data = make_data(4 * 60 + 1, validation=0)
    sizes = {"batch_size": 60}
    alone = inference.evaluate(model, data, **sizes)
    several = inference.evaluate(model, data, devices=DEVICES, **sizes)
    names = alone["metrics"].keys()
    assert names == several["metrics"].keys()
    apart = max(abs(alone["metrics"][name] - several["metrics"][name]) for name in names)
    return {"metrics": apart, "rows": [alone["rows"], several["rows"]], "names": list(names)}


def resumption():
    """Interrupted on two devices, continued on one, then on two again."""

    def stop_at(epoch, step):
        def stop(event):
            here = event["epoch"], event["step"]
            return event["kind"] == "progress" and here[0] == epoch and here[1] >= step

        return stop

    listening.EVENT_S = 0.0
    whole = make_model(layers.BatchNormalization())
    first = fit(whole, make_data(), options={"epochs": 3, "engine": "keras"})
    ended = []
    with tempfile.TemporaryDirectory() as folder:
        options = {"epochs": 3, "engine": "keras", "checkpoint": {"folder": folder, "every_s": 0}}
        for devices, stop in (
            (DEVICES[:2], stop_at(1, 3)),
            (None, stop_at(2, 5)),
            (DEVICES[:2], None),
        ):
            model = make_model(layers.BatchNormalization())
            report = fit(model, make_data(), devices, options, on_event=stop)
            ended.append([report.stopped, report.epochs, report.resumed_epochs, report.replicas])
    return {
        "weights": differ(whole, model),
        "history": differ_history(first, report),
        "ended": ended,
    }


def afterwards():
    """A model that several devices have trained is a plain one."""
    alone, several = make_model(), make_model()
    fit(alone, make_data())
    fit(several, make_data(), DEVICES[:2])
    x = np.random.default_rng(5).normal(size=(40, 5)).astype(np.float32)
    y = np.arange(40) % 3
    found = {
        "classes": [type(variable).__name__ for variable in several.variables],
        "places": sorted({variable.value.device[-5:] for variable in several.variables}),
        "predictions": float(np.abs(alone.predict(x, verbose=0) - several(x)).max()),
        "left": sorted(name for name in vars(several.optimizer) if name in HELD),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        several.save(path)
        found["loaded"] = differ(several, keras.saving.load_model(path))
    for model in (alone, several):
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    found["keras"] = differ(alone, several)
    for model in (alone, several):
        fit(model, make_data())
    found["one device"] = differ(alone, several)
    fit(alone, make_data())
    fit(several, make_data(), DEVICES[1:3])  # neither has the model's own variables
    found["others"] = differ(alone, several)
    found["iterations"] = [int(model.optimizer.iterations.numpy()) for model in (alone, several)]
    return found


HELD = ("scale_loss", "apply", "_var_key", "_backend_update_step", "_apply_weight_decay")


def not_finite():
    """A loss that is no number: training stops with the weights of before."""
    model = make_model(optimizer=optimizers.SGD(0.1))
    before = model.get_weights()
    layer = layers.Lambda(lambda x: tf.math.log(x - 1e9))
    broken = keras.Sequential([model, layer])
    broken.compile("sgd", "sparse_categorical_crossentropy")
    report = fit(broken, make_data(), DEVICES[:2])
    apart = max(
        float(np.abs(a - b).max()) for a, b in zip(before, model.get_weights(), strict=True)
    )
    plain = type(model.variables[0]).__name__
    return {"stopped": report.stopped, "weights": apart, "note": report.notes[0], "class": plain}


def interrupt():
    """Ctrl-C in a callback: what is done is reported, and the model is a plain one."""

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    model = make_model()
    report = fit(model, make_data(), DEVICES[:2], {"epochs": 5}, callbacks=[Interrupt()])
    finite = all(np.isfinite(value).all() for value in model.get_weights())
    classes = {type(variable).__name__ for variable in model.variables}
    return {
        "stopped": report.stopped,
        "epochs": report.epochs,
        "finite": finite,
        "classes": sorted(classes),
    }


def dropout():
    """Each device leaves out other units; the same seed does the same again."""
    ends = []
    for _ in range(2):
        model = make_model(layers.Dropout(0.5, seed=3))
        fit(model, make_data(), DEVICES[:2], {"epochs": 1})
        ends.append(model)
    seeds = [v.numpy().tolist() for v in ends[0].variables if "seed" in v.path]
    alone = make_model(layers.Dropout(0.5, seed=3))
    fit(alone, make_data(), options={"epochs": 1})
    expected = [v.numpy().tolist() for v in alone.variables if "seed" in v.path]
    return {"again": differ(*ends), "alone": differ(ends[0], alone), "seeds": [seeds, expected]}


def failure():
    """After a callback's error the model is a plain one that trains again."""

    class Fail(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("a callback's own")

    model = make_model()
    told = refuse(lambda: fit(model, make_data(), DEVICES[:2], callbacks=[Fail()]))
    classes = {type(variable).__name__ for variable in model.variables}
    report = fit(model, make_data(), options={"epochs": 1})
    return {**told, "classes": sorted(classes), "then": report.stopped}


def refusals():
    """What is refused before anything is trained."""
    eager = make_model()
    eager.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)

    class Own(keras.Model):
        def make_train_function(self, force=False):
            return super().make_train_function(force)

    two = DEVICES[:2]
    ways = {
        "no GPUs": lambda m: fit(m, make_data(), 2),
        "unknown": lambda m: fit(m, make_data(), ["CPU:0", "CPU:9"]),
        "one other": lambda m: fit(m, make_data(), "CPU:1"),
        "no names": lambda m: fit(m, make_data(), 1.5),
        "batch": lambda m: fit(m, make_data(batch_size=33), two),
        "asked": lambda m: fit(m, make_data(), two, batch_size=9),
        "compiled": lambda m: fit(m, make_data(), two, {"engine": "compiled"}),
        "eager": lambda m: fit(eager, make_data(), two),
        "function": lambda m: fit(make_model(base=Own), make_data(), two),
        "evaluate": lambda m: inference.evaluate(m, make_data(), devices=3),
    }
    model = make_model()
    before = model.get_weights()
    told = {name: refuse(lambda way=way: way(model)) for name, way in ways.items()}
    told["weights"] = max(
        float(np.abs(a - b).max()) for a, b in zip(before, model.get_weights(), strict=True)
    )
    return told


def one_device():
    """The model's own device by name, and "all" where there is no GPU, are plain trainings."""
    models = [make_model() for _ in range(3)]
    reports = [
        fit(model, make_data(), devices, {"epochs": 1})
        for model, devices in zip(models, (None, "cpu:0", "all"), strict=True)
    ]
    return {
        "weights": max(differ(models[0], model) for model in models[1:]),
        "replicas": [report.replicas for report in reports],
    }


def auto_batch():
    """A batch size of our own is one that three devices can share."""
    data = make_data(500, batch_size="auto", drop_last=True, validation=0)
    report = fit(make_model(), data, DEVICES[:3], {"epochs": 1, "engine": "keras"})
    return {
        "size": report.plan.batch_size,
        "part": report.micro_batch,
        "reason": report.reasons["batch_size"],
    }


def main(names):
    for name in names:
        began = time.monotonic()
        try:
            told = {"case": name, "found": globals()[name]()}
        except Exception:
            told = {"case": name, "failed": traceback.format_exc()}
        told["seconds"] = time.monotonic() - began
        print("\n" + json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
