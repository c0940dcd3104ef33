"""A builder of small classifiers and settings for it, for tests that search."""

from small_fits import make_dataset

from gpukeras.backend import runtime
from gpukeras.search.search import search

SETTINGS = {
    "rate": {"kind": "range", "low": 1e-3, "high": 1.0, "log": True},
    "units": {"kind": "range", "low": 2, "high": 8, "integer": True},
}
OPTIONS = {"trials": 4, "epochs": 3, "seed": 1}


def build(settings, seed):
    """The builder as R hands it over: a function that answers with a model."""
    keras = runtime.keras()
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(int(settings["units"]), "relu"),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(settings["rate"], momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return {"model": model}


def tune(data=None, options=(), **given):
    """A search of the builder's settings; `given` replaces its other arguments."""
    given = {"build": build, "settings": SETTINGS, "resamples": 2, **given}
    given = {"fit": {"engine": "keras"}, **given}
    data = make_dataset(60) if data is None else data
    return search(data, given.pop("build"), {**OPTIONS, **dict(options)}, **given)


def trace_of(tuning):
    """What a search found, without its times."""
    return [(row.trial, row.epochs, row.settings, row.metrics) for row in tuning.trace]
