"""What gpukeras does on JAX, in a process of its own.

Keras has one backend in a process, and the tests' is TensorFlow; see `jax_runs`.
"""

import logging
import os
import sys
import tempfile

import jax
import keras
import numpy as np
from compiled_blocks import make_block, make_engines
from grouped import CODES, IMAGE, PRICE, TABLE, build, two_heads
from keras import layers, optimizers
from small_fits import make_dataset, make_model
from streamed import Function, array, classes, rows_of, stream

from gpukeras.core.errors import GpuKerasError
from gpukeras.data import builder
from gpukeras.data.loader.loader import open_loader
from gpukeras.engine import trip_counts
from gpukeras.engine.autotune import EngineAutotuner
from gpukeras.engine.engine_cache import open_engines, open_watch
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.train_step import TrainingStep
from gpukeras.export import transfer
from gpukeras.models.mlp import build_mlp
from gpukeras.training import evaluate, fit, predict
from gpukeras.training.keras_functions import build_on

ROWS, BATCH, EPOCHS = 170, 32, 2  # a short last batch


# As Keras trains -------------------------------------------------------------------------------


class OwnStep(keras.Model):
    """A custom step that logs more than its metrics."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, "softmax")

    def call(self, x):
        return self.dense(x)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {**logs, "twice": 2 * logs["loss"]}, state


def compiled(model, optimizer="sgd", **more):
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **more)
    return model


def between(*given, optimizer="sgd", **more):
    """Returns a function that makes a model with these layers between its two."""

    def build():
        keras.utils.set_random_seed(1)
        made = [layer() for layer in given]
        stack = [keras.Input((5,)), layers.Dense(8, "relu"), *made, layers.Dense(3, "softmax")]
        return compiled(keras.Sequential(stack), optimizer() if callable(optimizer) else optimizer)

    return build


def own_step():
    keras.utils.set_random_seed(1)
    return compiled(OwnStep())


def images():
    keras.utils.set_random_seed(1)
    stack = [keras.Input((5,)), layers.Reshape((5, 1)), layers.Conv1D(4, 3), layers.Flatten()]
    return compiled(keras.Sequential([*stack, layers.Dense(3, "softmax")]), "adam")


def recurrent():
    keras.utils.set_random_seed(1)
    stack = [keras.Input((5,)), layers.Reshape((5, 1)), layers.LSTM(4), layers.Dense(3, "softmax")]
    return compiled(keras.Sequential(stack), "adam")


CASES = {
    "sgd": between(),
    "adam_dropout": between(lambda: layers.Dropout(0.3, seed=1), optimizer="adam"),
    "batch_norm": between(layers.BatchNormalization),
    "regularizer": between(lambda: layers.Dense(4, kernel_regularizer="l2")),
    "clipping": between(optimizer=lambda: optimizers.SGD(0.1, global_clipnorm=0.1)),
    "accumulation": between(optimizer=lambda: optimizers.Adam(gradient_accumulation_steps=2)),
    "averages": between(
        optimizer=lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)
    ),
    "decay": between(
        optimizer=lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    ),
    "loss_scale": between(
        optimizer=lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0)
    ),
    "own_step": own_step,
    "images": images,
    "recurrent": recurrent,
}


def equal(name):
    """The largest differences of weights and losses from Keras' own `fit()`, for each engine."""
    data, found = make_dataset(ROWS, shuffle=False, batch_size=BATCH), {}
    x, y = data.arrays[:2]
    keras_model = CASES[name]()
    keras_model(x[:1])
    before = keras_model.get_weights()
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    history = keras_model.fit(x, y, **options).history
    found["moved"] = distance(before, keras_model.get_weights())
    for engine in ("keras", "compiled"):
        model = CASES[name]()
        report = fit.fit(model, data, {"epochs": EPOCHS, "engine": engine})
        found[engine] = {
            "weights": distance(keras_model.get_weights(), model.get_weights()),
            "logs": distance(
                *([logs[key] for key in sorted(history)] for logs in (history, report.history))
            ),
        }
    return found


