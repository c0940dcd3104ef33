"""Knows which layers, losses and metrics of Keras' give every row a result of its own.

A row's outputs are its own if they are the same whatever the other rows of its batch are. A loss
and metrics are those of the rows if the (weighted) mean over batches is the same however rows are
batched. Only configurations that are listed here are known to be so. What else a model is made of
(functions and classes of the user's, lambdas, operations on tensors, an axis that may be that of
the rows) is unknown, and `batch_dependence` decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.models.families.keras_classes import is_ours
from gpukeras.models.identity import module_of
from gpukeras.models.losses import losses_of

OURS = "gpukeras.models."
MODELS = "keras.src.models."
LAYERS = "keras.src.layers."
KNOWN_LAYERS = tuple(
    LAYERS + name
    for name in (
        "activations.",
        "attention.",
        "convolutional.",
        "core.dense",
        "core.einsum_dense",
        "core.embedding",
        "core.identity",
        "core.input_layer",
        "core.masking",
        "core.reversible_embedding",
        "merging.",
        "normalization.",
        "pooling.",
        "preprocessing.category_encoding",
        "preprocessing.discretization",
        "preprocessing.hashed_crossing",
        "preprocessing.hashing",
        "preprocessing.image_preprocessing.",
        "preprocessing.index_lookup",
        "preprocessing.integer_lookup",
        "preprocessing.mel_spectrogram",
        "preprocessing.normalization",
        "preprocessing.rescaling",
        "preprocessing.stft_spectrogram",
        "preprocessing.string_lookup",
        "regularization.",
        "reshaping.",
        "rnn.",
    )
)
# What the settings of such a layer may call.
CALLED = (
    *(LAYERS, OURS, "keras.src.backend.", "keras.src.dtype_policies.", "keras.src.activations."),
    *("keras.src.initializers.", "keras.src.regularizers.", "keras.src.constraints."),
    *("keras.src.random.", "keras.src.quantizers.", "keras.src.ops.operation"),
)
AXES = ("axis", "axes")
OPERATIONS = ("keras.src.ops.numpy", "keras.src.ops.nn", "keras.src.ops.core")
REDUCTIONS = ("All", "Any")
# Operations on each number, where tensors have as many axes: a vector would meet all rows.
ELEMENTWISE = {
    *("Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Power", "Maximum", "Minimum"),
    *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"),
    *("LogicalAnd", "LogicalOr", "LogicalNot", "Negative", "Absolute", "Abs", "Sign", "Cast"),
    *("Exp", "Expm1", "Log", "Log1p", "Sqrt", "Square", "Sin", "Cos", "Tanh", "Sigmoid"),
    *("Relu", "Elu", "Gelu", "LeakyRelu", "Silu", "Softplus", "Selu"),
}
LOSSES = "keras.src.losses.losses"
# Functions of a row's label and output. Not here: `hinge` and `squared_hinge`, which take 0 for -1
# where all labels of a batch are 0 or 1; `circle`, `dice` and `tversky`, which compare or add rows.
ROW_LOSSES = {
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "categorical_hinge",
    "cosine_similarity",
    "ctc",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "sparse_categorical_crossentropy",
}
ADDITIVE = ("sum_over_batch_size", "mean")  # reductions: the mean over batches is that over rows
METRICS = "keras.src.metrics."
BATCH_METRICS = ("Hinge", "SquaredHinge")
BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")  # Keras chooses one of its own
SCALED = ("L1", "L2", "L1L2")  # penalties that Keras divides by the rows of the batch
STEPS = ("test_step", "compute_loss", "compute_metrics")


# Outputs -----------------------------------------------------------------------------------------


def find_unknown_layer(model: Model) -> str:
    """Returns the part of a model that may mix the rows of a batch, in words; "" if there is none.

    Args:
        model: A built model.
    """
    for layer in keras_private.list_layers(model):
        if not _is_known_layer(layer):
            return f"the layer `{layer.name}`"
    for graph in _list_graphs(model):
        for node in keras_private.list_nodes(graph):
            if not _is_known_call(node):
                return f"`{node.operation.name}`"
    known = str(type(model).__module__).startswith(OURS) or any(_list_graphs(model))
    return "" if known else "the model's call()"


def _is_known_layer(layer: Any) -> bool:
    kind = str(type(layer).__module__)
    if kind.startswith((OURS, MODELS)):
        return True
    attributes = vars(layer)
    return (
        kind.startswith(KNOWN_LAYERS)
        and "call" not in attributes
        and all(
            module_of(value).startswith(CALLED) for value in attributes.values() if callable(value)
        )
        and all(_spares_rows(attributes.get(name)) for name in AXES)
        and _keeps_rows(attributes.get("equation"))
    )


def _is_known_call(node: Any) -> bool:
    """Whether a call leaves rows apart, if its layer does; all tensors have an axis besides."""
    ranks = {_rank(tensor) for tensor in node.outputs}
    if min(ranks, default=0) < 2:
        return False
    operation = node.operation
    if isinstance(operation, runtime.keras().layers.Layer):
        return not node.arguments.kwargs.get("training")
    kind = type(operation)
    if not kind.__module__.startswith(OPERATIONS):
        return False
    if kind.__name__ in REDUCTIONS:  # of masks
        axis = getattr(operation, "axis", None)
        return axis is not None and _spares_rows(axis)
    arguments = runtime.tree().flatten((node.arguments.args, node.arguments.kwargs))
    return kind.__name__ in ELEMENTWISE and {_rank(argument) for argument in arguments} <= {
        0,
        *ranks,
    }


def _rank(value: Any) -> int:
    """Returns the number of axes; 0 of a number, and of what is no tensor."""
    return len(getattr(value, "shape", ()))


def _list_graphs(model: Model) -> Iterator[Any]:
    for layer in keras_private.list_layers(model):
        graph = keras_private.functional_of(layer) or layer
        if keras_private.has_nodes(graph):
            yield graph


def _spares_rows(axis: Any) -> bool:
    """Whether an axis is not that of the rows, whatever the number of axes (2 at least)."""
    if isinstance(axis, (list, tuple)):
        return all(map(_spares_rows, axis))
    return axis is None or (isinstance(axis, int) and (axis >= 1 or axis == -1))


def _keeps_rows(equation: Any) -> bool:
    """Whether an EinsumDense has rows first, and does not sum over them."""
    if equation is None:
        return True
    left, _, right = str(equation).replace(" ", "").partition("->")
    inputs, _, kernel = left.partition(",")
    return inputs[:1] == right[:1] and (inputs[:1] == "." or inputs[:1] not in kernel)


# Losses and metrics ------------------------------------------------------------------------------


def explain_results(model: Model) -> str:
    """Returns why a compiled model's loss or metrics may depend on the batches, or "".

    The model's outputs are taken for rows' own; of a model without a graph, `batch_dependence`
    looks at masks and at losses that layers add.
    """
    for name in STEPS:
        if tensor_ops.overrides(model, name):
            return f"`model` has a {name}() of its own"
    return explain_loss(model) or explain_metrics(model)


def explain_metrics(model: Model) -> str:
    """Returns why a compiled model's metrics may depend on the batches, or ""."""
    metrics = keras_private.given_metrics(keras_private.compiled_metrics(model))
    reasons = (
        f"the metric {_name(metric)} is not known to be one of rows"
        for metric in runtime.tree().flatten(metrics)
        if metric is not None and not _is_known_metric(metric)
    )
    return explain_layer_metrics(model) or next(reasons, "")


