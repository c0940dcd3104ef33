"""Checks whether a model's compile settings still fit it: its optimizer, losses and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import keras_private, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason, list_some
from gpukeras.models.compatibility import read_outputs

# Start of the message of Keras' optimizers, with the path of a layer's variable.
UNKNOWN_VARIABLE = re.compile(r"Unknown variable: <Variable path=([^,]*/[^,]*)")
# What TensorFlow says of an operation on numbers of two types, and Keras of the layer around it.
_MIXED = re.compile(
    r"has type (\w+) that does not match type (\w+) of argument"
    r"|have types \[(\w+)(?:, \3)*, (\w+)[^]]*\] that don't all match"
)
_CALLED = re.compile(r"Exception encountered when calling (\w+)\.call\(\)")


# The optimizer -----------------------------------------------------------------------------------


def require_known_layers(model: Model) -> None:
    """Checks that the optimizer knows all trainable variables: layers may have been unfrozen since.

    A custom step may have an optimizer for some of the variables. There this check is skipped and
    Keras' own error is explained, see `explaining_refusals()`.

    Raises:
        ModelError: naming the layers that it does not know.
    """
    if not tensor_ops.overrides(model, "train_step"):
        layers = find_unknown(model)
        if layers and keras_private.knows_others(model.optimizer, model.variables):
            raise ModelError(
                "The optimizer of `model` was built for another model, whose weights it has states "
                "of: one optimizer object trains one model.",
                hint='Give each model a new one, such as optimizer = "adam" or optimizer_adam().',
                arg="model",
            )
        if layers:
            raise compiled_before(layers)


def find_unknown(model: Model) -> list[str]:
    """Returns layers with trainable variables that a built optimizer does not know."""
    optimizer = model.optimizer
    if optimizer is None or not optimizer.built:
        return []
    unknown = [
        variable
        for variable in model.trainable_variables
        if not keras_private.knows_variable(optimizer, variable)
    ]
    owners = {
        id(variable): layer.name
        for layer in (keras_private.list_layers(model) if unknown else ())
        for variable in keras_private.own_trainable(layer)
    }
    return list(dict.fromkeys(owners.get(id(variable), variable.path) for variable in unknown))


def compiled_before(layers: list[str]) -> ModelError:
    """Returns the error of a model with layers that became trainable after it was compiled."""
    what = f"the layers {list_some(layers)}" if len(layers) > 1 else f"the layer {layers[0]}"
    return ModelError(
        f"The optimizer of `model` does not know {what}, which became trainable after it was "
        "built.",
        hint="Compile the model again: compile(model, ), or `loss` and `optimizer` of gpu_fit().",
        arg="model",
        layers=layers,
    )


# A strategy --------------------------------------------------------------------------------------


def require_no_strategy(model: Model) -> None:
    """Checks that the model was not made in the scope of the user's own strategy.

    Raises:
        ModelError: if it was: its variables and its functions belong to that strategy.
    """
    strategy = keras_private.strategy_of(model)
    if strategy is None and not tensor_ops.is_distributed(model.variables):
        return
    kind = "a tf.distribute strategy" if strategy is None else f"a {type(strategy).__name__}"
    raise ModelError(
        f"`model` was made in the scope of {kind}, and gpukeras shares out rows itself.",
        hint="Make and compile it outside of that scope, and give `devices`, such as "
        'gpu_fit(devices = "all").',
        arg="model",
    )


# Losses and metrics ------------------------------------------------------------------------------


def explain_build(model: Model, error: BaseException) -> ModelError:
    """Returns the error of a model that Keras cannot build, with the `compile()` argument at fault.

    It is called after Keras has failed, and raises nothing itself.
    """
    mixed = explain_types(model, error)
    if mixed is not None:
        return mixed
    outputs, arguments = read_outputs(model), _given(model)
    for name in arguments if outputs else ():
        fault = _find_fault(arguments[name], list(outputs or ()), whole=name.startswith("loss"))
        if fault:
            return _misfit(name, fault, list(outputs or ()))
    named = outputs is None and any(
        isinstance(argument, Mapping) for argument in arguments.values()
    )
    hint = "Check the names in `loss` and `metrics` of compile() against what its call() gives."
    return ModelError(
        f"Keras cannot build the model on this data: {find_reason(error)}.",
        hint=hint if named else "Check the layers' shapes against the data's columns.",
        arg="model",
    )


def explain_types(model: Model, error: BaseException) -> ModelError | None:
    """Returns the error of a layer that mixes types of numbers; None for another error."""
    types, called = _MIXED.search(str(error)), _CALLED.search(str(error))
    if types is None or called is None:
        return None
    dtype, other = filter(None, types.groups())
    layers = [
        layer.name
        for layer in keras_private.list_layers(model, include_self=False)
        if type(layer).__name__ == called[1]
    ]
    named = f" ({list_some(layers)})" if layers else ""
    return ModelError(
        f"The call() of {called[1]}{named} mixes numbers of {dtype} and {other}.",
        hint="Cast them to one type, such as keras.ops.cast(x, self.compute_dtype), or train with "
        'gpu_setup(precision = "float32").',
        arg="model",
        layers=layers,
    )


def _given(model: Model) -> dict[str, Any]:
    """Returns the `compile()` arguments for the outputs, by name."""
    loss, weights = keras_private.given_losses(keras_private.compiled_loss(model))
    metrics, weighted = keras_private.given_metrics(keras_private.compiled_metrics(model))
    losses = {"loss": loss, "loss_weights": weights}
    return {**losses, "metrics": metrics, "weighted_metrics": weighted}


def _find_fault(argument: Any, outputs: list[str], whole: bool) -> str:
    """Returns what does not fit the outputs, for a sentence; "" if nothing is known to be wrong."""
    if isinstance(argument, Mapping):
        fits = set(argument) == set(outputs) if whole else set(argument) <= set(outputs)
        return "" if fits else f"names {', '.join(map(str, argument)) or 'none'}"
    if isinstance(argument, (list, tuple)) and len(argument) != len(outputs):
        return f"has {len(argument)} of them" if len(outputs) > 1 or whole else ""
    return "is one number" if isinstance(argument, (int, float)) and len(outputs) > 1 else ""


def _misfit(name: str, fault: str, outputs: list[str]) -> ModelError:
    noun = "outputs" if len(outputs) > 1 else "output"
    return ModelError(
        f"`model` has the {noun} {', '.join(outputs)}, but `{name}` of compile() {fault}.",
        hint=f"Give `{name}` as a list with the {noun}' names, or one for each in their order."
        if len(outputs) > 1
        else f"Give `{name}` as one for that output, or as a list with its name.",
        arg="model",
    )


# What Keras refuses in a first step ---------------------------------------------------------------


@contextmanager
def explaining_refusals(model: Model) -> Iterator[None]:
    """Converts user errors that only a model's step reveals: no loss, an unknown variable, types.

    Raises:
        ModelError: for a model that was compiled without a loss and whose layers add none, whose
            own step gives its optimizer variables that it was not built with, or one of whose
            layers mixes types of numbers.
    """
    try:
        yield
    except TypeError as error:
        mixed = explain_types(model, error)
        if mixed is None:
            raise
        raise mixed from error
    except (ValueError, ModelError) as error:  # Keras' own, or an engine's if tracing failed
        if "No loss to compute" in str(error):
            raise ModelError(
                "`model` was compiled without a loss, and its layers add none.",
                hint="Call compile() with a loss, or give `loss` to gpu_fit().",
                arg="model",
            ) from error
        unknown = UNKNOWN_VARIABLE.search(str(error))
        if unknown is None:
            raise
        raise compiled_before([unknown[1].split("/")[-2]]) from error
