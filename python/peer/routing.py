"""Keras' arguments of `fit()`, `evaluate()` and `predict()`, handed to the core as R hands them.

What gpu_fit() has no argument for is refused here, as R would refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import SpecError
from gpukeras.data import builder
from gpukeras.models import compatibility, model_recipes
from gpukeras.training import evaluate as training_evaluate
from gpukeras.training import fit as training_fit
from gpukeras.training import predict as training_predict

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
    """Arrays as `sources` takes them; the inputs of a list by the model's names, if it has any."""
    if isinstance(x, Mapping):
        parts = [{"name": name, "features": features_of(value, None)} for name, value in x.items()]
        return {"kind": "inputs", "inputs": parts}
    if isinstance(x, (list, tuple)):
        names = compatibility.read_parts(model)["inputs"]
        return _by_name(x, names, "input", lambda named: features_of(named, model))
    for kind, dense in SPARSE.items():
        if type(x).__name__ == kind:
            return sparse_features(np.asarray(dense(x)))
    return {"kind": "array", "values": np.asarray(x), "names": []}


# Matrices of TensorFlow, SciPy and JAX that leave zeros out, by the names of their classes.
SPARSE: dict[str, Callable[[Any], Any]] = {
    "SparseTensor": lambda x: runtime.tensorflow().sparse.to_dense(x),
    "coo_matrix": lambda x: x.toarray(),
    "BCOO": lambda x: x.todense(),
}


def sparse_features(dense: np.ndarray) -> dict[str, Any]:
    """A matrix as one of R's package Matrix: by columns."""
    columns, rows = np.nonzero(dense.T)
    starts = np.concatenate([[0], np.bincount(columns, minlength=dense.shape[1]).cumsum()])
    parts = {"p": starts.astype(np.int32), "i": rows.astype(np.int32)}
    values = dense.T[columns, rows].astype(np.float64)
    return {"kind": "sparse", "dim": list(dense.shape), **parts, "x": values, "names": []}


def _by_name(
    parts: Sequence[Any], known: Sequence[str], what: str, cross: Callable[[Any], Any]
) -> dict[str, Any]:
    """A list as it crosses: with the model's names, or else with places in their stead."""
    unnamed = len(known) != len(parts)
    names = _places(what, len(parts)) if unnamed else known
    return {**cross(dict(zip(names, parts, strict=True))), "listed": unnamed}


def _places(what: str, count: int) -> list[str]:
    return [f"{what}_{place + 1}" for place in range(count)]


def labels_of(y: Any, model: Any) -> dict[str, Any] | None:
    """Labels as `labels` and `outputs` take them."""
    if y is None:
        return None
    if isinstance(y, (list, tuple)):
        names = compatibility.read_parts(model)["outputs"]
        return _by_name(y, names, "output", lambda named: labels_of(named, model))
    if isinstance(y, Mapping):
        outputs = [{"name": name, "labels": labels_of(part, model)} for name, part in y.items()]
        return {"kind": "outputs", "outputs": outputs}
    values = np.asarray(y)
    return {"name": "y", "kind": label_kind(values), "values": values, "levels": [], "names": []}


def weights_of(weights: Any, model: Any) -> Any:
    """Weights as `weights` takes them: an array, or one of each output."""
    if isinstance(weights, (list, tuple)) and all(
        part is None or np.ndim(part) for part in weights
    ):
        names = compatibility.read_parts(model)["outputs"]
        known = names if len(names) == len(weights) else _places("output", len(weights))
        weights = dict(zip(known, weights, strict=True))
    if not isinstance(weights, Mapping):
        return None if weights is None else np.asarray(weights, np.float64)
    given = {name: part for name, part in weights.items() if part is not None}
    return {
        "outputs": [
            {"name": name, "values": np.asarray(part, np.float64)} for name, part in given.items()
        ]
    }


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
            "weights": weights_of(weights, model),
        }

    return call


