"""Predicts rows in large batches, and decodes the outputs to the labels' terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.progress import CallProgress, OnEvent, heard_by
from gpukeras.core.r_buffer import OutputBuffer
from gpukeras.data.arrays import EncodeOptions, Notes
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.transforms import unmapped
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import Features, MemoryRows, RowSource
from gpukeras.data.reader.windows import WindowRows
from gpukeras.data.recipe.decoding import decode_outputs, name_columns, refuse_classes
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.targets import LabelRule, outputs_by_name
from gpukeras.distributed.predict import predict_together
from gpukeras.distributed.session import propagate_failures
from gpukeras.distributed.strategy import open_strategy
from gpukeras.engine.batch_dependence import kept_reason
from gpukeras.engine.engine_facts import find_predict_hook, refuse_batch_hook
from gpukeras.engine.predict import AfterBatch, Batches, explain_rows, predict_rows, predict_stream
from gpukeras.models import compatibility, model_checks, model_recipes
from gpukeras.models.calibration import adjust
from gpukeras.models.families import predictions
from gpukeras.models.families.keras_classes import family_layer, family_of
from gpukeras.models.families.spec import Family
from gpukeras.models.targets import check_probabilities, choose_reading
from gpukeras.training.keras_functions import count_weights, jit_policy

NUMBERS = {"values", "sd", "lower", "upper"}  # of predictions, one entry a row


def predict(
    model: Model,
    features: Mapping[str, Any] | None = None,
    *,
    data: Dataset | None = None,
    type: str = "response",  # noqa: A002 (R's name for it)
    buffer: Callable[[int, int, list[str]], Any] | None = None,
    devices: Any = None,
    times: Any = None,
    callbacks: Sequence[Any] = (),
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Returns a model's predictions, decoded to the labels' terms, rows in the order given.

    Args:
        model: A Keras model; need not be compiled.
        features: New rows, encoded by the recipe tied to the model if there is one.
        data: Alternatively a dataset, whose rows are predicted in their original order; of an
            iterable dataset one epoch.
        type: "response", "class", or another one of models with a family: `families.predictions`.
        buffer: R's function that allocates memory for many values, see `core.r_buffer`; or None.
        devices: The devices that predict, see `training.fit()`; "all" splits the rows over a
            cluster. Iterable datasets are predicted on the model's device, and so are models whose
            outputs for a row depend on its batch.
        times: Times of type "survival"; None for the model's own.
        callbacks: Keras callbacks; all rows are one batch to them.
        on_event: Called with the rows that are done, see `CallProgress`; not where several devices
            predict.

    Returns:
        See `targets.decode`, `values` being "buffer" where they are in that memory; and `missing`,
        the numbers from 1 of rows without a prediction, because training left out such rows. They
        keep their place. For a model with several outputs: `{outputs}`, such a record of each, with
        its `name`. Where the shape of a row varies by batch: `{batches}`, a record of each. For
        windows of time series, with `forecast`, see `windows.describe_forecasts()`. With `note`
        where predictions depend on the batch, and `unlearned`, sentences on new rows with values of
        which the training rows have taught nothing.
    """
    predictions.check_type(type, family := family_of(model))
    notes = Notes()
    with heard_by(on_event):
        recipe, rows, complete = open_rows(model, features, data, notes=notes)
    if data is not None:
        refuse_batch_hook(find_predict_hook(callbacks), data)
    compatibility.check_input(model, recipe)
    model_checks.check_call(model, "predict")
    classes = type == "class"
    held = None
    if buffer is not None and not classes and family is None:
        held = OutputBuffer(buffer, partial(name_columns, recipe.label))
    function = None if data is None else data.map
    progress = CallProgress(on_event, None if isinstance(rows, IterableDataset) else len(rows))
    with jit_policy(model):
        output = _tell(
            callbacks,
            model,
            lambda: _predict(model, rows, recipe, function, held, devices, progress.reach),
        )
    output = adjust(model, output)
    if family is not None and not classes:
        record = keep_places(_read_family(model, family, output, type, times), complete)
    else:
        record = _decode(model, recipe, rows, output, complete, classes=classes)
    if held is not None and "values" in record and held.holds(record["values"]):
        record = {**record, "values": "buffer"}
    record = {**record, **({"unlearned": notes.unlearned} if notes.unlearned else {})}
    why = kept_reason(model)
    note = f"Rows were predicted in the batches of Keras' own predict(): {why}."
    return {**record, "note": note} if why else record


