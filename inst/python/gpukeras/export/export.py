"""Exports models for other programs, and compares their predictions there with the original's.

    export_model(model, path) --> sample rows --> model.export() beside the path
        --> a child process runs the file on the rows --> same predictions? --> the path

The file is moved to its path only if its predictions agree.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.atomic_dir import clean_up, move_folder, partial_folder
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_flag, check_positive
from gpukeras.data.files.files import path_error
from gpukeras.diagnostics.child_probes import parse_answer, quiet_environment, run_probe
from gpukeras.engine.batch_rows import model_device
from gpukeras.export.formats import FORMATS, Format, choose_format, open_format
from gpukeras.export.keras_file import (
    check_target,
    explain_error,
    place,
    write_errors,
    written_beside,
)
from gpukeras.export.parity import (
    Agreement,
    choose_tolerance,
    compare_outputs,
    name_rows,
    predict_samples,
    read_inputs,
    read_samples,
)
from gpukeras.export.safe_load import refused
from gpukeras.export.stablehlo import write_stablehlo
from gpukeras.models import model_checks, model_recipes
from gpukeras.models.calibration import CLASSES, calibration_of
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family

LIMIT_S = 300.0  # of the child process, which may have to import TensorFlow
SAVED_MODEL = "saved_model.pb"
WRITTEN = {SAVED_MODEL, "fingerprint.pb", "variables", "assets"}  # what a SavedModel consists of
FLEX = b"Flex"  # prefix of the names of TensorFlow-only operations in LiteRT files
SINGLE = (
    "The file takes one row at a time: for batches of any size, the model needs operations that "
    "LiteRT does not have."
)


@dataclass(frozen=True)
class ExportReport:
    """The record of an export and its check.

    Args:
        path: The file or folder, absolute.
        format: "savedmodel", "onnx", "litert" or "stablehlo".
        title: The format's name.
        bytes: Size of the file or of all files of the folder.
        model: The model's name.
        inputs: The file's inputs: name, shape of a row (None for any size) and dtype of each.
        outputs: Shape of a row and dtype of each of the model's outputs.
        rows: Number of rows that both models predicted.
        drawn: Whether the rows were random, not from a dataset.
        max_difference: The largest absolute difference of the predictions.
        largest: The largest absolute prediction.
        allowed: The largest difference that is allowed.
        tolerance: `allowed` for predictions of at most 1 in size, and its share of larger ones.
        tolerance_reason: Why this tolerance was chosen.
        runner: The program that ran the file, with its version.
        encoded: Whether the model has a recipe by which rows must be encoded first.
        seconds: Total time.
        code: Lines of Python that run the file.
        notes: Sentences for the model's owner.
    """

    path: str
    format: str
    title: str
    bytes: float
    model: str
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    rows: int
    drawn: bool
    max_difference: float
    largest: float
    allowed: float
    tolerance: float
    tolerance_reason: str
    runner: str
    encoded: bool
    seconds: float
    code: tuple[str, ...]
    notes: tuple[str, ...]


def export_model(
    model: Model,
    path: str,
    format: str = "auto",  # noqa: A002 (R's name for it)
    *,
    overwrite: bool = False,
    data: Any = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Exports a model's forward pass, runs the file in another process and compares.

    Args:
        model: A built Keras model; it need not be compiled.
        path: The file, or for "savedmodel" the folder.
        format: "savedmodel", "onnx", "litert", "stablehlo", or "auto": by the path's suffix.
        overwrite: Whether a file, or the folder of an earlier export, is replaced.
        data: A dataset on whose first rows both are compared; None draws random rows.
        tolerance: See `ExportReport`; None chooses by the precision of the model.

    Raises:
        SpecError: for a bad option, or if random rows cannot be drawn.
        DataError: if the path is taken or cannot be written.
        BackendError, RuntimeMissingError: if the format needs another backend, or packages.
        ModelError: if Keras or the converter cannot export the model, the file cannot be run, or
            its predictions differ.
    """
    began = time.perf_counter()
    model_checks.check_model(model, compiled=False)
    name, target = choose_format(format, path), Path(path).expanduser().absolute()
    form = open_format(name)
    _check_place(target, form, check_flag("overwrite", overwrite))
    rows = read_samples(model, data)
    limit, reason = _read_tolerance(model, tolerance)
    requested, named = predict_samples(model, rows), name_rows(model, rows)
    with _new_place(target, form, overwrite) as partial:
        notes = (*_write(model, partial, form), *explain_outputs(model, requested))
        outputs, answer = _run(name, partial, named, target)
        _check_agreement(agreement := compare_outputs(requested, outputs, limit), form, target)
    return ExportReport(
        path=str(target),
        format=name,
        title=form.title,
        bytes=_measure(target),
        model=model.name,
        inputs=_describe_inputs(model, answer["inputs"], named),
        outputs=tuple(_describe(values) for values in requested),
        rows=len(next(iter(named.values()))),
        drawn=data is None,
        max_difference=agreement.difference,
        largest=agreement.largest,
        allowed=agreement.allowed,
        tolerance=limit,
        tolerance_reason=reason,
        runner=answer["runner"],
        encoded=model_recipes.recipe_of(model) is not None,
        seconds=time.perf_counter() - began,
        code=tuple(form.code(str(target), answer["inputs"])),
        notes=notes,
    )


