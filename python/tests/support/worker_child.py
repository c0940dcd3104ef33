"""A worker of a cluster: `python worker_child.py OPTIONS`, a record as JSON.

    cluster   options of `join_cluster()`; without them the process trains alone
    cases     names of functions of this file, or [name, {arguments}], made one after another
    join_s    seconds to wait for the others
    version   a version of Keras to pretend

Prints a line of JSON after joining and after each case: what it found, or the error that it ended
with. Each worker's model begins with weights of its own.
"""

import dataclasses
import functools
import hashlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from small_fits import make_dataset
from small_fits import make_model as make_plain

from gpukeras import api
from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset
from gpukeras.distributed import session
from gpukeras.distributed.channel.channel import open_channel
from gpukeras.training import evaluate as training_evaluate
from gpukeras.training import fit
from gpukeras.training import predict as training_predict

ROWS, BATCH = 335, 32  # of 268 training rows 8 batches and 12 rows more
INDEX = 0


def tell(**values):
    print("\n" + json.dumps(values, default=dataclasses.asdict), flush=True)


def make_data(rows=ROWS, **options):
    return make_dataset(rows, **{"validation": 0.2, "batch_size": BATCH, **options})


def make_model(batch_norm=False, seed=None, **more):
    """A small classifier, on each worker with weights of its own."""
    layers = [runtime.keras().layers.BatchNormalization()] if batch_norm else []
    optimizer = runtime.keras().optimizers.Adam(0.01)
    seed = 1 + INDEX if seed is None else seed
    return make_plain(layers=layers, optimizer=optimizer, seed=seed, **more)


def describe(model, report):
    weights = [value.astype(np.float64).ravel() for value in model.get_weights()]
    data = b"".join(value.tobytes() for value in model.get_weights())
    return {
        "weights": np.concatenate(weights).tolist(),
        "hash": hashlib.sha256(data).hexdigest(),
        "history": report.history,
        "replicas": report.replicas,
        "workers": report.workers,
        "part": report.micro_batch,
        "epochs": report.epochs,
        "resumed": report.resumed_epochs,
        "stopped": report.stopped,
        "notes": list(report.notes),
        "checkpoint": report.checkpoint,
        "tensorboard": report.tensorboard,
        "classes": sorted({type(variable).__name__ for variable in model.variables}),
    }


def train(batch_norm=False, engine="graph_loop", rows=ROWS, evaluate=False, units=3, **options):
    """A training of a few epochs."""
    model, data = make_model(batch_norm), make_data(rows)
    report = fit.fit(model, data, {"epochs": 2, "engine": engine, **options})
    found = describe(model, report)
    if evaluate:
        devices = None if session.current() is None else "all"
        found["evaluated"] = training_evaluate.evaluate(model, data, devices=devices)
        found["predicted"] = training_predict.predict(model, data=data, devices=devices)[
            "values"
        ].tolist()
    return found


