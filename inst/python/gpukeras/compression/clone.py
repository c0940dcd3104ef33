"""A model of its own with the same weights: what a smaller model is made of.

The user's model is never changed; a copy is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError
from gpukeras.core.messages import find_reason
from gpukeras.models import builder


def copy_model(model: Any, arg: str = "model") -> Any:
    """A model with the same layers, weights, compile settings and recipe, and none of its state.

    The optimizer is a new one with the same settings.

    Args:
        model: A built Keras model.
        arg: What the caller's argument is called, for errors.

    Raises:
        ModelError: for a model that has no weights yet, or that Keras cannot copy.
    """
    check_built(model, arg)
    copy = clone_layers(model, arg=arg)
    with _explained(arg):
        if not copy.built:
            copy.build_from_config(model.get_build_config())
        copy_variables(model, copy)
    copy_compile(model, copy)
    copy_recipe(model, copy)
    return copy


def check_built(model: Any, arg: str = "model") -> None:
    """A model whose weights exist.

    Raises:
        ModelError: if they do not.
    """
    if not model.built:
        raise ModelError(
            f"`{arg}` has no weights yet.", hint="Train it first, or build it.", arg=arg
        )


def check_graph(model: Any, arg: str = "model") -> None:
    """A model whose layers Keras knows how to connect again.

    Raises:
        ModelError: for one made by subclassing.
    """
    if not (keras_private.is_sequential_like(model) or keras_private.runs_through_graph(model)):
        raise ModelError(
            f"`{arg}` must be a sequential or functional model: nobody but its own code knows how "
            "the layers of another are connected.",
            arg=arg,
        )


def clone_layers(
    model: Any, function: Callable[[Any], Any] | None = None, arg: str = "model"
) -> Any:
    """The same layers connected the same way, with weights of their own; not compiled.

    Args:
        model: A Keras model.
        function: Makes a new layer of one (also of those in nested models); None: the same again.
        arg: What the caller's argument is called, for errors.

    Raises:
        ModelError: if the layers cannot be made or connected.
    """
    keras = runtime.keras()
    # Safe mode is for files: the code of a Lambda layer is this session's own. And Keras would
    # compile the copy from a config that does not know the user's own functions.
    own_code = keras.src.saving.serialization_lib.SafeModeScope(False)
    with _explained(arg), set_aside(model, compiled=False), own_code:
        if function is None:
            return keras.models.clone_model(model)
        return keras.models.clone_model(model, clone_function=function, recursive=True)


@contextmanager
def set_aside(model: Any, **values: Any) -> Iterator[None]:
    """Gives attributes of a model other values for a while."""
    own = vars(model)
    found = {name: own[name] for name in values if name in own}
    own.update({name: values[name] for name in found})  # setattr() would have Keras take note
    try:
        yield
    finally:
        own.update(found)


@contextmanager
def _explained(arg: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the user's own layers raise
        raise ModelError(
            f"`{arg}` cannot be copied: {find_reason(error)}.",
            hint="Layers of one's own need `get_config()`.",
            arg=arg,
        ) from error


def copy_variables(model: Any, copy: Any) -> None:
    """Gives a copy the values of a model's variables, which are the same in number and shape."""
    for own, other in zip(model.variables, copy.variables, strict=True):
        other.assign(own)
    renew_means(copy)


def renew_means(copy: Any) -> None:
    """A Normalization computes by what it made of its weights: makes it anew of the given ones."""
    for layer in keras_private.list_layers(copy):
        if isinstance(layer, runtime.keras().layers.Normalization) and layer.built:
            layer.finalize_state()


def copy_compile(model: Any, copy: Any) -> None:
    """Compiles another model as a model is, with an optimizer, loss and metrics of its own."""
    if not model.compiled:
        return
    loss, loss_weights = keras_private.given_losses(keras_private.compiled_loss(model))
    metrics, weighted = keras_private.given_metrics(keras_private.compiled_metrics(model))
    copy.compile(
        optimizer=copy_optimizer(model.optimizer),
        loss=_renew(loss),
        loss_weights=loss_weights,
        metrics=_renew(metrics),
        weighted_metrics=_renew(weighted),
        run_eagerly=model.run_eagerly,
        jit_compile=model.jit_compile,
        auto_scale_loss=False,  # the optimizer is wrapped where it was
    )


def copy_optimizer(optimizer: Any) -> Any:
    """A new optimizer with the same settings, its rate as it is now."""
    return type(optimizer).from_config(optimizer.get_config())


def copy_recipe(model: Any, copy: Any) -> None:
    """Ties the recipe of the data that trained a model to another one."""
    recipe = builder.recipe_of(model)
    if recipe is not None:
        builder.tie_recipe(copy, recipe)


def _renew(given: Any) -> Any:
    """Metrics count: those that are objects are made anew. Names and functions stay."""
    if isinstance(given, dict):
        return {name: _renew(each) for name, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [_renew(each) for each in given]
    if isinstance(given, runtime.keras().metrics.Metric):
        return type(given).from_config(given.get_config())
    return given