def _decode(
    model: Model,
    recipe: Recipe,
    rows: RowSource | IterableDataset,
    output: Any,
    complete: np.ndarray | None,
    *,
    classes: bool,
) -> dict[str, Any]:
    """Returns the record of an output in the labels' terms, or `{outputs}`, that of each."""
    single = isinstance(output, (np.ndarray, Batches))
    by_name = {"": output} if single else _by_name(model, output)
    rules = _rules_of(model, recipe.label, list(by_name))
    readings = _read_classes(model, rules, by_name) if classes else {}
    decoded = decode_outputs(rules, by_name, readings)
    records = [keep_places(record, complete) for record in decoded]
    if not single:
        return {"outputs": records}
    if isinstance(rows, WindowRows):
        records[0] |= _describe_forecasts(rows, recipe, records[0])
    return records[0]


def _read_family(model: Model, family: Family, output: Any, kind: str, times: Any) -> Any:
    """Returns what a model with a family predicts besides classes."""
    if kind not in (predictions.CURVES, predictions.TIME):
        return predictions.read_output(family, output, kind)
    variables = {name: np.asarray(values) for name, values in family_layer(model).own.items()}
    return predictions.read_survival(family, output, variables, kind, times)


def _rules_of(model: Model, label: LabelRule | None, names: list[str]) -> dict[str, LabelRule]:
    """Returns the rule of each output's labels; labels of one output are of the one with a loss."""
    rules = {name: output.rule for name, output in outputs_by_name(label, names).items()}
    if label is None or len(rules) > 1 or rules.keys() & set(names):
        return rules
    trained = compatibility.trained_outputs(model, names) if len(names) > 1 else names
    (rule,) = rules.values() or (label,)
    return {trained[0]: rule} if len(trained) == 1 else {}


def _read_classes(
    model: Model, rules: Mapping[str, LabelRule | None], outputs: Mapping[str, Any]
) -> dict[str, str]:
    """Returns how classes are read from each output, "" for outputs of numbers.

    Raises:
        DataError: if no output has classes.
        ModelError: for logits of a loss that nobody knows.
    """
    losses = compatibility.losses_by_name(model, list(outputs))
    readings = {}
    for name, values in outputs.items():
        shape = np.shape(values[0])  # of a row, or of the first batch
        readings[name] = choose_reading(rules.get(name), losses[name], shape[-1] if shape else 1)
        for part in [values] if isinstance(values, np.ndarray) else values:
            check_probabilities(readings[name], losses[name], part)
    if not any(readings.values()):
        raise refuse_classes([rule for rule in rules.values() if rule is not None])
    return readings


def open_rows(
    model: Model,
    features: Mapping[str, Any] | None,
    data: Dataset | None,
    recipe: Recipe | None = None,
    notes: Notes | None = None,
) -> tuple[Recipe, RowSource | IterableDataset, np.ndarray | None]:
    """Returns the rows to predict, their recipe, and a mask of complete rows, or None for all.

    Args:
        model: The model.
        features: New rows.
        data: Alternatively a dataset, in whose rows several inputs lie in its own order.
        recipe: The encoding of new rows; None for that of the model, if it has one.
        notes: Collects what is surprising about new rows, perhaps as they are read; or None.
    """
    recipe = recipe or model_recipes.recipe_of(model)
    if data is not None:
        model_recipes.check_encoding(model, data.recipe)
        data.variable_axes = compatibility.read_variable_axes(model)
        rows = data if isinstance(data, IterableDataset) else data.sources[0]
        recipe = recipe or data.recipe
        return replace(recipe, features=data.recipe.features), rows, None
    encoding = None if recipe is None else recipe.features
    source = open_features(features or {}, "newdata", encoding=encoding)
    recipe = compatibility.open_shape(model, recipe or _plain_recipe(source), source.row_shape)
    if recipe.mapped:
        raise unmapped("newdata")
    return recipe, *_encode_new(recipe, source, notes)


