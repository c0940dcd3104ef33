"""Random trainings, each by Keras' own `fit()` and through gpukeras, from equal weights and rows.

Most compute in float64, where rounding cannot hide a difference, nor an optimizer that divides by
the size of a gradient make one of it. Those in float32 take plain SGD. Numbers given are float32
in both, as the core sends them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime

TOLERANCES = {"float64": (1e-6, 1e-7), "float32": (5e-3, 5e-4)}  # of weights: relative, absolute
METRIC_TOLERANCE = (1e-4, 1e-5)  # Keras sums metrics up in float32
SHAPES = {"table": (5,), "image": (6, 6, 2), "sequence": (4, 3)}
BODIES = {
    "table": ("dense", "dense norm", "residual", "embedding"),
    "image": ("conv", "conv norm"),
    "sequence": ("LSTM", "GRU", "conv1d", "attention"),
}
# By the kind of labels: losses, metrics, and the activation of the output.
TASKS = {
    "number": (("mse", "mae", "huber", "log_cosh"), ("mae", "root_mean_squared_error"), None),
    "matrix": (("mse", "mae", "cosine_similarity"), ("mae", "cosine_similarity"), None),
    "binary": (("binary_crossentropy", "hinge"), ("accuracy", "AUC", "Precision"), "sigmoid"),
    "class": (
        ("sparse_categorical_crossentropy",),
        ("accuracy", "sparse_categorical_crossentropy"),
        "softmax",
    ),
    "onehot": (
        ("categorical_crossentropy", "kl_divergence", "categorical_focal_crossentropy"),
        ("accuracy", "CategoricalHinge"),
        "softmax",
    ),
}
UNITS = {"number": 1, "matrix": 3, "binary": 1, "class": 4, "onehot": 4}
OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"gradient_accumulation_steps": 3}),
    ("Adam", {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2}),
    ("AdamW", {"weight_decay": 0.05, "clipnorm": 0.1}),
    ("RMSprop", {"centered": True, "global_clipnorm": 0.1}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Adamax", {"clipvalue": 0.01}),
    ("Nadam", {}),
    ("Ftrl", {}),
    ("Lion", {}),
    ("Adafactor", {}),
    ("Lamb", {}),
)


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        seed: What all else was drawn from.
        dtype: Of weights.
        rows: Of the model's inputs: "table", "image" or "sequence".
        body: Its layers but the last.
        task: The kind of labels.
        loss: Its name.
        reduction: How the loss makes one number of a batch's rows.
        metrics: Their names.
        weighted: Of metrics that heed weights.
        optimizer: Its place in `OPTIMIZERS`.
        regularized: Whether weights are penalized.
        count: Rows.
        batch: Rows a batch.
        epochs: How often they are trained.
        weights: Of rows: "", "uniform" or "some zero".
        validation: How rows are validated: "", "rows" or "weighted".
        pipeline: Whether rows come from tf.data.
    """

    seed: int
    dtype: str
    rows: str
    body: str
    task: str
    loss: str
    reduction: str
    metrics: tuple[str, ...]
    weighted: tuple[str, ...]
    optimizer: int
    regularized: bool
    count: int
    batch: int
    epochs: int
    weights: str
    validation: str
    pipeline: bool


