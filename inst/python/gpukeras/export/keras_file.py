"""Writes `.keras` files completely or not at all, and loads them in safe mode after a check.

with written_beside(target, "model") as partial: write_model(model, partial, "model"); place(...)
model, left = load_safely(path, "path")
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpukeras.backend import keras_files, runtime
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason, system_reason
from gpukeras.core.options import describe
from gpukeras.core.safe_files import DiskFault, find_disk_fault, private_folder
from gpukeras.data.files.files import path_error
from gpukeras.export import zip_limits
from gpukeras.export.custom_objects import Needs, find_missing, read_needs, short_name, spread_names
from gpukeras.export.safe_load import check_code, refused
from gpukeras.models import registry
from gpukeras.models.layer_functions import find_shared_names
from gpukeras.models.model_checks import keep_name

SUFFIX = ".keras"
# Modules in which Keras looks up functions by name.
WITH_FUNCTIONS = ("activations", "constraints", "initializers", "losses", "metrics", "regularizers")


def check_ending(path: Any, arg: str = "path") -> Path:
    """Returns the absolute path of a file that must end with ".keras"."""
    if not isinstance(path, str) or not path.endswith(SUFFIX):
        name = Path(path).name if isinstance(path, str) else path
        raise SpecError(
            f'`{arg}` must end with "{SUFFIX}", not {describe(name)}.',
            hint=_explain_h5(path, arg) if isinstance(path, str) else "",
            arg=arg,
        )
    return Path(path).expanduser().absolute()


def _explain_h5(path: str, arg: str) -> str:
    """Says what reads and writes files of HDF5, in R's words."""
    if not path.endswith((".h5", ".hdf5")):
        return ""
    if arg == "path":
        return "keras3's save_model_weights(model, path) saves weights alone, as .weights.h5."
    weights = (
        "Weights alone are loaded into a model that was made before, by model$load_weights(path) "
        "or keras3's load_model_weights(model, path)."
    )
    whole = "A whole model in the older format .h5 loads by keras3's load_model(path). "
    return weights if path.endswith(".weights.h5") else whole + weights


def check_target(target: Path, overwrite: bool) -> None:
    """Checks that a file may be written at a path.

    Raises:
        DataError: if a folder exists there, or a file does and `overwrite` is False.
    """
    if target.is_dir():
        raise path_error(target, "path", f"{target.name} is a folder.")
    if os.path.lexists(target) and not overwrite:
        raise _exists(target)


def _exists(target: Path) -> DataError:
    hint = "Give another path, or `overwrite = TRUE`."
    return path_error(target, "path", f"{target.name} is there already.", hint)


@contextmanager
def write_errors(target: Path, arg: str, what: str) -> Iterator[None]:
    """Names the target in the errors of the disk or the folder, TensorFlow's and h5py's too.

    Args:
        target: The path that is written.
        arg: The user's name for the model.
        what: Its noun, "file" or "folder".

    Raises:
        DataError: if the disk or the folder refuses.
    """
    try:
        yield
    except (OSError, ModelError) as error:
        fault = find_disk_fault(error)
        if isinstance(error, OSError) and fault is None:
            fault = DiskFault(system_reason(error), "Check the folder and its permissions.")
        if fault is None:
            raise
        raise DataError(
            f"`{arg}` cannot be written to the {what} {target.name}: {fault.reason}.",
            hint=fault.hint,
            arg=arg,
            path=str(target),
        ) from error


@contextmanager
def written_beside(target: Path, arg: str) -> Iterator[Path]:
    """Yields a path in a hidden folder beside the target; the folder is removed on exit.

    Raises:
        DataError: if the disk or the folder refuses.
    """
    with write_errors(target, arg, "file"), private_folder(target) as folder:
        yield folder / target.name


def place(partial: Path, target: Path, overwrite: bool) -> None:
    """Renames the new file; without `overwrite` it fails if another file appeared meanwhile.

    Args:
        partial: The new file.
        target: Its final path.
        overwrite: Whether an existing file is replaced.

    Raises:
        DataError: if the target exists and `overwrite` is False.
    """
    if overwrite or not hasattr(os, "link"):
        os.replace(partial, target)
        return
    try:
        os.link(partial, target)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError:  # a file system without links
        check_target(target, overwrite)
        os.replace(partial, target)


def write_model(
    model: Model, path: Path, arg: str, extras: Mapping[str, bytes] | None = None
) -> None:
    """Writes a model with its optimizer's state, and additional members, into a new file.

    Args:
        model: A Keras model.
        path: Path of the file; it ends with ".keras".
        arg: The user's name for the model, for messages.
        extras: Additional members of the archive, by name.

    Raises:
        ModelError: if Keras cannot save it.
        OSError: if the file cannot be written.
    """
    _build_optimizer(model)
    try:
        with warnings.catch_warnings():  # on lambdas, which are refused, and on unbuilt models
            warnings.simplefilter("ignore")
            model.save(str(path))
    except Exception as error:  # NotImplementedError, TypeError, what a get_config() raises
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise refused(
            f"`{arg}`: Keras cannot save the model: {explain_error(error)}",
            arg,
            path,
            "Layers of one's own need `get_config()`.",
        ) from error
    with zipfile.ZipFile(path, "a") as archive:
        for name, content in (extras or {}).items():
            archive.writestr(name, content)


