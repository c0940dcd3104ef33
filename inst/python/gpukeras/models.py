"""Keras models: a first one that fits a dataset, and checks that any one does.

The recipe of the data that trained a model is tied to it here, in a weak table: the model itself
stays an ordinary Keras model.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from . import runtime
from .errors import DataError, ModelError, SpecError
from .labels import LabelRule
from .pipeline import Dataset
from .recipes import Recipe, same_encoding
from .specs import MlpSpec, describe

_RECIPES: weakref.WeakKeyDictionary[Any, Recipe] = weakref.WeakKeyDictionary()


def build_mlp(data: Dataset, options: Mapping[str, Any]) -> Any:
    """A compiled multilayer perceptron whose input and output fit the dataset.

    Numbers: one linear unit a label, mean squared error; the output is rescaled by the training
    labels' mean and deviation, so that the model learns standardised labels and predicts in the
    labels' own unit. Two classes or 0/1: one sigmoid unit, binary cross-entropy. More classes:
    softmax. The output is float32 under mixed precision, as Keras advises.

    Args:
        data: A dataset with labels.
        options: Fields of `MlpSpec`.

    Returns:
        A compiled `keras.Sequential`.

    Raises:
        SpecError: for a bad option or a name that Keras does not know.
        DataError: if the dataset has no labels.
    """
    spec, label = MlpSpec.from_dict(options), data.recipe.label
    mixed = data.recipe.mixes_classes
    if label is None:
        raise DataError("`data` has no labels to learn.", hint="Give `y`.", arg="data")
    keras = runtime.keras()
    try:
        layers = [keras.Input(data.recipe.shape)]
        layers += [keras.layers.Flatten()] if len(data.recipe.shape) > 1 else []
        layers += _hidden_layers(spec)
        model = keras.Sequential(layers + _output_layers(label, spec.seed, mixed))
        optimizer = keras.optimizers.get(spec.optimizer)
    except (ValueError, TypeError) as error:
        raise SpecError(f"Keras refused the options: {_first_sentence(error)}") from error
    if spec.learning_rate is not None:
        optimizer.learning_rate = spec.learning_rate
    loss, metrics = choose_loss(label, mixed)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    return model


def choose_loss(label: LabelRule, mixed: bool = False) -> tuple[str, list[str]]:
    """Loss and metrics that fit a kind of label; mixed classes are one column each."""
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
        made.append(layers.Dense(units, kernel_initializer=_initializer(spec.seed, position)))
        made += [layers.BatchNormalization()] if spec.batch_norm else []
        made.append(layers.Activation(spec.activation))
        if spec.dropout:
            made.append(layers.Dropout(spec.dropout, seed=spec.seed + position))
    return made


def _output_layers(label: LabelRule, seed: int, mixed: bool = False) -> list[Any]:
    layers = runtime.keras().layers
    two = label.kind == "binary" or (label.kind == "class" and label.units == 2 and not mixed)
    units = 1 if two else label.units
    activation = {"number": "linear", "matrix": "linear"}.get(
        label.kind, "sigmoid" if two else "softmax"
    )
    dense = layers.Dense(
        units, activation, kernel_initializer=_initializer(seed, -1), dtype="float32"
    )
    if label.kind != "number":
        return [dense]
    return [dense, layers.Rescaling(label.scale, label.center, dtype="float32")]


def _initializer(seed: int, position: int) -> Any:
    return runtime.keras().initializers.GlorotUniform(seed=(seed + 1009 * (position + 2)) % 2**31)


# Checks ------------------------------------------------------------------------------------------


def check_model(model: Any, *, compiled: bool = True) -> None:
    """A Keras model that can be trained.

    Raises:
        SpecError: if it is not a Keras 3 model.
        ModelError: if it is not compiled.
    """
    if not runtime.is_keras_model(model):
        raise SpecError(
            f"`model` must be a Keras 3 model, not {describe(model)}.",
            hint="Make one with keras3, with reticulate, or with gpu_mlp().",
            arg="model",
        )
    if compiled and not model.compiled:
        raise ModelError(
            "`model` is not compiled.",
            hint="Call compile() with an optimizer and a loss first.",
            arg="model",
        )


def check_rows(model: Any, data: Dataset, arg: str = "data") -> None:
    """The model can be trained or evaluated on these rows: they have labels, and both fit."""
    if len(data.sources) < 2:
        raise DataError(f"`{arg}` has no labels.", hint="Give `y`.", arg=arg)
    check_fit(model, data.recipe)


def check_fit(model: Any, recipe: Recipe) -> None:
    """The model's input and output fit the data.

    Raises:
        ModelError: if the input's shape or the output's units do not fit.
        DataError: if labels lie outside what the loss and the output can take.
    """
    check_input(model, recipe)
    units, loss = _output_units(model), _loss_name(model)
    if recipe.mixes_classes and loss != "categoricalcrossentropy":
        raise ModelError(
            "Training mixes classes by `mixup`: each becomes a column, which needs another loss.",
            hint='Compile with "categorical_crossentropy", with an output unit a class.',
            arg="model",
        )
    if units is not None and recipe.label is not None:
        _check_labels(recipe.target, units, loss)


def check_input(model: Any, recipe: Recipe) -> None:
    """The model's input shape fits the rows' shape; unknown shapes are left to Keras."""
    wanted = _shape_of(model, "input_shape")
    if wanted is None:
        return
    same = len(wanted) == len(recipe.shape) and all(
        want in (None, have) for want, have in zip(wanted, recipe.shape, strict=False)
    )
    if not same:
        raise ModelError(
            f"`model` takes rows of shape {wanted}, but the data's rows have {recipe.shape}.",
            hint="Change the input layer's shape or the data's columns.",
            arg="model",
        )


def _check_labels(label: LabelRule, units: int, loss: str) -> None:
    if loss == "sparsecategoricalcrossentropy":
        _check_class_range(label, units)
    elif loss == "categoricalcrossentropy" and label.kind != "matrix":
        raise ModelError(
            f"The loss categorical_crossentropy needs one column a class, but `y` is {label.kind}.",
            hint='Compile with "sparse_categorical_crossentropy".',
            arg="model",
        )
    elif loss == "binarycrossentropy" and not 0 <= _lowest(label) <= _highest(label) <= 1:
        raise _range_error(label, "0 to 1", "binary_crossentropy")
    elif loss and _label_columns(label) != units:
        raise ModelError(
            f"The output layer has {units} units, but `y` has {_label_columns(label)} a row.",
            hint="Change the units, or the loss if `y` holds classes.",
            arg="model",
        )


def _check_class_range(label: LabelRule, units: int) -> None:
    if label.kind == "matrix" or not label.whole:
        raise DataError(
            f"`y` must hold one class a row for sparse_categorical_crossentropy, not {label.kind}.",
            arg="y",
        )
    if not 0 <= _lowest(label) <= _highest(label) < units:
        raise _range_error(label, f"0 to {units - 1}", f"an output of {units} units")


def _range_error(label: LabelRule, wanted: str, why: str) -> DataError:
    low, high = _lowest(label), _highest(label)
    hint = "Check the number of output units."
    if low == 1:
        hint = "Labels that count from 1 as in R: use `y - 1`, or a factor."
    return DataError(
        f"`y` has labels from {low:g} to {high:g}, but {why} needs {wanted}.", hint=hint, arg="y"
    )


def _lowest(label: LabelRule) -> float:
    return label.minimum if label.kind == "number" else 0.0


def _highest(label: LabelRule) -> float:
    return {"number": label.maximum, "class": label.units - 1.0}.get(label.kind, 1.0)


def _label_columns(label: LabelRule) -> int:
    return label.units if label.kind == "matrix" else 1


def _output_units(model: Any) -> int | None:
    shape = _shape_of(model, "output_shape")
    return None if shape is None or len(shape) != 1 else shape[0]


def _shape_of(model: Any, name: str) -> tuple[int | None, ...] | None:
    """A single input's or output's shape without the batch axis; None if there is no such."""
    shape = getattr(model, name, None)  # raises AttributeError inside for unbuilt models
    simple = isinstance(shape, tuple) and all(d is None or isinstance(d, int) for d in shape)
    return tuple(shape[1:]) if simple else None


def _loss_name(model: Any) -> str:
    loss = model.loss
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return str(name or "").lower().replace("_", "")


# Recipes -----------------------------------------------------------------------------------------


def tie_recipe(model: Any, recipe: Recipe) -> None:
    """Remembers how the data that trains a model was encoded.

    Raises:
        DataError: if the model was trained on data encoded otherwise.
    """
    check_encoding(model, recipe)
    _RECIPES.setdefault(model, recipe)


def recipe_of(model: Any) -> Recipe | None:
    """The recipe tied to a model, or None for a model that gpukeras did not train."""
    check_model(model, compiled=False)
    return _RECIPES.get(model)


def check_encoding(model: Any, recipe: Recipe) -> None:
    """Data is encoded as the data that trained the model."""
    tied = _RECIPES.get(model)
    if tied is not None and not same_encoding(tied, recipe):
        raise DataError(
            "`data` was encoded by its own means and levels, not by those that trained `model`.",
            hint="Pass the data frame or matrix itself, or use gpu_dataset(recipe = ).",
            arg="data",
        )


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200]
