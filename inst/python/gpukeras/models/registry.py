"""The Keras classes of gpukeras that a saved model may name."""

from __future__ import annotations

from typing import Any

from gpukeras.models.custom_layers import register
from gpukeras.models.families import keras_classes
from gpukeras.models.tabular import column_layers, members, number_layers


def custom_objects() -> dict[str, Any]:
    """Returns all Keras classes of gpukeras by registered name, and registers them with Keras."""
    layers = (*column_layers.CLASSES, *number_layers.LAYERS, *members.CLASSES)
    return register((*layers, *keras_classes.CLASSES))
