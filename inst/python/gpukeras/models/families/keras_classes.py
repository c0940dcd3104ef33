"""The last layer and the loss of a family, as Keras classes that its safe mode loads.

The classes are made when they are first asked for, because Keras is imported late. Their settings
are plain data, and they are registered as `gpukeras>FamilyOutput` and `gpukeras>FamilyLoss`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model
from gpukeras.models.custom_layers import PACKAGE
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family


class _Output:
    """The last layer: linear predictors, and an offset if there is one, become parameters.

    It computes in float32 under any policy. Its input is (n, units), or a list of that and an
    offset (n, 1); its output (n, parameters).
    """

    def __init__(self, family: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**{**options, "dtype": "float32"})
        self.family = Family.from_config(family)
        self.settings = dict(family)

    def build(self, input_shape: Any) -> None:
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
        several = isinstance(inputs, (list, tuple))
        linear, offset = inputs if several else (inputs, None)
        return likelihood(self.family).parameters(self.family, linear, self.own, offset)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "family": self.settings}  # type: ignore[misc]


class _Loss:
    """The negative log-likelihood of each row; Keras averages it over rows."""

    def __init__(self, family: Mapping[str, Any], **options: Any) -> None:
        self.family, self.settings = Family.from_config(family), dict(family)
        options.setdefault("name", f"{self.family.name}_likelihood")
        super().__init__(**{**options, "dtype": "float32"})

    @property
    def additive(self) -> bool:
        return likelihood(self.family).additive

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return likelihood(self.family).loss(self.family, y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "family": self.settings}  # type: ignore[misc]


@functools.cache
def classes() -> tuple[Any, Any]:
    """Returns the layer's and the loss's class, and registers both with Keras on the first call."""
    keras = runtime.keras()
    register = keras.saving.register_keras_serializable(PACKAGE)
    own = {"__module__": __name__}
    layer = type("FamilyOutput", (_Output, keras.layers.Layer), {**own, "__doc__": _Output.__doc__})
    loss = type("FamilyLoss", (_Loss, keras.Loss), {**own, "__doc__": _Loss.__doc__})
    return register(layer), register(loss)


def output_layer(family: Family, **options: Any) -> Any:
    """Returns the last layer of a family.

    Args:
        family: The family.
        options: Of a Keras layer, such as its name.
    """
    return classes()[0](family=family.to_config(), **options)


def compile_arguments(family: Family) -> tuple[Any, list[str]]:
    """Returns the loss and the metrics of a family."""
    loss, metrics = likelihood(family).keras_names(family)
    return loss or classes()[1](family=family.to_config()), metrics


def family_of(model: Model) -> Family | None:
    """Returns the family of a model's last layer; None for other models."""
    layer = family_layer(model)
    return None if layer is None else layer.family


def family_layer(model: Model) -> Any:
    """Returns a model's last layer if it is that of a family, else None."""
    layers = keras_private.list_layers(model)
    found = [layer for layer in layers if isinstance(layer, _Output)]
    return found[-1] if found and len(getattr(model, "outputs", None) or ()) == 1 else None


def is_ours(kind: Any) -> bool:
    """Whether a class is one of a family's."""
    return isinstance(kind, type) and issubclass(kind, (_Output, _Loss))
