"""Trains many models at once, and each of them alone."""

import numpy as np
from precisions import tolerance

ALONE = 1e-5  # largest difference of a weight, in all epochs


def fit_many(models, data, seeds=None, folds=None, groups=None, *, on_event=None, **options):
    from gpukeras.many.fit_many import fit_many

    rows = {name: options.pop(name, None) for name in ("together", "checkpoint")}
    rows |= {"folds": folds, "groups": groups}
    return fit_many(models, data, {"epochs": 3, **options}, seeds=seeds, on_event=on_event, **rows)


def fit_alone(fits, number, **options):
    """Trains a model of the table by `fit()`, from where it began, on its own rows."""
    from gpukeras.training.fit import fit

    model, rows = fits.initial(number)
    options = {"epochs": 3, "engine": "graph_loop", **options}
    return model, fit(model, rows, options, batch_size=fits.batch_size)


def difference(fits, number, **options):
    """Returns the largest difference of a weight, and of a metric, from the model alone.

    What the precision allows is none.
    """
    model, report = fit_alone(fits, number, **options)
    mine = fits.model(number)
    weights = [
        float(np.abs(one - other).max())
        for one, other in zip(mine.get_weights(), model.get_weights(), strict=True)
        if one.dtype.kind == "f"
    ]
    history = fits.fitted[number - 1].history.metrics
    assert history.keys() == report.history.keys()
    # Of rows whose largest outputs are equal in 16 bits, an accuracy counts any or none.
    names = [name for name in history if not (tolerance() and "accuracy" in name)]
    metrics = [np.abs(np.subtract(history[name], report.history[name])).max() for name in names]
    return tuple(max(0.0, float(max(one)) - tolerance()) for one in (weights, metrics))
