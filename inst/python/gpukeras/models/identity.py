"""Describes what a model is, so that equal models are found.

A configuration is JSON values that no session changes: layers have numbers for names. A program of
one model serves another that does the same, see `engine.program_cache`; models that are equal but
for numbers are stacked, see `many.structure`; and a checkpoint goes on with its model, see
`checkpoint.fingerprint`.

The user's own code is described besides: a loss that closes over a number has one configuration
whatever the number is, and so has an object of a class without `get_config()`.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np

from gpukeras.backend import devices, keras_private, runtime
from gpukeras.core.keras_types import REFUSALS, Model

KERAS = "keras.src."
OURS = "gpukeras.engine.train_step", "gpukeras.models.losses"  # replace methods for all models
# Their tables and numbers are in no setting and no variable, except those of Rescaling.
REFUSED = "keras.src.layers.preprocessing."
OF_OUTPUTS = KERAS + "trainers.compile_utils"  # losses and metrics, which know the outputs' names
RESCALING = REFUSED + "rescaling"
REPLACED = {"build", "quantize", "loss"}  # by Keras itself; `loss` is the compiled one
UNSET = "_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"
# Classes of what is no object: none, and a link between layers, which the functional API writes.
SETTINGS = None, "__keras_tensor__"
NAMED = ("name", "keras_history", "input_layers", "output_layers")  # settings with layers' names
NO_NAMES: Mapping[str, str] = MappingProxyType({})
NAMES = ("name", "_name", "_path", "_parent_path")  # attributes that no step depends on
# `weighing_rows()` replaces `update_state` of the losses' metrics while a step is traced.
PASSING = (
    *("_auto_config", "_called", "_losses", "_self_update_uid", "_tracked", "update_state"),
    "_exclude_from_weight_decay_cache",
)
MOST_NUMBERS = 1000  # of an attribute that is compared
# Configurations describe objects of these, and functions of them are known by their names.
LIBRARIES = {"keras", "gpukeras", "tensorflow", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
# Where initial weights come from: variables have their values.
BEGINNINGS = tuple(
    f"{name}_initializer" for name in ("kernel", "recurrent", "bias", "embeddings", "beta", "gamma")
)
LEFT_OUT = {*NAMES, *PASSING, *REPLACED, *BEGINNINGS, "_build_shapes_dict"}
BUILT = ("build_config", "build_input_shape")  # settings that the rows of a session decide


def describe_model(model: Model, step: Any) -> str | None:
    """Returns all that a compiled model's steps depend on, or None if that is not known.

    Models of equal descriptions do the same with variables of their own. Names of layers are left
    out where nothing depends on them, and so are seeds and initializers: the variables exist.

    Args:
        model: A compiled model whose variables exist.
        step: What is traced, see `Engines`.
    """
    try:
        parts = list_parts(model)
        if not _is_known(model, parts):
            return None
        state = list_state(model, step)
        # Logs of several outputs have their names.
        alone = len(model.inputs or ()) == len(model.outputs or ()) == 1
        names = _name_layers(model) if alone else {}
        config = _strip_initial(model.get_config())
        compiled = dict(model.get_compile_config() or {})
        compiled["optimizer"] = describe_optimizer(compiled.get("optimizer"))
        known = json.dumps([config, compiled])  # raises for objects that only their class describes
        if not all(map(_is_serialized_class, _walk(json.loads(known)))):
            return None
        described = [
            describe_settings(config, names),
            compiled,
            _describe_variables(model),
            [[str(variable.shape), str(variable.dtype), variable.device] for variable in state],
            _describe_parts(parts, state, names),
            describe_session(model),
        ]
        return json.dumps(described, sort_keys=True)
    except REFUSALS:
        return None


def list_state(model: Model, step: Any) -> list[Any]:
    """Returns TensorFlow's variables that a step may use, each once, in the same order for equals.

    Args:
        model: A compiled model whose variables exist.
        step: What is traced, see `Engines`.
    """
    variables = [*model.variables, *getattr(model.optimizer, "variables", ())]
    variables += [*model.metrics_variables, *getattr(step, "variables", ())]
    return list({id(variable): variable for variable in map(_unwrap, variables)}.values())


def _unwrap(variable: Any) -> Any:
    # TensorFlow's variables have a method of this name, and are the value of Keras' variables.
    return variable if callable(variable.value) else variable.value


# Keras' own code -------------------------------------------------------------------------------


def list_parts(model: Model) -> list[Any]:
    """Returns the objects that run in a model's steps besides itself."""
    inner = keras_private.without_scaling(model.optimizer)
    layers = keras_private.list_layers(model, include_self=False)
    losses = keras_private.compiled_loss(model)
    parts = [
        *layers,
        *(
            operation
            for layer in (model, *layers)
            for operation in keras_private.list_operations(layer)
        ),
        *(model.optimizer, inner),
        *model.metrics,
        *getattr(keras_private.compiled_metrics(model), "metrics", ()),
        *(losses, *keras_private.list_losses(losses)),
    ]
    return list({id(part): part for part in parts}.values())


