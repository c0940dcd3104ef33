"""Keras' arguments of `fit()`, `evaluate()` and `predict()`, handed to the core as R hands them.

What gpu_fit() has no argument for is refused here, as R would refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpukeras.accelerate import rows
from gpukeras.accelerate.rows import (
    ARRAYS,
    CallRows,
    as_callbacks,
    features_of,
    places,
    take_last,
    validation_of,
)
from gpukeras.core.errors import SpecError
from gpukeras.models import model_recipes
from gpukeras.training import evaluate as training_evaluate
from gpukeras.training import fit as training_fit
from gpukeras.training import predict as training_predict

ENGINES = ("auto", "keras", "graph_loop", "compiled")
EPOCHS = ("initial_epoch", "validation_freq")


# Rows --------------------------------------------------------------------------------------------


def dataset_of(
    given: CallRows,
    model: Any,
    options: Mapping[str, Any],
    class_weight: Any = None,
    recipe: Any = None,
) -> Any:
    """A dataset of the core; so many batches of validation rows are a pipeline."""
    given = with_steps(given, options.get("batch_size", 32), model.steps_per_execution)
    more = {}
    if class_weight is not None:
        more["class_weight"] = {str(level): value for level, value in class_weight.items()}
    return rows.dataset_of(given, model, options, recipe, **more)


def with_steps(given: CallRows, batch_size: int, together: int) -> CallRows:
    """So many batches of arrays to evaluate or predict are a pipeline; so are ragged arrays.

    gpu_fit() has `steps_per_epoch` and `validation_steps` of arrays, and `fit()` hands them over by
    itself. Other functions of R have no steps of arrays. So they are refused here where a pipeline
    does another thing than Keras: where a pass is no multiple of the steps, and where the steps are
    none of `steps_per_execution`.

    Raises:
        SpecError: as R does.
    """
    ragged = isinstance(given.x, tf.RaggedTensor)
    if (given.steps is None and not ragged) or given.is_pipeline or given.is_sequence:
        return given
    parts = tuple(part for part in (given.x, given.y, given.weights) if part is not None)
    batches = tf.data.Dataset.from_tensor_slices(parts).batch(batch_size)
    if given.steps and (int(batches.cardinality()) % given.steps or given.steps % together):
        raise SpecError(
            "`steps_per_epoch` is for rows that come in sequence: an epoch is all rows of `data`.",
            hint="Leave it out.",
            arg="steps_per_epoch",
        )
    return CallRows(batches, steps=given.steps)


def refuse_others(name: str, given: Mapping[str, Any]) -> None:
    """Refuses arguments that R's function does not have.

    Raises:
        SpecError: as R does.
    """
    for argument, value in given.items():
        if value is not None:
            raise SpecError(f"Unknown argument `{argument}` of {name}().", arg=argument)


# Keras' functions --------------------------------------------------------------------------------


def fit(
    model: Any,
    engine: str,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Any = None,
    sample_weight: Any = None,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    **others: Any,
) -> Any:
    """`Model.fit()` through the core; gives Keras' history."""
    options_of_epochs = {name: others.pop(name) for name in EPOCHS if others.get(name) is not None}
    refuse_others("gpu_fit", others)
    given = CallRows(x, y, sample_weight, steps_per_epoch)
    last = None
    if validation_data is not None:
        last = validation_of(validation_data, validation_steps)
    elif validation_split:
        given, last = take_last(given, validation_split)
    options = _dataset_options(batch_size, bool(shuffle))
    if steps_per_epoch and not (given.is_pipeline or given.is_sequence):
        given, options_of_epochs["steps_per_epoch"] = replace(given, steps=None), steps_per_epoch
    data = dataset_of(given, model, options, class_weight)
    validation = None
    if last is not None:
        if last.steps and last.kind == ARRAYS:
            last, options_of_epochs["validation_steps"] = replace(last, steps=None), last.steps
        own = _dataset_options(validation_batch_size or batch_size, False)
        validation = dataset_of(last, model, own, recipe=data.recipe)
    wanted = {"epochs": epochs, "engine": engine, **options_of_epochs}
    training_fit.fit(model, data, wanted, validation=validation, callbacks=as_callbacks(callbacks))
    return model.history


def _dataset_options(batch_size: int | None, shuffle: bool) -> dict[str, Any]:
    """Keras takes 32 rows where nothing is said."""
    return {"shuffle": shuffle, "batch_size": batch_size or 32}


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    **others: Any,
) -> Any:
    """`Model.evaluate()` through the core."""
    refuse_others("gpu_evaluate", others)
    given = CallRows(x, y, sample_weight, steps)
    options = _dataset_options(batch_size, False)
    data = dataset_of(given, model, options, recipe=model_recipes.recipe_of(model))
    record = training_evaluate.evaluate(
        model, data, batch_size=batch_size, callbacks=as_callbacks(callbacks)
    )
    found = record["metrics"]
    return found if return_dict else model._flatten_metrics_in_order(found)


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """`Model.predict()` through the core, in float32."""
    heard = {"callbacks": as_callbacks(callbacks)}
    given = with_steps(CallRows(x, steps=steps), batch_size or 32, 1)
    if given.is_pipeline or given.is_sequence:
        options = _dataset_options(batch_size, False)
        data = dataset_of(given, model, options, recipe=model_recipes.recipe_of(model))
        record = training_predict.predict(model, data=data, **heard)
    else:
        record = training_predict.predict(model, features_of(x, model), **heard)
    if "outputs" in record:
        outputs = [_as_array(part, model) for part in record["outputs"]]
        names = [part["name"] for part in record["outputs"]]
        unnamed = names == places("output", len(names))
        known = getattr(model, "output", [] if unnamed else {})
        if isinstance(known, Mapping):
            return dict(zip(names, outputs, strict=True))
        return keras.tree.pack_sequence_as(known, outputs) if known else outputs
    return _as_array(record, model)


def _as_array(record: Mapping[str, Any], model: Any) -> np.ndarray:
    """What R gets as a vector is one of a single unit, unless the model's output is a number."""
    values = np.asarray(record["values"], np.float32)
    scalar = getattr(model, "output_shape", None) == (None,)
    return values if scalar or values.ndim > 1 else values[:, None]