def _build_optimizer(model: Model) -> None:
    """Creates the optimizer's variables like the first step: the loaded optimizer has them too."""
    optimizer = model.optimizer if model.compiled else None
    if optimizer is not None and model.built and not optimizer.built:
        optimizer.build(model.trainable_variables)


def load_safely(
    source: Path,
    arg: str,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> tuple[Any, tuple[str, ...]]:
    """Loads a model from a file after a check; in safe mode no code of the file is run.

    Args:
        source: The file.
        arg: The user's name for the model, for messages.
        custom_objects: Classes and functions that it needs, by name.
        safe_mode: Whether lambdas are refused; no other code is ever run.

    Returns:
        The Keras model, compiled as it was, with its optimizer's state; and the unknown names that
        only its `compile()` needs: if there are any, the model is not compiled.

    Raises:
        ModelError: if the file does not exist, is damaged or dangerous, holds code, or needs
            classes or functions that are neither given nor registered with Keras.
    """
    fault = zip_limits.explain_fault(source)
    if fault:
        raise refused(f"`{arg}`: the file {source.name} {fault}.", arg, source)
    check_code(source, arg, lambdas=safe_mode)
    needs = needs_of(source)
    for function in (custom_objects or {}).values():
        keep_name(function)
    objects = spread_names(custom_objects or {}, (*needs.objects, *needs.compiled))
    knows = partial(_is_known, objects)
    missing, left = find_missing(needs.objects, knows), find_missing(needs.compiled, knows)
    if missing:
        raise lacking(source, arg, missing)
    try:
        model = keras_files.load_model(
            source, custom_objects=objects, compile=not left, safe_mode=safe_mode
        )
    except Exception as error:  # Keras raises ValueError, TypeError, and what its classes raise
        said = explain_error(error)
        raise refused(
            f"`{arg}`: Keras cannot load {source.name}: {said}",
            arg,
            source,
            "Classes and functions of one's own must be given by `custom_objects`, or registered "
            "by `keras.saving.register_keras_serializable()`.",
        ) from error
    if left:
        vars(model)["loss"] = _read_loss(source, objects, safe_mode)  # Keras would track a list
    return model, left


def _read_loss(source: Path, objects: Mapping[str, Any], safe_mode: bool) -> Any:
    """Returns the loss that a file's model was compiled with; None if it is not known here.

    It says how outputs are read, such as logits of classes, also where the rest of `compile()` is
    not known.
    """
    config = keras_files.read_settings(source)["compile_config"].get("loss")
    deserialize = runtime.keras().saving.deserialize_keras_object
    with suppress(TypeError, ValueError):  # what Keras raises for a name that it does not know
        return deserialize(config, custom_objects=objects, safe_mode=safe_mode)
    return None


def lacking(source: Path, arg: str, names: Sequence[str]) -> ModelError:
    """Returns the error of a file that needs unknown classes or functions.

    Args:
        source: The file.
        arg: The user's name for the model.
        names: The unknown names.
    """
    arguments = ", ".join(f"{short_name(name)} = " for name in names)
    them = "it" if len(names) == 1 else "them"
    return refused(
        f"`{arg}`: {source.name} needs {', '.join(names)}, which Keras does not know here.",
        arg,
        source,
        f"Give {them} by name: gpu_load(custom_objects = list({arguments})), or register "
        f"{them} by `keras.saving.register_keras_serializable()`.",
    )


def needs_of(path: Path, model: Model | None = None) -> Needs:
    """Returns what loading a file needs besides Keras and gpukeras.

    Args:
        path: See `read_needs()`.
        model: The model that was saved there, where it is at hand.
    """
    needs = read_needs(path, _is_supplied)
    return needs if model is None else replace(needs, shared=find_shared_names(model, _is_supplied))


def _is_supplied(name: str) -> bool:
    """Whether a name is a bare one, as Keras writes it for its own functions, or gpukeras' own."""
    keras = runtime.keras()
    return name in registry.custom_objects() or any(
        hasattr(getattr(keras, module), name) for module in WITH_FUNCTIONS
    )


def _is_known(objects: Mapping[str, Any], name: str) -> bool:
    return name in objects or runtime.keras().saving.get_registered_object(name) is not None


def explain_error(error: BaseException) -> str:
    """Returns one sentence of Keras' message."""
    said = find_reason(error)
    for end in (". ", " Full object config"):
        said = said.split(end)[0]
    return said.rstrip(".") + "."
