"""Layers and the model of TabM: members that share weights, each with its own loss.

Members are the second axis, (rows, members, size). In training the model's output has that axis,
and the loss is the mean over members of each one's own loss; otherwise it is the mean of the
members' predictions, for classes of their probabilities.

References:
    Gorishniy, Y., Kotelnikov, A. & Babenko, A. (2025). TabM: advancing tabular deep learning with
    parameter-efficient ensembling. arXiv:2410.24210; and its package tabm.
    Wen, Y., Tran, D. & Ba, J. (2020). BatchEnsemble. arXiv:2002.06715, equation 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.custom_layers import LayerBody
from gpukeras.models.losses import sums_rows


class BatchEnsemble(LayerBody):
    """A dense layer whose kernel all members share: ((x * r) kernel) * s + bias.

    Args:
        units: Units of each member.
        members: Members; an input without their axis is the same for all.
        scaling: First values of r: "ones", "normal" or "random-signs" (in the first layer, where
            members begin to differ). Those of s are ones.
        chunks: Sizes of the parts of the input, such as embeddings, within which r begins with one
            value; none if each input has its own.
        seed: Seed of the first values: those of kernel and bias are uniform in +-1 / sqrt(inputs),
            the bias the same for all members.
        kwargs: Of `keras.Layer`.
    """

    FIELDS = ("units", "members", "scaling", "chunks", "seed")

    def __init__(
        self,
        units: int,
        members: int,
        scaling: str = "ones",
        chunks: Sequence[int] = (),
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        """Stores the arguments."""
        super().__init__(**kwargs)
        self.units = units
        self.members = members
        self.scaling = scaling
        self.chunks, self.seed = list(chunks), seed

    def build(self, input_shape: tuple[Any, ...]) -> None:
        """Makes kernel (inputs, units), r (members, inputs), s and bias (members, units)."""
        inputs, keras = input_shape[-1], runtime.keras()
        limit = inputs**-0.5
        uniform = keras.initializers.RandomUniform
        self.kernel = self.add_weight(
            shape=(inputs, self.units), initializer=uniform(-limit, limit, self.seed), name="kernel"
        )
        self.r = self.add_weight(shape=(self.members, inputs), initializer=self._scale, name="r")
        each = (self.members, self.units)
        self.s = self.add_weight(shape=each, initializer="ones", name="s")
        first = uniform(-limit, limit, self.seed + 1)
        self.bias = self.add_weight(
            shape=each,
            initializer=lambda shape, dtype: keras.ops.tile(
                first((1, shape[1]), dtype), (shape[0], 1)
            ),
            name="bias",
        )

    def _scale(self, shape: tuple[int, int], dtype: Any) -> Any:
        """Returns the first values of r."""
        keras = runtime.keras()
        if self.scaling == "ones":
            return keras.ops.ones(shape, dtype)
        parts = self.chunks or [1] * shape[1]
        drawn = keras.random.normal((shape[0], len(parts)), dtype=dtype, seed=self.seed + 2)
        if self.scaling == "random-signs":
            drawn = keras.ops.where(drawn < 0, -1.0, 1.0)
        spread = np.repeat(np.arange(len(parts), dtype=np.int32), parts)
        return keras.ops.cast(keras.ops.take(drawn, spread, axis=1), dtype)

    def call(self, inputs: Any) -> Any:
        """Returns (rows, members, units) for (rows, inputs) or (rows, members, inputs)."""
        inputs = inputs[:, None] if len(inputs.shape) == 2 else inputs
        product = runtime.keras().ops.matmul(inputs * self.r, self.kernel)
        return product * self.s + self.bias

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns (rows, members, units)."""
        return (input_shape[0], self.members, self.units)


class MeanOfMembers(LayerBody):
    """Returns the mean of the members' predictions; in training, all of them."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns (rows, ...) for (rows, members, ...); in training the input."""
        return inputs if training else runtime.keras().ops.mean(inputs, axis=1)

    def compute_output_shape(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape without the members."""
        return (input_shape[0], *input_shape[2:])


def repeat_rows(
    labels: Any, predicted: Any, weights: Any = None, *, sums: bool = False
) -> tuple[Any, Any, Any]:
    """Returns the predictions of members, (rows, members, ...), as rows, with what fits them.

    Args:
        labels: The labels, (rows, ...).
        predicted: The predictions.
        weights: The rows' weights, or None.
        sums: Whether the loss sums over rows: then a row counts as much as without members.
    """
    ops = runtime.keras().ops
    members = predicted.shape[1]
    if sums:
        weights = ops.ones(ops.shape(predicted)[:1]) if weights is None else weights
        weights = ops.cast(weights, "float32") / members
    labels, weights = (
        each if each is None else ops.repeat(each, members, axis=0) for each in (labels, weights)
    )
    return labels, ops.reshape(predicted, (-1, *predicted.shape[2:])), weights


class MembersModel:
    """A functional model whose output ends with `MeanOfMembers`; the rest is Keras' own.

    It has the losses that it was compiled with, whichever they are: rows are repeated for each
    member, so that weights of rows hold for each member too.
    """

    PARENT = "Model"
    output_shape: tuple[int | None, ...]
    loss: Any

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Returns the loss of a batch, in training the mean of the members' losses."""
        if self._has_members(y_pred):
            sums = sums_rows(self.loss)
            y, y_pred, sample_weight = repeat_rows(y, y_pred, sample_weight, sums=sums)
        return super().compute_loss(  # type: ignore[misc]
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
        )

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the metrics of a batch: of the members' mean prediction."""
        if self._has_members(y_pred):
            y_pred = runtime.keras().ops.mean(y_pred, axis=1)
        return super().compute_metrics(x, y, y_pred, sample_weight)  # type: ignore[misc]

    def _has_members(self, predicted: Any) -> bool:
        return len(predicted.shape) > len(self.output_shape)


# They need labels as Keras' own do, and keep rows apart, see `tensor_ops.overrides()`.
MembersModel.compute_loss.known = True  # type: ignore[attr-defined]
MembersModel.compute_metrics.known = True  # type: ignore[attr-defined]

CLASSES = (BatchEnsemble, MeanOfMembers, MembersModel)
