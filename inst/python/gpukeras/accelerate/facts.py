"""Reads the facts of a call: its arguments, its rows and its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpukeras.accelerate.decide import CallFacts
from gpukeras.accelerate.rows import (
    ARRAYS,
    PIPELINE,
    CallRows,
    as_callbacks,
    take_last,
    validation_of,
)
from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.arrays import EXACT_FLOAT32
from gpukeras.data.dataset.passthrough import why_not_batchable, why_not_joined
from gpukeras.engine.engine_facts import find_batch_hook, find_predict_hook, find_test_hook

KERAS_ROWS = 32  # of a batch, where nothing is said
# What gpukeras runs in a way of its own, so that a class's own would not be asked.
OWN_METHODS = {
    "fit": ("fit", "evaluate", "make_train_function", "make_test_function"),
    "evaluate": ("evaluate", "make_test_function"),
    "predict": ("make_predict_function", "predict_step"),
}
FIND_HOOK = {"fit": find_batch_hook, "evaluate": find_test_hook, "predict": find_predict_hook}

Arguments = Mapping[str, Any]


def read_rows(call: Arguments) -> tuple[CallRows, CallRows | None]:
    """Returns the rows of a call and its validation rows, which may be the last of its rows."""
    steps = call.get("steps_per_epoch") or call.get("steps")
    rows = CallRows(call["x"], call.get("y"), call.get("sample_weight"), steps)
    if call.get("validation_data") is not None:
        return rows, validation_of(call["validation_data"], call.get("validation_steps"))
    share = call.get("validation_split")
    return take_last(rows, share) if share and rows.kind == ARRAYS else (rows, None)


def read_facts(model: Model, function: str, call: Arguments, **known: Any) -> CallFacts:
    """Returns the facts of a call.

    Args:
        model: The model.
        function: "fit", "evaluate" or "predict".
        call: The arguments of Keras' function by name, with its defaults.
        **known: `nested` and `busy`, see `CallFacts`.
    """
    (rows, held), keras = read_rows(call), runtime.keras()
    callbacks = as_callbacks(call.get("callbacks"))
    is_list = isinstance(call.get("callbacks"), keras.callbacks.CallbackList)
    bars = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks)
    epochs = int(call.get("epochs", 1)) - int(call.get("initial_epoch") or 0)
    size = int(call.get("batch_size") or KERAS_ROWS)
    held_size, batches = int(call.get("validation_batch_size") or size), rows.count_batches(size)
    names = ("steps_per_epoch", "validation_steps", "steps")
    return CallFacts(
        function=function,
        backend=runtime.backend(),
        compiled=function == "predict" or bool(model.compiled),
        eager=bool(model.run_eagerly),
        strategy=_in_strategy(model),
        distribution=keras.distribution.distribution() is not None,
        own_method=next((n for n in OWN_METHODS[function] if tensor_ops.overrides(model, n)), ""),
        rows=rows.kind,
        held="" if held is None else held.kind,
        held_once=held is not None and isinstance(held.x, Iterator),
        count=rows.count if rows.kind == ARRAYS else None,
        batches=None if batches is None else batches * epochs,
        whole=_is_whole(rows, size) and (held is None or _is_whole(held, held_size)),
        outputs=count_outputs(model, rows),
        shuffle=call.get("shuffle", False),
        steps=any(call.get(name) is not None for name in names),
        splits=bool(call.get("validation_split")) and rows.kind != ARRAYS,
        both_weights=call.get("class_weight") is not None and rows.weights is not None,
        weighs_classes=call.get("class_weight") is not None,
        misarranged=any(_is_misarranged(model, each) for each in (rows, held) if each is not None),
        epochs=epochs,
        batch_hook=FIND_HOOK[function](callbacks),
        test_hook=find_test_hook(callbacks) if function == "fit" else "",
        callbacks=function != "fit" and len(callbacks) > 0,
        own_list=is_list or bars,
        floatx=keras.config.floatx(),
        together=int(getattr(model, "steps_per_execution", 1) or 1),
        limited=any(
            limit() for limit in (keras.config.max_epochs, keras.config.max_steps_per_epoch)
        ),
        **_read_pipelines(function, rows, held),
        **_read_types(model, rows),
        **known,
    )


def count_outputs(model: Model, rows: CallRows) -> int:
    """Returns the number of a model's outputs, 1 if it is unknown.

    A model of a class of the script's does not know its outputs' names: then labels are counted.
    """
    return max(1, len(getattr(model, "output_names", None) or ()), _count_labels(rows))


def _count_labels(rows: CallRows) -> int:
    labels, _ = _read_targets(rows)
    several = isinstance(labels, (Mapping, list, tuple)) and rows.kind in (ARRAYS, PIPELINE)
    return len(labels) if several else 1


def _read_targets(rows: CallRows) -> tuple[Any, Any]:
    """Returns the labels and the weights of arrays, or what a pipeline says of them."""
    if not rows.is_pipeline:
        return rows.y, rows.weights
    spec = rows.x.element_spec
    parts = spec if isinstance(spec, tuple) else (spec,)
    labels = parts[1] if len(parts) > 1 else None
    weights = parts[2] if len(parts) > 2 else None
    return labels, weights


def _is_misarranged(model: Model, rows: CallRows) -> bool:
    """Whether outputs have weights that Keras looks for where they are not.

    It arranges weights as the labels are, and looks them up as the outputs are.
    """
    labels, weights = _read_targets(rows)
    if rows.kind not in (ARRAYS, PIPELINE) or not isinstance(weights, (Mapping, list, tuple)):
        return False
    if isinstance(weights, Mapping):
        named = isinstance(labels, Mapping) and labels.keys() == weights.keys()
        return not (named and keras_private.gives_dict(model))
    return not (isinstance(labels, (list, tuple)) and len(labels) == len(weights))


def _in_strategy(model: Model) -> bool:
    if runtime.backend() != "tensorflow":
        return False
    return tensor_ops.in_strategy() or keras_private.strategy_of(model) is not None


def _is_whole(rows: CallRows, size: int) -> bool:
    return rows.count is not None and rows.kind == ARRAYS and rows.count % size == 0


def _read_pipelines(function: str, *rows: CallRows | None) -> dict[str, Any]:
    """Returns what another pass over tf.data pipelines may do otherwise, and what they give."""
    pipelines = [each.x for each in rows if each is not None and each.is_pipeline]
    unsteady = keras_private.draws_at_random, keras_private.uses_py_function
    if function == "predict":
        alone = (why_not_batchable(pipeline.element_spec, True) for pipeline in pipelines)
    else:
        alone = (why_not_joined(pipeline.element_spec) for pipeline in pipelines)
    return {
        "unsteady": any(test(pipeline) for test in unsteady for pipeline in pipelines),
        "alone": next(filter(None, alone), ""),
    }


def _read_types(model: Model, rows: CallRows) -> dict[str, Any]:
    """Returns which rows float32, in which gpukeras holds features, may not be the same for."""
    if rows.kind != ARRAYS:
        return {}
    parts = [part for part in runtime.tree().flatten(rows.x) if part is not None]
    kinds = [_kind_of(part.dtype) for part in parts]
    whole = [part for part, kind in zip(parts, kinds, strict=True) if kind in "iu"]
    keras = runtime.keras()
    graph = isinstance(model, keras.Sequential) or keras_private.has_nodes(model)
    return {
        "text": any(kind in "OSU" for kind in kinds),
        "integers": not graph and any(kind in "iub" for kind in kinds),
        "large": any(_is_large(np.asarray(part)) for part in whole),
    }


def _kind_of(dtype: Any) -> str:
    """Returns NumPy's letter for a dtype of NumPy or TensorFlow."""
    if isinstance(dtype, np.dtype):
        return dtype.kind
    return "O" if dtype.name == "string" else np.dtype(dtype.name).kind


def _is_large(values: np.ndarray) -> bool:
    if values.dtype.itemsize <= 2 or not values.size:
        return False
    return bool(values.max() > EXACT_FLOAT32 or values.min() < -EXACT_FLOAT32)
