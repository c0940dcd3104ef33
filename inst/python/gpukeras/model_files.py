"""What crosses between R processes by files: Keras models, and how the rows of a dataset are fed.

    save_model(model, path) --> path (`.keras`) + record --> load_model(path, recipe)

Files of Keras are loaded in its safe mode: a file can hold code, as a Lambda layer's function, and
that is never run. The recipe of the training data goes beside the file, as text.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import carried, models, runtime
from .errors import DataError, ModelError, SpecError
from .pipeline import Dataset
from .specs import describe
from .streams.dataset import StreamDataset

SUFFIX = ".keras"
MESSAGE_LENGTH = 200  # of what Keras says: it adds whole configurations


def save_model(model: Any, path: str, arg: str = "model", loadable: bool = True) -> dict[str, Any]:
    """Writes a model with its optimizer's state into a `.keras` file, whole or not at all.

    Args:
        model: A Keras 3 model.
        path: Of the file, which is replaced if it is there; it ends with ".keras".
        arg: The user's name for the model, for messages.
        loadable: Refuse a model that `load_model()` would refuse for the code that it holds. False
            where a model would be lost by it.

    Returns:
        `{kind, name, parameters, bytes, recipe}`: class and name of the model, number of its
        weights, size of the file, and what `carried.carry_recipe()` gives, or None.

    Raises:
        SpecError: if it is no Keras model, or for another ending.
        ModelError: if Keras cannot save it, or for a Lambda layer or another Python lambda.
        DataError: if the file cannot be written.
    """
    if not runtime.is_keras_model(model):
        raise SpecError(
            f"`{arg}` must be a Keras 3 model, not {describe(model)}.",
            hint="Of Python objects only Keras 3 models and gpu_datasets cross: make it R's.",
            arg=arg,
        )
    target = _check_ending(path)
    _build_optimizer(model)
    partial = target.with_name(f".{target.stem}.partial-{os.getpid()}{SUFFIX}")
    try:
        _write(model, partial, arg)
        if loadable:
            check_code(partial, arg)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return {
        "kind": type(model).__name__,
        "name": model.name,
        "parameters": float(model.count_params()) if model.built else 0.0,
        "bytes": float(target.stat().st_size),
        "recipe": carried.carry_recipe(model) if models.recipe_of(model) is not None else None,
    }


def load_model(path: str, recipe: Any = None, arg: str = "model") -> Any:
    """A model from a `.keras` file, in Keras' safe mode: no code of the file is run.

    Args:
        path: Of the file.
        recipe: Tied to the model if not None; see `carried.recipes_from()`.
        arg: The user's name for the model, for messages.

    Returns:
        The Keras model, compiled as it was, with its optimizer's state.

    Raises:
        ModelError: if the file is not there or is damaged, holds code, or needs classes that are
            not registered with Keras.
    """
    source = Path(path).expanduser()
    keras = runtime.keras()
    if not zipfile.is_zipfile(source):
        found = "is not a .keras file" if source.exists() else "does not exist"
        raise _refused(f"`{arg}`: the file {source.name} {found}.", arg, source)
    try:
        model = keras.models.load_model(str(source), safe_mode=True)
    except Exception as error:  # Keras raises ValueError, TypeError, and what its classes raise
        check_code(source, arg)
        said = _explain_error(error)
        raise _refused(
            f"`{arg}`: Keras cannot load {source.name}: {said}",
            arg,
            source,
            "Classes and functions of one's own must be registered before, by "
            "`keras.saving.register_keras_serializable()`.",
        ) from error
    carried.tie_recipe(model, recipe)
    return model


def check_code(path: Path, arg: str) -> None:
    """Refuses a `.keras` file with Python code in it, which safe mode does not load.

    Raises:
        ModelError: naming the layers.
    """
    with suppress(OSError, KeyError, ValueError, zipfile.BadZipFile):
        with zipfile.ZipFile(path) as file:
            config = json.loads(file.read("config.json"))
        names = list(_find_lambdas(config, "its compile()"))
        if names:
            raise _refused(
                f"`{arg}` holds Python code that Keras' safe mode does not load: a lambda in "
                f"{', '.join(dict.fromkeys(names))}.",
                arg,
                path,
                "Use keras.ops or a registered layer class or function in place of it.",
            )


def feeding_of(data: Any, arg: str = "data") -> dict[str, Any]:
    """How a dataset feeds its rows, which gpu_dataset_save() leaves to who opens them again.

    Args:
        data: The dataset.
        arg: The user's name for it, for messages.

    Returns:
        Options of gpu_dataset(): `{batch_size, shuffle, drop_last, augment}`.

    Raises:
        DataError: for a dataset that is mapped by a function, or whose rows have no known end.
    """
    if not isinstance(data, (Dataset, StreamDataset)):
        raise SpecError(f"`{arg}` must be a gpu_dataset, not {describe(data)}.", arg=arg)
    if data.map is not None:
        raise DataError(
            f"`{arg}` maps its rows by a function, which cannot cross to another process.",
            hint="Make the dataset in the function that gpu_run() calls.",
            arg=arg,
        )
    if isinstance(data, StreamDataset) and not data.facts.rows:
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


def _check_ending(path: Any) -> Path:
    if not isinstance(path, str) or not path.endswith(SUFFIX):
        raise SpecError(f'`path` must end with "{SUFFIX}".', arg="path")
    return Path(path).expanduser().absolute()


def _build_optimizer(model: Any) -> None:
    """Creates the optimizer's variables, as the first step would: the loaded one has them too."""
    optimizer = model.optimizer if model.compiled else None
    if optimizer is not None and model.built and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _write(model: Any, path: Path, arg: str) -> None:
    try:
        with warnings.catch_warnings():  # of lambdas, which are refused; of models not yet built
            warnings.simplefilter("ignore")
            model.save(str(path))
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise DataError(
            f"`{arg}` cannot be written to a file: {said}.",
            hint="Check the folder, its permissions, and the room on the disk.",
            arg=arg,
            path=str(path),
        ) from error
    except Exception as error:  # NotImplementedError, TypeError, what a get_config() raises
        raise _refused(
            f"`{arg}`: Keras cannot save the model: {_explain_error(error)}",
            arg,
            path,
            "Layers of one's own need `get_config()`.",
        ) from error


def _find_lambdas(config: Any, owner: str) -> Iterator[str]:
    """Names of the layers in whose configuration a Python lambda lies; `owner` for none."""
    if isinstance(config, list):
        for item in config:
            yield from _find_lambdas(item, owner)
    if not isinstance(config, dict):
        return
    if config.get("class_name") == "__lambda__":
        yield owner
        return
    inner = config.get("config")
    named = isinstance(inner, dict) and "layers" not in inner and isinstance(inner.get("name"), str)
    if named:
        owner = f"`{inner['name']}`"
    for item in config.values():
        yield from _find_lambdas(item, owner)


def _explain_error(error: BaseException) -> str:
    """One sentence of what Keras says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    for end in (". ", " Full object config"):
        said = said.split(end)[0]
    return said[:MESSAGE_LENGTH].rstrip(".") + "."


def _refused(message: str, arg: str, path: Path, hint: str = "") -> ModelError:
    return ModelError(message, hint=hint, arg=arg, path=str(path))
