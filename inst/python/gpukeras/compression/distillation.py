"""Distills a small model from a large one, see `distillation_loss`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpukeras.compression.distillation_loss import (
    list_losses,
    match_outputs,
    open_distance,
    taught_by,
)
from gpukeras.compression.layer_options import check_options
from gpukeras.compression.report import LayerChange, ReportSpec, Work, conclude
from gpukeras.compression.student import derive_student
from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_count, check_fraction, check_number, check_positive, option
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.models import compatibility, model_checks, model_recipes
from gpukeras.models.clone import clone_layers, copy_compile, copy_model
from gpukeras.models.variables import build_variables
from gpukeras.training import fit as training_fit
from gpukeras.training.keras_functions import SAMPLE


@dataclass(frozen=True)
class TrainedSpec(ReportSpec):
    """Options of a compression that trains.

    Args:
        epochs: Passes over the training rows.
        fit: Further fields of `FitSpec`, such as `schedule` or `early_stopping`.
    """

    epochs: int = option(10, check_count, 0)
    fit: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks and normalizes every field."""
        super().__post_init__()
        self._set(fit=check_options(self.fit))


@dataclass(frozen=True)
class DistillSpec(TrainedSpec):
    """Options of a distillation.

    Args:
        epochs: Passes over the training rows. On real digits, students were better than the same
            model trained alone after 100 epochs, and worse after 20: soft labels carry more
            information, but training on them is slow.
        temperature: T, above 0: softens the classes that student and teacher are compared by; a
            higher T gives more weight to the teacher's probabilities of the wrong classes.
        alpha: Weight of the labels' loss, 0 (the teacher alone) to 1 (the labels alone).
        width: Share of the teacher's units and filters that a derived student has.
    """

    epochs: int = option(100, check_count)
    temperature: float = option(3.0, check_positive)
    alpha: float = option(0.5, check_number, 0.0, 1.0)
    width: float = option(0.5, check_fraction)


def distill(
    teacher: Model,
    data: Dataset,
    options: Mapping[str, Any] | None = None,
    *,
    student: Model | None = None,
    validation: Dataset | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Trains a student on labels and on its teacher's predictions.

    Args:
        teacher: A trained and compiled Keras model; it is not changed.
        data: The training rows, encoded as those that trained the teacher.
        options: Fields of `DistillSpec`.
        student: A model whose copy is trained; if it is not compiled, the copy is compiled like the
            teacher. None derives a student from the teacher by `width`.
        validation: Rows to validate on; None for the validation rows of `data`.
        on_event: See `training.fit()`.

    Returns:
        `{model, report}`: the student and a `CompressionReport`.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit, before anything is trained;
            also for a student that Keras cannot copy.
        CompressionError: if the student is worse than the teacher by more than `max_drop`.
    """
    began, spec = time.perf_counter(), DistillSpec.from_dict(options or {})
    model_checks.check_model(teacher)
    model_recipes.check_encoding(teacher, data.recipe)
    model_checks.check_rows(teacher, data)
    changes: list[LayerChange] = []
    if student is None:
        student, changes = derive_student(teacher, spec.width)
    else:
        student = _copy_student(student, teacher)
    batch = sample_rows(data, SAMPLE)
    model_checks.check_rows(student, data)
    build_variables(student, batch)
    match_outputs(teacher, student, batch[0])
    with taught_by(student, teacher, spec.temperature, spec.alpha):
        trained = training_fit.fit(
            student,
            data,
            {**spec.fit, "epochs": spec.epochs},
            validation=validation,
            on_event=on_event,
        )
    settings = {
        "temperature": spec.temperature,
        "alpha": spec.alpha,
        "epochs": trained.epochs,
        **({"width": spec.width} if changes else {}),
    }
    notes = explain_losses(student)
    work = Work("distill", settings, began, tuple(changes), notes=tuple(notes), training=trained)
    report = conclude(teacher, student, work, spec, data=data, validation=validation)
    return {"model": student, "report": report}


def _copy_student(student: Model, teacher: Model) -> Any:
    """Returns a copy of the user's student; if it is not compiled, compiled like the teacher.

    Training changes the copy only, so a student that is refused in the end stays untrained.
    """
    model_checks.check_model(student, compiled=False)
    if student is teacher:
        raise SpecError("`student` must be another model than `teacher`.", arg="student")
    if student.built:
        copy = copy_model(student, "student")
    else:
        copy = clone_layers(student, arg="student")
        copy_compile(student, copy)
    if not student.compiled:
        copy_compile(teacher, copy)
    return copy


def explain_losses(student: Model) -> list[str]:
    """Returns how student and teacher were compared, by output."""
    losses = [loss for loss in list_losses(student) if loss is not None]
    names = compatibility.read_outputs(student) or [""]
    told = {
        "classes": "softened classes",
        "two classes": "softened probabilities",
        "numbers": "the teacher's numbers as labels",
    }
    kinds = [told[open_distance(loss, 1.0)[0]] for loss in losses]
    if len(set(kinds)) == 1:
        return [f"The student was compared with its teacher by {kinds[0]}."]
    pairs = (f"{name} by {kind}" for name, kind in zip(names, kinds, strict=False))
    return [f"The student was compared with its teacher: {', '.join(pairs)}."]
