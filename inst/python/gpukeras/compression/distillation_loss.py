"""The loss of distillation: the distance of two models' outputs (Hinton et al. 2015).

For classes it is the Kullback-Leibler divergence of both distributions softened by a temperature T,
times T^2, so that the size of its gradients does not depend on T. Probabilities serve as well as
logits: their logarithms equal the logits up to a constant, which cancels in the softmax. For
numbers it is the student's own loss, with the teacher's outputs as labels.

Keras' `Distiller` is not used: it takes probabilities for logits, ignores sample weights and the
layers' own losses (regularizers), trains a wrapper that holds the teacher's variables among the
student's, and leaves the teacher frozen.

References:
    Hinton, G., Vinyals, O. & Dean, J. (2015). Distilling the knowledge in a neural network.
    arXiv:1503.02531.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.engine.engine_cache import ATTRIBUTE
from gpukeras.models import compatibility
from gpukeras.models.families.keras_classes import is_ours
from gpukeras.models.losses import arrange_weights, sums_rows
from gpukeras.models.tabular.members import repeat_rows
from gpukeras.models.targets import BINARY, CATEGORICAL, SPARSE, keras_name, reads_logits

TINY = 1e-7  # lower bound of probabilities before the logarithm
CLASSES = (CATEGORICAL, SPARSE, "kldivergence", "categoricalfocalcrossentropy")

Distance = Callable[[Any, Any, Any], Any]


def list_losses(model: Model) -> list[Any]:
    """Returns the loss of each output of a compiled model, in order; None if it has no loss."""
    losses, _ = keras_private.given_losses(keras_private.compiled_loss(model))
    names = compatibility.read_outputs(model) or [""]
    if isinstance(losses, Mapping):
        return [losses.get(name) for name in names]
    if isinstance(losses, (list, tuple)):
        return flatten(losses)
    return [losses] * max(1, len(names))


def list_shares(model: Model, count: int) -> list[float]:
    """Returns the weight of each output's loss."""
    _, shares = keras_private.given_losses(keras_private.compiled_loss(model))
    names = compatibility.read_outputs(model) or [""]
    if isinstance(shares, Mapping):
        shares = [shares.get(name) for name in names]
    each = list(shares) if isinstance(shares, (list, tuple)) else [shares] * count
    return [1.0 if share is None else float(share) for share in each]


def open_distance(loss: Any, temperature: float) -> tuple[str, Distance]:
    """Chooses the distance of a student's output from its teacher's.

    Args:
        loss: The output's loss: a name, a function, or a loss object of Keras.
        temperature: T, for classes.

    Returns:
        "classes", "two classes" or "numbers", and a loss of Keras, of the teacher's output and the
        student's: it sums rows up as the output's does, and knows its masks.
    """
    function = runtime.keras().losses.get(loss)
    name, logits = keras_name(function), reads_logits(function)
    reduction = getattr(function, "reduction", "sum_over_batch_size")
    if name in CLASSES:
        return "classes", _as_loss(_soften(_divergence, temperature, logits), reduction)
    if name in BINARY:
        return "two classes", _as_loss(_soften(_two_divergence, temperature, logits), reduction)
    known = isinstance(function, runtime.keras().losses.Loss)
    return "numbers", function if known else _as_loss(function, reduction)


def _as_loss(distance: Callable[[Any, Any], Any], reduction: str) -> Distance:
    """Returns a loss of Keras that compares each row."""

    class OutputDistance(runtime.keras().losses.Loss):  # type: ignore[misc]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return distance(y_true, y_pred)

    loss: Distance = OutputDistance(reduction=reduction)
    return loss


def _soften(
    divergence: Callable[..., Any], temperature: float, logits: bool
) -> Callable[[Any, Any], Any]:
    def distance(taught: Any, own: Any) -> Any:
        ops = runtime.keras().ops
        pair = [ops.cast(each, "float32") for each in (taught, own)]
        if not logits:
            pair = [_undo(divergence, each) for each in pair]
        return divergence(*(value / temperature for value in pair)) * temperature**2

    return distance


def _undo(divergence: Callable[..., Any], probabilities: Any) -> Any:
    """Returns the logits of probabilities."""
    ops = runtime.keras().ops
    bounded = ops.clip(probabilities, TINY, 1.0)
    if divergence is _divergence:
        return ops.log(bounded)
    return ops.log(bounded) - ops.log(ops.clip(1.0 - probabilities, TINY, 1.0))


def _divergence(taught: Any, own: Any) -> Any:
    """Returns the divergence of classes along the last axis, from logits."""
    ops = runtime.keras().ops
    known, said = ops.log_softmax(taught), ops.log_softmax(own)
    return ops.sum(ops.exp(known) * (known - said), axis=-1)


