"""Keras' arguments of `fit()`, `evaluate()` and `predict()`, handed to the core as R hands them.

What gpu_fit() has no argument for is refused here, as R would refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras import assembly, inference, runtime, training
from gpukeras.errors import SpecError

ENGINES = ("auto", "keras", "superstep", "compiled")


@dataclass(frozen=True)
class Given:
    """Rows as Keras takes them.

    Args:
        x: Arrays, a tf.data dataset, a PyDataset, or an iterator.
        y: Labels of arrays.
        weights: One a row of arrays.
        steps: Batches an epoch, or None.
    """

    x: Any
    y: Any = None
    weights: Any = None
    steps: int | None = None

    @property
    def is_pipeline(self) -> bool:
        """Whether `x` is a tf.data dataset."""
        return isinstance(self.x, runtime.tensorflow().data.Dataset)

    @property
    def is_sequence(self) -> bool:
        """Whether `x` makes batches in Python."""
        own = isinstance(self.x, runtime.keras().utils.PyDataset)
        return own or isinstance(self.x, Iterator)


# Rows --------------------------------------------------------------------------------------------


def features_of(x: Any, model: Any) -> dict[str, Any]:
    """Arrays as `sources` takes them; the inputs of a list by the model's names for them."""
    if isinstance(x, Mapping):
        parts = [{"name": name, "features": features_of(value, None)} for name, value in x.items()]
        return {"kind": "inputs", "inputs": parts}
    if isinstance(x, (list, tuple)):
        return features_of(dict(zip(input_names(model, len(x)), x, strict=False)), model)
    if isinstance(x, runtime.tensorflow().SparseTensor):
        return sparse_features(runtime.tensorflow().sparse.to_dense(x).numpy())
    return {"kind": "array", "values": np.asarray(x), "names": []}


def sparse_features(dense: np.ndarray) -> dict[str, Any]:
    """A matrix as one of R's package Matrix: by columns."""
    columns, rows = np.nonzero(dense.T)
    starts = np.concatenate([[0], np.bincount(columns, minlength=dense.shape[1]).cumsum()])
    parts = {"p": starts.astype(np.int32), "i": rows.astype(np.int32)}
    values = dense.T[columns, rows].astype(np.float64)
    return {"kind": "sparse", "dim": list(dense.shape), **parts, "x": values, "names": []}


def input_names(model: Any, count: int) -> list[str]:
    """The model's names of its inputs, or those that it would get."""
    found = [getattr(one, "name", "") for one in getattr(model, "inputs", None) or []]
    return _names(found, "input", count)


def _names(known: list[str], part: str, count: int) -> list[str]:
    return known if len(known) == count else [f"{part}_{place + 1}" for place in range(count)]


def labels_of(y: Any, model: Any) -> dict[str, Any] | None:
    """Labels as `labels` and `outputs` take them."""
    if y is None:
        return None
    if isinstance(y, (list, tuple)):
        names = _names(list(getattr(model, "output_names", None) or []), "output", len(y))
        y = dict(zip(names, y, strict=True))
    if isinstance(y, Mapping):
        outputs = [{"name": name, "labels": labels_of(part, model)} for name, part in y.items()]
        return {"kind": "outputs", "outputs": outputs}
    values = np.asarray(y)
    return {"name": "y", "kind": label_kind(values), "values": values, "levels": [], "names": []}


def label_kind(values: np.ndarray) -> str:
    """What R calls such labels."""
    if values.ndim > 1:
        return "matrix"
    return {"b": "logical", "i": "integer", "u": "integer"}.get(values.dtype.kind, "numeric")


def chunks_of(given: Given, model: Any) -> Callable[[int, int], dict[str, Any] | None]:
    """Batches made in Python as a function of R's would give them."""
    unpack = runtime.keras().utils.unpack_x_y_sample_weight

    def call(epoch: int, batch: int) -> dict[str, Any] | None:
        if isinstance(given.x, Iterator):
            item = next(given.x, None)
        else:
            ended = given.x.num_batches is not None and batch > given.x.num_batches
            item = None if ended else given.x[batch - 1]
            if ended:
                given.x.on_epoch_end()
        if item is None:
            return None
        x, y, weights = unpack(item)
        return {
            "features": features_of(x, model),
            "labels": labels_of(y, model),
            "weights": None if weights is None else np.asarray(weights, np.float64),
        }

    return call