def _tell(callbacks: Sequence[Any], model: Model, run: Callable[[], Any]) -> Any:
    """Runs a prediction, which Keras callbacks see as one batch; returns its outputs."""
    if not callbacks:
        return run()
    heard = runtime.keras().callbacks.CallbackList(list(callbacks), model=model)
    heard.on_predict_begin()
    heard.on_predict_batch_begin(0)
    outputs = run()
    heard.on_predict_batch_end(0, {"outputs": outputs})
    heard.on_predict_end()
    return outputs


def _predict(
    model: Model,
    rows: RowSource | IterableDataset,
    recipe: Recipe,
    function: Callable[[Any], Any] | None,
    buffer: OutputBuffer | None,
    devices: Any,
    after_batch: AfterBatch,
) -> Any:
    if isinstance(rows, IterableDataset):
        return predict_stream(model, rows, after_batch=after_batch)
    strategy = open_strategy(devices)
    if strategy.shares is None or explain_rows(model, rows, recipe, function):
        return predict_rows(model, rows, recipe, function, buffer, after_batch=after_batch)
    with propagate_failures():
        strategy.agreement.begin("predict", rows=len(rows), model=count_weights(model))
        return predict_together(strategy, model, rows, recipe, function)


def _by_name(model: Model, output: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a model's outputs by name, in the model's order.

    Raises:
        ModelError: if an output is itself a dict or list of several.
    """
    if not isinstance(output, Mapping):
        known = compatibility.read_outputs(model) or ()
        places = [f"output_{place}" for place in range(1, len(output) + 1)]
        output = dict(zip(known if len(known) == len(places) else places, output, strict=True))
    for name, values in output.items():
        if not isinstance(values, (np.ndarray, Batches)):
            raise ModelError(
                f"The output `{name}` of `model` is several itself: rows are predicted by models "
                "whose outputs are a list or a dict of arrays.",
                hint="Predict with a model that gives them side by side.",
                arg="model",
            )
    return dict(output)


def _encode_new(
    recipe: Recipe, source: Features, notes: Notes | None
) -> tuple[RowSource, np.ndarray | None]:
    """Encodes new rows; returns them with a mask of complete rows, or None for all."""
    complete = None
    if recipe.na == "drop" and not source.refuses:
        complete = source.find_complete(recipe.features.known)
    if complete is None or complete.all():
        rows, complete = source.encode_later(recipe.features, notes), None
    else:
        rows = source.encode(recipe.features, EncodeOptions(complete, notes))
    if len(rows):
        return rows, complete
    # One row of zeros where there is none, because the output's shape comes from the model alone.
    blank = MemoryRows(np.zeros((1, *recipe.features.staged_shape), np.float32))
    blank.texts = rows.texts
    return blank, np.zeros(0, dtype=bool) if complete is None else complete


def _describe_forecasts(
    rows: WindowRows, recipe: Recipe, record: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns `{forecast}` if a model's output has one number for each label of a window."""
    numbers = 0 if recipe.label is None else recipe.label.units
    fits = rows.forecasts is not None and np.size(record["values"]) == numbers * len(rows)
    return {"forecast": rows.forecasts()} if fits and rows.forecasts is not None else {}


def keep_places(record: dict[str, Any], complete: np.ndarray | None) -> dict[str, Any]:
    """Returns predictions in the rows' places; numbers of rows that were left out are NaN."""
    if complete is None or "values" not in record:
        return record
    kept = dict(record)
    for name in NUMBERS & record.keys():
        values = np.asarray(record[name])
        blank = np.nan if values.dtype.kind == "f" else 0
        kept[name] = np.full((len(complete), *values.shape[1:]), blank, values.dtype)
        kept[name][complete] = values[: complete.sum()]
    return {**kept, "missing": (np.flatnonzero(~complete) + 1).astype(np.int32)}


def _plain_recipe(source: Features) -> Recipe:
    if source.row_shape is None:
        raise DataError(
            "`newdata` is a data frame, but `model` was not trained by gpukeras on one.",
            hint="Pass a numeric matrix.",
            arg="newdata",
        )
    return Recipe(source.plain_encoding())
