"""Checks whether a Keras model fits a dataset: inputs, outputs, shapes, and losses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpukeras.backend import runtime
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.data.recipe.recipe import BatchesEncoding, Part, Recipe
from gpukeras.data.recipe.targets import LabelRule, Output, name_label
from gpukeras.models.families.labels import check_label
from gpukeras.models.families.spec import Family
from gpukeras.models.targets import CATEGORICAL, SPARSE, Shape, check_target, loss_name

Named = TypeVar("Named", Part, Output)


def check_fit(model: Model, recipe: Recipe) -> None:
    """Checks that the model's inputs and outputs fit the data.

    Raises:
        ModelError: if an input's shape or an output's units do not fit, or they have other names.
        DataError: if labels lie outside what the loss and the output can take.
    """
    check_input(model, recipe)
    label = recipe.target
    if label is not None and label.outputs:
        _check_outputs(model, label, recipe.formula)
        return
    loss = loss_name(model.loss)
    if (recipe.mixes_classes and loss != CATEGORICAL) or (recipe.mixed and loss == SPARSE):
        raise ModelError(
            "Training mixes classes by `mixup`: each becomes a column, which needs another loss.",
            hint='Compile with "categorical_crossentropy", with an output unit a class.',
            arg="model",
        )
    shape = _shape_of(model, "output_shape")
    if label is None:
        return
    _check_single_output(model)
    family = getattr(model.loss, "family", None)
    if isinstance(family, Family):
        check_label(family, label, name_label(recipe.formula))
    if shape is not None:
        check_target(label, shape, loss, name_label(recipe.formula))


def weighed_outputs(model: Model) -> dict[str, tuple[Shape, str]]:
    """Returns the shape of a row of each output that has a loss, and the loss's name, by name."""
    outputs = read_outputs(model) or {"": _shape_of(model, "output_shape")}
    losses = losses_by_name(model, list(outputs))
    return {
        name: (shape, loss_name(losses[name]))
        for name, shape in outputs.items()
        if shape is not None and losses[name] is not None
    }


# Inputs ------------------------------------------------------------------------------------------


def check_input(model: Model, recipe: Recipe) -> None:
    """Checks that a model's inputs fit the rows, by name and shape; Keras checks unknown shapes.

    Raises:
        ModelError: if not.
    """
    if isinstance(recipe.features, BatchesEncoding):
        return
    _check_texts(model, recipe)
    parts, inputs = recipe.parts, read_inputs(model)
    if parts:
        known = () if inputs is None or isinstance(model.input, dict) else inputs
        _check_inputs(model, _by_place(known, parts) if recipe.features.listed else parts, inputs)
        return
    if inputs is not None and len(inputs) > 1:
        raise ModelError(
            f"`model` takes the inputs {', '.join(inputs)}, but the data has a single one.",
            hint="Give `x` as a named list, or group columns by gpu_dataset(inputs = ).",
            arg="model",
        )
    expected = _shape_of(model, "input_shape")
    if expected is not None and not _fits(expected, recipe.shape):
        raise ModelError(
            f"`model` takes rows of shape {expected}, but the data's rows have {recipe.shape}.",
            hint="Change the input layer's shape or the data's columns.",
            arg="model",
        )


def _check_texts(model: Model, recipe: Recipe) -> None:
    """Checks that inputs that take text get it, and no others do."""
    features = recipe.features
    own = {part.name: part.encoding.has_texts for part in features.inputs}
    for name, tensor in read_tensors(model).items():
        wants, gets = tensor.dtype == "string", own.get(name, features.has_texts and not own)
        if wants == gets:
            continue
        hint = "Put a layer such as TextVectorization into it, or use gpu_dataset(text = )."
        if wants:
            hint = 'Give a character matrix, or gpu_dataset(encode = "none") of a data frame.'
        raise ModelError(
            f"The input `{name}` of `model` takes {'text' if wants else 'numbers'}, "
            f"but the data has {'text' if gets else 'numbers'}.",
            hint=hint,
            arg="model",
            input=name,
        )


