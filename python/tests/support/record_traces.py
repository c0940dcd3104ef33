"""Records the traces of CPU training in data/ again: `python record_traces.py FOLDER`.

One file an engine: a small model with a nested model and a shared layer, three marked calls of two
batches each. The computer's name and folders are taken out.
"""

import gzip
import sys
import tempfile
from pathlib import Path

import numpy as np

from gpukeras.backend import runtime, tensor_ops, tracing
from gpukeras.data.loader.loader import Block
from gpukeras.engine.engines import Engines

ENGINES = ("keras", "graph_loop", "compiled")
ROWS, BATCHES, CALLS = 32, 2, 3


def make_small_model():
    """Two layers of one kind, a nested model, a layer that is called twice, dropout."""
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    shared = keras.layers.Dense(12, name="dense_shared")
    inner = [keras.layers.Dense(24, name="dense"), keras.layers.Dense(12, name="dense_1")]
    nested = keras.Sequential(inner, name="nested")
    given = keras.Input((16,))
    hidden = keras.layers.Dense(32, activation="relu", name="dense")(given)
    hidden = keras.layers.Dense(12, activation="relu", name="dense_1")(hidden)
    hidden = shared(shared(keras.layers.Dropout(0.1, name="dropout")(nested(hidden))))
    model = keras.Model(given, keras.layers.Dense(3, activation="softmax", name="out")(hidden))
    model.name = "small"
    optimizer = keras.optimizers.Adam(name="adam")  # as in the traces that are kept
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    return model


def record(engine, folder, model):
    """Trains a few batches by one engine and records them."""
    tf, profiler = runtime.tensorflow(), runtime.tensorflow().profiler.experimental
    rows = ROWS * BATCHES
    x = np.random.default_rng(1).random((rows, 16), dtype="float32")
    block = Block((tf.constant(x), tf.constant(np.arange(rows) % 3)), BATCHES, ROWS)
    tensor_ops.build_state(model, tuple(array[:ROWS] for array in block.arrays))
    engines = Engines(model, "train", ROWS, "CPU:0")
    engines.run(engine, block, 0, BATCHES)
    with tracing.profile(folder):
        for number in range(CALLS):
            with profiler.Trace("train", step_num=number, _r=1):
                logs = engines.run(engine, block, 0, BATCHES)
                float(logs["loss"])


def main(target):
    """Writes one gzipped trace an engine."""
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as folder:
            record(engine, folder, make_small_model())
            space = tracing.trace_message()
            space.ParseFromString(next(Path(folder).rglob("*.xplane.pb")).read_bytes())
        space.hostnames[:] = ["computer"]
        content = space.SerializeToString()
        for private in (sys.prefix, folder):  # as long as before: lengths stand in the file
            content = content.replace(private.encode(), b"-" * len(private))
        path = Path(target) / f"cpu_{engine}.xplane.pb.gz"
        path.write_bytes(gzip.compress(content, 9, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