def _two_divergence(taught: Any, own: Any) -> Any:
    """Returns the mean divergence of independent pairs of classes, from the second's logits."""
    ops = runtime.keras().ops
    share = ops.sigmoid(taught)
    yes = share * (ops.log_sigmoid(taught) - ops.log_sigmoid(own))
    no = (1.0 - share) * (ops.log_sigmoid(-taught) - ops.log_sigmoid(-own))
    return ops.mean(yes + no, axis=-1)


# A model that has a teacher ----------------------------------------------------------------------


@contextmanager
def taught_by(student: Model, teacher: Model, temperature: float, alpha: float) -> Iterator[None]:
    """Sets a student's training loss to alpha * its own + (1 - alpha) * the teacher's distance.

    The change holds inside the context. Validation uses the student's own `compute_loss()`. All
    engines trace the new one: the teacher becomes a part of their programs, which are dropped on
    exit.

    Args:
        student: A compiled and built model.
        teacher: A built model with outputs of the same shapes.
        temperature: See `open_distance()`.
        alpha: Weight of the labels' loss in [0, 1].
    """
    losses = list_losses(student)
    distances = [open_distance(loss, temperature)[1] for loss in losses if loss is not None]
    shares = list_shares(student, len(losses))
    pairs = [(place, share) for place, share in enumerate(shares) if losses[place] is not None]
    sums = sums_rows(student.loss)
    own_loss = student.compute_loss
    tells = "training" in inspect.signature(own_loss).parameters

    def compute_loss(
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        told = {"training": training} if tells else {}
        own = own_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **told)
        if not training:
            return own
        ops = runtime.keras().ops
        taught = [ops.stop_gradient(tensor) for tensor in flatten(teacher(x, training=False))]
        arranged = arrange_weights(keras_private.compiled_loss(student), y_pred, sample_weight)
        said, weights = flatten(y_pred), flatten(arranged)
        distance = sum(
            share * each(*_pair(taught[place], said[place], pick_weights(weights, place), sums))
            for (place, share), each in zip(pairs, distances, strict=True)
        )
        return alpha * own + (1.0 - alpha) * ops.cast(distance, own.dtype)

    vars(student).pop(ATTRIBUTE, None)  # earlier programs were traced without the teacher
    try:
        with replaced(student, compute_loss=compute_loss), keras_private.passing_training(student):
            yield
    finally:
        vars(student).pop(ATTRIBUTE, None)


def _pair(taught: Any, said: Any, weights: Any, sums: bool) -> tuple[Any, Any, Any]:
    """Returns what is compared; in training a model of members says what each of them predicts."""
    if len(said.shape) == len(taught.shape):
        return taught, said, weights
    return repeat_rows(taught, said, weights, sums=sums)


def flatten(structure: Any) -> list[Any]:
    """Returns the tensors of several outputs in Keras' order; an empty list for None."""
    return [] if structure is None else list(runtime.keras().tree.flatten(structure))


def pick_weights(weights: list[Any], place: int) -> Any:
    """Returns the sample weights of an output: its own, or those of all outputs."""
    if not weights:
        return None
    return weights[place] if place < len(weights) else weights[0]


def match_outputs(teacher: Model, student: Model, batch: Any) -> None:
    """Checks that both models have outputs of the same shapes.

    Args:
        teacher: The teacher.
        student: The student.
        batch: A batch of features.

    Raises:
        ModelError: naming the shapes, or names in another order; or for the loss of a family,
            whose parameters have no distance that distillation knows.
    """
    if any(is_ours(type(loss)) for loss in list_losses(teacher)):
        raise ModelError(
            "`teacher` has the likelihood of a family as its loss, which takes labels only.",
            hint="Train the smaller model itself, by gpu_mlp(family = ).",
            arg="teacher",
        )
    names = [list(compatibility.read_outputs(model) or ()) for model in (teacher, student)]
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
        raise ModelError(
            f"The outputs of `student` are {', '.join(names[1])}, and those of `teacher` "
            f"{', '.join(names[0])}, in another order.",
            arg="student",
        )
    outlines = [tensor_ops.outline(model, batch) for model in (teacher, student)]
    shapes = [[shape[1:] for shape in each] for each in outlines]
    if shapes[0] != shapes[1]:
        raise ModelError(
            f"`student` gives outputs of shape {_text(shapes[1])}, and `teacher` of shape "
            f"{_text(shapes[0])}.",
            hint="A student needs the outputs of its teacher.",
            arg="student",
        )


def _text(shapes: list[tuple[int | None, ...]]) -> str:
    return ", ".join(" x ".join(map(str, shape)) or "single numbers" for shape in shapes)