def _read_tolerance(model: Model, tolerance: float | None) -> tuple[float, str]:
    if tolerance is not None:
        return check_positive("tolerance", tolerance), "as asked"
    types = {str(layer.compute_dtype) for layer in keras_private.list_layers(model)}
    return choose_tolerance(sorted(types), model_device(model))


# The place ---------------------------------------------------------------------------------------


def _check_place(target: Path, form: Format, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise path_error(target, "path", f"the folder {target.parent.name} does not exist.")
    if form.suffix:
        check_target(target, overwrite)
        return
    ours = (target / SAVED_MODEL).is_file() and WRITTEN.issuperset(os.listdir(target))
    if target.exists() and not (overwrite and ours):
        hint = "Give another path, or `overwrite = TRUE`." if ours else "Give another path."
        kind = "a SavedModel" if ours else "something else, which is never replaced"
        raise path_error(target, "path", f"{target.name} is there already, {kind}.", hint)


@contextmanager
def _new_place(target: Path, form: Format, overwrite: bool) -> Iterator[Path]:
    """Yields a path beside the target, which is renamed to the target if nothing fails."""
    if form.suffix:
        with written_beside(target, "model") as partial:
            yield partial
            place(partial, target, overwrite)
        return
    with write_errors(target, "model", "folder"):
        clean_up(target)
        with partial_folder(target) as partial:
            yield partial
            _check_place(target, form, overwrite)
            move_folder(partial, target)


def _measure(target: Path) -> float:
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.is_file()]
    return float(sum(file.stat().st_size for file in files))


# Exporting and running ---------------------------------------------------------------------------


def _write(model: Model, path: Path, form: Format) -> tuple[str, ...]:
    """Writes the file with Keras; returns notes for the model's owner."""
    _export(model, path, form)
    if form.keras != "litert" or FLEX not in path.read_bytes():
        return ()
    _export(model, path, form, input_signature=_sign_single(model))
    if FLEX in path.read_bytes():
        raise ModelError(
            "`model` cannot be exported to LiteRT: it needs operations that only TensorFlow has.",
            hint='Use `format = "onnx"` or "savedmodel"; half precision is one cause.',
            arg="model",
        )
    return (SINGLE,)


def _export(model: Model, path: Path, form: Format, **options: Any) -> None:
    """Calls Keras' own export function; the converters' output is dropped."""
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if form.keras:
                model.export(str(path), format=form.keras, verbose=False, **options)
            else:
                write_stablehlo(model, str(path))
    except OSError:
        raise
    except Exception as error:  # converters may raise anything
        raise ModelError(
            f"`model` cannot be exported to {form.title}: {explain_error(error)}",
            hint="Layers may use operations that the format does not have.",
            arg="model",
        ) from error


