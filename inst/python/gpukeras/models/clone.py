"""Copies models: with the same weights, or with initial weights of another seed.

The user's model is never changed; only a copy is.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model, Optimizer
from gpukeras.core.messages import find_reason
from gpukeras.models import model_recipes, training_rows
from gpukeras.models.families.keras_classes import is_ours
from gpukeras.models.identity import describe_setting
from gpukeras.models.layer_functions import list_functions, list_own, name_apart, named_apart

COMPILING = "A `compile()` of one's own needs `get_compile_config()` and `compile_from_config()`."
REST = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD  # *args and **kwargs
Config = dict[str, Any]  # of a layer
SETTINGS = "trainable", "constraint", "regularizer"  # of a variable


def copy_model(model: Model, arg: str = "model", *, in_float32: bool = False) -> Any:
    """Returns a copy with the same layers, weights, compile settings and recipe, without its state.

    The optimizer is a new one with the same settings.

    Args:
        model: A built Keras model.
        arg: Name of the caller's argument, for errors.
        in_float32: Whether the copy's layers compute in float32.

    Raises:
        ModelError: for a model that has no weights yet, or that Keras cannot copy so.
    """
    check_built(model, arg)
    if in_float32:
        check_graph(model, arg)
        copy = clone_layers(model, _widen, arg, "float32")
    else:
        copy = _make_alike(model, arg)
    with _explained(arg):
        copy_settings(model, copy)
        copy_variables(model, copy)
    copy_compile(model, copy)
    copy_recipe(model, copy)
    return copy


def _make_alike(model: Model, arg: str = "model") -> Any:
    """Returns what Keras makes of a built model's configuration."""
    copy = clone_layers(model, arg=arg)
    with _explained(arg):
        if not copy.built:
            copy.build_from_config(model.get_build_config())
    return copy


def _widen(_: Any, config: Config) -> Config:
    return {**config, "dtype": "float32"}


def copy_with_seed(model: Model, seed: int) -> Any:
    """Returns a copy whose trainable weights begin anew; compiled like the model, without a recipe.

    All seeds in the configuration, of initial weights and dropout, are drawn from one: the same
    seed gives the same copy. Weights that do not train, as those of frozen layers and of adapted
    ones, are what the model has learned elsewhere: the copy has them too. A batch normalization's
    means and variances are of the training rows, and begin anew where it trains.

    Args:
        model: A built Keras model.
        seed: The seed.

    Raises:
        ModelError: for a model that has no weights yet, or that Keras cannot copy.
    """
    check_built(model)
    draws = np.random.default_rng(seed)

    def reseed(_: Any, config: Config) -> Config:
        return dict(_reseed(config, draws))

    copy = clone_layers(model, reseed)
    with _explained("model"):
        if not copy.built:
            copy.build_from_config(model.get_build_config())
        for variable in copy_settings(model, copy):
            if variable.constraint is not None:  # such as zeros that a pruning keeps
                variable.assign(variable.constraint(variable))
        copy_values(list_given(model), list_given(copy))
    renew_means(copy)
    copy_compile(model, copy)
    return copy


def list_given(model: Any) -> list[Any]:
    """Returns the weights of a model, or of a layer, that a training does not change."""
    kind = runtime.keras().layers.BatchNormalization
    moving = {
        id(weight)
        for layer in keras_private.list_layers(model)
        if isinstance(layer, kind) and layer.trainable and layer.built
        for weight in (layer.moving_mean, layer.moving_variance)
    }
    return [weight for weight in model.non_trainable_weights if id(weight) not in moving]


def _reseed(value: Any, draws: np.random.Generator) -> Any:
    """Returns a configuration with other seeds, drawn in the order of its parts."""
    if isinstance(value, (list, tuple)):
        return [_reseed(each, draws) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: int(draws.integers(2**31 - 1)) if key == "seed" else _reseed(each, draws)
        for key, each in value.items()
    }


def check_built(model: Model, arg: str = "model") -> None:
    """Checks that a model's weights exist.

    Raises:
        ModelError: if they do not.
    """
    if not model.built:
        raise ModelError(
            f"`{arg}` has no weights yet.", hint="Train it first, or build it.", arg=arg
        )


def check_graph(model: Model, arg: str = "model") -> None:
    """Checks that Keras can reconnect a model's layers.

    Raises:
        ModelError: for a subclassed model.
    """
    if not _has_graph(model):
        raise ModelError(
            f"`{arg}` must be a sequential or functional model: nobody but its own code knows how "
            "the layers of another are connected.",
            arg=arg,
        )