def draw_case(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)

    def one_of(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    rows, task = one_of(tuple(SHAPES)), one_of(tuple(TASKS))
    losses, metrics, _ = TASKS[task]
    dtype = one_of(("float64", "float64", "float64", "float32"))
    count = int(rng.integers(3, 60))
    return Case(
        seed=seed,
        dtype=dtype,
        rows=rows,
        body=one_of(BODIES[rows]),
        task=task,
        loss=one_of(losses),
        reduction=one_of(("sum_over_batch_size", "sum_over_batch_size", "sum", "mean")),
        metrics=tuple(name for name in metrics if rng.random() < 0.5),
        weighted=tuple(name for name in metrics if rng.random() < 0.3),
        optimizer=0 if dtype == "float32" else int(rng.integers(len(OPTIMIZERS))),
        regularized=bool(rng.random() < 0.2),
        count=count,
        batch=int(rng.integers(1, min(count, 17) + 1)),
        epochs=int(rng.integers(1, 4)),
        weights=one_of(("", "", "uniform", "some zero")),
        validation=one_of(("", "rows", "weighted")),
        pipeline=bool(rng.random() < 0.4),
    )


# Rows --------------------------------------------------------------------------------------------


def draw_rows(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and weights, each a float32 or a whole number."""
    rng, count = np.random.default_rng([case.seed, seed]), case.count
    x = rng.normal(size=(count, *SHAPES[case.rows])).astype(np.float32)
    if case.body == "embedding":
        x = rng.integers(0, 7, x.shape).astype(np.float32)
    codes = rng.integers(0, UNITS["class"], count)
    labels = {
        "number": rng.normal(size=count).astype(np.float32),
        "matrix": rng.normal(size=(count, UNITS["matrix"])).astype(np.float32),
        "binary": (codes % 2).astype(np.int32),
        "class": codes.astype(np.int32),
        "onehot": np.eye(UNITS["onehot"], dtype=np.float32)[codes],
    }
    weights = rng.uniform(0.1, 2, count).astype(np.float32)
    if case.weights == "some zero":
        weights[rng.random(count) < 0.4] = 0.0
    return x, labels[case.task], weights


def give_rows(case: Case) -> dict[str, Any]:
    """The rows as arguments of `fit()`."""
    x, y, weights = draw_rows(case, 1)
    given = {"x": x, "y": y, "batch_size": case.batch, "shuffle": False}
    if case.weights:
        given["sample_weight"] = weights
    if case.pipeline:
        parts = (x, y, weights) if case.weights else (x, y)
        rows = runtime.tensorflow().data.Dataset.from_tensor_slices(parts).batch(case.batch)
        given = {"x": rows, "shuffle": False}
    if case.validation:
        parts = draw_rows(case, 2)
        given["validation_data"] = parts if case.validation == "weighted" else parts[:2]
        given["validation_batch_size"] = case.batch
    return given


# Models ------------------------------------------------------------------------------------------


def build_body(case: Case, inputs: Any) -> Any:
    """The layers but the last, applied."""
    layers = runtime.keras().layers
    penalty = "l2" if case.regularized else None
    if case.rows == "table":
        return _build_table(case, inputs, penalty)
    if case.rows == "image":
        plain = layers.Conv2D(3, 3, activation="tanh", kernel_regularizer=penalty)
        after = [layers.MaxPooling2D(2)] if case.body == "conv" else [layers.BatchNormalization()]
        return _apply([plain, *after, layers.Flatten()], inputs)
    if case.body == "attention":
        # A key's bias has the gradient 0 but for rounding, of which Lion takes the sign.
        mixed = layers.MultiHeadAttention(2, 3, use_bias=False)(inputs, inputs)
        return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(mixed))
    if case.body == "conv1d":
        convolution = layers.Conv1D(4, 2, activation="tanh", kernel_regularizer=penalty)
        return layers.GlobalMaxPooling1D()(convolution(inputs))
    return getattr(layers, case.body)(4, kernel_regularizer=penalty)(inputs)


def _build_table(case: Case, inputs: Any, penalty: str | None) -> Any:
    layers = runtime.keras().layers
    dense = layers.Dense(5, "tanh", kernel_regularizer=penalty)
    if case.body == "embedding":
        return _apply([layers.Embedding(7, 3), layers.Flatten(), dense], inputs)
    if case.body == "dense norm":
        # A bias in front of it would have no gradient but rounding.
        parts = [layers.Dense(5, use_bias=False), layers.BatchNormalization()]
        return _apply([*parts, layers.Activation("tanh"), dense], inputs)
    if case.body == "residual":
        return layers.Add()([inputs, _apply([dense, layers.Dense(5)], inputs)])
    return _apply([dense, layers.Dense(4, "swish")], inputs)


def _apply(parts: list[Any], tensor: Any) -> Any:
    for part in parts:
        tensor = part(tensor)
    return tensor


def build_model(case: Case) -> Any:
    """The compiled model of a case; always with the same weights."""
    keras = runtime.keras()
    keras.utils.set_random_seed(case.seed % 2**31)
    inputs = keras.Input(SHAPES[case.rows])
    head = keras.layers.Dense(UNITS[case.task], TASKS[case.task][2])
    model = keras.Model(inputs, head(build_body(case, inputs)))
    name, options = OPTIMIZERS[case.optimizer]
    rate = 1e-3 if case.reduction == "sum" else 1e-2
    loss = getattr(keras.losses, _loss_class(case.loss))(reduction=case.reduction)
    model.compile(
        getattr(keras.optimizers, name)(learning_rate=rate, **options),
        loss,
        metrics=list(case.metrics),
        weighted_metrics=list(case.weighted),
    )
    return model


def _loss_class(name: str) -> str:
    """The class of a loss; its function has no reduction."""
    known = {"mse": "MeanSquaredError", "mae": "MeanAbsoluteError", "kl_divergence": "KLDivergence"}
    return known.get(name, "".join(part.capitalize() for part in name.split("_")))


# Comparing ---------------------------------------------------------------------------------------


def train(case: Case, engine: str = "") -> tuple[dict[str, Any], list[np.ndarray]]:
    """History and weights after a training by Keras, or by an engine of gpukeras."""
    keras = runtime.keras()
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(case.dtype)
    keras.config.set_dtype_policy(case.dtype)
    try:
        model, given = build_model(case), {"epochs": case.epochs, **give_rows(case)}
        if engine:
            import routing  # which imports Keras

            history = routing.fit(model, engine, **given).history
        else:
            history = model.fit(verbose=0, **given).history
        return history, [np.asarray(weight) for weight in model.get_weights()]
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def compare(case: Case, engines: tuple[str, ...]) -> tuple[int, list[str]]:
    """How many arrays were compared, and which differ beyond rounding."""
    history, weights = train(case)
    wanted = {**{f"weight {place}": one for place, one in enumerate(weights)}, **history}
    compared, differ = 0, list[str]()
    for engine in engines:
        found_history, found_weights = train(case, engine)
        found = {f"weight {place}": one for place, one in enumerate(found_weights)}
        found.update(found_history)
        if found.keys() != wanted.keys():
            differ.append(f"{engine}: {sorted(found)} instead of {sorted(wanted)}")
            continue
        compared += len(wanted)
        for name, value in wanted.items():
            if not is_close(case, name, found[name], value):
                worst = np.max(np.abs(np.asarray(found[name]) - np.asarray(value)))
                differ.append(f"{engine}: {name} differs by {worst:.3g}")
    return compared, differ


def is_close(case: Case, name: str, found: Any, wanted: Any) -> bool:
    """Whether two arrays differ by rounding alone."""
    rtol, atol = TOLERANCES[case.dtype]
    if case.dtype == "float64" and not name.startswith("weight "):
        rtol, atol = METRIC_TOLERANCE
    return bool(np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True))
