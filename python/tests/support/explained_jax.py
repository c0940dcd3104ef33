"""What is told about one model with given weights, on the backend of this process."""

import numpy as np
from explained_frames import encode_frame


def given_model():
    """A model whose weights are the same on each backend."""
    import keras

    data = encode_frame()
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    draw = np.random.default_rng(8)
    model.set_weights([draw.normal(size=one.shape) for one in model.get_weights()])
    model.compile("sgd", "mse", metrics=["mean_absolute_error"])
    return model, data


def tell(name):
    """Numbers as lists, which JSON holds."""
    from gpukeras.explain.effects import measure_effects
    from gpukeras.explain.gradients import attribute
    from gpukeras.explain.permutation import measure_importance

    model, data = given_model()
    if name == "importance":
        metrics = ("loss", "mean_absolute_error")
        found = [measure_importance(model, data, repeats=2, metric=one) for one in metrics]
        return [[one.baseline, *np.ravel(one.scores)] for one in found]
    if name == "effects":
        curves = measure_effects(model, data, grid=4).columns
        ale = measure_effects(model, data, kind="ale", grid=4, columns=["a", "b"]).columns
        return [one.effects.ravel().tolist() for one in (*curves, *ale)]
    found = attribute(model, data=data, steps=10)
    return [[*found.values.ravel().tolist(), found.gap]]