def _check_inputs(
    model: Model, parts: Sequence[Part], inputs: Mapping[str, Shape | None] | None
) -> None:
    if inputs is None:
        _refuse_sequential(model, "inputs")
        return
    _check_names("inputs", list(inputs), [part.name for part in parts])
    for part in parts:
        expected = inputs[part.name]
        if expected is not None and not _fits(expected, part.shape):
            raise ModelError(
                f"The input `{part.name}` of `model` takes rows of shape {expected}, "
                f"but those of the data have {part.shape}.",
                hint="Change the input layer's shape or the data's columns.",
                arg="model",
                input=part.name,
            )


def _by_place(known: Collection[str], parts: Sequence[Named]) -> Sequence[Named]:
    """Names inputs or outputs without names after those of the model, in its order."""
    if len(known) != len(parts):
        return parts
    return [replace(part, name=name) for part, name in zip(parts, known, strict=True)]


def read_variable_axes(model: Model) -> frozenset[int]:
    """Returns the axes of a row along which a model of one input takes any length."""
    expected = _shape_of(model, "input_shape") or ()
    return frozenset(axis for axis, length in enumerate(expected) if length is None)


def open_shape(model: Model, recipe: Recipe, shape: tuple[int, ...] | None) -> Recipe:
    """Returns the recipe for rows of another length along axes that the model leaves open.

    Args:
        model: The model.
        recipe: The recipe of its training data.
        shape: Shape of a row, or None if unknown.
    """
    if shape is None:
        return recipe
    have = zip(shape, recipe.shape, strict=False)
    odd = {axis for axis, (length, learned) in enumerate(have) if length != learned}
    fits = len(shape) == len(recipe.shape) and odd <= read_variable_axes(model)
    return recipe.with_row_shape(shape) if fits else recipe


def _fits(expected: Shape, have: Shape) -> bool:
    """Whether rows fit an input: Keras adds or removes a last axis of 1."""
    longer, shorter = sorted((expected, have), key=len, reverse=True)
    if len(longer) == len(shorter) + 1 and longer[-1] == 1:
        expected, have = expected[: len(shorter)], have[: len(shorter)]
    return len(expected) == len(have) and all(
        want in (None, size) for want, size in zip(expected, have, strict=True)
    )


def _check_names(what: str, expected: list[str], have: list[str]) -> None:
    if set(expected) != set(have) or len(expected) != len(have):
        raise ModelError(
            f"`model` has the {what} {', '.join(expected)}, but the data has {', '.join(have)}.",
            hint="Give the model's layers and the data's elements the same names.",
            arg="model",
        )


def _refuse_sequential(model: Model, what: str) -> None:
    if isinstance(model, runtime.keras().Sequential):
        raise ModelError(
            f"`model` is sequential: it has one input and one output, the data has several {what}.",
            hint="Use a functional model, or gpu_mlp().",
            arg="model",
        )


def read_inputs(model: Model) -> dict[str, Shape | None] | None:
    """Returns the row shape of each input of a functional model, by name; None for other models."""
    if not hasattr(model, "output_names"):
        return None
    return {name: _row(tensor) for name, tensor in read_tensors(model).items()}


def takes_text(model: Model) -> bool:
    """Whether one of a model's inputs takes text."""
    return any(tensor.dtype == "string" for tensor in read_tensors(model).values())


def read_tensors(model: Model) -> dict[str, Any]:
    """Returns a model's input tensors by name; {} for an unbuilt or subclassed model."""
    if not getattr(model, "inputs", None):
        return {}
    name_inputs(model)
    struct = getattr(model, "input", model.inputs)  # a sequential model that never ran has none
    if isinstance(struct, dict):
        return {str(name): struct[name] for name in struct}
    tensors = struct if isinstance(struct, (list, tuple)) else [struct]
    return {getattr(tensor, "name", ""): tensor for tensor in tensors}


