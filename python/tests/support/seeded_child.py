"""Trains in a process of its own: `python seeded_child.py KIND SEEDED`.

The kind is "fit", "validation", "own" (a step of the user's own), "many", "tune", the name of an
engine, or "remember", which lets the computer remember that "compiled" is the fastest by far for
this model. The seed comes from "setup" (as gpu_setup() sets
it), "keras" or "tensorflow" (their own functions), or "no". Prints a line of JSON: the engine, the
reason, and a digest of weights and history.
"""

import hashlib
import json
import random
import sys

import numpy as np

from gpukeras.backend import devices, runtime
from gpukeras.engine import engine_cache
from gpukeras.engine.autotune import EngineChoice, Trial
from gpukeras.engine.autotune_cache import store_choice
from gpukeras.many import fit_many as many
from gpukeras.search import search
from gpukeras.training import fit as training_fit
from gpukeras.training.batch_size import remember_batch_size

ENGINES = ("graph_loop", "keras", "compiled", "repeatable")
ROWS, WORDS, LENGTH = 1600, 30, 12


def seed_by(how):
    keras = runtime.keras()
    if how == "setup":
        devices.setup(seed=1)
    elif how == "keras":
        keras.utils.set_random_seed(1)
    else:  # Keras' layers take theirs from Python's generator
        random.seed(1)
        runtime.tensorflow().random.set_seed(1)


def make_data(**options):
    from gpukeras.data.dataset import map_dataset as data_dataset

    rng = np.random.default_rng(0)
    x = np.asfortranarray(rng.integers(0, WORDS, (ROWS, LENGTH)).astype(float))
    y = (x[:, :4].sum(axis=1) + rng.normal(size=ROWS) > 2 * WORDS).astype(np.int32)
    labels = {"kind": "factor", "values": y + 1, "levels": ["no", "yes"]}
    features = {"kind": "array", "values": x}
    options = {"batch_size": 16, "seed": 1, **options}
    return data_dataset.build_dataset(features, options, labels)


def make_model(own=False, rate=1e-2):
    keras = runtime.keras()
    layers = keras.layers

    class Own(keras.Model):
        def train_step(self, data):
            return {**super().train_step(data), "more": 1.0}

    inputs = keras.Input((LENGTH,))
    hidden = layers.Embedding(WORDS, 8)(inputs)
    hidden = layers.LayerNormalization()(hidden)
    hidden = layers.Dropout(0.3)(layers.Flatten()(hidden))
    outputs = layers.Dense(2, "softmax")(layers.Dropout(0.2)(layers.Dense(16, "relu")(hidden)))
    model = (Own if own else keras.Model)(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def digest(arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def build(settings, seed):
    return {"model": make_model(rate=settings["rate"])}


def train(kind):
    """Returns what is to repeat, the engine and the reason."""
    if kind == "many":
        options = {"epochs": 5}
        fits = many.fit_many([make_model(own=True)], make_data(), options, folds=2)
        groups = [group for fitted in fits.fitted for group in fitted.state.values()]
        return [np.asarray(one) for group in groups for one in group], fits.fitted[0].ran.engine, ""
    if kind == "tune":
        options = {"epochs": 4, "min_epochs": 4, "most": 1}
        grid = [{"rate": 0.01}, {"rate": 0.003}]
        found = search.search(make_data(validation=0.2), build, options, grid=grid)
        return (
            [np.array([value for one in found.trace for _, value in sorted(one.metrics.items())])],
            "",
            "",
        )
    model = make_model(own=kind == "own")
    data = make_data(validation=0.2 if kind == "validation" else 0.0)
    options = {"epochs": 15, "engine": kind if kind in ENGINES else "auto"}
    if kind == "validation":
        options["early_stopping"] = 2
    remember_batch_size(model, 32)  # as gpu_batch_size() finds it, by measuring
    report = training_fit.fit(model, data, options)
    values = [*model.get_weights(), *(np.array(one) for one in report.history.values())]
    return values, report.engine.engine, report.engine.reason


def remember():
    """Stores that "compiled" has won, as a training stores what it has measured."""
    for size in (32, 16):
        model = make_model()
        training_fit.fit(model, make_data(batch_size=size), {"epochs": 1, "engine": "graph_loop"})
        engines = vars(model)[engine_cache.ATTRIBUTE]["train"][1]
        trials = Trial("graph_loop", 0.1, 1.0), Trial("compiled", 0.1, 1e-6)
        store_choice(engines, EngineChoice("compiled", "", trials))


def main():
    kind, how = sys.argv[1:]
    if how != "no":
        seed_by(how)
    if kind == "remember":
        remember()
    else:
        values, engine, reason = train(kind)
        print(json.dumps({"engine": engine, "reason": reason, "digest": digest(values)}))


if __name__ == "__main__":
    main()
