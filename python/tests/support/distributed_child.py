"""Trainings on four devices of one process: `python distributed_child.py CASE`.

The CPU is split before TensorFlow starts, hence a process of its own. A case prints what it found
as a line of JSON.
"""

import json
import sys
import tempfile
from pathlib import Path

import equal_cases
import keras
import numpy as np
import tensorflow as tf
from logical_devices import (
    DEVICES,
    ODD,
    differ,
    differ_history,
    fit,
    layers,
    make_data,
    make_model,
    optimizers,
    refuse,
)

from gpukeras.training import evaluate, listener


def evaluation():
    """A model's figures on one device and on two, of rows that leave one over."""
    model = make_model(layers.BatchNormalization())
    fit(model, make_data(), options={"epochs": 1})
    data = make_data(4 * 60 + 1)
    sizes = {"batch_size": 60}
    alone = evaluate.evaluate(model, data, **sizes)
    several = evaluate.evaluate(model, data, devices=DEVICES[:2], **sizes)
    names = alone["metrics"].keys()
    assert names == several["metrics"].keys()
    apart = max(abs(alone["metrics"][name] - several["metrics"][name]) for name in names)
    rows = [alone["rows"], several["rows"]]
    model.compile("sgd", model.loss, metrics=[first_output])
    return {"metrics": apart, "rows": rows, "names": list(names), "note": several["note"]}


class Largest(keras.metrics.Metric):
    """The largest output: its state is no sum."""

    def __init__(self):
        super().__init__(name="largest")
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, labels, outputs, sample_weight=None):
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(outputs)))

    def result(self):
        return self.most


class Recorded(keras.layers.Layer):
    """A layer with a metric of its own."""

    def __init__(self):
        super().__init__()
        self.largest = Largest()

    def call(self, rows):
        self.largest.update_state(None, rows)
        return rows


def first_output(labels, outputs):
    """A metric that is none of rows."""
    return outputs[0, 0]


def metrics():
    """Metrics that are no sums over rows, trained and evaluated on one device and on three."""
    found, notes = [], []
    for devices in (None, DEVICES[:3]):
        model = make_model(optimizer=optimizers.SGD(0.1))
        loss = model.loss
        model.compile("sgd", loss, metrics=[Largest(), first_output, "accuracy"])
        report = fit(model, make_data(**ODD, batch_size=30), devices)
        seen = evaluate.evaluate(model, make_data(101), batch_size=33, devices=devices)
        found.append(
            {**{name: each[-1] for name, each in report.history.items()}, **seen["metrics"]}
        )
        notes.append(seen["note"])
    model = make_model(Recorded())
    notes.append(evaluate.evaluate(model, make_data(99), batch_size=33, devices=devices)["note"])
    apart = {name: abs(value - found[1][name]) for name, value in found[0].items()}
    return {"apart": apart, "notes": notes}


def resumption():
    """Interrupted on two devices, continued on one, then on two again."""

    def stop_at(epoch, step):
        def stop(event):
            here = event["epoch"], event["step"]
            return event["kind"] == "progress" and here[0] == epoch and here[1] >= step

        return stop

    listener.EVENT_S = 0.0
    whole, rows = make_model(layers.BatchNormalization()), 8 * 32 + 9
    first = fit(whole, make_data(rows), options={"epochs": 3, "engine": "keras"})
    ended = []
    with tempfile.TemporaryDirectory() as folder:
        options = {"epochs": 3, "engine": "keras", "checkpoint": {"folder": folder, "every_s": 0}}
        for devices, stop in (
            (DEVICES[:2], stop_at(1, 3)),
            (None, stop_at(2, 5)),
            (DEVICES[:2], None),
        ):
            model = make_model(layers.BatchNormalization())
            report = fit(model, make_data(rows), devices, options, on_event=stop)
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
        "evaluate": lambda m: evaluate.evaluate(m, make_data(), devices=3),
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
    data = make_data(500, batch_size="auto", drop_last=True)
    report = fit(make_model(), data, DEVICES[:3], {"epochs": 1, "engine": "keras"})
    return {
        "size": report.plan.batch_size,
        "part": report.micro_batch,
        "reason": report.reasons["batch_size"],
    }


if __name__ == "__main__":
    case = globals().get(sys.argv[1]) or getattr(equal_cases, sys.argv[1])
    print("\n" + json.dumps(case()), flush=True)
