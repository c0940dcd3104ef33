"""Calibrates a model on held-out rows, and predicts intervals by what that showed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_choice, check_fraction, is_number
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.recipe import decoding
from gpukeras.data.recipe.multi_output import own_weights
from gpukeras.models import compatibility, conformal, model_checks, model_recipes
from gpukeras.models import temperature as scaling
from gpukeras.models.calibration import (
    CLASSES,
    NUMBERS,
    QUANTILES,
    Calibration,
    calibration_of,
    tie_calibration,
)
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.predictions import WITH_CLASSES
from gpukeras.models.families.registry import likelihood
from gpukeras.models.targets import (
    BINARY,
    SUPPORTS,
    are_probabilities,
    choose_reading,
    loss_name,
    reads_logits,
)
from gpukeras.models.training_rows import find_trained_share
from gpukeras.training.predict import predict

QUANTILE_NAME = re.compile(r"q(0\.\d+)")


@dataclass(frozen=True)
class CalibrationReport:
    """What a calibration showed.

    Args:
        kind: "numbers", "quantiles" or "classes".
        rows: Number of held-out rows.
        part: Which rows of the dataset they were: "all", "train" or "validation".
        temperature: Divides the logits of classes.
        log_loss: Before and after, of classes.
        error: The expected calibration error before and after, of classes.
        width: Half the width of an interval of 90 % for numbers, or what it adds to quantiles at
            each end; None for classes, or for fewer than 9 rows.
        trained: Share of the rows that are known to have trained the model.
    """

    kind: str
    rows: int
    part: str
    temperature: float = 1.0
    log_loss: tuple[float, ...] = ()
    error: tuple[float, ...] = ()
    width: float | None = None
    trained: float = 0.0


def calibrate(
    model: Model,
    data: Dataset,
    *,
    part: str | None = None,
    quantiles: Sequence[float] | float | None = None,
) -> CalibrationReport:
    """Learns from held-out rows how far predictions are off, and ties that to the model.

    Args:
        model: A Keras model with one output.
        data: A dataset with labels that did not train the model. Weights count a row as more or
            less than one; only their ratios matter. Those of classes are for training alone.
        part: "all", "train" or "validation"; None is the validation rows if there are any.
        quantiles: The probabilities whose quantiles the outputs are, in ascending order; None reads
            them from the outputs' names, such as "q0.1".

    Raises:
        SpecError: for bad quantiles.
        DataError: for rows without labels, in sequence, or labels of another shape.
        ModelError: for a model whose outputs have no intervals and no probabilities.
    """
    part = part or ("validation" if data.has_rows("validation") else "all")
    rows = find_rows(model, data, part, "calibration")
    given = own_weights(data, rows)
    weights = np.ones(len(rows)) if given is None else given
    rows, weights = rows[weights > 0], weights[weights > 0]
    if not len(rows):
        raise DataError("`data` has no rows with a weight above 0.", arg="data")
    levels = check_quantiles(quantiles)
    before = calibration_of(model)
    tie_calibration(model, None)  # probabilities are calibrated as the model itself gives them
    try:
        record = predict(model, data=data)
        if "values" not in record:
            raise _refuse_output("several outputs")
        outputs = np.asarray(record["values"])[rows]
        levels = levels or read_quantiles(record.get("names") or ())
        labels = data.sources[1].gather(rows).reshape(len(rows), -1)
        if labels.shape[1] != 1:
            raise _refuse_output(f"labels of {labels.shape[1]} numbers a row")
        calibration, report = _learn(
            model, data, outputs, (labels[:, 0], weights / weights.mean()), (levels, part)
        )
    except BaseException:
        tie_calibration(model, before)
        raise
    tie_calibration(model, calibration)
    return replace(report, trained=find_trained_share(model, data, rows))


def find_rows(model: Model, data: Dataset, part: str, purpose: str) -> np.ndarray:
    """Returns the numbers of a part's rows; checks that there are some, with labels.

    Args:
        model: The model; need not be compiled.
        data: The dataset, encoded like the one that trained the model.
        part: "all", "train" or "validation".
        purpose: What compares predictions with labels, for messages.

    Raises:
        DataError: for rows in sequence or without labels, or a part without rows.
    """
    check_choice("part", part, ("all", "train", "validation"))
    model_checks.check_model(model, compiled=False)
    model_recipes.check_encoding(model, data.recipe)
    if not isinstance(data, MapDataset):
        raise DataError(
            f"`data` comes in sequence, but {purpose} compares predictions with labels by row.",
            hint="Give a data frame, a matrix or files, or a gpu_dataset() of these.",
            arg="data",
        )
    if len(data.sources) < 2:
        raise DataError(
            "`data` has no labels to compare predictions with.", hint="Give `y`.", arg="data"
        )
    if not data.has_rows(part):
        raise DataError("`data` has no validation rows.", arg="part")
    return data.rows(part)


def check_quantiles(quantiles: Sequence[float] | float | None) -> tuple[float, ...]:
    """Returns probabilities of quantiles as a tuple; none for None.

    Raises:
        SpecError: if they are not two or more ascending numbers between 0 and 1.
    """
    if quantiles is None:
        return ()
    levels: list[Any] = list(np.ravel(np.asarray(quantiles, object)))
    rising = all(is_number(level) and 0 < level < 1 for level in levels)
    rising = rising and all(level < other for level, other in pairwise(levels))
    if len(levels) < 2 or not rising:
        raise SpecError(
            "`quantiles` must be at least two probabilities between 0 and 1, in ascending order.",
            hint="They say which quantile each output of `model` is.",
            arg="quantiles",
        )
    return tuple(float(level) for level in levels)


def read_quantiles(names: Sequence[str]) -> tuple[float, ...]:
    """Returns the probabilities in names such as "q0.1"; none if an output is called otherwise."""
    matches = [QUANTILE_NAME.fullmatch(name) for name in names]
    return (
        check_quantiles([float(match[1]) for match in matches if match])
        if all(matches) and matches
        else ()
    )


def _learn(
    model: Model,
    data: Dataset,
    outputs: np.ndarray,
    truth: tuple[np.ndarray, np.ndarray],
    how: tuple[tuple[float, ...], str],
) -> tuple[Calibration, CalibrationReport]:
    """Returns what the rows show, and the report of it; `truth` is labels and weights."""
    (labels, weights), (quantiles, part) = truth, how
    reading = "" if quantiles else find_reading(model, data, outputs)
    if reading:
        return _learn_classes(outputs, labels.astype(np.int64), weights, reading, part)
    if quantiles:
        if outputs.ndim != 2 or outputs.shape[1] != len(quantiles):
            raise _refuse_output(f"no output for each of {len(quantiles)} quantiles")
        pairs = conformal.list_pairs(quantiles)
        scores = [
            conformal.quantile_scores(outputs[:, low], outputs[:, high], labels)
            for low, high in pairs
        ]
    elif outputs.ndim == 1:
        reading = scaling.LOGIT if gives_logits(model) else ""
        numbers = scaling.to_probabilities(outputs, reading) if reading else outputs
        scores = [conformal.absolute_scores(numbers, labels)]
    else:
        raise _refuse_output(f"outputs of {outputs[0].size} numbers a row")
    scores = [conformal.weigh_scores(score, weights) for score in scores]
    kept = tuple(tuple(conformal.thin_scores(score).tolist()) for score in scores)
    kind, place = (QUANTILES, conformal.choose_pair(quantiles, 0.9)) if quantiles else (NUMBERS, 0)
    width = conformal.conformal_quantile(kept[place], 0.9) if len(labels) >= 9 else None
    return (
        Calibration(kind, len(labels), kept, quantiles, reading),
        CalibrationReport(kind, len(labels), part, width=width),
    )


def _learn_classes(
    outputs: np.ndarray, classes: np.ndarray, weights: np.ndarray, reading: str, part: str
) -> tuple[Calibration, CalibrationReport]:
    logits = scaling.to_logits(outputs, reading)
    temperature = scaling.fit_temperature(logits, classes, weights)
    both = [scaling.soften(logits), scaling.soften(logits, temperature)]
    report = CalibrationReport(
        kind=CLASSES,
        rows=len(classes),
        part=part,
        temperature=temperature,
        log_loss=tuple(scaling.log_loss(probabilities, classes, weights) for probabilities in both),
        error=tuple(
            scaling.calibration_error(probabilities, classes, weights=weights)
            for probabilities in both
        ),
    )
    return Calibration(CLASSES, len(classes), reading=reading, temperature=temperature), report


def find_reading(model: Model, data: Dataset, outputs: np.ndarray) -> str:
    """Returns how probabilities are read from a model's outputs; "" for a regression.

    Raises:
        ModelError: for classes of each step or pixel, or outputs that are no probabilities.
    """
    family = family_of(model)
    if family is not None and family.name not in WITH_CLASSES:
        return ""
    units = outputs.shape[-1] if outputs.ndim > 1 else 1
    loss = compatibility.losses_by_name(model, [""])[""]
    reading = choose_reading(data.recipe.label, loss, units)
    if not reading:
        return ""
    if outputs.ndim > 2 or (reading != decoding.HIGHEST and units > 1):
        raise _refuse_output(f"outputs of {outputs[0].size} numbers a row")
    scale = scaling.name_scale(reading, reads_logits(loss))
    if scale in (scaling.SOFTMAX, scaling.SIGMOID) and not are_probabilities(outputs):
        raise ModelError(
            "`model` gives numbers outside of 0 to 1 for classes, and its loss does not say that "
            "they are logits.",
            hint="Compile it with a cross-entropy of Keras, with from_logits = TRUE for logits; if "
            "they are quantiles of one number, give `quantiles`.",
            arg="model",
        )
    return scale


def _refuse_output(what: str) -> ModelError:
    return ModelError(
        "gpu_calibrate() needs a model that predicts one number or one class a row, "
        f"but `model` has {what}.",
        hint="If its outputs are quantiles of one number, give `quantiles`.",
        arg="model",
    )


# Intervals ---------------------------------------------------------------------------------------


def predict_interval(
    model: Model,
    features: Mapping[str, Any] | None = None,
    *,
    data: Dataset | None = None,
    interval: float = 0.9,
    devices: Any = None,
) -> dict[str, Any]:
    """Returns predictions with intervals that cover a label with a given probability.

    Args:
        model: A model that was calibrated.
        features: New rows, see `predict()`.
        data: Alternatively a dataset.
        interval: The probability.
        devices: See `predict()`.

    Returns:
        `{values, lower, upper}` (float64), and `missing` as `predict()` has it. No bound lies
        outside of the labels that the model's family or loss is made for.

    Raises:
        SpecError: if the model was not calibrated for intervals, or on too few rows.
    """
    level, known = check_fraction("interval", interval), calibration_of(model)
    if known is None or known.kind == CLASSES:
        state = "was not calibrated" if known is None else "predicts classes"
        raise SpecError(
            f"`interval` needs a model that was calibrated on numbers, but `model` {state}.",
            hint="Calibrate it first: gpu_calibrate(model, data), with rows that did not train it."
            if known is None
            else "Its probabilities are calibrated: gpu_predict() returns them.",
            arg="interval",
        )
    place = conformal.choose_pair(known.quantiles, level) if known.quantiles else 0
    margin = conformal.conformal_quantile(known.scores[place], level)
    record = predict(model, features, data=data, devices=devices)
    values = np.asarray(record["values"], np.float64)
    values = scaling.to_probabilities(values, known.reading) if known.reading else values
    lower = upper = middle = values
    if known.quantiles:
        low, high = conformal.list_pairs(known.quantiles)[place]
        lower = values[:, low]
        upper = values[:, high]
        middle = _middle(values)
    missing = {"missing": record["missing"]} if "missing" in record else {}
    support = support_of(model)
    lower, upper = conformal.widen(lower, upper, margin)
    ends = {"lower": np.clip(lower, *support), "upper": np.clip(upper, *support)}
    return {"values": middle, **ends, **missing}


def support_of(model: Model) -> tuple[float, float]:
    """Returns the least and the largest label that a model's family or loss is made for."""
    family = family_of(model)
    if family is not None:
        return likelihood(family).support
    loss = compatibility.losses_by_name(model, [""])[""]
    return SUPPORTS.get(loss_name(loss), (-math.inf, math.inf))


def gives_logits(model: Model) -> bool:
    """Whether a model gives logits where its loss takes labels that are shares."""
    loss = compatibility.losses_by_name(model, [""])[""]
    return family_of(model) is None and loss_name(loss) in BINARY and reads_logits(loss)


def _middle(values: np.ndarray) -> np.ndarray:
    """Returns the middle quantile of each row; the mean of two if their number is even."""
    last = values.shape[1] - 1
    middle: np.ndarray = (values[:, last // 2] + values[:, (last + 1) // 2]) / 2
    return middle
