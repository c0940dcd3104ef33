"""Models in `.keras` files that keep what Keras' own do not: recipe, history, masks of pruning.

    save_archive(model, path) --> model.keras --> load_archive(path) --> {model, recipe, ...}

They lie in the archive beside Keras' own members: `gpukeras.json` (text) and, of a pruned model,
`gpukeras-masks.npz` (a bit a weight). Plain Keras opens such a file too, and takes no notice.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpukeras.compression.masks import apply_masks, read_masks
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.options import check_flag
from gpukeras.data.preprocessing.serialization import to_portable
from gpukeras.export import recipe_json
from gpukeras.export.archive_masks import MEMBER, pack_masks, unpack_masks
from gpukeras.export.keras_file import (
    check_ending,
    check_target,
    load_safely,
    needs_of,
    place,
    refused,
    write_model,
    written_beside,
)
from gpukeras.export.safe_load import check_code
from gpukeras.models import builder
from gpukeras.training.history_registry import (
    explain_history,
    history_of,
    keep_history,
    keep_stored,
)

ABOUT = "gpukeras.json"
FORMAT = "gpukeras model"
VERSION = 1  # rises when what was written before would be read wrongly


def save_archive(
    model: Any, path: str, overwrite: bool = False, history: str | None = None
) -> dict[str, Any]:
    """Saves a model with all that gpukeras knows of it, whole or not at all.

    Args:
        model: A Keras 3 model.
        path: Of the file; it ends with ".keras".
        overwrite: Whether a file that is there is replaced. A folder never is.
        history: A training's record as JSON text, or None for the model's last one here.

    Returns:
        `{path, kind, name, parameters, bytes, compiled, recipe, epochs, masks, needs}`: class and
        name of the model, number of its weights, size of the file, whether it has a recipe, how
        many epochs its history has (0 without), how many of its weights' arrays are masked, what
        loading needs (see `custom_objects.Needs`).

    Raises:
        SpecError: if it is no Keras model, or for another ending.
        ModelError: if Keras cannot save it, or it holds another program.
        DataError: if the file is there and not to be replaced, or cannot be written.
    """
    target = check_ending(path)
    builder.check_model(model, compiled=False)
    check_target(target, overwrite)
    if history is not None:
        keep_history(model, _parse_history(history))
    extras = collect_extras(model)
    with written_beside(target, "model") as partial:
        write_model(model, partial, "model", extras)
        check_code(partial, "model", lambdas=False)
        needs = needs_of(partial)
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
    """A model from a `.keras` file, in Keras' safe mode, with what gpukeras knew of it.

    Args:
        path: Of the file, of `save_archive()` or of plain Keras.
        arg: The user's name for it, for messages.
        custom_objects: Classes and functions that it needs, by name.
        safe_mode: Whether lambdas are refused.

    Returns:
        `{model, kind, name, parameters, compiled, left, ours, recipe, history, history_fault,
        masks}`: `left` are names that its `compile()` needs and nobody knows;
        `history_fault` says why a damaged history was left out, or is ""; `ours` says
        whether gpukeras wrote the file; `recipe` as `recipe_json.carry_recipe()` gives it, or None;
        `history` is the training's record as JSON text, or None.

    Raises:
        SpecError: for another ending.
        ModelError: if the file is not there, is damaged, dangerous to read or holds code, or needs
            classes that are not registered with Keras.
        DataError: for a recipe that a newer gpukeras wrote.
    """
    source = check_ending(path, arg)
    model, about, masks, left = read_model(
        source, arg, custom_objects, check_flag("safe_mode", safe_mode)
    )
    recipe_json.tie_recipe(model, about.get("recipe"))
    fault = keep_stored(model, about.get("history"))
    history = None if fault else about.get("history")
    known = builder.recipe_of(model) is not None
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


def describe_model(model: Any) -> dict[str, Any]:
    """`{kind, name, parameters}` of a model."""
    return {
        "kind": type(model).__name__,
        "name": model.name,
        "parameters": float(model.count_params()) if model.built else 0.0,
    }


# Writing -----------------------------------------------------------------------------------------


def collect_extras(model: Any) -> dict[str, bytes]:
    """Members of a model's archive that are gpukeras' own, by name."""
    recipe = builder.recipe_of(model)
    masks = read_masks(model)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": None if recipe is None else to_portable(recipe),
        "history": history_of(model),
        "masks": [{"path": path, "shape": list(mask.shape)} for path, mask in masks.items()],
    }
    text = json.dumps(about, separators=(",", ":"), allow_nan=False)
    return {ABOUT: text.encode("ascii"), **pack_masks(masks)}


def _parse_history(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if explain_history(found):
        raise SpecError("`history` must be a gpu_history.", arg="history")
    return found


def _count_epochs(history: Mapping[str, Any] | None) -> int:
    return int((history or {}).get("epochs") or 0)


# Reading -----------------------------------------------------------------------------------------


def read_model(
    source: Path,
    arg: str,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> tuple[Any, dict[str, Any], int, tuple[str, ...]]:
    """A model with its masks, from a file of gpukeras or of plain Keras.

    Args:
        source: The file.
        arg: The user's name for the model, for messages.
        custom_objects: Classes and functions that it needs, by name.
        safe_mode: Whether lambdas are refused.

    Returns:
        The model; what gpukeras keeps of it, empty for a file of plain Keras; how many of its
        arrays are masked; names that its `compile()` needs and nobody knows.

    Raises:
        ModelError: as `load_safely()`, or if what gpukeras kept is damaged or newer.
    """
    model, left = load_safely(source, arg, custom_objects, safe_mode)
    about = _read_about(source, arg)
    return model, about, _put_masks_on(model, source, about.get("masks") or [], arg), left


def _read_about(source: Path, arg: str) -> dict[str, Any]:
    """What gpukeras keeps as text in the archive, or nothing."""
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


def _put_masks_on(model: Any, source: Path, listed: list[Any], arg: str) -> int:
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
