"""Runs calls of Keras' functions through the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from gpukeras.accelerate.decide import ROWS
from gpukeras.accelerate.facts import KERAS_ROWS, Arguments, count_outputs, read_rows
from gpukeras.accelerate.printed import build_last, end_steps, print_steps
from gpukeras.accelerate.rows import ARRAYS, CallRows, as_callbacks, dataset_of, features_of
from gpukeras.backend import keras_private, runtime
from gpukeras.backend.keras_batches import KerasBatches, unseen_generator
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.dataset.passthrough import KerasDataset, open_keras_rows
from gpukeras.engine.predict import explain_rows, predict_rows, predict_stream
from gpukeras.models import compatibility, model_recipes
from gpukeras.training import evaluate as training_evaluate
from gpukeras.training import fit as training_fit
from gpukeras.training import predict as training_predict
from gpukeras.training.keras_functions import jit_policy
from gpukeras.training.keras_terms import KerasTerms


def fit(model: Model, call: Arguments, terms: KerasTerms, way: str = ROWS) -> tuple[Any, str]:
    """Trains as Keras' `fit()`; returns its history, and how gpukeras trained.

    Args:
        model: A compiled model.
        call: The arguments of `fit()`.
        terms: The terms, see `terms_of()`.
        way: How rows are read, see `decide`.

    Raises:
        GpuKerasError: if gpukeras cannot train so; before the first update, if `terms` say so.
        KeyboardInterrupt: as from Keras, if the user interrupts.
    """
    data, validation, steps = _open_training(model, call, way, terms)
    callbacks = as_callbacks(call["callbacks"])
    if call["verbose"]:
        callbacks = [*callbacks, build_last(model)]
    terms.params = {"verbose": call["verbose"], "epochs": call["epochs"], "steps": steps}
    if isinstance(data, KerasDataset):
        end = _end_as_keras(model, data.batches)
        first = runtime.keras().callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: end())
        callbacks = [first, *callbacks]
    report = training_fit.fit(
        model,
        data,
        {
            "epochs": int(call["epochs"]),
            "initial_epoch": int(call["initial_epoch"] or 0),
            "engine": "graph_loop" if data.variable_batch_size else "auto",
            "validation_freq": call["validation_freq"],
        },
        validation=validation,
        batch_size=_size_of(call) if isinstance(data, MapDataset) else None,
        callbacks=callbacks,
        terms=terms,
    )
    if report.stopped == "interrupted":
        raise KeyboardInterrupt
    engine = report.engine
    reason = (
        "losses of outputs are averaged by batch" if data.variable_batch_size else engine.reason
    )
    return model.history, f"{engine.engine}: {reason}"


def _end_as_keras(model: Model, batches: KerasBatches) -> Callable[[], None]:
    """Returns a function that ends an epoch as Keras ends one of unknown length.

    Keras learns of the end by a step for which there is no batch. It fails, but what needs no batch
    has run: the optimizer has counted a step, and generators of random numbers have moved on. So
    that step is run too, by Keras' own function.
    """
    before = model.train_function
    model.make_train_function(force=True)
    function, model.train_function = model.train_function, before

    def end() -> None:
        if not batches.ran_out:
            return
        batches.ran_out = False
        with suppress(StopIteration, runtime.tensorflow().errors.OutOfRangeError):
            function(batches.nothing())

    return end


def _open_training(
    model: Model, call: Arguments, way: str, terms: KerasTerms
) -> tuple[Dataset, Dataset | None, int | None]:
    """Returns the rows to train on, those to validate on, and the batches of an epoch."""
    rows, held = read_rows(call)
    size, held_size = _size_of(call), call["validation_batch_size"] or call["batch_size"]
    validation: Dataset | None = None
    if way == ROWS:
        data, steps = _open_rows(model, rows, call, terms), rows.count_batches(size)
    else:
        terms.taken = isinstance(rows.x, Iterator)
        shuffled = {"shuffle": call["shuffle"], "class_weight": call["class_weight"]}
        data, steps = open_keras_rows(model, rows.for_keras(call["batch_size"], **shuffled))
    data.variable_batch_size = has_several(model, rows)
    if held is not None and held.kind == ARRAYS and way == ROWS:
        options = {"shuffle": False, "batch_size": int(held_size or KERAS_ROWS)}
        validation = dataset_of(held, model, options, recipe=data.recipe)
    elif held is not None:
        validation, _ = open_keras_rows(model, held.for_keras(held_size), resets=True)
    if validation is not None:
        validation.variable_batch_size = data.variable_batch_size
    return data, validation, steps


def _open_rows(model: Model, rows: CallRows, call: Arguments, terms: KerasTerms) -> Dataset:
    """Returns rows of arrays, which are shuffled in Keras' order."""
    rows = _weigh_classes(rows, call["class_weight"])
    options = {"shuffle": bool(call["shuffle"]), "batch_size": _size_of(call)}
    data = dataset_of(rows, model, options)
    if isinstance(data, MapDataset) and call["shuffle"]:
        data.draw = keras_private.row_orders(model, len(data.train_rows))
        terms.once_built = np.random.get_state()
    return data