def _is_known(model: Model, parts: Sequence[Any]) -> bool:
    """Whether a model consists of Keras' own code, on one device."""
    inner = keras_private.without_scaling(model.optimizer)
    rate = keras_private.learning_rate(inner)
    return (
        bool(keras_private.list_losses(keras_private.compiled_loss(model)))
        and _keeps_methods(model)
        and all(_keeps_methods(part) and _calls_keras(part) for part in parts)
        and (hasattr(rate, "value") or _keeps_methods(rate))
        and not keras_private.inner_optimizers(inner)
        and not any(vars(inner).get(name) for name in UNSET)
        and keras_private.strategy_of(model) is None
        and not runtime.tensorflow().distribute.has_strategy()
    )


def _keeps_methods(part: Any) -> bool:
    """Whether an object is of a class of Keras' own, and has its methods, or gpukeras' for all."""
    kind = type(part)
    own = {name: value for name, value in vars(part).items() if name not in REPLACED}
    replaced = [value for name, value in own.items() if callable(getattr(kind, name, None))]
    return (
        kind.__module__.startswith(KERAS)
        and (not kind.__module__.startswith(REFUSED) or kind.__module__ == RESCALING)
        and all(module_of(value) in OURS for value in replaced)
    )


def _calls_keras(part: Any) -> bool:
    """Whether all functions and objects that an object may call are Keras' own, or gpukeras'."""
    modules = [module_of(value) for value in vars(part).values() if callable(value)]
    return all(module in OURS or module.startswith(KERAS) for module in modules)


def module_of(value: Any) -> str:
    """Returns the module of a function, or of an object's class."""
    return str((value if isinstance(value, FunctionType) else type(value)).__module__)


def _is_serialized_class(config: Mapping[str, Any]) -> bool:
    """Whether a serialized object is of a class of Keras'; a dict without a class is a setting."""
    if config.get("class_name") in SETTINGS:
        return True
    module, name = str(config.get("module")).split(".")[0], config["class_name"]
    return module in ("keras", "builtins") and name not in ("function", "__lambda__")


# Descriptions ----------------------------------------------------------------------------------


def _describe_variables(model: Model) -> list[Any]:
    """Describes a model's variables, and their places in its optimizer."""
    serialize = runtime.keras().saving.serialize_keras_object
    inner = keras_private.without_scaling(model.optimizer)
    described = [
        [bool(variable.trainable), serialize(variable.constraint), serialize(variable.regularizer)]
        for variable in model.variables
    ]
    return [
        described,
        [keras_private.find_slot(inner, variable) for variable in model.trainable_variables],
    ]