def _has_graph(model: Model) -> bool:
    return keras_private.is_sequential_like(model) or keras_private.runs_through_graph(model)


def clone_layers(
    model: Model,
    change: Callable[[Any, Config], Config] | None = None,
    arg: str = "model",
    policy: str | None = None,
) -> Any:
    """Returns a model with new layers, connected the same way, with new weights; not compiled.

    Args:
        model: A Keras model.
        change: Returns the configuration of a new layer from a layer (also of nested models) and
            its own; of a model without a graph, from the model. None copies each layer.
        arg: Name of the caller's argument, for errors.
        policy: The dtype policy of the copy, and of layers whose settings do not tell it; None for
            the model's own.

    Raises:
        ModelError: if the layers cannot be made or connected.
    """
    keras = runtime.keras()

    def renew(part: Any) -> Any:
        with named_apart(own):
            config = part.get_config()
        return type(part).from_config(config if change is None else change(part, config))

    with _copying(model, arg, policy) as own:
        if _has_graph(model):
            nested = change is not None
            copy = keras.models.clone_model(model, clone_function=renew, recursive=nested)
        elif change is None:
            with named_apart(own):
                config = keras.saving.serialize_keras_object(model)
            copy = keras.saving.deserialize_keras_object(config)
        else:
            copy = renew(model)
        _copy_assets(model, copy)
    return copy


def _copy_assets(model: Model, copy: Any) -> None:
    """Copies what layers write into files beside weights, such as the words that they know."""
    pairs = zip(*map(keras_private.list_layers, (model, copy)), strict=False)
    for own, other in reversed(list(pairs)):  # what a layer holds comes before it
        if hasattr(own, "save_assets") and type(own) is type(other):
            if len(own.weights) == len(other.weights):  # both are built, or neither
                store: dict[str, Any] = {}
                own.save_own_variables(store)
                other.load_own_variables(store)
            with tempfile.TemporaryDirectory() as folder:
                own.save_assets(folder)
                other.load_assets(folder)