def distance(ones, others):
    return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in zip(ones, others, strict=True))


# As gpukeras trains ----------------------------------------------------------------------------


def columns():
    """Rows of a data frame; an MLP, its classes, its metrics, and its file."""
    rng = np.random.default_rng(1)
    size, cut = rng.normal(size=200), rng.integers(1, 4, 200).astype(np.int32)
    frame = [
        {"name": "size", "kind": "numeric", "values": size, "levels": []},
        {"name": "cut", "kind": "factor", "values": cut, "levels": ["low", "mid", "top"]},
    ]
    features = {"kind": "columns", "columns": frame}
    labels = {"kind": "factor", "values": 1 + (size > 0).astype(np.int32), "levels": ["no", "yes"]}
    data = builder.assemble(features, {"batch_size": 16, "seed": 1, "validation": 0.2}, labels)
    model = build_mlp(data, {"units": [16], "learning_rate": 0.05})
    report = fit.fit(model, data, {"epochs": 5})
    first = predict.predict(model, features)
    tensorflow = "tensorflow" in sys.modules  # Before the file: Keras' saving looks for it.
    path = os.path.join(tempfile.mkdtemp(), "model.keras")
    transfer.save_model(model, path)
    second = predict.predict(transfer.load_model(path, recipe=model), features)
    return {
        "engine": report.engine.engine,
        "reason": report.engine.reason,
        "val_accuracy": report.history["val_accuracy"][-1],
        "evaluated": evaluate.evaluate(model, data, "validation")["metrics"]["accuracy"],
        "same": bool(np.array_equal(first["values"], second["values"])),
        "tensorflow": tensorflow,
    }


def several():
    """Two inputs and two outputs; weights and losses against Keras' own `fit()`."""
    data, keras_model = build(), two_heads({"image": (4, 4, 2), "table": (3,)})
    model = two_heads({"image": (4, 4, 2), "table": (3,)})
    rows = {"price": PRICE, "cut": CODES - 1}
    history = keras_model.fit(
        [IMAGE, TABLE], rows, batch_size=8, epochs=2, shuffle=False, verbose=0
    )
    report = fit.fit(model, data, {"epochs": 2})
    return {
        "weights": distance(keras_model.get_weights(), model.get_weights()),
        "loss": distance(history.history["loss"], report.history["loss"]),
    }


def streams():
    """Rows that a function gives in chunks, against the same rows in memory."""
    x, codes = rows_of()
    held = builder.assemble(array(x), {"batch_size": 32, "shuffle": False}, classes(codes))
    given = stream(Function(x, codes, [30, 50, 20]), batch_size=32, shuffle=False)
    models = [make_model() for _ in range(2)]
    for model, data in zip(models, (held, given), strict=True):
        fit.fit(model, data, {"epochs": 2})
    predicted = [predict.predict(model, data=held)["values"] for model in models]
    return {
        "weights": distance(*(model.get_weights() for model in models)),
        "predicted": distance(*predicted),
    }


def features():
    """A schedule, averages, early stopping and clipping, with each engine."""
    schedule = {"kind": "one_cycle", "max_rate": 0.05}
    options = {"epochs": 3, "schedule": schedule, "ema": 0.9, "clip_norm": 1.0}
    options["early_stopping"] = {"patience": 2}
    found = {}
    for engine in ("keras", "compiled"):
        model = make_model(optimizer="adam")
        report = fit.fit(model, make_dataset(ROWS, validation=0.2), {**options, "engine": engine})
        found[engine] = {"loss": report.history["loss"], "weights": model.get_weights()}
    one, other = found["keras"], found["compiled"]
    return {
        "loss": one["loss"],
        "weights": distance(one["weights"], other["weights"]),
        "losses": distance(one["loss"], other["loss"]),
    }