def explain_layer_metrics(model: Model) -> str:
    """Returns which layer has metrics that may depend on the batches, or ""."""
    layers = keras_private.list_layers(model)
    own = (layer.name for layer in layers if keras_private.own_metrics(layer))
    return next((f"`{name}` has metrics of its own" for name in own), "")


def explain_loss(model: Model, sums: bool = False) -> str:
    """Returns why a compiled model's loss may be another if its rows are batched otherwise, or "".

    Args:
        model: A compiled model.
        sums: Whether the losses of batches are added where the loss is a sum over rows.
    """
    reductions = (*ADDITIVE, "sum") if sums else ADDITIVE
    losses = (
        f"the loss {_name(loss)}{_tell_reduction(loss)} is not known to be a mean over rows"
        for loss in losses_of(model.loss)
        if not _is_known_loss(loss, reductions)
    )
    layers = map(_explain_penalty, keras_private.list_layers(model))
    return next(filter(None, itertools.chain(losses, layers)), "") or _explain_outputs(model)


def _explain_penalty(layer: Any) -> str:
    """Returns why the penalty of a layer's outputs is none of rows, or "".

    Keras' own are divided by the rows of the batch.
    """
    penalty = getattr(layer, "activity_regularizer", None)
    if penalty is None or _is_scaled(penalty):
        return ""
    return f"the layer `{layer.name}` adds to the loss of a batch"


