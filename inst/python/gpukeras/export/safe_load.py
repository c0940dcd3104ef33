"""Finds code and references in a `.keras` file's settings before Keras reads them.

Keras' safe mode refuses most of it too. But its messages are technical, it does not refuse all of
it in every version, and `keras.config.enable_unsafe_deserialization()` switches it off.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpukeras.backend.keras_files import read_settings
from gpukeras.core.errors import ModelError

WEIGHTS = "model.weights.h5"
# Keras layers that load another program, by a path or as a pickle.
PROGRAMS = {
    "TFSMLayer": "a program of TensorFlow that lies elsewhere on the disk",
    "TorchModuleWrapper": "a pickle of PyTorch",
    "JaxLayer": "a function of JAX",
    "FlaxLayer": "a function of JAX",
}


def refused(message: str, arg: str, path: Path, hint: str = "") -> ModelError:
    """Returns the error of a model file that cannot be written or read.

    Args:
        message: The message.
        arg: The user's name for the model.
        path: Path of the file.
        hint: What the user can do.
    """
    return ModelError(message, hint=hint, arg=arg, path=str(path))


def check_code(path: Path, arg: str, lambdas: bool = True) -> None:
    """Refuses a `.keras` file that contains code; the code is never run.

    Args:
        path: An archive that is safe to read, within `zip_limits`.
        arg: The user's name for the model, for messages.
        lambdas: Whether lambdas are refused too; the user may trust the file's origin.

    Raises:
        ModelError: naming the layers; or for weights that are stored in another file.
    """
    try:
        _check_settings(read_settings(path), path, arg, lambdas)
        link = next(_find_links(path), "")
    except RecursionError as error:
        problem = f"`{arg}`: {path.name} is damaged: it is nested too deeply."
        raise refused(problem, arg, path) from error
    if link:
        problem = f"`{arg}`: the weights in {path.name} are not in it: {link}."
        raise refused(problem, arg, path, "Save the model again by gpu_save().")


def _check_settings(config: Any, path: Path, arg: str, lambdas: bool) -> None:
    known = list(walk_settings(config))
    owners = (owner or "its compile()" for setting, owner in known if is_lambda(setting))
    names = list(dict.fromkeys(owners))
    if names and lambdas:
        raise refused(
            f"`{arg}` holds Python code that Keras' safe mode does not load: a lambda in "
            f"{', '.join(names)}.",
            arg,
            path,
            "Use keras.ops or a registered layer class or function in place of it; a file "
            "that you trust loads by gpu_load(safe_mode = FALSE).",
        )
    kinds = ((setting["class_name"], owner) for setting, owner in known if _is_program(setting))
    told = (f"{PROGRAMS[kind]} in {owner or 'the model'}" for kind, owner in kinds)
    programs = list(dict.fromkeys(told))
    if programs:
        problem = f"`{arg}` holds what Keras' safe mode does not load: {', '.join(programs)}."
        hint = "Use layers of Keras or a registered layer class in place of it."
        raise refused(problem, arg, path, hint)


def walk_settings(config: Any, owner: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """Yields all records within a configuration, each with the layer that it belongs to, or ""."""
    if isinstance(config, dict):
        owner = _name_owner(config, owner)
        yield config, owner
    items = config.values() if isinstance(config, dict) else config
    for item in items if isinstance(config, (dict, list)) else ():
        yield from walk_settings(item, owner)


def _name_owner(config: dict[str, Any], owner: str) -> str:
    inner = config.get("config")
    if isinstance(inner, dict) and "layers" not in inner and isinstance(inner.get("name"), str):
        return f"`{inner['name']}`"
    return owner


def is_lambda(config: dict[str, Any]) -> bool:
    """Whether a record is a lambda.

    Keras 3 marks it; Keras 2 has a function's bytes, its defaults and its closure.
    """
    inner = config.get("config")
    return config.get("class_name") == "__lambda__" or (
        config.get("class_name") == "Lambda"
        and isinstance(inner, dict)
        and isinstance(inner.get("function"), list)
    )


def _is_program(config: dict[str, Any]) -> bool:
    kind = config.get("class_name")
    return isinstance(kind, str) and kind in PROGRAMS and isinstance(config.get("config"), dict)


def _find_links(path: Path) -> Iterator[str]:
    """Yields HDF5 links to other files, which reading the weights would open."""
    import h5py  # a dependency of Keras

    damaged = suppress(OSError, KeyError, zipfile.BadZipFile)  # Keras reports it
    with (
        damaged,
        zipfile.ZipFile(path) as archive,
        archive.open(WEIGHTS) as member,
        h5py.File(member, "r") as file,
    ):
        yield from _find_group_links(file, h5py)


def _find_group_links(group: Any, h5py: Any) -> Iterator[str]:
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield f"{name!r} is a link"
            continue
        item = group[name]
        if isinstance(item, h5py.Group):
            yield from _find_group_links(item, h5py)
        elif item.is_virtual or item.external:
            yield f"{name!r} is read from another file"
