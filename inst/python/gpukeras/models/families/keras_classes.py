"""The last layer and the loss of a family, as Keras classes that its safe mode loads.

Their settings are plain data. `custom_layers` makes Keras classes of them, registered as
`gpukeras>FamilyOutput` and `gpukeras>FamilyLoss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.families.base import ORIGIN, flat
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family


class FamilyOutput:
    """The last layer: linear predictors, and an offset if there is one, become parameters.

    It computes in float32 under any policy. Its input is (n, units), or a list of that, an offset
    (n, 1) if there is one, and the number of the stratum (n, 1) if there are strata; its output
    (n, parameters). Of members, (n, members, units), each has its own.
    """

    PARENT = "Layer"

    def __init__(self, family: Mapping[str, Any], **options: Any) -> None:
        """Takes a family as plain data, and the options of a Keras layer."""
        super().__init__(**{**options, "dtype": "float32"})
        self.settle(Family.from_config(family))

    def settle(self, family: Family) -> None:
        """Takes a family, also in the place of another one of the same shapes."""
        self.family, self.settings = family, family.to_config()
        self.origin: Any = None  # where training starts, if a stack says so

    def build(self, input_shape: Any) -> None:
        """Makes the family's own weights, which start at 0."""
        kin = likelihood(self.family)
        kinds = {True: kin.weights(self.family), False: kin.state(self.family)}
        self.own = {
            name: self.add_weight(  # type: ignore[attr-defined]
                shape=shape, initializer="zeros", name=name, trainable=trainable
            )
            for trainable, shapes in kinds.items()
            for name, shape in shapes.items()
        }

    def call(self, inputs: Any) -> Any:
        """Returns the parameters of each row."""
        tensors = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        stratum = {"stratum": tensors.pop()} if self.family.strata else {}
        linear, offset = tensors if len(tensors) > 1 else (tensors[0], None)
        if len(linear.shape) == 3:
            ops, members = runtime.keras().ops, linear.shape[1]
            outputs = self.call(ops.reshape(linear, (-1, linear.shape[2])))
            return ops.reshape(outputs, (-1, members, outputs.shape[-1]))
        own = {**self.own, ORIGIN: self.origin}
        return likelihood(self.family).parameters(self.family, linear, own, offset, **stratum)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer as plain data."""
        return {**super().get_config(), "family": self.settings}  # type: ignore[misc]


class FamilyLoss:
    """The negative log-likelihood of each row; Keras averages it over rows."""

    PARENT = "Loss"

    def __init__(self, family: Mapping[str, Any], **options: Any) -> None:
        """Takes a family as plain data, and the options of a Keras loss."""
        self.settle(Family.from_config(family))
        options.setdefault("name", f"{self.family.name}_likelihood")
        super().__init__(**{**options, "dtype": "float32"})

    def settle(self, family: Family) -> None:
        """Takes a family, also in the place of another one of the same shapes."""
        self.family, self.settings = family, family.to_config()

    @property
    def additive(self) -> bool:
        """Whether each row has a loss of its own."""
        return likelihood(self.family).additive

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the mean loss; weights that enter the risk sets too are passed to `call()`."""
        if not self.additive and sample_weight is not None:
            y_true, sample_weight = (y_true, sample_weight), None
        return super().__call__(y_true, y_pred, sample_weight)  # type: ignore[misc]

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each row, (n,); `y_true` may be the labels and their weights."""
        kin = likelihood(self.family)
        if isinstance(y_true, tuple):
            labels, weights = y_true
            return kin.weighted_loss(self.family, labels, y_pred, flat(weights))
        return kin.loss(self.family, y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the loss as plain data."""
        return {**super().get_config(), "family": self.settings}  # type: ignore[misc]


CLASSES = (FamilyOutput, FamilyLoss)


def output_layer(family: Family, **options: Any) -> Any:
    """Returns the last layer of a family.

    Args:
        family: The family.
        options: Of a Keras layer, such as its name.
    """
    return keras_class(FamilyOutput)(family=family.to_config(), **options)


def compile_arguments(family: Family) -> tuple[Any, list[str]]:
    """Returns the loss and the metrics of a family."""
    loss, metrics = likelihood(family).keras_names(family)
    return loss or keras_class(FamilyLoss)(family=family.to_config()), metrics


def family_of(model: Model) -> Family | None:
    """Returns the family of a model's last layer; None for other models."""
    layer = family_layer(model)
    return None if layer is None else layer.family


def family_layer(model: Model) -> Any:
    """Returns a model's last layer if it is that of a family, else None."""
    layers = keras_private.list_layers(model)
    outputs = [layer for layer in layers if isinstance(layer, FamilyOutput)]
    return outputs[-1] if outputs and len(getattr(model, "outputs", None) or ()) == 1 else None


def is_ours(kind: Any) -> bool:
    """Whether a class is one of a family's."""
    return isinstance(kind, type) and issubclass(kind, CLASSES)
