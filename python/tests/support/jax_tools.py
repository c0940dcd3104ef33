"""What searches, measures and keeps models does on JAX, in a process of its own: see `jax_runs`."""

import contextlib
import itertools
import os
import sys
import tempfile
from pathlib import Path

import examples
import keras
import numpy as np
import tabled
import varied
from jax_memory import distance, exhausted  # noqa: F401 (a part)
from pictures import encode_bmp, write
from small_fits import make_dataset, make_model
from streamed import chunk, numbers, stream

from gpukeras.backend import keras_private
from gpukeras.core.errors import GpuKerasError
from gpukeras.data import builder
from gpukeras.data.loader.loader import open_loader
from gpukeras.distributed import session
from gpukeras.engine.optimizer import find_optimizer
from gpukeras.export import export, transfer
from gpukeras.models.mlp import build_mlp
from gpukeras.profiler import profile
from gpukeras.training import fit
from gpukeras.tuner import batch_size, lr_finder

ROWS = 200


# Searches ----------------------------------------------------------------------------------------

STEPS = {"low": 1e-4, "high": 0.1, "steps": 10}


def rates(eager=False):
    """The losses of a search, as far as they are from those of Keras' single steps."""
    data = make_dataset(ROWS, shuffle=False)
    x, y = data.arrays
    model, twin = make_model(optimizer="adam"), make_model(optimizer="adam")
    model.run_eagerly = eager
    search = lr_finder.find_learning_rate(model, data, STEPS)
    losses = []
    for step, rate in enumerate(np.geomspace(1e-4, 0.1, 10)):
        rows = slice(32 * (step % 6), 32 * (step % 6) + 32)
        twin.optimizer.learning_rate = rate
        losses.append(float(twin.train_on_batch(x[rows], y[rows])[0]))
        twin.reset_metrics()
    return distance(search.losses, losses)


def eager_rates():
    """The same where Keras is asked to run eagerly (at night)."""
    return rates(eager=True)


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


# Rows that TensorFlow reads ----------------------------------------------------------------------


def labels_of(codes, *levels):
    return {"name": "y", "kind": "factor", "values": codes, "levels": list(levels)}


def images():
    """Files of images, decoded with and without cropping: their levels, and a training on them."""
    folder, found = Path(tempfile.mkdtemp()), {}
    for number in range(8):
        image = np.full((9, 7, 3), 60 + 120 * (number % 2), np.uint8)
        write(folder / ("cat", "dog")[number % 2] / f"{number}.bmp", encode_bmp(image))
    for crop in (False, True):
        features = {"kind": "images", "paths": str(folder), "image_size": [8, 8]}
        features["crop_to_aspect_ratio"] = crop
        data = builder.assemble(features, {"batch_size": 4, "shuffle": False})
        block = next(open_loader(data, data.plan("CPU:0")).epoch(0))
        levels, labels = (np.asarray(array) for array in block.arrays)
        stack = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential(stack)
        model.compile("adam", "sparse_categorical_crossentropy")
        history = fit.fit(model, data, {"epochs": 2}).history
        spread = float(np.ptp(levels, axis=(1, 2, 3)).max())
        means = levels.mean(axis=(1, 2, 3)).tolist()
        found[str(crop)] = [means, labels.tolist(), spread, len(history["loss"])]
    return {**found, "gpus": len(sys.modules["tensorflow"].config.get_visible_devices("GPU"))}


def table():
    """A table of images with masks, and with a column beside them."""
    return tabled.train(Path(tempfile.mkdtemp()))


def texts():
    """A column of texts."""
    words = ["good fine", "bad poor", "fine", "poor bad bad"]
    codes = np.arange(40, dtype=np.int32) % 4
    column = {"name": "said", "kind": "factor", "values": 1 + codes, "levels": words}
    features = {"kind": "columns", "columns": [column]}
    labels = labels_of(1 + codes % 2, "good", "bad")
    text = {"columns": "said"}
    data = builder.assemble(features, {"batch_size": 8}, labels, text=text)
    model = build_mlp(data, {"units": [8], "learning_rate": 0.05})
    return fit.fit(model, data, {"epochs": 10}).history["accuracy"][-1]


def records():
    """Files of TFRecord: their labels, and a training on them."""
    path = Path(tempfile.mkdtemp()) / "rows.tfrecord"
    rows = [{"age": 0.5 + place % 7, "label": place % 2} for place in range(24)]
    examples.write(path, rows)
    described = {"age": "float32", "label": "factor"}
    features = {"kind": "records", "paths": str(path), "description": described, "label": "label"}
    data = builder.assemble(features, {"batch_size": 8, "shuffle": False})
    labels = [
        np.asarray(block.arrays[1]) for block in open_loader(data, data.plan("CPU:0")).epoch(0)
    ]
    model = build_mlp(data, {"units": [8]})
    history = fit.fit(model, data, {"epochs": 2}).history
    return {"labels": np.concatenate(labels)[:24].tolist(), "losses": history["loss"]}