def embedding():
    """Gradients of an embedding are few rows of its table, on each worker others."""
    layers = runtime.keras().layers
    runtime.keras().utils.set_random_seed(1 + INDEX)
    parts = [runtime.keras().Input((4,)), layers.Embedding(20, 3), layers.Flatten()]
    model = runtime.keras().Sequential([*parts, layers.Dense(3, "softmax")])
    model.compile(runtime.keras().optimizers.Adam(0.05), "sparse_categorical_crossentropy")
    x = np.random.default_rng(1).integers(0, 20, (205, 4)).astype(float)
    codes = (1 + (x[:, 0] > 9)).astype(np.int32)
    labels = {"kind": "factor", "values": codes, "levels": ["a", "b", "c"]}
    features = {"kind": "array", "values": np.asfortranarray(x)}
    data = map_dataset.build_dataset(features, {"batch_size": BATCH, "seed": 1}, labels)
    return describe(model, fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"}))


def differ(what):
    """The second worker trains something else."""
    model, options = make_model(seed=1), {"epochs": 1, "engine": "graph_loop"}
    if INDEX == 1:
        model = make_model(seed=1, units=4) if what == "model" else model
        options = {**options, "ema": 0.9} if what == "ema" else options
    return describe(model, fit.fit(model, make_data(), options))


def stream(rows):
    """Rows in sequence, of which each worker has as many as `rows` says."""
    from streamed import Function, rows_of
    from streamed import stream as build

    x, codes = rows_of(rows[INDEX])
    model, data = make_model(), build(Function(x, codes, [len(x)]), batch_size=BATCH)
    return describe(model, fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"}))


def shards(path, **options):
    """Each worker reads its own part of the files; alone, a process reads them all."""
    features = {"kind": "table", "paths": [str(path)], "label": "y"}
    first = {**features, "paths": [str(Path(path).parent / "first.parquet")]}
    recipe = api.make_dataset(first, {"scale": True})["handle"]
    before = read_bytes()
    alone = {} if session.current() is None else {"shard": "workers"}
    told = {"batch_size": BATCH, "seed": 1, "scale": True, **alone, **options}
    made = api.make_dataset(features, told, recipe_of=recipe)
    data, read = made["handle"], read_bytes() - before
    model = make_plain(data.recipe.shape[0], 2, seed=1 + INDEX)
    found = describe(model, fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"}))
    keys = data.sources[0].gather(data.rows("all"))[:, 0]
    return {**found, "keys": keys.tolist(), "share": made["plan"].share, "read_bytes": read}


def read_bytes():
    """Bytes that this process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def interrupt(worker):
    """A user interrupts one worker, which ends the training of all."""
    events = []

    def stop(event):
        events.append(event)
        return worker == INDEX and event["kind"] == "epoch" and event["epoch"] == 2

    model = make_model()
    options = {"epochs": 50, "engine": "graph_loop"}
    return describe(model, fit.fit(model, make_data(), options, on_event=stop))


def fail(worker):
    """A callback of one worker fails."""

    class Fail(runtime.keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if worker == INDEX and epoch == 1:
                raise ValueError("a callback's own")

    options = {"epochs": 50, "engine": "graph_loop"}
    model = make_model()
    return describe(model, fit.fit(model, make_data(), options, callbacks=[Fail()]))


def cut(worker):
    """A worker's connections to TensorFlow's servers break, while all workers live."""

    class Cut(runtime.keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if worker == INDEX and epoch == 1:
                threading.Thread(target=cut_connections, daemon=True).start()

    options = {"epochs": 10**4, "engine": "graph_loop"}
    model = make_model()
    return describe(model, fit.fit(model, make_data(), options, callbacks=[Cut()]))


def cut_connections():
    """Ends all connections of this process but those of the control channel."""
    spec = session.current().spec
    control = int(spec.control.rpartition(":")[2])
    while True:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    ports = one.getsockname()[1], one.getpeername()[1]
                    if control not in ports:
                        one.shutdown(socket.SHUT_RDWR)
        time.sleep(0.001)


def compute_nothing(worker):
    """One worker's own operation fails within TensorFlow's function."""
    tf = runtime.tensorflow()

    class Refuse(runtime.keras().layers.Layer):
        def call(self, x):
            with tf.control_dependencies([tf.debugging.assert_less(x, limit, "too large")]):
                return tf.identity(x)

    limit = -1e9 if worker == INDEX else 1e9
    model = make_plain(layers=[Refuse()], seed=1)
    return describe(model, fit.fit(model, make_data(), {"epochs": 2, "engine": "graph_loop"}))


def long(folder, epochs=12):
    """A training with all that has a state, which saves; slow enough to be killed within it."""

    class Slow(runtime.keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.1)
            tell(event="epoch", epoch=epoch + 1, at=time.monotonic())

    model = make_model(batch_norm=True)
    options = {"epochs": epochs, "engine": "graph_loop"}
    if folder:
        options["checkpoint"] = {"folder": folder, "every_s": 0.2}
    return describe(model, fit.fit(model, make_data(batch_size=36), options, callbacks=[Slow()]))


def resume(folder):
    """Trains an epoch, then as many as three from its checkpoint; each worker names a folder."""
    own = Path(folder) / str(INDEX)
    own.mkdir()
    data, options = make_data(), {"engine": "graph_loop", "checkpoint": str(own / "checkpoint")}
    fit.fit(make_model(True), data, {"epochs": 1, **options})
    options["tensorboard"] = str(own / "board")
    model = make_model(True)
    found = describe(model, fit.fit(model, data, {"epochs": 3, **options}))
    found["written"] = sorted(path.name for path in own.glob("*"))
    return found


def stop(worker):
    """A callback of one worker ends the training of all."""

    class Stop(runtime.keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = worker == INDEX and epoch == 2

    model, options = make_model(), {"epochs": 50, "engine": "graph_loop"}
    return describe(model, fit.fit(model, make_data(), options, callbacks=[Stop()]))


def rest(seconds):
    """A worker rests, as while R computes."""
    tell(event="rests")
    with session.resting():
        time.sleep(seconds)


def rejoin():
    """A worker asks for another cluster."""
    return session.join_cluster({"workers": ["127.0.0.1:1", "127.0.0.1:2"], "index": INDEX + 1})


def refuse(**more):
    """What a worker cannot ask for."""
    return describe(None, fit.fit(make_model(), make_data(), {"epochs": 1}, **more))


def describe_error(error):
    details = getattr(error, "details", {})
    return {
        "error": type(error).__name__,
        "message": getattr(error, "message", str(error)),
        "worker": details.get("worker"),
        "cause": repr(error.__cause__)[:300],
    }


def join(options):
    if "join_s" in options:
        session.open_channel = functools.partial(open_channel, join_timeout_s=options["join_s"])
    if "version" in options:
        runtime.keras().__version__ = options["version"]
    return session.join_cluster(options["cluster"])


def run_case(case):
    """What a case found, or the error that it ended with."""
    name, arguments = (case, {}) if isinstance(case, str) else case
    try:
        return name, globals()[name](**arguments)
    except Exception as error:
        return name, describe_error(error)


def main(options):
    global INDEX
    runtime.keras()  # takes long, and is no part of joining
    tell(event="started", at=time.monotonic())
    try:
        if "cluster" in options:
            INDEX = options["cluster"]["index"] - 1
            tell(event="joined", at=time.monotonic(), record=join(options))
        for case in options["cases"]:
            name, found = run_case(case)
            tell(event="case", case=name, at=time.monotonic(), found=found)
    except BaseException as error:
        tell(event="failed", at=time.monotonic(), found=describe_error(error))
        raise
    session.leave_cluster()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
