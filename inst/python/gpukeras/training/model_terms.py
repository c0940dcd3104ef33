"""What R's generics ask of a model: coefficients by name, family, formula and residuals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_choice
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.models import model_checks, model_recipes
from gpukeras.models.families import coefficients, deviance
from gpukeras.models.families.coefficients import Term
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import ROWS, Family, family_options
from gpukeras.training import model_summary
from gpukeras.training.calibrate import find_rows

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
        terms: Its coefficients, see `coefficients.contrast_terms()`.
    """

    family: str
    link: str
    options: Mapping[str, Any]
    formula: str
    linear: bool
    terms: tuple[Term, ...]


def read_terms(model: Model) -> ModelTerms:
    """Returns what a model is: its family, its formula and its coefficients.

    Args:
        model: A built model.

    Raises:
        ModelError: for what is no Keras model.
    """
    model_checks.check_model(model, compiled=False)
    recipe = model_recipes.recipe_of(model)
    family = family_of(model) or _imply(model, recipe)
    terms: tuple[Term, ...] = ()
    if family is not None and recipe is not None:
        plain = coefficients.read_coefficients(model, recipe, family)
        terms = coefficients.contrast_terms(plain, recipe, family)
    return ModelTerms(
        family="" if family is None else family.name,
        link="" if family is None else family.link,
        options={} if family is None else family_options(family),
        formula="" if recipe is None else recipe.formula,
        linear=coefficients.find_linear(model) is not None,
        terms=terms,
    )


def _imply(model: Model, recipe: Recipe | None) -> Family | None:
    if recipe is None or recipe.label is None or not model.compiled:
        return None
    try:
        return model_summary.imply_family(model, recipe)
    except ModelError:
        return None


def read_residuals(
    model: Model, data: Dataset, part: str = "all", kind: str = RESPONSE
) -> np.ndarray:
    """Returns the residual of each row, as `residuals()` of a `glm()`; NaN for a weight of 0.

    Args:
        model: See `model_summary.summarise_model()`.
        data: A dataset with labels, encoded like the one that trained the model.
        part: "all", "train" or "validation".
        kind: "response", label - mean; or "deviance", the signed root of the row's deviance.

    Raises:
        SpecError: for another kind.
        ModelError: for a family whose labels are no numbers, or that has no deviance.
        DataError: for rows without labels, in sequence, or that the family does not take.
    """
    check_choice("type", kind, (RESPONSE, DEVIANCE))
    chosen = find_rows(model, data, part, "residuals")
    model_checks.check_model(model)
    model_checks.check_rows(model, data, step="test", fits=True)
    family = family_of(model) or model_summary.imply_family(model, data.recipe)
    _check_residuals(family, kind)
    rows, counted = model_summary.read_rows(model, data, chosen, family)
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