def dataset_of(
    given: Given, model: Any, options: Mapping[str, Any], class_weight: Any = None, like: Any = None
) -> Any:
    """A dataset of the core; `like` is one whose encoding holds for this one too."""
    more = {} if like is None else {"recipe": like.recipe}
    given = with_steps(given, options.get("batch_size", 32))
    if given.is_pipeline:
        features = {"kind": "tfdata", "dataset": given.x, "steps": given.steps, "batched": None}
    elif given.is_sequence:
        call = chunks_of(given, model)
        features = {"kind": "generator", "call": call, "steps": given.steps}
    else:
        features = features_of(given.x, model)
        more["labels"] = labels_of(given.y, model)
        if given.weights is not None:
            more["weights"] = np.asarray(given.weights, np.float64)
    if class_weight is not None:
        more["class_weight"] = {str(level): value for level, value in class_weight.items()}
    return assembly.assemble(features, options, **more)


def with_steps(given: Given, batch_size: int) -> Given:
    """Arrays of which so many batches make an epoch are a pipeline; all others stay as they are."""
    if given.steps is None or given.is_pipeline or given.is_sequence:
        return given
    parts = tuple(part for part in (given.x, given.y, given.weights) if part is not None)
    rows = runtime.tensorflow().data.Dataset.from_tensor_slices(parts)
    return Given(rows.batch(batch_size), steps=given.steps)


def split_last(given: Given, share: float) -> tuple[Given, Given]:
    """Keras' `validation_split`: the last rows."""
    nest = runtime.tensorflow().nest
    parts = given.x, given.y, given.weights
    rows = len(nest.flatten(given.x)[0])
    at = int(rows * (1 - share))

    def cut(part: Any, where: slice) -> Any:
        return None if part is None else nest.map_structure(lambda one: one[where], part)

    first, last = ([cut(part, where) for part in parts] for where in (slice(at), slice(at, None)))
    return Given(*first, given.steps), Given(*last)


def validation_of(given: Any, steps: int | None) -> Given:
    """Keras' `validation_data`."""
    if not isinstance(given, (tuple, list)):
        return Given(given, steps=steps)
    return Given(*runtime.keras().utils.unpack_x_y_sample_weight(tuple(given)), steps)


def refuse_others(name: str, given: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    """Refuses arguments that R's function does not have.

    Raises:
        SpecError: as R does.
    """
    for argument, value in given.items():
        if value is not None and value != plain.get(argument):
            raise SpecError(f"{name}() has no argument `{argument}`.", arg=argument)


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
    refuse_others("gpu_fit", others, {"initial_epoch": 0, "validation_freq": 1})
    given = Given(x, y, sample_weight, steps_per_epoch)
    last = None
    if validation_data is not None:
        last = validation_of(validation_data, validation_steps)
    elif validation_split:
        given, last = split_last(given, validation_split)
    options = _dataset_options(given, batch_size, bool(shuffle))
    data = dataset_of(given, model, options, class_weight)
    validation = None
    if last is not None:
        own = _dataset_options(last, validation_batch_size or batch_size, False)
        validation = dataset_of(last, model, own, like=data)
    wanted = {"epochs": epochs, "engine": engine}
    training.fit(model, data, wanted, validation, callbacks=as_callbacks(callbacks))
    return model.history


def as_callbacks(callbacks: Any) -> Sequence[Any]:
    """Callbacks as a list."""
    held = getattr(callbacks, "callbacks", callbacks)  # those of a CallbackList
    return list(held) if isinstance(held, (list, tuple)) else [held] if held is not None else []


def _dataset_options(given: Given, batch_size: int | None, shuffle: bool) -> dict[str, Any]:
    """Keras shuffles arrays only, and takes 32 rows where nothing is said."""
    if given.is_pipeline or given.is_sequence:
        return {"shuffle": False}
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
    refuse_others("gpu_evaluate", {**others, "callbacks": callbacks}, {})
    given = Given(x, y, sample_weight, steps)
    data = dataset_of(given, model, _dataset_options(given, batch_size, False))
    found = inference.evaluate(model, data, batch_size=batch_size)["metrics"]
    if return_dict:
        return found
    values = list(found.values())
    return values if len(values) > 1 else values[0]


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """`Model.predict()` through the core, in float32."""
    refuse_others("gpu_predict", {"callbacks": callbacks}, {})
    given = Given(x, steps=steps)
    if given.is_pipeline or given.is_sequence:
        data = dataset_of(given, model, _dataset_options(given, batch_size, False))
        record = inference.predict(model, data=data)
    else:
        record = inference.predict(model, features_of(x, model))
    if "outputs" in record:
        outputs = [np.asarray(part["values"], np.float32) for part in record["outputs"]]
        names = [part["name"] for part in record["outputs"]]
        unnamed = names == _names([], "output", len(names))
        known = getattr(model, "output", [] if unnamed else {})
        return dict(zip(names, outputs, strict=True)) if isinstance(known, Mapping) else outputs
    values = np.asarray(record["values"], np.float32)
    return values[:, None] if values.ndim == 1 else values  # R gets a vector of a single unit
