"""Checks whether a value is a Keras model that can be trained, and whether rows fit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.core.options import refused_value
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.loader.loader import iterate_rows
from gpukeras.data.recipe.recipe import BatchesEncoding
from gpukeras.data.recipe.serialization import check_numbers
from gpukeras.data.recipe.targets import NO_WEIGHTS, LabelRule, outputs_by_name
from gpukeras.models.compatibility import check_fit, read_variable_axes, weighed_outputs
from gpukeras.models.compilation import require_known_layers, require_no_strategy
from gpukeras.models.embedded_codes import CodeCheck, find_lookups, open_code_check
from gpukeras.models.identifiers import check_names, suggest
from gpukeras.models.targets import check_weights
from gpukeras.models.variables import has_call

# Modules of Keras 2's classes, in tf_keras and in old versions of keras.
OLD_KERAS = ("tf_keras.", "keras.engine.", "keras.src.engine.", "tensorflow.python.keras.")

# What a dataset's codes were asked for and passed, see `Lookup.asks`.
_passed: WeakKeyDictionary[MapDataset, set[tuple[Any, ...]]] = WeakKeyDictionary()


def check_model(model: Model, *, compiled: bool = True, arg: str = "model") -> None:
    """Checks that a value is a Keras model that can be trained; `arg` names it in messages.

    Raises:
        SpecError: if it is not a Keras 3 model.
        ModelError: if it is a Keras 2 model, or not compiled.
    """
    refuse_old(model, arg)
    if not tensor_ops.is_keras_model(model):
        hint = "Make one with keras3, with reticulate, or with gpu_mlp()."
        raise refused_value(arg, model, "a Keras 3 model", hint)
    if compiled and not model.compiled:
        raise ModelError(
            f"`{arg}` is not compiled.",
            hint="Call compile() with an optimizer and a loss first.",
            arg=arg,
        )
    if compiled:
        require_no_strategy(model)
        check_names(model)


def refuse_old(model: Model, arg: str = "model") -> None:
    """Refuses a Keras 2 model with a message of its own.

    Raises:
        ModelError: if it is one.
    """
    kinds = [kind for kind in type(model).__mro__ if kind.__name__ == "Model"]
    if any(getattr(kind, "__module__", "").startswith(OLD_KERAS) for kind in kinds):
        raise ModelError(
            f"`{arg}` is a Keras 2 model, as the R package keras and tf_keras make them. "
            "gpukeras trains Keras 3 models.",
            hint="Build it with the R package keras3, without TF_USE_LEGACY_KERAS; its "
            "load_model_weights() reads weights that Keras 2 saved as .h5.",
            arg=arg,
        )


def compile_model(model: Model, options: Mapping[str, Any]) -> None:
    """Compiles a model like Keras' own `compile()`, with a new optimizer.

    Args:
        model: A Keras 3 model, compiled or not.
        options: `loss`, `optimizer` ("adam" if it is None) and `metrics`, as Keras takes them.

    Raises:
        SpecError: without a loss, or for a value that Keras does not take.
    """
    check_model(model, compiled=False)
    loss, optimizer, metrics = (options.get(name) for name in ("loss", "optimizer", "metrics"))
    if loss is None:
        raise SpecError(
            "`loss` must be given beside `optimizer` or `metrics`: `model` is compiled with them.",
            arg="loss",
        )
    for function in runtime.tree().flatten([loss, metrics]):
        keep_name(function)
    try:
        model.compile(optimizer=optimizer or "adam", loss=loss, metrics=metrics)
    except (ValueError, TypeError) as error:
        named = isinstance(optimizer, str) and "identifier" in str(error)
        raise SpecError(
            f"Keras refused to compile the model: {find_reason(error)}.",
            hint=suggest("optimizers", str(optimizer)) if named else "",
        ) from error


def keep_name(function: Any) -> None:
    """Lets Keras call a function of R as R calls it: Keras makes lower case of other functions."""
    if str(getattr(function, "__module__", "")).startswith("rpytools"):
        function.name = function.__name__


def check_rows(
    model: Model, data: Dataset, arg: str = "data", step: str = "train", fits: bool = False
) -> None:
    """Checks that a dataset fits for training ("train") or evaluating ("test") a model.

    Batches of a user's own pipeline (used as they come) are unknown before; Keras itself checks
    them. Without `fits` rows must be numeric, because measuring and searching need numbers.

    Args:
        model: A Keras model.
        data: The dataset.
        arg: The user's name for the dataset, for messages.
        step: "train" or "test".
        fits: Whether the model is only trained or evaluated, not measured.

    Raises:
        SpecError: for rows that are not numeric, if numbers are needed.
        DataError: if they have no labels, and the loss needs them.
        ModelError: if they do not fit, or the optimizer does not know all variables to train.
    """
    if step == "train":
        require_known_layers(model)
    data.variable_axes = read_variable_axes(model)
    if not fits:
        check_numbers(data, arg)
    if isinstance(data, IterableDataset):
        data.code_check = open_code_check(model, arg)
    if isinstance(data.recipe.features, BatchesEncoding):
        return
    check_call(model, step)
    if len(data.sources) < 2 and _needs_labels(model, step):
        raise DataError(
            f"`{arg}` has no labels.",
            hint="Give `y`: the loss that `model` was compiled with needs it.",
            arg=arg,
        )
    check_fit(model, data.recipe)
    if isinstance(data, MapDataset):
        _check_codes(model, data, arg)
    if len(data.sources) > 2:
        _check_weights(model, data.recipe.label, data.sources[2].shape[1:])


def _check_codes(model: Model, data: MapDataset, arg: str) -> None:
    """Checks the codes of a dataset's rows, once for equal lookups."""
    lookups = [] if data.sources[0].texts else find_lookups(model)
    passed = _passed.setdefault(data, set())
    check = CodeCheck([each for each in lookups if each.asks not in passed], arg)
    for rows in iterate_rows(data) if check.lookups else ():
        check.add(rows[0])
    check.finish()
    passed.update(each.asks for each in lookups)


def _check_weights(model: Model, label: LabelRule | None, shape: tuple[int, ...]) -> None:
    """Checks weights, `shape` per row, against the losses; custom steps and losses may take any."""
    if tensor_ops.overrides(model, "train_step") or tensor_ops.overrides(model, "compute_loss"):
        return
    known = weighed_outputs(model)
    own = {} if label is None or not label.weighed else outputs_by_name(label, list(known))
    for name, (output, loss) in known.items():
        if not own:
            check_weights(shape, output, loss)
        elif name in own and own[name].weight_shape != NO_WEIGHTS:
            check_weights(own[name].weight_shape, output, loss, f"weights${name}")


def _needs_labels(model: Model, step: str) -> bool:
    """Whether the loss of `compile()` is used; a custom step may have another loss."""
    own = (f"{step}_step", "compute_loss")
    return model.loss is not None and not any(tensor_ops.overrides(model, name) for name in own)


def check_call(model: Model, step: str) -> None:
    """Checks that a model has a call, or a step of its own that needs none.

    Raises:
        ModelError: if it has neither.
    """
    if has_call(model) or tensor_ops.overrides(model, f"{step}_step"):
        return
    raise ModelError(
        f"`model` has neither a `call()` nor a `{step}_step()` of its own.",
        hint="Give its class one of them, or use a model that it holds.",
        arg="model",
    )