def _size_of(call: Arguments) -> int:
    return int(call["batch_size"] or KERAS_ROWS)


def terms_of(model: Model, call: Arguments) -> KerasTerms:
    """Returns the terms of a call of `fit()`."""
    size = int(call["validation_batch_size"] or call["batch_size"] or KERAS_ROWS)
    return KerasTerms(validation_rows=size, continue_on_nan=True)


def has_several(model: Model, rows: CallRows) -> bool:
    """Whether a model has several outputs, whose losses Keras averages by batch, on TensorFlow."""
    return runtime.backend() == "tensorflow" and count_outputs(model, rows) > 1


def _weigh_classes(rows: CallRows, weights: Mapping[int, float] | None) -> CallRows:
    """Returns the rows with Keras' weights of their classes.

    Labels of several columns are of the class of the largest; others are rounded (Keras'
    `class_weight_to_sample_weights()`, which asks for each row in Python).
    """
    if weights is None:
        return rows
    labels = np.asarray(rows.y)
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] != 1 else labels[..., 0]
    levels, places = np.unique(np.round(labels).astype(np.int32), return_inverse=True)
    each = np.array([weights.get(int(level), 1.0) for level in levels], np.float32)
    return CallRows(rows.x, rows.y, each[places], rows.steps)


def evaluate(model: Model, call: Arguments, way: str = ROWS) -> tuple[Any, str]:
    """Evaluates as Keras' `evaluate()`; returns its value, and how gpukeras evaluated."""
    call_rows, _ = read_rows(call)
    size = _size_of(call)
    if way == ROWS:
        data = dataset_of(call_rows, model, {"shuffle": False, "batch_size": size})
        steps, how = call_rows.count_batches(size) or 1, "in large batches"
    else:
        data, known = open_keras_rows(model, call_rows.for_keras(call["batch_size"]), resets=True)
        steps, how = known or 1, "in the batches of Keras"
    data.variable_batch_size = has_several(model, call_rows)
    bar = print_steps("test", steps, call["verbose"])
    result = training_evaluate.evaluate_logs(model, data, keras_rows=size)
    end_steps(bar, "test", steps, result.logs)
    value = result.logs if call["return_dict"] else keras_private.flatten_logs(model, result.logs)
    return value, result.note or f"{result.rows:,} rows {how}"


def predict(model: Model, call: Arguments, way: str = ROWS) -> tuple[Any, str]:
    """Predicts as Keras' `predict()`; returns its arrays, and how gpukeras predicted."""
    call_rows, size = CallRows(call["x"]), int(call["batch_size"] or KERAS_ROWS)
    steps = call_rows.count_batches(size) or 1
    bar = print_steps("predict", steps, call["verbose"])
    data: Dataset | None = None
    if call_rows.is_pipeline:
        data = dataset_of(call_rows, model, {"shuffle": False})
    features = None if data is not None else features_of(call_rows.x, model)
    recipe, rows, _ = training_predict.open_rows(model, features, data)
    compatibility.check_input(model, recipe)
    how = "in large batches"
    with jit_policy(model):
        if isinstance(rows, IterableDataset):
            values = predict_stream(model, rows, wide=False)
        else:
            values = predict_rows(model, rows, recipe, batch_size=size, wide=False)
            why = explain_rows(model, rows, recipe, batch_size=size)
            how = f"in batches of {size:,}: {why}" if why else how
    end_steps(bar, "predict", steps)
    return values, how


def validate_by_keras(model: Model, call: Arguments) -> None:
    """Evaluates the validation rows of a call of `fit()` by Keras' own function, for its error.

    Args:
        model: The model, in whose training gpukeras has failed to do so.
        call: The arguments of `fit()`.
    """
    _, held = read_rows(call)
    if held is None:
        return
    evaluate = type(model).evaluate
    getattr(evaluate, "__wrapped__", evaluate)(
        model,
        held.x,
        held.y,
        sample_weight=held.weights,
        batch_size=call["validation_batch_size"] or call["batch_size"],
        steps=held.steps,
        verbose=0,
    )


@contextmanager
def unnoticed(model: Model) -> Iterator[None]:
    """Leaves no traces in a script: its model has no recipe, and Keras' generator stays unused."""
    with model_recipes.untied(model), unseen_generator():
        yield
