"""Rows that come in sequence, from functions and from tf.data."""

import numpy as np
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.data.dataset import streams as sequences
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.loader import loader
from gpukeras.training import fit

ROWS = 100


def rows_of(rows=ROWS, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5))
    return x, np.digitize(x[:, 0], [-0.5, 0.5]).astype(np.int32)


def array(x, **more):
    return {"kind": "array", "values": np.asfortranarray(x), "names": [], **more}


def classes(codes, levels="abc"):
    return {"name": "y", "kind": "factor", "values": np.asarray(codes) + 1, "levels": list(levels)}


def numbers(y, kind="numeric"):
    return {"name": "y", "kind": kind, "values": np.asarray(y), "levels": []}


def chunk(x, y=None, weights=None):
    return {"features": array(x), "labels": y, "weights": weights}


class Function:
    """A user's function: chunks of `sizes` rows of some arrays, then an end, then again."""

    def __init__(self, x, codes, sizes, ends=True, weights=None):
        self.x, self.codes, self.sizes, self.ends = x, codes, list(sizes), ends
        self.weights, self.calls, self.at = weights, [], 0

    def __call__(self, epoch, batch):
        self.calls.append((epoch, batch))
        if self.at == len(self.sizes):
            self.at = 0
            if self.ends:
                return None
        start = sum(self.sizes[: self.at])
        rows = slice(start, start + self.sizes[self.at])
        self.at += 1
        weights = None if self.weights is None else self.weights[rows]
        return chunk(self.x[rows], classes(self.codes[rows]), weights)


def stream(call, steps=None, recipe=None, **options):
    features = {"kind": "generator", "call": call, "steps": steps}
    return sequences.build_stream(features, Request(options, recipe=recipe))


def tfdata(dataset, steps=None, batched=None, **options):
    features = {"kind": "tfdata", "dataset": dataset, "steps": steps, "batched": batched}
    return sequences.build_stream(features, Request(options))


def slices(*arrays):
    return runtime.tensorflow().data.Dataset.from_tensor_slices(tuple(arrays))


def fed_rows(data, epoch=0, batch_size=None):
    feed = loader.open_loader(data, data.plan("CPU:0", batch_size))
    for block in feed.epoch(epoch):
        rows = len(block.arrays[0]) if block.tail else block.batches * feed.batch_size
        yield from block.arrays[0].numpy()[:rows, 0]


def weights_after(data, epochs=2, **options):
    model = make_model()
    report = fit.fit(model, data, {"epochs": epochs, "engine": "graph_loop", **options})
    return report, np.concatenate([w.ravel() for w in model.get_weights()])


X, CODES = rows_of()
Y32 = CODES.astype(np.float32)


def as_function(**options):
    return stream(Function(X, CODES, [32, 32, 32, 4]), **options)


def as_steps(**options):
    return stream(Function(X, CODES, [32, 32, 32, 4], ends=False), steps=4, **options)


def as_odd_chunks(**options):
    return stream(Function(X, CODES, [7, 60, 1, 32]), **{"batch_size": 32, **options})


def as_batched(**options):
    return tfdata(slices(X, CODES).batch(32), **options)


def as_unbatched(**options):
    return tfdata(slices(X, CODES), **{"batch_size": 32, **options})


def as_other_batches(**options):
    return tfdata(slices(X, CODES).batch(13), **{"batch_size": 32, **options})


def as_repeated(**options):
    return tfdata(slices(X[:96], CODES[:96]).repeat().batch(32), steps=3, **options)


def in_memory(rows=ROWS, kind="factor", **options):
    y = classes(CODES[:rows]) if kind == "factor" else numbers(CODES[:rows], "integer")
    options = {"batch_size": 32, "shuffle": False, **options}
    return data_dataset.build_dataset(array(X[:rows]), options, y)


MAKERS = (as_function, as_steps, as_odd_chunks, as_batched, as_unbatched, as_other_batches)
