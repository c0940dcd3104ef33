"""Many models at once on JAX, in a process of its own: see `jax_runs`."""

import keras  # noqa: E402
import numpy as np  # noqa: E402
from small_fits import make_dataset, make_model  # noqa: E402

from gpukeras.many.ensemble import predict_many  # noqa: E402
from gpukeras.many.fit_many import fit_many  # noqa: E402
from gpukeras.many.fits import prepare  # noqa: E402
from gpukeras.many.stack import Epoch, open_stack  # noqa: E402
from gpukeras.many.structure import describe_structure  # noqa: E402
from gpukeras.training.fit import fit  # noqa: E402


def apart(fits, number, epochs):
    """Returns the largest difference of a weight to the model trained alone."""
    model, rows = fits.initial(number)
    fit(model, rows, {"epochs": epochs}, batch_size=fits.batch_size)
    pairs = zip(fits.model(number).get_weights(), model.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs if a.dtype.kind == "f")


def build(rate, drop):
    optimizer = keras.optimizers.AdamW(rate, weight_decay=rate)
    penalised = keras.layers.Dense(3, bias_regularizer=keras.regularizers.L1L2(drop - 0.1, rate))
    layers = [keras.layers.Dropout(drop, seed=2), penalised]
    return make_model(optimizer=optimizer, layers=layers)


def many():
    """Folds and seeds, and settings that are numbers."""
    folds = fit_many([make_model()], make_dataset(rows=103), {"epochs": 2}, seeds=[1, 2], folds=3)
    models = [build(0.01, 0.1), build(0.03, 0.4)]
    settings = fit_many(models, make_dataset(rows=64), {"epochs": 2})
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    accumulated = fit_many(
        [make_model(optimizer=accumulating)], make_dataset(rows=100), {"epochs": 2}, folds=2
    )
    mean = predict_many(folds, data=make_dataset(rows=20))["values"]
    return {
        "folds": apart(folds, 6, 2),
        "settings": apart(settings, 2, 2),
        "accumulated": apart(accumulated, 2, 2),
        "stacks": accumulated.plan.stacks,
        "structures": settings.plan.structures,
        "rows": len(mean),
    }


def donated():
    """What is left of a stack's states after it trained on, and was evaluated."""
    model, data = make_model(), make_dataset(rows=64)
    prepare(model, data)
    stack = open_stack([model] * 2, [describe_structure(model)] * 2, data, "CPU:0")
    epoch = Epoch([np.arange(64, dtype=np.int32)] * 2, 16)
    stack.train(epoch)
    state, copy, kept = stack.state, stack.copy_state(), stack.keep(np.array([True, True]), None)
    stack.train(epoch)
    for _ in range(2):
        stack.reset_metrics()
        stack.evaluate(epoch.orders)
    flatten = keras.tree.flatten
    return {
        "taken": all(one.is_deleted() for one in flatten(state)),
        "left": sum(one.is_deleted() for one in flatten([copy, kept, stack.state])),
        "loss": stack.get_metrics_result()["loss"].tolist(),
    }


def workers():
    """Models of different shapes, one after another and in worker processes."""
    models = [make_model(layers=[keras.layers.Dense(units)]) for units in (2, 3)]
    alone, beside = (
        fit_many(models, make_dataset(rows=64), {"epochs": 2, "workers": count}) for count in (1, 2)
    )
    pairs = [
        (one, other)
        for number in (1, 2)
        for one, other in zip(
            alone.model(number).get_weights(), beside.model(number).get_weights(), strict=True
        )
    ]
    return {
        "apart": max(float(np.abs(a - b).max()) for a, b in pairs if a.dtype.kind == "f"),
        "reason": beside.plan.reason,
    }


def tell(name):
    return globals()[name]()
