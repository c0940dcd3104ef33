"""Fills in the baseline hazard of a model of Cox when its training has ended."""

from __future__ import annotations

import numpy as np

from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.recipe.multi_output import gather_weights
from gpukeras.engine.predict import predict_rows
from gpukeras.models.families.keras_classes import family_layer
from gpukeras.models.families.survival import baseline_hazard
from gpukeras.training.keras_functions import jit_policy


def fill_baseline(model: Model, data: Dataset) -> None:
    """Estimates the baseline hazard from the training rows, and stores it in the model's weights.

    Other models are left alone. Rows in sequence are not read again: their model has none.

    Args:
        model: A trained model.
        data: The dataset that it was trained on.
    """
    layer = family_layer(model)
    if layer is None or layer.family.name != "cox" or not isinstance(data, MapDataset):
        return
    with jit_policy(model):
        output = np.asarray(predict_rows(model, data.sources[0], data.recipe, data.map))
    rows = data.train_rows
    labels = np.asarray(data.sources[1].gather(slice(None)), np.float64)
    weights = gather_weights(data, slice(None))
    times, hazard = baseline_hazard(layer.family, labels[rows], output[rows], weights[rows])
    layer.own["times"].assign(times.astype(np.float32))
    layer.own["hazard"].assign(hazard.astype(np.float32))