def explain_outputs(model: Model, outputs: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Returns notes on what gpu_predict() makes of a model's outputs, and the file does not.

    Args:
        model: The model.
        outputs: What it gives for some rows.
    """
    notes = []
    family, calibration = family_of(model), calibration_of(model)
    if family is not None and not _are_means(family, outputs[0]):
        notes.append(
            f'The file gives the parameters of the family "{family.name}", of which gpu_predict() '
            "gives the mean."
        )
    if calibration is not None and calibration.kind == CLASSES:
        notes.append(
            "The file gives the model's own probabilities, without what gpu_calibrate() learned."
        )
    return tuple(notes)


def _are_means(family: Family, outputs: np.ndarray) -> bool:
    means = likelihood(family).mean(family, outputs)
    return means.size == outputs.size and np.allclose(means.ravel(), outputs.ravel())


def _sign_single(model: Model) -> list[Any] | None:
    """Returns the model's input with one row; None (Keras' default) if it is unknown."""
    inputs = read_inputs(model)
    if inputs is None:
        return None
    tf = runtime.tensorflow()

    def sign(spec: Any) -> Any:
        return tf.TensorSpec((1, *tuple(spec.shape)[1:]), spec.dtype, name=spec.name)

    return [tf.nest.map_structure(sign, inputs)]


def _run(
    name: str, path: Path, rows: Mapping[str, np.ndarray], target: Path
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Returns the exported model's predictions from a separate process, and its report.

    Args:
        name: The format's name.
        path: The exported file or folder.
        rows: The rows, by the names of the model's inputs.
        target: The final path, for messages.
    """
    with quiet_environment() as environment, tempfile.TemporaryDirectory() as folder:
        inputs_path, gives = Path(folder, "rows.npz"), Path(folder, "outputs.npz")
        arrays: dict[str, Any] = {str(place): part for place, part in enumerate(rows.values())}
        np.savez(inputs_path, names=np.array(list(rows)), **arrays)
        arguments = (name, str(path), str(inputs_path), str(gives))
        no_gpu = {"CUDA_VISIBLE_DEVICES": "-1"}  # the session uses the GPU
        answer = parse_answer(
            run_probe(
                sys.executable,
                "export.run_exported",
                environment,
                LIMIT_S,
                arguments=arguments,
                changes=no_gpu,
            )
        )
        if answer.get("error"):
            raise refused(
                f"The exported {FORMATS[name].title} cannot be run: {answer['error'].rstrip('.')}.",
                "model",
                target,
            )
        with np.load(gives, allow_pickle=False) as file:
            return [file[str(place)] for place in range(len(file.files))], answer


def _check_agreement(agreement: Agreement, form: Format, target: Path) -> None:
    if not agreement.holds:
        raise ModelError(
            f"The exported {form.title} predicts something else: values differ by up to "
            f"{agreement.difference:.3g}, and {agreement.allowed:.3g} is allowed.",
            hint="`tolerance` allows more; nothing was written.",
            arg="model",
            path=str(target),
            max_difference=agreement.difference,
            allowed=agreement.allowed,
        )


# The report --------------------------------------------------------------------------------------


def _describe_inputs(
    model: Model, names: list[str], rows: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], ...]:
    """Returns the file's inputs, with the sizes that the model leaves open as None."""
    shapes = {tensor.name: tuple(tensor.shape)[1:] for tensor in getattr(model, "inputs", []) or []}
    by_name = set(names) == set(rows)
    pairs = zip(names, names if by_name else rows, strict=True)
    return tuple(
        {
            "name": name,
            "shape": list(shapes.get(own, rows[own].shape[1:])),
            "dtype": str(rows[own].dtype),
        }
        for name, own in pairs
    )


def _describe(values: np.ndarray) -> dict[str, Any]:
    return {"shape": list(values.shape[1:]), "dtype": str(values.dtype)}