def dataset_of(
    given: Given,
    model: Any,
    options: Mapping[str, Any],
    class_weight: Any = None,
    recipe: Any = None,
) -> Any:
    """A dataset of the core; `recipe` is the encoding that holds for it."""
    more = {} if recipe is None else {"recipe": recipe}
    given = with_steps(given, options.get("batch_size", 32), model.steps_per_execution)
    if given.is_pipeline or given.is_sequence:
        options = {"shuffle": False}
    if given.is_pipeline:
        features = {"kind": "tfdata", "dataset": given.x, "steps": given.steps, "batched": None}
    elif given.is_sequence:
        call = chunks_of(given, model)
        features = {"kind": "generator", "call": call, "steps": given.steps}
    else:
        features = features_of(given.x, model)
        more["labels"] = labels_of(given.y, model)
        more["weights"] = weights_of(given.weights, model)
    if class_weight is not None:
        more["class_weight"] = {str(level): value for level, value in class_weight.items()}
    return builder.assemble(features, options, **more)


def with_steps(given: Given, batch_size: int, together: int) -> Given:
    """Arrays of which so many batches make an epoch are a pipeline; so are ragged ones.

    R refuses `steps_per_epoch` of arrays. So it is refused here where a pipeline does another thing
    than Keras, which makes the last epoch of a pass a short one, and one with `steps_per_execution`
    a longer one.

    Raises:
        SpecError: as R does.
    """
    ragged = isinstance(given.x, runtime.tensorflow().RaggedTensor)
    if (given.steps is None and not ragged) or given.is_pipeline or given.is_sequence:
        return given
    parts = tuple(part for part in (given.x, given.y, given.weights) if part is not None)
    rows = runtime.tensorflow().data.Dataset.from_tensor_slices(parts).batch(batch_size)
    if given.steps and (int(rows.cardinality()) % given.steps or given.steps % together):
        raise SpecError(
            "`steps_per_epoch` is for rows that come in sequence: an epoch is all rows of `data`.",
            hint="Leave it out.",
            arg="steps_per_epoch",
        )
    return Given(rows, steps=given.steps)


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
            hint = "It is for gpu_fit()." if argument == "callbacks" else ""
            raise SpecError(f"Unknown argument `{argument}` of {name}().", hint=hint, arg=argument)


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
    options = _dataset_options(batch_size, bool(shuffle))
    data = dataset_of(given, model, options, class_weight)
    validation = None
    if last is not None:
        own = _dataset_options(validation_batch_size or batch_size, False)
        validation = dataset_of(last, model, own, recipe=data.recipe)
    wanted = {"epochs": epochs, "engine": engine}
    training_fit.fit(model, data, wanted, validation=validation, callbacks=as_callbacks(callbacks))
    return model.history


def as_callbacks(callbacks: Any) -> Sequence[Any]:
    """Callbacks as a list."""
    held = getattr(callbacks, "callbacks", callbacks)  # those of a CallbackList
    return list(held) if isinstance(held, (list, tuple)) else [held] if held is not None else []


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
    refuse_others("gpu_evaluate", {**others, "callbacks": callbacks}, {})
    given = Given(x, y, sample_weight, steps)
    options = _dataset_options(batch_size, False)
    data = dataset_of(given, model, options, recipe=model_recipes.recipe_of(model))
    found = training_evaluate.evaluate(model, data, batch_size=batch_size)["metrics"]
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
    refuse_others("gpu_predict", {"callbacks": callbacks}, {})
    given = with_steps(Given(x, steps=steps), batch_size or 32, 1)
    if given.is_pipeline or given.is_sequence:
        options = _dataset_options(batch_size, False)
        data = dataset_of(given, model, options, recipe=model_recipes.recipe_of(model))
        record = training_predict.predict(model, data=data)
    else:
        record = training_predict.predict(model, features_of(x, model))
    if "outputs" in record:
        outputs = [_as_array(part, model) for part in record["outputs"]]
        names = [part["name"] for part in record["outputs"]]
        unnamed = names == _places("output", len(names))
        known = getattr(model, "output", [] if unnamed else {})
        if isinstance(known, Mapping):
            return dict(zip(names, outputs, strict=True))
        return runtime.tensorflow().nest.pack_sequence_as(known, outputs) if known else outputs
    return _as_array(record, model)


def _as_array(record: Mapping[str, Any], model: Any) -> np.ndarray:
    """What R gets as a vector is one of a single unit, unless the model's output is a number."""
    values = np.asarray(record["values"], np.float32)
    scalar = getattr(model, "output_shape", None) == (None,)
    return values if scalar or values.ndim > 1 else values[:, None]