def describe_setting(value: Any) -> str:
    """Returns what tells a variable's constraint, or regularizer, from others."""
    try:
        config = runtime.keras().saving.serialize_keras_object(value)
    except REFUSALS:
        config = None
    known = config is not None and not isinstance(value, FunctionType)
    return json.dumps(config, sort_keys=True) if known else f"object {id(value)}"


def _describe_parts(
    parts: Sequence[Any], state: Sequence[Any], layers: Mapping[str, str]
) -> list[Any]:
    """Describes attributes, also those that are no settings; variables by their places."""
    places = {id(variable): f"variable {place}" for place, variable in enumerate(state)}
    left_out = {*NAMES, *PASSING}
    described = []
    for part in parts:
        kind = type(part)
        attributes = [
            [name, _describe(value, places)]
            for name, value in sorted(vars(part).items())
            if name not in left_out and not is_initial(name)
        ]
        names = layers if kind.__module__ == OF_OUTPUTS else NO_NAMES
        described.append([kind.__name__, *describe_settings(attributes, names, "name")])
    return described


def _describe(value: Any, places: Mapping[int, str]) -> Any:
    """Describes an attribute as JSON; objects by their class, as they are parts or settings.

    Raises:
        ValueError: for a large array: its numbers may be part of the program.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_describe(each, places) for each in value]
    if hasattr(value, "value") and hasattr(value, "assign"):
        return places.get(id(_unwrap(value)), "unknown variable")
    if isinstance(value, np.ndarray) or runtime.tensorflow().is_tensor(value):
        if np.size(value) > MOST_NUMBERS:
            raise ValueError("an array")
        return np.asarray(value).tolist()
    return type(value).__name__


def describe_session(model: Model) -> list[Any]:
    """Describes what Keras and the session decide for all models."""
    config = runtime.keras().config
    session = [config.floatx(), config.epsilon(), config.image_data_format(), devices.current()]
    frozen = [bool(layer.trainable) for layer in keras_private.list_layers(model)]
    return [str(session), type(model).__name__, model.jit_compile, model.run_eagerly, frozen]


# Settings and names ----------------------------------------------------------------------------


def is_initial(setting: Any) -> bool:
    """Whether a setting decides about first weights or the state of random generators alone.

    Args:
        setting: Its name in a configuration, or that of an attribute.
    """
    return setting == "seed" or str(setting).endswith("_initializer")


def _strip_initial(value: Any, settings: bool = False) -> Any:
    """Leaves such settings out of all objects' configurations; an input may have any name."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not (settings and is_initial(key))}
        return {key: _strip_initial(each, key == "config") for key, each in kept.items()}
    return [_strip_initial(each) for each in value] if isinstance(value, (list, tuple)) else value


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yields all dicts within nested dicts and lists."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _walk(each)


def read_config(model: Model) -> dict[str, Any]:
    """Returns the configuration of a model and of its compilation, see `describe_settings()`.

    Raises:
        One of `REFUSALS`: if it has none.
    """
    with warnings.catch_warnings():  # of lambdas, whose code is described as the user's own
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")
        return {
            "model": describe_settings(model.get_config(), _name_layers(model)),
            "compiled": describe_settings(model.get_compile_config() or {}),
        }


def describe_settings(value: Any, names: Mapping[str, str] = NO_NAMES, key: str = "") -> Any:
    """Returns a configuration as JSON values that are the same in every session.

    Objects that are no settings are told apart by their class alone. Shapes that a model was built
    with, and the code of functions, are left out.

    Args:
        value: The configuration, or a part of it.
        names: What stands for the names of layers.
        key: The name of the part.
    """
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return "a function"
        kept = {str(name): each for name, each in value.items() if name not in BUILT}
        return {name: describe_settings(each, names, name) for name, each in kept.items()}
    if hasattr(value, "tolist"):  # NumPy's
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [describe_settings(each, names, key) for each in value]
    if isinstance(value, str):
        return names.get(value, value) if key in NAMED else value
    return value if value is None or isinstance(value, (int, float)) else type(value).__name__