def board():
    """TensorBoard's files: the losses in them, and those of the history."""
    folder, model = tempfile.mkdtemp(), make_model()
    spec = {"folder": folder, "histograms": 1}
    report = fit.fit(model, make_dataset(ROWS), {"epochs": 2, "tensorboard": spec})
    import tensorflow as tf

    found, names = [], set()
    for path in Path(folder).glob("train/events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                names.add(value.tag)
                if value.tag == "epoch_loss":
                    found.append(float(tf.make_ndarray(value.tensor)))
    histograms = sum(name.endswith("/histogram") for name in names)
    return {"files": found, "history": report.history["loss"], "histograms": histograms}


def ragged_pipeline():
    import tensorflow as tf

    rows = tf.ragged.constant([[1.0], [2.0, 3.0]])
    return {"kind": "tfdata", "dataset": tf.data.Dataset.from_tensor_slices((rows, [0, 1]))}


def pipelines(names=("steps", "named")):
    """Trainings on tf.data pipelines against those on the same rows in memory."""
    import tensorflow as tf

    data, found = make_dataset(ROWS, shuffle=False), {}
    x, y = (np.asarray(array) for array in data.arrays)
    slices = tf.data.Dataset.from_tensor_slices((x, y))
    expected = make_model(optimizer="adam")
    fit.fit(expected, data, {"epochs": 2})
    given = {
        "batches": (slices.batch(32), {}),
        "rows": (slices, {"batched": False}),
        "steps": (slices.repeat().batch(32), {"steps": 7}),
        "named": (slices.map(lambda x, y: ({"first": x[:2], "rest": x[2:]}, y)).batch(32), {}),
        "kept": (slices.batch(32), {"cache": True}),
    }
    for name in names:
        dataset, more = given[name]
        options = {"shuffle": False, "batch_size": 32}
        if more.pop("cache", False):
            options["cache"] = "keep"
        features = {"kind": "tfdata", "dataset": dataset, **more}
        stream = builder.assemble(features, options)
        if name == "named":
            rows = [
                np.asarray(block.arrays[0]["rest"])
                for block in open_loader(stream, stream.plan("CPU:0")).epoch(0)
            ]
            found[name] = float(np.max(np.abs(np.concatenate(rows)[:ROWS] - x[:, 2:])))
            continue
        model = make_model(optimizer="adam")
        history = fit.fit(model, stream, {"epochs": 2}).history
        assert len(history["loss"]) == 2
        found[name] = distance(model.get_weights(), expected.get_weights())
    return found


def pipelines_more():
    """The others, which vary them (at night)."""
    return pipelines(("batches", "rows", "kept"))


def broken_pipeline():
    """The error of a pipeline that fails in its second batch."""
    import tensorflow as tf

    def check(place):
        with tf.control_dependencies([tf.debugging.assert_less(tf.cast(place, tf.int32), 40)]):
            return tf.ones([5]), tf.identity(place % 2)

    given = {"kind": "tfdata", "dataset": tf.data.Dataset.range(64).map(check).batch(32)}
    try:
        fit.fit(make_model(), builder.assemble(given, {"shuffle": False}), {"epochs": 1})
    except GpuKerasError as error:
        return [type(error).__name__, error.message]


def codes():
    """The layers that the calls of each model name for a code that an embedding has no row for."""
    from refused_rows import CASES

    told = {name: codes_of(CASES[name].compiled(), CASES[name].rows) for name in CODED}
    return {**told, "inputs": codes_of(*two_inputs(named=True)), "list": codes_of(*two_inputs())}


CODED = ("Embedding", "Embedding of a column", "Embedding beside numbers", "Embedding in a model")


def two_inputs(named=False):
    """A model of codes and numbers, and its rows, of which the codes are bad or good."""
    from refused_rows import BAD_CODES, CODES, NUMBERS, TARGET

    numbers, given = keras.Input((4,), name="numbers"), keras.Input((3,), name="codes")
    flat = keras.layers.Flatten()(keras.layers.Embedding(21, 4)(given))
    output = keras.layers.Dense(1)(keras.layers.Concatenate()([numbers, flat]))
    model = keras.Model([numbers, given], output)
    model.compile("sgd", "mse")

    def rows(bad):
        x = [NUMBERS, BAD_CODES if bad else CODES]
        return (dict(zip(("numbers", "codes"), x, strict=True)) if named else x), TARGET

    return model, rows


def codes_of(model, rows):
    from refused_rows import BATCH

    from gpukeras.accelerate.rows import CallRows, dataset_of

    options = {"shuffle": False, "batch_size": BATCH}
    good, bad = (dataset_of(CallRows(*rows(each)), model, options) for each in (False, True))
    return layers_told(model, good, bad)


def codes_in_sequence():
    """The layers that calls name for rows of a function; how far a refused fit moved a model."""
    from refused_rows import BAD_CODES, BATCH, CASES, CODES

    model = CASES["Embedding"].compiled()
    good, bad = (stream(each_epoch(codes), batch_size=BATCH) for codes in (CODES, BAD_CODES))
    before = model.get_weights()
    with contextlib.suppress(GpuKerasError):
        fit.fit(model, bad, {"epochs": 1})
    moved = distance(before, model.get_weights())
    return {"layers": layers_told(model, good, bad), "moved": moved}


def each_epoch(codes):
    """A user's function: chunks of these codes and labels, then an end, then again."""
    from refused_rows import BATCH, TARGET

    starts = itertools.cycle([*range(0, len(codes), BATCH), None])

    def call(epoch, batch):
        start = next(starts)
        if start is None:
            return None
        part = slice(start, start + BATCH)
        return chunk(codes[part], numbers(TARGET[part].ravel()))

    return call


def layers_told(model, good, bad):
    """The layers that the calls name for bad rows, of which the good ones train."""
    from gpukeras.core.errors import RefusedRowsError
    from gpukeras.training import evaluate, fit, predict

    told = []
    for call in (
        lambda: fit.fit(model, bad, {"epochs": 1}),
        lambda: fit.fit(model, good, {"epochs": 1}, validation=bad),
        lambda: evaluate.evaluate(model, bad),
        lambda: predict.predict(model, data=bad),
    ):
        try:
            call()
        except RefusedRowsError as error:
            told.append(error.details["layer"])
    fit.fit(model, good, {"epochs": 1})
    return told


def unbuilt():
    """How far predictions of models that were not called yet are from Keras' own, then trained."""
    from gpukeras.training import predict

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    found = []
    for make in (Own, lambda: keras.Sequential([keras.layers.Dense(2)])):
        for in_sequence in (False, True):
            model = make()
            call = each_epoch(np.ones((56, 3), np.float32))
            rows = {"kind": "array", "values": np.ones((56, 3), order="F"), "names": []}
            given = {"data": stream(call)} if in_sequence else {"features": rows}
            values = np.asarray(predict.predict(model, **given)["values"])
            found.append(float(np.abs(values - model.predict(np.ones((56, 3)), verbose=0)).max()))
            model.compile("sgd", "mse")
            model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
    return found


def refused():
    """The messages where TensorFlow alone can do the work."""
    codes = np.arange(16, dtype=np.int32) % 4
    labels = labels_of(1 + codes % 2, "a", "b")
    texts = {"kind": "strings", "values": 1 + codes[:, None], "levels": ["a", "b", "c", "d"]}
    data, model, folder = make_dataset(ROWS), make_model(), tempfile.mkdtemp()
    array = {"kind": "array", "values": np.zeros((16, 8, 8, 3), order="F"), "names": []}
    given = {
        "cluster": lambda: session.join_cluster({"workers": ["127.0.0.1:9001"], "index": 1}),
        "devices": lambda: fit.fit(model, data, {}, devices=2),
        "litert": lambda: export.export_model(model, f"{folder}/model.tflite"),
        "map": lambda: builder.assemble(array, {}, labels, map=lambda rows: rows),
        "onnx": lambda: export.export_model(model, f"{folder}/model.onnx"),
        "pipeline as it is": lambda: builder.assemble(ragged_pipeline(), {}),
        "savedmodel": lambda: export.export_model(model, f"{folder}/model"),
        "texts": lambda: builder.assemble(texts, {}, labels),
    }
    found = {}
    for name, call in given.items():
        try:
            call()
            found[name] = ["", ""]
        except GpuKerasError as error:
            found[name] = [type(error).__name__, error.message, error.hint]
    return found


def precision(policy="mixed_float16"):
    """Half precision, with the scaled loss of float16, against Keras' own `fit()`."""
    data = make_dataset(ROWS, shuffle=False)
    x, y = data.arrays
    keras.config.set_dtype_policy(policy)
    one, other = make_model(optimizer="adam"), make_model(optimizer="adam")
    keras.config.set_dtype_policy("float32")
    one.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    fit.fit(other, data, {"epochs": 2})
    return [type(other.optimizer).__name__, distance(one.get_weights(), other.get_weights())]


def other_precision():
    """The other kind (at night)."""
    return precision("mixed_bfloat16")


def interrupted():
    """A training that its listener ends, as R's interrupt does."""
    model = make_model()
    found = fit.fit(model, make_dataset(ROWS), {"epochs": 500}, on_event=lambda event: True)
    return {"stopped": found.stopped, "epochs": len(found.history["loss"])}


def failed():
    """Weights after an epoch whose end raises, ours and Keras', that the optimizer averages."""
    data = make_dataset(ROWS, shuffle=False)
    found = []
    for ours in (True, False):
        model = make_model(optimizer=keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9))

        def fail(epoch, logs):
            raise ValueError("made up")

        callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=fail)]
        with contextlib.suppress(ValueError):
            if ours:
                fit.fit(model, data, {"epochs": 2}, callbacks=callbacks)
            else:
                model.fit(
                    *data.arrays, batch_size=32, shuffle=False, verbose=0, callbacks=callbacks
                )
        found.append(np.concatenate([np.ravel(one) for one in model.get_weights()]))
    return float(np.abs(found[0] - found[1]).max())


