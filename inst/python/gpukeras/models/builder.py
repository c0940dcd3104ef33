"""Builds a first Keras model for a dataset, and checks whether any model fits.

A weak table ties the recipe of the training data to the model: the model itself stays an ordinary
Keras model.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.core.options import MlpSpec, refused_value
from gpukeras.data.base import Dataset
from gpukeras.data.preprocessing.compatibility import check_numbers, check_order, same_encoding
from gpukeras.data.preprocessing.multi_input import Part, input_parts
from gpukeras.data.preprocessing.recipe import AS_IS, Recipe
from gpukeras.data.preprocessing.targets import NO_WEIGHTS, LabelRule, outputs_by_name
from gpukeras.models.compatibility import check_fit, read_open_axes, weighed_outputs
from gpukeras.models.compilation import require_known_layers, require_no_strategy
from gpukeras.models.identifiers import check_names, suggest
from gpukeras.models.targets import check_weights
from gpukeras.models.variables import has_call
from gpukeras.system import host

BYTES_A_WEIGHT = 16  # itself, its gradient, and the two moments of Adam
# Modules of Keras 2's classes, in tf_keras and in old versions of keras.
OLD_KERAS = ("tf_keras.", "keras.engine.", "keras.src.engine.", "tensorflow.python.keras.")

_RECIPES: weakref.WeakKeyDictionary[Any, Recipe] = weakref.WeakKeyDictionary()


def build_mlp(data: Dataset, options: Mapping[str, Any]) -> Any:
    """Builds a compiled multilayer perceptron whose input and output fit the dataset.

    For numbers the output is one linear unit per label, with mean squared error. It is rescaled by
    the training labels' mean and standard deviation, so that the model learns standardized labels
    and predicts in the labels' own unit. For two classes or 0/1 it is one sigmoid unit with binary
    cross-entropy, for more classes a softmax. The output is float32 under mixed precision, as Keras
    advises. Each of several inputs has a branch, each of several outputs a head, by their names.

    Args:
        data: A dataset with labels.
        options: Fields of `MlpSpec`.

    Returns:
        A compiled `keras.Sequential`; a functional model for several inputs or outputs.

    Raises:
        SpecError: for a bad option or a name that Keras does not know.
        DataError: if the dataset has no labels.
    """
    spec, recipe = MlpSpec.from_dict(options), data.recipe
    if recipe.label is None:
        raise DataError("`data` has no labels to learn.", hint="Give `y`.", arg="data")
    if recipe.has_texts:
        raise SpecError(
            "gpu_mlp() makes models that take numbers, but `data` has texts.",
            hint="Encode them by gpu_dataset(text = ).",
            arg="data",
        )
    _check_size(recipe, spec)
    keras = runtime.keras()
    try:
        several = input_parts(recipe) or recipe.label.outputs
        model = (_connect if several else _stack)(recipe, recipe.label, spec)
        optimizer = keras.optimizers.get(spec.optimizer)
    except (ValueError, TypeError) as error:
        raise SpecError(f"Keras refused the options: {find_reason(error)}.") from error
    if spec.learning_rate is not None:
        optimizer.learning_rate = spec.learning_rate
    loss, metrics = _choose_losses(recipe.label, recipe.mixes_classes)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    return model


def _check_size(recipe: Recipe, spec: MlpSpec) -> None:
    """Refuses layers that do not fit into memory: the kernel would silently end the process.

    Raises:
        SpecError: naming the memory they need, with gradients and the optimizer's moments.
    """
    widths = [
        math.prod(recipe.shape),
        *spec.units,
        0 if recipe.label is None else recipe.label.units,
    ]
    weights = sum(one * (other + 1) for other, one in pairwise(widths))
    needed, free = BYTES_A_WEIGHT * weights, host.read_free_memory()
    if free is not None and needed > free:
        raise SpecError(
            f"`units` makes {weights:,} weights: training them takes {needed / 2**30:,.0f} GiB, "
            f"and {free / 2**30:,.1f} GiB are free.",
            hint="Use fewer units.",
            arg="units",
        )


def _stack(recipe: Recipe, label: LabelRule, spec: MlpSpec) -> Any:
    """Stacks the layers in a Sequential model."""
    keras = runtime.keras()
    layers = [keras.Input(recipe.shape)]
    layers += [keras.layers.Flatten()] if len(recipe.shape) > 1 else []
    layers += _hidden_layers(spec)
    return keras.Sequential(layers + _output_layers(label, spec.seed, recipe.mixes_classes))


def _connect(recipe: Recipe, label: LabelRule, spec: MlpSpec) -> Any:
    """Connects a branch for each input, the shared hidden layers, and a head for each output.

    A branch is one dense layer with as many units as the first hidden layer, so that an input with
    many numbers does not dominate one with few. A single input has no branch.
    """
    keras, parts = runtime.keras(), input_parts(recipe)
    parts = parts or (Part("features", recipe.shape, slice(None)),)
    inputs = [keras.Input(part.shape, name=part.name) for part in parts]
    flat = [
        tensor if len(part.shape) == 1 else keras.layers.Flatten()(tensor)
        for part, tensor in zip(parts, inputs, strict=True)
    ]
    hidden = flat[0]
    if len(parts) > 1:
        branches = [_branch(spec, place, tensor) for place, tensor in enumerate(flat)]
        hidden = keras.layers.Concatenate()(branches)
    for layer in _hidden_layers(spec):
        hidden = layer(hidden)
    if not label.outputs:
        heads = [_apply(_output_layers(label, spec.seed), hidden)]
    else:
        heads = [
            _apply(_output_layers(output.rule, spec.seed + place, name=output.name), hidden)
            for place, output in enumerate(label.outputs)
        ]
    return keras.Model(
        inputs if len(inputs) > 1 or recipe.groups or recipe.inputs else inputs[0],
        heads if label.outputs else heads[0],
    )


def _branch(spec: MlpSpec, place: int, tensor: Any) -> Any:
    layers, units = runtime.keras().layers, spec.units[0]
    dense = _dense(units, spec.seed + 31, place, spec.penalty)
    return layers.Activation(spec.activation)(dense(tensor))


def _apply(layers: list[Any], tensor: Any) -> Any:
    for layer in layers:
        tensor = layer(tensor)
    return tensor


def _choose_losses(label: LabelRule, mixed: bool) -> tuple[Any, Any]:
    """Returns loss and metrics; for several outputs by their names."""
    if not label.outputs:
        return choose_loss(label, mixed)
    chosen = {output.name: choose_loss(output.rule) for output in label.outputs}
    losses = {name: loss for name, (loss, _) in chosen.items()}
    return losses, {name: metrics for name, (_, metrics) in chosen.items()}


def choose_loss(label: LabelRule, mixed: bool = False) -> tuple[str, list[str]]:
    """Returns loss and metrics for a kind of label; mixed labels have one column per class."""
    if mixed:
        return "categorical_crossentropy", ["accuracy"]
    if label.kind in ("number", "matrix"):
        return "mean_squared_error", ["mean_absolute_error"]
    if label.kind == "binary" or label.units == 2:
        return "binary_crossentropy", ["accuracy"]
    return "sparse_categorical_crossentropy", ["accuracy"]


def _hidden_layers(spec: MlpSpec) -> list[Any]:
    layers, made = runtime.keras().layers, []
    for position, units in enumerate(spec.units):
        made.append(_dense(units, spec.seed, position, spec.penalty))
        made += [layers.BatchNormalization()] if spec.batch_norm else []
        made.append(layers.Activation(spec.activation))
        if spec.dropout:
            made.append(layers.Dropout(spec.dropout, seed=spec.seed + position))
    return made


def _dense(units: int, seed: int, position: int, penalty: float) -> Any:
    keras = runtime.keras()
    punished = {"kernel_regularizer": keras.regularizers.L2(penalty)} if penalty else {}
    return keras.layers.Dense(units, kernel_initializer=_initializer(seed, position), **punished)


def _output_layers(
    label: LabelRule, seed: int, mixed: bool = False, name: str | None = None
) -> list[Any]:
    """Returns the layers of an output; the last one has the output's name if there are several."""
    layers = runtime.keras().layers
    two = label.kind == "binary" or (label.kind == "class" and label.units == 2 and not mixed)
    units = 1 if two else label.units
    activation = {"number": "linear", "matrix": "linear"}.get(
        label.kind, "sigmoid" if two else "softmax"
    )
    last = {"dtype": "float32", **({} if name is None else {"name": name})}
    own = last if label.kind != "number" else {"dtype": "float32"}
    shaped = len(label.row_shape) > 1  # the last layer reshapes its numbers
    own = {"dtype": "float32"} if shaped else own
    dense = layers.Dense(units, activation, kernel_initializer=_initializer(seed, -1), **own)
    if shaped:
        return [dense, layers.Reshape(label.row_shape, **last)]
    if label.kind != "number":
        return [dense]
    return [dense, layers.Rescaling(label.scale, label.center, **last)]


