"""Predicts rows by all models of a table: their mean, and how much they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import check_choice, check_fraction
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.transforms import open_device_transform
from gpukeras.data.reader.rows import RowSource, SelectedRows
from gpukeras.data.recipe.decoding import HALF, HIGHEST, decode_outputs, refuse_classes
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.targets import LabelRule
from gpukeras.engine.batch_rows import choose_rows, count_row_bytes
from gpukeras.engine.predict import predict_rows
from gpukeras.many.fits import FittedModels
from gpukeras.many.stack import open_stack
from gpukeras.models.families import predictions
from gpukeras.models.families.spec import Family
from gpukeras.models.targets import check_probabilities, choose_reading, reads_logits
from gpukeras.models.temperature import name_scale, to_probabilities
from gpukeras.training.predict import NUMBERS, keep_places, open_rows

TYPES = ("response", "class")


def predict_many(
    fits: FittedModels,
    features: Mapping[str, Any] | None = None,
    *,
    data: Dataset | None = None,
    type: str = "response",  # noqa: A002 (R's name for it)
    interval: float = 0.9,
    models: Sequence[int] | None = None,
    groups: Sequence[str | None] | None = None,
) -> dict[str, Any]:
    """Returns the mean of models' predictions, and their spread.

    Args:
        fits: The models, which all count alike: a deep ensemble (Lakshminarayanan et al. 2017).
            Those that have no epoch, as one whose worker died, do not count.
        features: New rows, see `training.predict()`.
        data: Alternatively a dataset with numbered rows.
        type: "response", or "class" by the mean of the probabilities.
        interval: Share of the models between `lower` and `upper`, in (0, 1). It tells how much the
            models disagree, not where a new label lies.
        models: Numbers of the models that count, from 1; None for all.
        groups: The group of each row, where groups have models of their own: its models count.

    Returns:
        See `training.predict()`, for the mean, with `sd`, `lower` and `upper` of the values'
        shape for numbers.

    Raises:
        SpecError, DataError, ModelError: for what cannot be predicted.
    """
    share = check_fraction("interval", interval)
    check_choice("type", type, TYPES)
    asked = None if models is None else {int(number) - 1 for number in models}
    trained = [place for place in list_trained(fits) if asked is None or place in asked]
    places = _group_places(fits, trained, groups)
    model = fits.encoder()
    recipe, rows, complete = open_rows(model, features, data)
    function = None if data is None else data.map
    if not isinstance(rows, RowSource):
        raise DataError(
            "Many models predict rows with numbers, and `newdata` gives its rows in sequence.",
            hint="Predict with one model: fits[[1]].",
            arg="newdata",
        )
    names = np.array(list(places), object)
    group_of = np.zeros(len(rows), np.int64)
    if groups is not None:
        group_of = _code_rows(groups, list(places), rows, complete)
        if fits.scaling is not None:
            known = [fits.scaling.names.index(name) for name in names]
            rows = fits.scaling.apply(rows, np.array(known)[group_of])
    parts = []
    for code in np.unique(group_of):
        chosen = np.flatnonzero(group_of == code).astype(np.int32)
        some = rows if len(chosen) == len(rows) else SelectedRows(rows, chosen)
        own = places[names[code]]
        outputs = predict_outputs(fits, model, some, recipe, own, function=function)
        _check_single(outputs)
        if type == "class":
            record = _join_classes(fits, own, recipe.label, outputs)
        else:
            families = [fits.family(place) for place in own]
            record = _join_numbers(recipe.label, outputs, share, families)
        parts.append((chosen, record))
    record = _put_together(parts, len(group_of))
    return {**keep_places(record, complete), "models": len(trained)}


def _check_single(outputs: Any) -> None:
    if not isinstance(outputs, np.ndarray):
        raise ModelError(
            "The models have several outputs, whose predictions cannot be joined.",
            hint="Predict with one model: fits[[1]].",
            arg="model",
        )


def _group_places(
    fits: FittedModels, trained: Sequence[int], groups: Sequence[str | None] | None
) -> dict[str, list[int]]:
    """Returns the places of the models of each group that is asked for; "" for all rows alike.

    Raises:
        SpecError: if it is unknown to which groups the rows belong.
        DataError: for groups without a model.
    """
    places_of: dict[str, list[int]] = {}
    for place in trained:
        places_of.setdefault(fits.members[place].group, []).append(place)
    if "" in places_of or not any(member.group for member in fits.members):
        return {"": list(trained)}
    if groups is None:
        raise SpecError(
            "Each group has a model of its own, and it is unknown to which group rows belong.",
            hint="Give the group's column in `newdata`, or `group`, one value a row.",
            arg="group",
        )
    asked = set(groups)
    unknown = len([name for name in asked if name is None or name not in places_of])
    if unknown:
        rows = sum(name is None or name not in places_of for name in groups)
        raise DataError(
            f"`newdata` has {count_of(rows, 'row')} of {count_of(unknown, 'group')} without a "
            "trained model.",
            hint="Leave them out, or train with rows of these groups.",
            arg="newdata",
        )
    return {name: places for name, places in places_of.items() if name in asked}


def _code_rows(
    groups: Sequence[Any], names: Sequence[str], rows: RowSource, complete: np.ndarray | None
) -> np.ndarray:
    """Returns the place of each row's group among names.

    Raises:
        SpecError: unless there is one group a row.
    """
    expected = len(rows) if complete is None else len(complete)
    if len(groups) != expected:
        raise SpecError(
            f"`group` has {count_of(len(groups), 'value')}, and `newdata` has "
            f"{count_of(expected, 'row')}.",
            hint="Give one group a row.",
            arg="group",
        )
    place_of = {name: place for place, name in enumerate(names)}
    codes = np.array([place_of[name] for name in groups], np.int64)
    kept, group_of = codes if complete is None else codes[complete], np.zeros(len(rows), np.int64)
    group_of[: len(kept)] = kept
    return group_of


def _put_together(parts: Sequence[tuple[np.ndarray, dict[str, Any]]], count: int) -> dict[str, Any]:
    """Returns the predictions of all groups in the order of the rows."""
    if len(parts) == 1:
        return parts[0][1]
    record = dict(parts[0][1])
    for name in NUMBERS & record.keys():
        first = np.asarray(record[name])
        record[name] = np.zeros((count, *first.shape[1:]), first.dtype)
        for rows, part in parts:
            record[name][rows] = part[name]
    return record


def list_trained(fits: FittedModels) -> list[int]:
    """Returns the places of the models that have trained at least an epoch.

    Raises:
        ModelError: if there is none.
    """
    trained = [place for place, fitted in enumerate(fits.fitted) if fitted.history.epochs]
    if not trained:
        raise ModelError(
            "No model has trained a whole epoch, so there is nothing to predict with.",
            hint="`fits$table$stopped` says how each ended.",
            arg="model",
        )
    return trained


def predict_outputs(
    fits: FittedModels,
    model: Model,
    rows: RowSource,
    recipe: Recipe,
    trained: Sequence[int],
    *,
    function: Callable[[Any], Any] | None = None,
) -> np.ndarray | Any:
    """Returns the outputs of models for the same rows, (models, rows, ...).

    Args:
        fits: The models.
        model: One of them, for its size.
        rows: The rows.
        recipe: Their encoding.
        trained: Places of the models.
        function: The user's function that is applied to features before the models, or None.
    """
    size = choose_rows(len(rows), rows.row_bytes, count_row_bytes(model), fits.device)
    size = max(1, size // max(1, fits.plan.most))
    encode = open_device_transform(recipe, size, function, rows.texts)
    outputs = dict[int, Any]()
    for stacked in fits.plan.stacks:
        places = [place for place in stacked if place in trained]
        if not places:
            continue
        starts = [fits.starts[place] for place in places]
        stack = open_stack(
            [start.model for start in starts],
            [start.structure for start in starts],
            fits.data,
            fits.device,
            states=[fits.fitted[place].state for place in places],
            compiled=False,  # compiling takes longer than predicting millions of rows
        )
        parts = [
            stack.predict_same(encode(rows.gather(slice(start, start + size))))
            for start in range(0, len(rows), size)
        ]
        if not isinstance(parts[0], np.ndarray):
            return parts[0]
        joined = np.concatenate(parts, axis=1)
        for place, values in zip(places, joined, strict=True):
            outputs[place] = values
    for place in set(fits.plan.alone) & set(trained):
        outputs[place] = predict_rows(fits.model(place + 1), rows, recipe, function)
        if not isinstance(outputs[place], np.ndarray):
            return outputs[place]
    return np.stack([outputs[place] for place in trained])


def _join_numbers(
    rule: LabelRule | None, outputs: np.ndarray, share: float, families: Sequence[Family | None]
) -> dict[str, Any]:
    """Returns the mean of the models' predictions, with their spread."""
    rules = {"": rule} if rule else {}
    records = [
        decode_outputs(rules, {"": output}, {})[0]
        if family is None
        else predictions.read_output(family, output, predictions.RESPONSE)
        for family, output in zip(families, outputs, strict=True)
    ]
    values = np.stack([np.asarray(record["values"], np.float64) for record in records])
    tails = np.quantile(values, [(1 - share) / 2, (1 + share) / 2], axis=0)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])
    return {
        **records[0],
        "values": values.mean(axis=0),
        "sd": spread,
        "lower": tails[0],
        "upper": tails[1],
    }


def _join_classes(
    fits: FittedModels, places: Sequence[int], rule: LabelRule | None, outputs: np.ndarray
) -> dict[str, Any]:
    """Returns the classes of the mean of the models' probabilities, each read by its own loss."""
    probabilities = []
    for place, output in zip(places, outputs, strict=True):
        predictions.check_type(predictions.CLASS, fits.family(place))
        loss = fits.starts[place].model.loss
        reading = choose_reading(rule, loss, outputs.shape[-1])
        if not reading:
            raise refuse_classes([rule] if rule else [])
        check_probabilities(reading, loss, output)
        probabilities.append(to_probabilities(output, name_scale(reading, reads_logits(loss))))
    reading = HIGHEST if reading == HIGHEST else HALF
    mean = np.mean(probabilities, axis=0)
    return decode_outputs({"": rule} if rule else {}, {"": mean}, {"": reading})[0]
