"""Summarises a trained model on rows as `summary()` of a `glm()` does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_choice
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.multi_output import own_weights
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.targets import LabelRule
from gpukeras.engine.predict import predict_rows
from gpukeras.models import compatibility, model_checks, model_recipes
from gpukeras.models.calibration import adjust
from gpukeras.models.families import coefficients, deviance
from gpukeras.models.families.build import find_extras, find_offset
from gpukeras.models.families.coefficients import Term
from gpukeras.models.families.contrasts import contrast_terms, read_formula
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import CONSTANT, NONE, ROWS, Family, family_options
from gpukeras.models.targets import BINARY, SPARSE, loss_name, reads_logits
from gpukeras.models.temperature import LOGIT, LOGITS, to_probabilities
from gpukeras.models.training_rows import find_unweighed_share, trained_by_class
from gpukeras.training.calibrate import find_rows
from gpukeras.training.keras_functions import jit_policy

SQUARED = ("meansquarederror", "mse")
WIDEST = 4096  # encoded columns whose rank is computed; it takes columns^2 numbers
BLOCK = 100_000  # rows that are read at once for it
SINGULAR = 1e-11  # eigenvalues below this share of the largest are 0: float32 knows no less


@dataclass(frozen=True)
class ModelSummary:
    """What a model's likelihood says of rows; None where it is not defined.

    Args:
        family: The family's name.
        link: Its link.
        implied: Whether the loss says so, as the model was not made with a family.
        formula: R's formula as text, or "".
        columns: Names of the columns.
        rows: Number of rows with a weight above 0.
        trainable: Number of trainable parameters.
        linear: Whether the model has no hidden layers.
        penalised: Whether the loss has a penalty on weights.
        log_likelihood: See `deviance.measure_deviance()`; partial for "cox".
        deviance: As in `glm()`.
        null_deviance: Of the model of the mean alone.
        explained: 1 - deviance / null_deviance.
        df: Number of estimated parameters, of a model without hidden layers.
        df_null: Rows - 1.
        df_residual: Rows (of classes: weights) less the parameters of the mean.
        aic: -2 log_likelihood + 2 df, without hidden layers and penalty.
        nobs: How many observations BIC counts, see `count_observations()`.
        bic: -2 log_likelihood + log(nobs) df.
        dispersion: If it is one number for all rows.
        dispersion_name: "variance", "dispersion" (gamma: 1 / shape), "size" or "precision".
        options: The family's options besides, by name.
        terms: The coefficients, of a model without hidden layers.
        contrasts: The same, see `contrasts.contrast_terms()`.
        unweighed: Share of the rows that trained the model by weights that they now lack.
    """

    family: str
    link: str
    implied: bool
    formula: str
    columns: tuple[str, ...]
    rows: int
    trainable: int
    linear: bool
    penalised: bool
    log_likelihood: float | None
    deviance: float | None
    null_deviance: float | None
    explained: float | None
    df: int | None
    df_null: int | None
    df_residual: float | None
    aic: float | None
    nobs: float
    bic: float | None
    dispersion: float | None
    dispersion_name: str
    options: Mapping[str, Any]
    terms: tuple[Term, ...]
    contrasts: tuple[Term, ...] = ()
    unweighed: float = 0.0


def summarise_model(
    model: Model, data: Dataset, part: str = "all", formula: Any = None
) -> ModelSummary:
    """Returns family, likelihood, deviances and coefficients of a model on rows.

    Args:
        model: A compiled model with a family; or whose loss is the squared error or a
            cross-entropy, which imply one.
        data: A dataset with labels, encoded like the one that trained the model.
        part: "all", "train" or "validation".
        formula: The terms of its formula, see `contrasts.read_formula()`.

    Raises:
        ModelError: for a model whose loss is no likelihood, or whose output is NaN.
        DataError: for rows without labels, in sequence, or that the family does not take.
    """
    chosen = find_rows(model, data, part, "a summary")
    model_checks.check_model(model)
    model_checks.check_rows(model, data, step="test", fits=True)
    family = family_of(model) or imply_family(model, data.recipe)
    rows, chosen = read_rows(model, data, chosen, family)
    measured = deviance.measure_deviance(family, rows)
    if not all(
        number is None or math.isfinite(number)
        for number in (measured.log_likelihood, measured.deviance)
    ):
        raise ModelError(
            "`model` gives `data` no finite likelihood: it predicts NaN or infinite numbers.",
            hint="Train it again, with a smaller learning rate.",
            arg="model",
        )
    unweighed = find_unweighed_share(model, data, part)
    record = _describe(model, data, family, rows, measured, chosen)
    contrasts = contrast_terms(record.terms, data.recipe, family, read_formula(formula))
    return replace(record, contrasts=contrasts, unweighed=unweighed)


def imply_family(model: Model, recipe: Recipe) -> Family:
    """Returns the family of which a model's loss is the likelihood.

    Raises:
        ModelError: if there is none.
    """
    loss, label = compatibility.losses_by_name(model, [""])[""], recipe.label
    assert label is not None  # as the rows have labels
    name = "" if isinstance(loss, (dict, list, tuple)) else loss_name(loss)
    plain = len(label.row_shape) <= 1 and not label.outputs and not recipe.mixes_classes
    if name in SQUARED and plain:
        return Family("gaussian", "identity", columns=label.columns, names=label.names)
    if name == BINARY[0] and plain:
        several = label.kind == "matrix" and label.units > 1
        kind = "multi_label" if several else "binomial"
        return Family(kind, "logit", columns=label.units if several else 1, names=label.names)
    if name == SPARSE and plain:
        return Family(
            "multinomial", "logit", columns=_count_classes(model, label), names=label.levels
        )
    raise _refuse_loss()


def _refuse_loss() -> ModelError:
    return ModelError(
        "`model` has no family, and its loss is no likelihood that gpukeras knows.",
        hint="Make it by gpu_mlp(family = ), or compile it with mean_squared_error, "
        "binary_crossentropy or sparse_categorical_crossentropy.",
        arg="model",
    )


def _count_classes(model: Model, label: LabelRule) -> int:
    shapes = list((compatibility.read_outputs(model) or {}).values())
    known = shapes[0][-1] if len(shapes) == 1 and shapes[0] else None
    return known or label.units


# Rows --------------------------------------------------------------------------------------------


def read_rows(
    model: Model, data: Dataset, chosen: np.ndarray, family: Family, calibrated: bool = False
) -> tuple[deviance.Rows, np.ndarray]:
    """Returns labels, parameters, weights and offset of rows that count, and their numbers.

    Rows count by the user's own weights: those of classes are for training alone. Parameters are
    the model's own, or if they are to be `calibrated` those that predictions show.
    """
    labels = np.asarray(data.sources[1].gather(chosen), np.float64)
    labels = labels[:, 0] if labels.ndim > 1 and labels.shape[1] == 1 else labels
    given = own_weights(data, chosen)
    weights = np.ones(len(chosen)) if given is None else given
    counts = weights > 0
    if family.name == "binomial" and labels.ndim > 1:
        counts &= labels.sum(axis=1) > 0
    if not counts.any():
        raise DataError("`data` has no rows with a weight above 0.", arg="data")
    part = find_offset(data)
    offset = np.zeros(len(chosen))
    if part is not None:
        offset = np.asarray(data.sources[0].gather(chosen), np.float64)[:, part.columns][:, 0]
    parameters = _predict(model, data, family, calibrated)[chosen]
    return deviance.Rows(labels, parameters, weights, offset).keep(counts), chosen[counts]


def _predict(model: Model, data: Dataset, family: Family, calibrated: bool) -> np.ndarray:
    """Returns the family's parameters of all rows."""
    with jit_policy(model):
        output = predict_rows(model, data.sources[0], data.recipe, data.map)
    output = adjust(model, output) if calibrated else output
    if not isinstance(output, np.ndarray):
        raise _refuse_loss()
    output = output.astype(np.float64).reshape(len(output), -1)
    if family_of(model) is not None or family.name == "gaussian":
        return output
    if reads_logits(compatibility.losses_by_name(model, [""])[""]):
        scale = LOGITS if family.name == "multinomial" else LOGIT
        output = to_probabilities(output, scale)
    return np.hstack([1 - output, output]) if family.name == "binomial" else output