@contextmanager
def _copying(
    model: Model, arg: str, policy: str | None = None
) -> Iterator[Mapping[str, FunctionType]]:
    """A context in which Keras makes layers from the configuration of a model of this session.

    Yields the user's functions by the names that `named_apart()` gives them.
    """
    keras = runtime.keras()
    layers = keras_private.list_layers(model)
    kinds: dict[str, Any] = {type(layer).__name__: type(layer) for layer in layers}
    functions = list_functions(model)
    own = name_apart(list_own(functions))
    names = {function.__name__: function for function in functions}
    # Keras would compile the copy from a config that does not know the user's own functions.
    with (
        _explained(arg),
        keras.saving.custom_object_scope(kinds | names | own),
        replaced(model, compiled=False),
        keras_private.session_code_scope(),
        runtime.dtype_policy_scope(policy or model.dtype_policy),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")
        yield own


@contextmanager
def _explained(arg: str, hint: str = "Layers of one's own need `get_config()`.") -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the user's own layers may raise anything
        raise ModelError(
            f"`{arg}` cannot be copied: {find_reason(error)}.",
            hint=hint,
            arg=arg,
        ) from error


def copy_settings(model: Model, copy: Any) -> list[Any]:
    """Gives a copy's variables what the model's own have and no layer's configuration tells.

    Such are the masks of a pruning, and what a user has set for single variables.

    Args:
        model: A built model.
        copy: A copy with the same variables.

    Returns:
        The copy's variables that were changed.
    """
    changed = []
    for own, other in zip(model.variables, copy.variables, strict=True):
        names = [
            name for name in SETTINGS if not _is_same(getattr(own, name), getattr(other, name))
        ]
        for name in names:
            setattr(other, name, getattr(own, name))
        changed += [other] if names else []
    return changed


def _is_same(one: Any, other: Any) -> bool:
    return one is other or describe_setting(one) == describe_setting(other)


def has_settings(model: Model) -> bool:
    """Whether variables have settings, or an optimizer exceptions, that no configuration tells."""
    optimizer = keras_private.without_scaling(model.optimizer)
    left_out = (
        keras_private.is_left_out_of_decay(optimizer, variable) for variable in model.variables
    )
    return any(left_out) or bool(copy_settings(model, _make_alike(model)))


def copy_variables(model: Model, copy: Any) -> None:
    """Copies the values of a model's variables to a copy with the same variables."""
    copy_values(model.variables, copy.variables)
    renew_means(copy)


def copy_values(variables: Sequence[Any], others: Sequence[Any]) -> None:
    """Copies the values of variables to others of the same shapes."""
    for own, other in zip(variables, others, strict=True):
        # A copy in memory: on JAX both would share an array, and a step of one takes it away.
        other.assign(np.array(own.numpy()))


def renew_means(copy: Any) -> None:
    """Recomputes the values that Normalization layers derive from their weights."""
    for layer in keras_private.list_layers(copy):
        if isinstance(layer, runtime.keras().layers.Normalization) and layer.built:
            layer.finalize_state()


def copy_compile(model: Model, copy: Any) -> None:
    """Compiles `copy` like `model`, with its own optimizer, loss and metrics.

    Raises:
        ModelError: if `compile()` of its class takes other arguments, or refuses these.
    """
    if not model.compiled:
        return
    with _explained("model", COMPILING):
        if _takes_its_own(type(copy)):
            with keras_private.session_code_scope():
                serialize = runtime.keras().saving.serialize_keras_object
                copy.compile_from_config(serialize(model.get_compile_config()))
            return
        loss, loss_weights = keras_private.given_losses(keras_private.compiled_loss(model))
        metrics, weighted = keras_private.given_metrics(keras_private.compiled_metrics(model))
        copy.compile(
            optimizer=copy_optimizer(
                model.optimizer, zip(model.variables, copy.variables, strict=False)
            ),
            loss=_renew(loss),
            loss_weights=loss_weights,
            metrics=_renew(metrics),
            weighted_metrics=_renew(weighted),
            run_eagerly=model.run_eagerly,
            steps_per_execution=model.steps_per_execution,
            jit_compile=model.jit_compile and not model.run_eagerly,  # "auto" gives both on a GPU
            auto_scale_loss=False,  # the copied optimizer is already wrapped if the original was
        )


def _takes_its_own(kind: Any) -> bool:
    """Whether a class has a way of its own to compile from a configuration.

    Raises:
        TypeError: if it has none, and its `compile()` has arguments that Keras' has not.
    """
    base = runtime.keras().Model
    if kind.compile_from_config is not base.compile_from_config:
        return True
    known = inspect.signature(base.compile).parameters
    own = inspect.signature(kind.compile).parameters.values()
    others = [each.name for each in own if each.name not in known and each.kind not in REST]
    if others:
        raise TypeError(f"its `compile()` has arguments of its own: {', '.join(others)}")
    return False


def copy_optimizer(optimizer: Optimizer, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Returns a new optimizer with the same settings and the current learning rate.

    Args:
        optimizer: The optimizer.
        pairs: Variables of its model, and those of the new one's model.
    """
    copy = type(optimizer).from_config(optimizer.get_config())
    keras_private.copy_exclusions(
        keras_private.without_scaling(optimizer),
        keras_private.without_scaling(copy),
        ((own, other) for own, other in pairs if own.path == other.path),
    )
    return copy


def copy_recipe(model: Model, copy: Any) -> None:
    """Ties the recipe of the model's training data to the copy, and what is known of its rows."""
    recipe = model_recipes.recipe_of(model)
    if recipe is not None:
        model_recipes.tie_recipe(copy, recipe)
    training_rows.copy_training_rows(model, copy)


def _renew(config: Any) -> Any:
    """Returns new objects of metrics, which hold counts, and of losses that hold a family.

    Names and functions are kept.
    """
    if isinstance(config, dict):
        return {name: _renew(each) for name, each in config.items()}
    if isinstance(config, (list, tuple)):
        return [_renew(each) for each in config]
    if isinstance(config, runtime.keras().metrics.Metric) or is_ours(type(config)):
        return _make_again(config)
    return config


def _make_again(metric: Any) -> Any:
    """Returns a metric of the same settings, or a loss that holds a family.

    Raises:
        ModelError: for a metric of the user's own that Keras cannot make from its configuration.
    """
    function = keras_private.wrapped_function(metric)
    own = {function.__name__: function} if isinstance(function, FunctionType) else {}
    try:
        with keras_private.session_code_scope(), runtime.keras().saving.custom_object_scope(own):
            return type(metric).from_config(metric.get_config())
    except Exception as error:  # the user's own class may raise anything
        why = f"its metric `{metric.name}` cannot be made again: {find_reason(error)}"
        raise ModelError(
            f"`model` cannot be copied, as {why}.",
            hint="Metrics of one's own need `get_config()`, and an argument for each of its names.",
            arg="model",
        ) from error