def describe_optimizer(config: Any) -> Any:
    """Returns an optimizer's configuration without its name, and a rate that is a variable."""
    if isinstance(config, (list, tuple)):
        return [describe_optimizer(each) for each in config]
    if not isinstance(config, Mapping):
        return config
    return {
        name: describe_optimizer(each)
        for name, each in config.items()
        if name != "name" and not (name == "learning_rate" and isinstance(each, float))
    }


def _name_layers(model: Model) -> dict[str, str]:
    """Returns what stands for the names of layers, and of operations between them."""
    layers = keras_private.list_layers(model)
    operations = [
        operation for layer in layers for operation in keras_private.list_operations(layer)
    ]
    names = {operation.name: f"operation {place}" for place, operation in enumerate(operations)}
    return {**names, **{layer.name: f"layer {place}" for place, layer in enumerate(layers)}}


# The user's own code ------------------------------------------------------------------------------


def describe_own_code(model: Model) -> list[Any]:
    """Describes the user's functions and objects in a model; [] if all of it is Keras' own.

    Functions are told apart by their code and by the values that they were made with, objects by
    their attributes. What cannot be described is told apart by its identity.

    Args:
        model: A compiled and built model; it must live as long as the description is used.
    """
    parts = list_parts(model)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    places = {id(part): f"part {place}" for place, part in enumerate(parts)}
    places |= {id(variable): f"variable {place}" for place, variable in enumerate(variables)}
    described = [_describe_part(part, places) for part in parts]
    return [[place, description] for place, description in enumerate(described) if description]


def _describe_part(part: Any, places: Mapping[int, str]) -> list[Any]:
    if not _is_library(part):
        return _describe_object(part, places, LEFT_OUT | _keras_attributes())
    return [
        [name, _describe_own(value, places)]
        for name, value in sorted(vars(part).items())
        if name not in LEFT_OUT and _is_own(value)
    ]


def _is_own(value: Any) -> bool:
    """Whether a value is the user's: an object of another class, or a function."""
    if not _is_library(value):
        return True
    named = isinstance(value, FunctionType) or _library_of(value) in ("keras", "gpukeras")
    return callable(value) and not named  # such as a partial function


def _describe_object(
    value: Any, places: Mapping[int, str], left_out: set[str] | frozenset[str] = frozenset()
) -> list[Any]:
    attributes = {
        name: attribute for name, attribute in vars(value).items() if name not in left_out
    }
    return [id(type(value)), _describe_own(attributes, {**places, id(value): "itself"})]


def _describe_own(value: Any, places: Mapping[int, str]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if id(value) in places:
        return places[id(value)]
    if isinstance(value, (list, tuple)):
        return [_describe_own(each, places) for each in value]
    if isinstance(value, Mapping):
        return [
            [str(key), _describe_own(each, places)] for key, each in sorted(value.items(), key=str)
        ]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        made_with = [*cells, *(value.__defaults__ or ()), value.__kwdefaults__]
        return [id(value.__code__), _describe_own(made_with, {**places, id(value): "itself"})]
    if _is_library(value) or not hasattr(value, "__dict__"):
        return id(value)
    return _describe_object(value, places)


def _is_library(value: Any) -> bool:
    return _library_of(value) in LIBRARIES


def _library_of(value: Any) -> str:
    """Returns the name of the package that an object's class, or a function, comes from."""
    home = value if isinstance(value, FunctionType) else type(value)
    return str(home.__module__).split(".")[0]


@functools.cache
def _keras_attributes() -> frozenset[str]:
    """Returns the names of attributes that Keras gives to objects of its classes and theirs."""
    keras = runtime.keras()
    bare = (
        keras.layers.Layer(),
        keras.losses.Loss(),
        keras.metrics.Metric(),
        keras.optimizers.Optimizer(0.1),
    )
    return frozenset(name for part in bare for name in vars(part))