def nested():
    """Losses and weights of trainings, ours and Keras', whose callback evaluates and trains."""
    data, other, found = make_dataset(ROWS, shuffle=False, validation=0.2), make_dataset(64), []
    x, y = other.arrays
    parts = ([a[data.rows(part)] for a in data.arrays] for part in ("train", "validation"))
    known, held = parts
    for ours in (True, False):
        model, seen = make_model(optimizer="adam"), []

        def look(epoch, logs, model=model, seen=seen):
            seen.append(model.evaluate(x, y, verbose=0)[0])
            model.fit(x, y, shuffle=False, verbose=0, validation_data=(x, y))
            seen.append(float(model.predict(x, verbose=0)[0, 0]))

        callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=look)]
        if ours:
            history = fit.fit(model, data, {"epochs": 2}, callbacks=callbacks).history["val_loss"]
        else:
            kept = keras.callbacks.History()  # the inner training replaces that of the model
            model.fit(
                *known, batch_size=32, epochs=2, shuffle=False, verbose=0,
                validation_data=held, callbacks=[*callbacks, kept],
            )  # fmt: skip
            history = kept.history["val_loss"]
        weights = np.concatenate([np.ravel(one) for one in model.get_weights()])
        found.append(np.concatenate([seen, history, weights]))
    return float(np.abs(found[0] - found[1]).max())