def find_rank(data: Dataset, rows: np.ndarray) -> int | None:
    """Returns the rank of encoded rows beside a column of ones; None if they are too wide."""
    width = math.prod(data.recipe.features.staged_shape) - find_extras(data.recipe).count
    if width > WIDEST or data.map is not None:
        return None
    total = np.zeros((width + 1, width + 1))
    for first in range(0, len(rows), BLOCK):
        block = np.asarray(data.sources[0].gather(rows[first : first + BLOCK]), np.float64)
        block = np.hstack([np.ones((len(block), 1)), block.reshape(len(block), -1)[:, :width]])
        total += block.T @ block
    sizes = np.sqrt(np.maximum(np.diag(total), np.finfo(np.float64).tiny))
    values = np.linalg.eigvalsh(total / np.outer(sizes, sizes))
    return int((values > SINGULAR * values[-1]).sum())


# The record --------------------------------------------------------------------------------------


def _describe(
    model: Model,
    data: Dataset,
    family: Family,
    rows: deviance.Rows,
    measured: deviance.Deviance,
    numbers: np.ndarray,
) -> ModelSummary:
    linear, count = coefficients.find_linear(model, family), len(numbers)
    features = data.recipe.features
    rank = None if linear is None else find_rank(data, numbers)
    absent = len(set(family.names) & set(data.recipe.label.absent)) if data.recipe.label else 0
    df = None if rank is None else coefficients.count_parameters(family, rank, absent)
    penalised = bool(getattr(model, "losses", ()))
    units = family.name in deviance.UNIT
    nobs = count_observations(family, rows)
    held = count if family.name == "cox" else nobs
    residual = None if rank is None or df is None else held - (rank if units else df)
    likely = measured.log_likelihood if df is not None else None
    if penalised or trained_by_class(model):  # the training minimised another sum
        likely = None
    dispersion, name = read_dispersion(family, rows, measured.deviance, residual)
    terms = () if data.map else coefficients.read_coefficients(model, data.recipe, family)
    return ModelSummary(
        family=family.name,
        link=family.link,
        implied=family_of(model) is None,
        formula=data.recipe.formula,
        columns=tuple(rule.name for rule in features.columns) or features.names,
        rows=count,
        trainable=sum(math.prod(each.shape) for each in model.trainable_variables),
        linear=linear is not None,
        penalised=penalised,
        log_likelihood=measured.log_likelihood,
        deviance=measured.deviance,
        null_deviance=measured.null_deviance,
        explained=_share(measured),
        df=df,
        df_null=count - 1 if units else None,
        df_residual=residual,
        aic=None if likely is None or df is None else 2 * df - 2 * likely,
        nobs=nobs,
        bic=None if likely is None or df is None or not nobs else math.log(nobs) * df - 2 * likely,
        dispersion=dispersion,
        dispersion_name=name,
        options=family_options(family),
        terms=terms,
    )