def name_inputs(model: Model) -> None:
    """Gives the tensors of inputs the names of their layers, which `summary()` shows.

    Keras calls the tensor of `Input(shape)` "keras_tensor_7" and its layer "input_layer_2"; rows by
    name must have the one name for its check and the other for its call. Where the user gave a
    name, and in a model that was saved and loaded, both are equal.
    """
    for tensor in model.inputs:
        layer = getattr(getattr(tensor, "_keras_history", None), "operation", None)
        if isinstance(layer, runtime.keras().layers.InputLayer):
            tensor.name = layer.name


def read_parts(model: Model) -> dict[str, list[str]]:
    """Returns the names of a functional model's inputs and outputs, in its order; none for others.

    The inputs of a dict are in the order in which Keras flattens them.
    """
    inputs = read_inputs(model) or {}
    ordered = sorted(inputs) if isinstance(getattr(model, "input", None), dict) else list(inputs)
    return {"inputs": ordered, "outputs": list(read_outputs(model) or ())}


def read_outputs(model: Model) -> dict[str, Shape | None] | None:
    """Returns the row shape of each output of a functional model, by name; None for other models.

    They are in the order in which Keras flattens them, which is also the order of a list of losses.
    If one layer makes several outputs, they have no names of their own, and the result is None.
    """
    if not hasattr(model, "output_names"):
        return None
    struct = model.output
    if isinstance(struct, dict):
        return {str(name): _row(struct[name]) for name in sorted(struct)}
    tensors = struct if isinstance(struct, (list, tuple)) else [struct]
    shapes = dict(zip(model.output_names, map(_row, tensors), strict=False))
    return shapes if len(shapes) == len(tensors) else None


def _row(tensor: Any) -> Shape | None:
    shape = getattr(tensor, "shape", None)
    return None if shape is None else tuple(shape[1:])


def _shape_of(model: Model, name: str) -> Shape | None:
    """Returns a single input's or output's shape without the batch axis; None if there is none."""
    shape = getattr(model, name, None)  # raises AttributeError inside for unbuilt models
    if not isinstance(shape, tuple) or not all(d is None or isinstance(d, int) for d in shape):
        return None
    return tuple(shape[1:])


# Outputs -----------------------------------------------------------------------------------------


def _check_outputs(model: Model, label: LabelRule, formula: str) -> None:
    outputs = read_outputs(model)
    if outputs is None:
        _refuse_sequential(model, "outputs")
        return
    known = () if isinstance(model.output, dict) else outputs
    parts = _by_place(known, label.outputs) if label.listed else label.outputs
    labelled = [output.name for output in parts]
    losses = losses_by_name(model, list(outputs))
    needed = [name for name in outputs if name in labelled or losses[name] is not None]
    _check_names("outputs", needed, labelled)
    for output in parts:
        shape = outputs[output.name]
        if shape is not None:
            check_target(
                output.rule,
                shape,
                loss_name(losses[output.name]),
                name_label(formula, output.name),
                f"The output `{output.name}`",
            )


def _check_single_output(model: Model) -> None:
    outputs = read_outputs(model)
    if outputs is None or len(outputs) < 2:
        return
    if len(trained_outputs(model, list(outputs))) > 1:
        raise ModelError(
            f"`model` has the outputs {', '.join(outputs)}, but `y` holds labels of a single one.",
            hint="Give `y` as a named list, one element for each output.",
            arg="model",
        )


def trained_outputs(model: Model, names: list[str]) -> list[str]:
    """Returns the outputs that have a loss; those of a model that is not compiled have none."""
    return [name for name, loss in losses_by_name(model, names).items() if loss is not None]


def losses_by_name(model: Model, names: list[str]) -> dict[str, Any]:
    """Returns the loss of each output, None if it has none; a single loss applies to all."""
    loss = model.loss
    if isinstance(loss, Mapping) and len(names) == len(loss) == 1:
        return dict(zip(names, loss.values(), strict=True))  # the single output may have no name
    if isinstance(loss, Mapping):
        return {name: loss.get(name) for name in names}
    if isinstance(loss, (list, tuple)) and len(loss) == len(names):
        return dict(zip(names, loss, strict=True))
    return dict.fromkeys(names, loss)
