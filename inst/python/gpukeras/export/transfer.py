"""Transfers Keras models and the feeding options of datasets between R processes by files.

    save_model(model, path) --> path (`.keras`) + record --> load_model(path, recipe)

The files are those of `archive`, so pruning masks are restored too. The recipe of the training data
is also written beside the file, as text, so that it can be read without loading the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import refused_value
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.export import recipe_json
from gpukeras.export.archive import collect_extras, describe_model, read_model
from gpukeras.export.keras_file import (
    check_ending,
    lacking,
    needs_of,
    write_model,
    written_beside,
)
from gpukeras.export.safe_load import check_code
from gpukeras.models import model_checks, model_recipes
from gpukeras.training.history_registry import keep_stored


def save_model(
    model: Model, path: str, arg: str = "model", loadable: bool = True
) -> dict[str, Any]:
    """Writes a model with its optimizer's state into a `.keras` file, completely or not at all.

    Args:
        model: A Keras 3 model.
        path: Path of the file, which is replaced if it exists; it ends with ".keras".
        arg: The user's name for the model, for messages.
        loadable: Whether to refuse a model that `load_model()` would refuse for its code. False if
            the refusal would lose the model.

    Returns:
        `{kind, name, parameters, bytes, recipe}`: class and name of the model, number of its
        weights, size of the file, and what `recipe_json.carry_recipe()` returns, or None.

    Raises:
        SpecError: if it is not a Keras model, or for another suffix.
        ModelError: if Keras cannot save it, or for a Lambda layer or another Python lambda.
        DataError: if the file cannot be written.
    """
    model_checks.refuse_old(model, arg)
    if not tensor_ops.is_keras_model(model):
        hint = "Of Python objects only Keras 3 models and gpu_datasets cross: make it R's."
        raise refused_value(arg, model, "a Keras 3 model", hint)
    target = check_ending(path)
    with written_beside(target, arg) as partial:
        write_model(model, partial, arg, collect_extras(model))
        if loadable:
            check_code(partial, arg)
        os.replace(partial, target)
    known = model_recipes.recipe_of(model) is not None
    return {
        **describe_model(model),
        "bytes": float(target.stat().st_size),
        "recipe": recipe_json.carry_recipe(model) if known else None,
    }


def marshal_model(model: Model, path: str, arg: str = "x") -> dict[str, Any]:
    """Writes a model into a `.keras` file whose bytes R keeps as a value.

    Args:
        model: A Keras 3 model.
        path: Path of the file; it ends with ".keras".
        arg: The user's name for the model, for messages.

    Returns:
        The record of `save_model()`, with `needs` (what loading needs, see `custom_objects.Needs`)
        and `keras`, the version of Keras that wrote the file.

    Raises:
        SpecError, ModelError, DataError: as `save_model()`. A Python lambda is not refused here but
            when the file is loaded, as by `archive.save_archive()`.
    """
    record = save_model(model, path, arg, loadable=False)
    check_code(Path(path), arg, lambdas=False)
    return {**record, "needs": needs_of(Path(path), model), "keras": runtime.keras().__version__}


def load_model(
    path: str,
    recipe: Any = None,
    arg: str = "model",
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> Any:
    """Loads a model from a `.keras` file; in Keras' safe mode no code of the file is run.

    Args:
        path: Path of the file.
        recipe: Tied to the model if not None; see `recipe_json.recipes_from()`.
        arg: The user's name for the model, for messages.
        custom_objects: Classes and functions that it needs, by name.
        safe_mode: Whether lambdas are refused.

    Returns:
        The Keras model, compiled as it was, with its optimizer's state, history and masks.

    Raises:
        ModelError: if the file does not exist, is damaged, holds code, or needs classes that are
            not registered with Keras.
    """
    source = check_ending(path)
    model, about, _, left = read_model(source, arg, custom_objects, safe_mode)
    if left:
        raise lacking(source, arg, left)
    recipe_json.tie_recipe(model, recipe)
    keep_stored(model, about.get("history"))
    return model


def feeding_of(data: Any, arg: str = "data") -> dict[str, Any]:
    """Returns a dataset's feeding options, which gpu_dataset_save() does not store.

    Args:
        data: The dataset.
        arg: The user's name for it, for messages.

    Returns:
        Options of gpu_dataset(): `{batch_size, shuffle, drop_last, augment}`.

    Raises:
        DataError: for a dataset that is mapped by a function, or whose length is unknown.
    """
    if not isinstance(data, Dataset):
        raise refused_value(arg, data, "a gpu_dataset")
    if data.map is not None:
        raise DataError(
            f"`{arg}` maps its rows by a function, which cannot cross to another process.",
            hint="Make the dataset in the function that gpu_run() calls.",
            arg=arg,
        )
    if not data.epoch_rows:
        raise DataError(
            f"`{arg}` is a gpu_dataset of rows in sequence whose end is not known.",
            hint="Give it `steps`, or make it in the function that gpu_run() calls.",
            arg=arg,
        )
    spec = data.spec
    return {
        "batch_size": spec.batch_size,
        "shuffle": spec.shuffle,
        "drop_last": spec.drop_last,
        "augment": None if data.augment is None else asdict(data.augment),
    }