def count_observations(family: Family, rows: deviance.Rows) -> float:
    """Returns what `nobs()` of R's own models counts.

    Classes count the weights, as `MASS::polr()` and `nnet::multinom()` do, for which these are
    frequencies; "cox" counts events, others rows.
    """
    if family.name in ("ordinal", "multinomial"):
        total = float(rows.weights.sum())
        return round(total) if total == round(total) else total
    if family.name == "cox":
        return int((rows.labels[:, 1] > 0).sum())
    return len(rows.labels)


def _share(measured: deviance.Deviance) -> float | None:
    if measured.deviance is None or not measured.null_deviance:
        return None
    return 1 - measured.deviance / measured.null_deviance


def read_dispersion(
    family: Family, rows: deviance.Rows, total: float | None, residual: float | None
) -> tuple[float | None, str]:
    """Returns the dispersion that holds for all rows and its name; None and "" without one.

    Args:
        family: The family.
        rows: The rows with their parameters.
        total: The deviance.
        residual: Degrees of freedom that divide the deviance of a Gaussian family without a
            learned dispersion, as in `summary.glm()`; None for the number of rows.
    """
    if family.name == "gaussian" and family.dispersion == NONE and rows.labels.ndim == 1:
        assert total is not None
        return total / (residual or len(rows.labels)), "variance"
    if family.dispersion != CONSTANT:
        return None, ""
    first: Any = rows.parameters[0]
    if family.name == "gaussian":
        return float(first[1] ** 2), "variance"
    if family.name == "gamma":
        return float(1 / first[1]), "dispersion"
    if family.name == "beta":
        return float(first.sum()), "precision"
    return float(first[1]), "size"


# What R's generics ask: coefficients by name, family, formula and residuals ----------------------


RESPONSE, DEVIANCE = "response", "deviance"
# Whose labels and means are both numbers.
WITH_RESIDUALS = (*deviance.UNIT, "zero_inflated_poisson", "beta")


