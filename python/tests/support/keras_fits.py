"""The same training by Keras' own `fit()` and by gpukeras, compared."""

import numpy as np
import pytest

from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.training import fit

ROWS, BATCH, EPOCHS = 44, 8, 2  # 5 batches and a short one
RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, 5)).astype(np.float32)
Y = np.digitize(X[:, 0], [-0.5, 0.5]).astype(np.int32)

# Named here, as to ask Keras for them takes its import; `engine/test_optimizer.py` asks.
OPTIMIZERS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl"),
    *("Lamb", "Lion", "Muon", "Nadam", "RMSprop", "SGD", "ScheduleFreeAdamW"),
)


def optimizer_class(name):
    """Keras' class; skips the test where this Keras has none, as it is an earlier one."""
    return getattr(keras().optimizers, name, None) or pytest.skip(f"no {name} in this Keras")


def classes(rows=ROWS):
    return {"kind": "factor", "values": Y[:rows] + 1, "levels": ["a", "b", "c"]}


def keras():
    return runtime.keras()


def dataset(x=X, labels=None, **more):
    options = {"batch_size": BATCH, "seed": 3, "shuffle": False, **more.pop("options", {})}
    return data_dataset.build_dataset(
        {"kind": "array", "values": x}, options, labels or classes(), **more
    )


def flat(model):
    values = [np.ravel(variable.numpy()) for variable in model.variables if variable.trainable]
    others = [np.ravel(value) for value in model.get_weights()]
    return np.concatenate([*values, *others]).astype(np.float64)


def fit_plain(build, batches, **options):
    """Keras' own `fit()`."""
    keras().utils.set_random_seed(7)
    model = build()
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    if isinstance(batches, tuple):
        options["batch_size"] = BATCH
        batches, options = batches[0], {"y": batches[1], **options}
    history = model.fit(batches, **options).history
    return history, flat(model)


def fit_ours(build, data, engine, **options):
    keras().utils.set_random_seed(7)
    model = build()
    data = data() if callable(data) else data
    report = fit.fit(model, data, {"epochs": EPOCHS, "engine": engine, **options})
    assert report.engine.engine == engine
    assert (report.stopped, report.epochs, report.notes) == ("completed", EPOCHS, ())
    return report.history, flat(model)


def assert_same_losses(found, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=1e-6, err_msg=name)


def assert_equivalent(build, data, batches, engines=("graph_loop",), **options):
    """The engine "keras" gives what Keras gives, the other engines the same loss."""
    history, weights = fit_plain(build, batches, **options)
    found, ours = fit_ours(build, data, "keras")
    np.testing.assert_array_equal(ours, weights)
    for name, values in history.items():
        np.testing.assert_array_equal(found[name], np.float64(values), err_msg=name)
    for engine in engines:
        found, _ = fit_ours(build, data, engine)
        assert_same_losses(found, history)