# Between backends --------------------------------------------------------------------------------

ROW = np.linspace(-1, 1, 5 * ROWS, dtype=np.float32).reshape(ROWS, 5)


def written():
    """A model's file, and what it predicts where it was trained."""
    model, path = make_model(optimizer="adam"), os.environ["MOVED_MODEL"]
    fit.fit(model, make_dataset(ROWS), {"epochs": 2})
    transfer.save_model(model, path)
    return model.predict(ROW, verbose=0).tolist()


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


def traced_beside_tensorflow():
    """What TensorFlow computes during a trace and after it."""
    import tensorflow as tf

    from gpukeras.backend import jax_backend

    with tempfile.TemporaryDirectory() as folder, jax_backend.profile(folder):
        during = float(tf.constant([1.0])[0])
    return [during, float(tf.convert_to_tensor(2.0))]


# Images ------------------------------------------------------------------------------------------


def augmented():
    """Pictures varied in each way, from the same rows as on TensorFlow; see `varied`."""
    return {name: varied.vary(name).tolist() for name in varied.FEW}


def augmented_more():
    """The others, which vary them (at night)."""
    return {name: varied.vary(name).tolist() for name in varied.CASES if name not in varied.FEW}


def augmented_fit():
    """A training on varied images, with each engine."""
    rng, found = np.random.default_rng(1), {}
    values = np.asfortranarray(rng.random((40, 8, 8, 3)))
    labels = labels_of(1 + np.arange(40, dtype=np.int32) % 2, "a", "b")
    augment = {"flip": "both", "rotation": 0.1, "brightness": 0.2, "value_range": [0, 1]}
    for engine in ("keras", "compiled"):
        keras.utils.set_random_seed(1)
        features = {"kind": "array", "values": values, "names": []}
        data = builder.assemble(features, {"batch_size": 8, "seed": 1}, labels, augment=augment)
        stack = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential(stack)
        model.compile("adam", "sparse_categorical_crossentropy")
        found[engine] = fit.fit(model, data, {"epochs": 2, "engine": engine}).history["loss"]
    return found


def tell(name):
    return globals()[name]()