@dataclass(frozen=True)
class ModelTerms:
    """A model as R's generics see it, without rows.

    Args:
        family: The family's name, or "" for a model without one, whose loss implies none.
        link: Its link.
        options: Its options besides, by name.
        formula: R's formula as text, or "".
        linear: Whether the model has no hidden layers.
        logits: Whether the model gives logits where the family has probabilities.
        terms: Its coefficients, see `contrasts.contrast_terms()`.
    """

    family: str
    link: str
    options: Mapping[str, Any]
    formula: str
    linear: bool
    logits: bool
    terms: tuple[Term, ...]


def read_terms(model: Model, formula: Any = None) -> ModelTerms:
    """Returns what a model is: its family, its formula and its coefficients.

    Args:
        model: A built model.
        formula: The terms of its formula, see `contrasts.read_formula()`.

    Raises:
        ModelError: for what is no Keras model.
    """
    model_checks.check_model(model, compiled=False)
    recipe = model_recipes.recipe_of(model)
    family = family_of(model) or _imply(model, recipe)
    terms: tuple[Term, ...] = ()
    if family is not None and recipe is not None:
        plain = coefficients.read_coefficients(model, recipe, family)
        terms = contrast_terms(plain, recipe, family, read_formula(formula))
    return ModelTerms(
        family="" if family is None else family.name,
        link="" if family is None else family.link,
        options={} if family is None else family_options(family),
        formula="" if recipe is None else recipe.formula,
        linear=coefficients.find_linear(model, family) is not None,
        logits=family_of(model) is None and reads_logits(getattr(model, "loss", None)),
        terms=terms,
    )


def _imply(model: Model, recipe: Recipe | None) -> Family | None:
    if recipe is None or recipe.label is None or not model.compiled:
        return None
    try:
        return imply_family(model, recipe)
    except ModelError:
        return None


def read_residuals(
    model: Model, data: Dataset, part: str = "all", kind: str = RESPONSE
) -> np.ndarray:
    """Returns the residual of each row, as `residuals()` of a `glm()`; NaN for a weight of 0.

    Args:
        model: See `summarise_model()`.
        data: A dataset with labels, encoded like the one that trained the model.
        part: "all", "train" or "validation".
        kind: "response", label - mean, which is calibrated if the model is; or "deviance", the
            signed root of the row's deviance.

    Raises:
        SpecError: for another kind.
        ModelError: for a family whose labels are no numbers, or that has no deviance.
        DataError: for rows without labels, in sequence, or that the family does not take.
    """
    check_choice("type", kind, (RESPONSE, DEVIANCE))
    chosen = find_rows(model, data, part, "residuals")
    model_checks.check_model(model)
    model_checks.check_rows(model, data, step="test", fits=True)
    family = family_of(model) or imply_family(model, data.recipe)
    _check_residuals(family, kind)
    rows, counted = read_rows(model, data, chosen, family, calibrated=kind == RESPONSE)
    residuals = _residuals(family, rows, kind)
    values: np.ndarray = np.full((len(chosen), *residuals.shape[1:]), np.nan)
    values[np.isin(chosen, counted)] = residuals
    return values


def _check_residuals(family: Family, kind: str) -> None:
    if family.name not in WITH_RESIDUALS:
        raise ModelError(
            f'The family "{family.name}" has no residuals: its labels and predictions are no two '
            "numbers.",
            arg="object",
        )
    several = family.name == "gaussian" and family.columns > 1
    if kind == DEVIANCE and (
        family.name not in deviance.UNIT or family.dispersion == ROWS or several
    ):
        raise ModelError(
            "This model has no deviance of a row.", hint='Use type = "response".', arg="object"
        )


def _residuals(family: Family, rows: deviance.Rows, kind: str) -> np.ndarray:
    mean = np.asarray(likelihood(family).mean(family, rows.parameters), np.float64)
    labels = rows.labels
    if family.name == "binomial" and labels.ndim > 1:
        labels = labels[:, 0] / labels.sum(axis=1)
    rest: np.ndarray = labels - mean
    if kind == RESPONSE:
        return rest
    size = rows.parameters[:, 1] if family.name == "negative_binomial" else np.ones(1)
    each = deviance.unit_deviance(family, rows.labels, mean, size)
    return np.sign(rest) * np.sqrt(np.maximum(rows.weights * each, 0.0))