def _initializer(seed: int, position: int) -> Any:
    return runtime.keras().initializers.GlorotUniform(seed=(seed + 1009 * (position + 2)) % 2**31)


# Checks ------------------------------------------------------------------------------------------


def check_model(model: Model, *, compiled: bool = True) -> None:
    """Checks that a value is a Keras model that can be trained.

    Raises:
        SpecError: if it is not a Keras 3 model.
        ModelError: if it is a Keras 2 model, or not compiled.
    """
    refuse_old(model)
    if not tensor_ops.is_keras_model(model):
        hint = "Make one with keras3, with reticulate, or with gpu_mlp()."
        raise refused_value("model", model, "a Keras 3 model", hint)
    if compiled and not model.compiled:
        raise ModelError(
            "`model` is not compiled.",
            hint="Call compile() with an optimizer and a loss first.",
            arg="model",
        )
    if compiled:
        require_no_strategy(model)
        check_names(model)


def refuse_old(model: Model, arg: str = "model") -> None:
    """Refuses a Keras 2 model with a message of its own.

    Raises:
        ModelError: if it is one.
    """
    kinds = [one for one in type(model).__mro__ if one.__name__ == "Model"]
    if any(getattr(one, "__module__", "").startswith(OLD_KERAS) for one in kinds):
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
    try:
        model.compile(optimizer=optimizer or "adam", loss=loss, metrics=metrics)
    except (ValueError, TypeError) as error:
        named = isinstance(optimizer, str) and "identifier" in str(error)
        raise SpecError(
            f"Keras refused to compile the model: {find_reason(error)}.",
            hint=suggest("optimizers", str(optimizer)) if named else "",
        ) from error


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
    data.open_axes = read_open_axes(model)
    if not fits:
        check_numbers(data, arg)
    if data.recipe.kind == AS_IS:
        return
    check_call(model, step)
    if len(data.sources) < 2 and _needs_labels(model, step):
        raise DataError(
            f"`{arg}` has no labels.",
            hint="Give `y`: the loss that `model` was compiled with needs it.",
            arg=arg,
        )
    check_fit(model, data.recipe)
    if len(data.sources) > 2:
        _check_weights(model, data.recipe.label, data.sources[2].shape[1:])


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


# Recipes -----------------------------------------------------------------------------------------


def tie_recipe(model: Model, recipe: Recipe) -> None:
    """Ties the recipe of the training data to a model: the first one, with the first labels.

    Raises:
        DataError: if the model was trained on data with another encoding.
    """
    check_encoding(model, recipe)
    tied = _RECIPES.get(model)
    if recipe.kind != AS_IS and (tied is None or tied.label is None):
        _RECIPES[model] = recipe


def recipe_of(model: Model) -> Recipe | None:
    """Returns the recipe tied to a model, or None for a model that gpukeras did not train."""
    check_model(model, compiled=False)
    return _RECIPES.get(model)


def check_encoding(model: Model, recipe: Recipe) -> None:
    """Checks that data is encoded like the data that trained the model."""
    tied = _RECIPES.get(model)
    if tied is None:
        return
    if not same_encoding(tied, recipe):
        raise DataError(
            "`data` was encoded by its own means and levels, not by those that trained `model`.",
            hint="Pass the data frame or matrix itself, or use gpu_dataset(recipe = ).",
            arg="data",
        )
    check_order(tied, recipe, "data")
