"""Stores models in `.keras` files with their recipe, history, calibration and pruning masks.

    save_archive(model, path) --> model.keras --> load_archive(path) --> {model, recipe, ...}

Plain Keras does not store these. They are members of the archive beside Keras' own: `gpukeras.json`
(text) and, for a pruned model, `gpukeras-masks.npz` (one bit per weight). Plain Keras opens such a
file too and ignores them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpukeras.compression.masks import apply_masks, read_masks
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_flag
from gpukeras.data.recipe.serialization import to_portable
from gpukeras.export import recipe_json
from gpukeras.export.archive_masks import MEMBER, pack_masks, unpack_masks
from gpukeras.export.keras_file import (
    check_ending,
    check_target,
    load_safely,
    needs_of,
    place,
    write_model,
    written_beside,
)
from gpukeras.export.safe_load import check_code, refused
from gpukeras.models import calibration, model_checks, model_recipes, training_rows
from gpukeras.training.history_registry import (
    explain_history,
    history_of,
    keep_history,
    keep_stored,
)

ABOUT = "gpukeras.json"
FORMAT = "gpukeras model"
VERSION = 1  # increases if a reader would misread earlier files


def save_archive(
    model: Model, path: str, overwrite: bool = False, history: str | None = None
) -> dict[str, Any]:
    """Saves a model with its recipe, history and masks; a failure leaves no partial file.

    Args:
        model: A Keras 3 model.
        path: Path of the file; it ends with ".keras".
        overwrite: Whether an existing file is replaced. A folder never is.
        history: A training's record as JSON text, or None for the model's last one in this session.

    Returns:
        `{path, kind, name, parameters, bytes, compiled, recipe, epochs, masks, needs}`: class and
        name of the model, number of its weights, size of the file, whether it has a recipe, how
        many epochs its history has (0 without), how many of its weights' arrays are masked, what
        loading needs (see `custom_objects.Needs`).

    Raises:
        SpecError: if it is not a Keras model, or for another suffix.
        ModelError: if Keras cannot save it, or it holds another program.
        DataError: if the file exists and is not to be replaced, or cannot be written.
    """
    target = check_ending(path)
    model_checks.check_model(model, compiled=False)
    check_target(target, overwrite)
    if history is not None:
        keep_history(model, _parse_history(history))
    extras = collect_extras(model)
    with written_beside(target, "model") as partial:
        write_model(model, partial, "model", extras)
        check_code(partial, "model", lambdas=False)
        needs = needs_of(partial, model)
        place(partial, target, overwrite)
    about = json.loads(extras[ABOUT])
    return {
        "path": str(target),
        **describe_model(model),
        "bytes": float(target.stat().st_size),
        "compiled": bool(model.compiled),
        "recipe": about["recipe"] is not None,
        "epochs": _count_epochs(about["history"]),
        "masks": len(about["masks"]),
        "needs": needs,
    }


def load_archive(
    path: str,
    arg: str = "path",
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> dict[str, Any]:
    """Loads a model from a `.keras` file, in Keras' safe mode, with its recipe, history and masks.

    Args:
        path: Path of a file from `save_archive()` or from plain Keras.
        arg: The user's name for it, for messages.
        custom_objects: Classes and functions that it needs, by name.
        safe_mode: Whether lambdas are refused.

    Returns:
        `{model, kind, name, parameters, compiled, left, ours, recipe, history, history_fault,
        masks}`: `left` are unknown names that its `compile()` needs; `history_fault` is the reason
        why a damaged history was skipped, or ""; `ours` is whether gpukeras wrote the file;
        `recipe` as `recipe_json.carry_recipe()` returns it, or None; `history` is the training's
        record as JSON text, or None.

    Raises:
        SpecError: for another suffix.
        ModelError: if the file does not exist, is damaged, dangerous to read or holds code, or
            needs classes that are not registered with Keras.
        DataError: for a recipe that a newer gpukeras wrote.
    """
    source = check_ending(path, arg)
    model, about, masks, left = read_model(
        source, arg, custom_objects, check_flag("safe_mode", safe_mode)
    )
    recipe_json.tie_recipe(model, about.get("recipe"))
    fault = keep_stored(model, about.get("history"))
    history = None if fault else about.get("history")
    known = model_recipes.recipe_of(model) is not None
    return {
        "model": model,
        **describe_model(model),
        "compiled": bool(model.compiled),
        "left": left,
        "ours": bool(about),
        "recipe": recipe_json.carry_recipe(model) if known else None,
        "history": None if history is None else json.dumps(history),
        "history_fault": fault,
        "masks": masks,
    }


def describe_model(model: Model) -> dict[str, Any]:
    """Returns `{kind, name, parameters}` of a model."""
    return {
        "kind": type(model).__name__,
        "name": model.name,
        "parameters": float(model.count_params()) if model.built else 0.0,
    }


# Writing -----------------------------------------------------------------------------------------


def collect_extras(model: Model) -> dict[str, bytes]:
    """Returns gpukeras' own members of a model's archive, by name."""
    recipe = model_recipes.recipe_of(model)
    masks = read_masks(model)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": None if recipe is None else to_portable(recipe),
        "history": history_of(model),
        "calibration": calibration.to_portable(model),
        "training_rows": training_rows.to_portable(model),
        "masks": [{"path": path, "shape": list(mask.shape)} for path, mask in masks.items()],
    }
    text = json.dumps(about, separators=(",", ":"), allow_nan=False)
    return {ABOUT: text.encode("ascii"), **pack_masks(masks)}


def _parse_history(text: str) -> Any:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if explain_history(parsed):
        raise SpecError("`history` must be a gpu_history.", arg="history")
    return parsed


def _count_epochs(history: Mapping[str, Any] | None) -> int:
    return int((history or {}).get("epochs") or 0)


# Reading -----------------------------------------------------------------------------------------


def read_model(
    source: Path,
    arg: str,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> tuple[Any, dict[str, Any], int, tuple[str, ...]]:
    """Loads a model with its masks, from a file of gpukeras or of plain Keras.

    Args:
        source: The file.
        arg: The user's name for the model, for messages.
        custom_objects: Classes and functions that it needs, by name.
        safe_mode: Whether lambdas are refused.

    Returns:
        The model; the content of gpukeras' own member, empty for a file of plain Keras; how many of
        its arrays are masked; unknown names that its `compile()` needs.

    Raises:
        ModelError: as `load_safely()`, or if gpukeras' own members are damaged or newer.
    """
    model, left = load_safely(source, arg, custom_objects, safe_mode)
    about = _read_about(source, arg)
    _tie_calibration(model, source, about, arg)
    return model, about, _put_masks_on(model, source, about.get("masks") or [], arg), left


def _read_about(source: Path, arg: str) -> dict[str, Any]:
    """Returns the content of gpukeras' text member of the archive, or an empty dict."""
    with zipfile.ZipFile(source) as archive:
        if ABOUT not in archive.namelist():
            return {}
        try:
            about = json.loads(archive.read(ABOUT))
            ours = about.get("format") == FORMAT and isinstance(about["version"], int)
        except (ValueError, KeyError, AttributeError, RecursionError):
            ours = False
    if not ours:
        raise refused(f"`{arg}`: {ABOUT} in {source.name} is not what was saved.", arg, source)
    if about["version"] > VERSION:
        raise refused(
            f"`{arg}`: {source.name} was saved by a newer gpukeras.",
            arg,
            source,
            "Update gpukeras; plain keras.saving.load_model() opens the file without the recipe.",
        )
    return about


def _tie_calibration(model: Model, source: Path, about: Mapping[str, Any], arg: str) -> None:
    try:
        calibration.tie_stored(model, about.get("calibration"))
        training_rows.tie_stored(model, about.get("training_rows"))
    except (SpecError, TypeError, ValueError, KeyError, OverflowError) as error:
        raise refused(
            f"`{arg}`: the calibration in {source.name} is not what was saved.", arg, source
        ) from error


def _put_masks_on(model: Model, source: Path, listed: list[Any], arg: str) -> int:
    if not listed:
        return 0
    try:
        with zipfile.ZipFile(source) as archive:
            masks = unpack_masks(archive.read(MEMBER), listed)
        apply_masks(model, masks)
    except (ValueError, KeyError, TypeError, DataError) as error:
        raise refused(
            f"`{arg}`: the masks in {source.name} are not those of its model.", arg, source
        ) from error
    return len(masks)