def _is_scaled(penalty: Any) -> bool:
    kind = type(penalty)
    return kind.__module__ == "keras.src.regularizers.regularizers" and kind.__name__ in SCALED


def _explain_outputs(model: Model) -> str:
    """Returns why a loss of a model's outputs is none of rows, or ""."""
    try:
        outputs = runtime.tree().flatten(model.outputs)
    except REFUSALS:  # no graph
        return ""
    return explain_tensors(outputs)


def explain_tensors(outputs: Any) -> str:
    """Returns why a loss of outputs (symbolic tensors) may depend on the batches, or ""."""
    if any(keras_private.mask_of(output) is not None for output in outputs):
        return "masked steps are left out of the loss, and each batch has its own number of them"
    if any(len(getattr(output, "shape", (0, 0))) < 2 for output in outputs):
        return "an output is a vector, which has no axis besides that of the rows"
    return ""


def _is_known_loss(loss: Any, reductions: tuple[str, ...] = ADDITIVE) -> bool:
    keras = runtime.keras()
    if isinstance(loss, str):
        if loss in BY_SHAPE:
            return True
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras will refuse it
            return False
    if is_ours(type(loss)):
        return bool(loss.additive)
    if isinstance(loss, FunctionType):
        return loss.__module__ == LOSSES and loss.__name__ in ROW_LOSSES
    options = keras_private.loss_options(loss)
    return (
        type(loss).__module__ == LOSSES
        and getattr(loss, "reduction", None) in reductions
        and _is_known_loss(getattr(loss, "fn", None))
        and options.get("ignore_class") is None
        and _spares_rows(options.get("axis"))
    )


def _tell_reduction(loss: Any) -> str:
    reduction = getattr(loss, "reduction", None)
    return "" if reduction in (None, *ADDITIVE) else f' (reduction = "{reduction}")'


def _is_known_metric(metric: Any) -> bool:
    keras = runtime.keras()
    if isinstance(metric, str):
        if metric.lower() in BY_SHAPE:
            return True
        try:
            metric = keras.metrics.get(metric)
        except ValueError:  # Keras will refuse it
            return False
    if isinstance(metric, FunctionType):
        return _is_known_function(metric)
    function = keras_private.wrapped_function(metric)
    options = keras_private.loss_options(metric)
    return (
        isinstance(metric, keras.Metric)
        and str(type(metric).__module__).startswith(METRICS)
        and type(metric).__name__ not in BATCH_METRICS
        and (function is None or _is_known_function(function))
        and _spares_rows(options.get("axis"))
    )


def _is_known_function(function: Any) -> bool:
    module = module_of(function)
    if not isinstance(function, FunctionType):
        return False
    return module.startswith(METRICS) or (module == LOSSES and function.__name__ in ROW_LOSSES)


def _name(part: Any) -> str:
    name = part if isinstance(part, str) else getattr(part, "__name__", None)
    return f"`{name or getattr(part, 'name', None) or type(part).__name__}`"