def resumed():
    """A training that was interrupted after its second epoch, and one that was not."""
    folder, data = tempfile.mkdtemp(), make_dataset(ROWS)
    whole = make_model(optimizer="adam")
    fit.fit(whole, data, {"epochs": 4})
    first = make_model(optimizer="adam")
    stops = {"on_epoch_end": lambda epoch, metrics: {"stop": epoch == 2}}
    options = {"epochs": 4, "checkpoint": folder}
    stopped = fit.fit(first, data, options, functions=stops)
    second = make_model(optimizer="adam")
    report = fit.fit(second, data, options)
    return {
        "stopped": len(stopped.history["loss"]),
        "epochs": len(report.history["loss"]),
        "weights": distance(whole.get_weights(), second.get_weights()),
    }


def not_a_number():
    """A rate that destroys the model in the second epoch."""
    model, seen = make_model(), []

    class Destroy(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                seen.append(self.model.get_weights())
                self.model.optimizer.learning_rate = 1e38

    report = fit.fit(model, make_dataset(ROWS), {"epochs": 4}, callbacks=[Destroy()])
    return {"stopped": report.stopped, "weights": distance(seen[0], model.get_weights())}


def batches():
    """A callback that sees every batch, and halves the rate after the first."""
    seen = []

    class Halve(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            if batch == 0:
                self.model.optimizer.learning_rate = 0.005

    model = make_model()
    report = fit.fit(model, make_dataset(ROWS), {"epochs": 1}, callbacks=[Halve()])
    return {
        "seen": seen,
        "engine": report.engine.engine,
        "rate": float(model.optimizer.learning_rate),
    }


def parts():
    """Batches that go through the model in parts, also where these do not divide them."""
    found, data = {}, make_dataset(64, shuffle=False, batch_size=32)
    for size in (None, 8, 12):
        model = make_model(optimizer="adam")
        build_on(model, data)
        step = TrainingStep(model, size, open_watch(model))
        engines = open_engines(model, "train", 32, "CPU:0", step)
        block = next(open_loader(data, data.plan("CPU:0")).epoch(0))
        logs = engines.run("compiled", block, 0, 2)
        found[str(size)] = [model.get_weights(), float(logs["loss"])]
    whole = found.pop("None")
    return {
        size: [distance(whole[0], weights), abs(whole[1] - loss)]
        for size, (weights, loss) in found.items()
    }


def lengths():
    """The calls of two trainings by programs that know their lengths, and how far apart they end.

    Of the last block, which has another shape, the first call compiles. Each program is compiled
    once: of any length, of 40 and of 20 batches; where lengths are not known, for 40 and for 20.
    A first batch counts as fast, however busy the computer is.
    """
    trip_counts.LONGEST_CALL_S = 1e6
    log = CompilationLog()
    logging.getLogger("jax._src.dispatch").addHandler(log)
    with jax.log_compiles():
        found = _train_by_lengths()
    return {**found, "compiled": log.loops}


class CompilationLog(logging.Handler):
    """Counts the compilations of loops over batches."""

    loops = 0

    def emit(self, record):
        self.loops += "XLA compilation of jit(_loop)" in record.getMessage()


def _train_by_lengths():
    blocks = [*[make_block()] * 4, make_block(20)]
    calls, weights = [], []
    for static in (True, False):
        model = make_model(optimizer="adam")
        engines = make_engines(model, blocks[0], static=static)
        call = engines._call

        def heard(program, *arguments, engines=engines, call=call):
            calls.append(["known" if program is engines._known else "any", arguments[-1]])
            return call(program, *arguments)

        engines._call = heard
        for given in (blocks[:3], blocks[3:]):  # trainings
            chooser = EngineAutotuner(("compiled",), 10**6, batch_s=engines.batch_s)
            runner = EpochLoop(engines, chooser)
            for block in given:
                runner.begin(iter([block]))
                runner.advance()
        weights.append(model.get_weights())
    return {"calls": calls[:6], "weights": distance(*weights)}


def refused():
    """The message where an engine needs TensorFlow."""
    try:
        fit.fit(make_model(), make_dataset(ROWS), {"epochs": 1, "engine": "graph_loop"})
    except GpuKerasError as error:
        return [type(error).__name__, str(error)]


def tell(name):
    return equal(name) if name in CASES else globals()[name]()
