"""A model that is served: loaded once, compiled for a few numbers of rows, described to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend import tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.transforms import open_device_transform
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.recipe import Recipe, TableEncoding
from gpukeras.data.recipe.targets import LabelRule
from gpukeras.engine import rowwise
from gpukeras.engine.batch_dependence import KERAS_ROWS, Sample, explain_outputs
from gpukeras.engine.batch_rows import fixed_rows
from gpukeras.export import archive
from gpukeras.models import model_recipes
from gpukeras.serving import rows
from gpukeras.serving.answers import interval_rows, to_rows
from gpukeras.serving.columns import EXPECTED, json_kind
from gpukeras.serving.requests import TYPES, Request
from gpukeras.training.calibrate import predict_interval
from gpukeras.training.predict import open_rows, predict


class ServedModel:
    """A model that predicts requests.

    Args:
        model: A Keras model.
        max_batch: Rows that are predicted at a time at most.

    Attributes:
        recipe: The recipe of its training rows, or None.
        shape: Shape of a row that it takes, see `read_shape()`.

    Raises:
        ModelError: for a model that keeps a state between rows, or takes other rows than those of
            a data frame or a matrix.
    """

    def __init__(self, model: Model, max_batch: int) -> None:
        """Checks the model; compiles nothing."""
        if fixed_rows(model):
            raise ModelError(
                "`model` keeps a state from batch to batch, so what it predicts for one client "
                "would depend on others.",
                hint="Serve a model without stateful layers.",
                arg="model",
            )
        self.model, self.recipe = model, model_recipes.recipe_of(model)
        rows.check_servable(self.recipe)
        self.shape = read_shape(model)
        self._most = max_batch
        self._apart = mixes_rows(model, rows.blank_rows(self.recipe, self.shape))

    def warm_up(self) -> None:
        """Compiles the model for all sizes of batches, so that no client waits for that."""
        blank = rows.blank_rows(self.recipe, self.shape)
        if blank is None or self._apart:
            return
        for size in rows.list_sizes(self._most):
            self._predict(rows.pad(blank.features, 1, size), "response", None)

    def predict(self, requests: Sequence[Request]) -> list[list[Any]]:
        """Returns the predictions of requests of one group: of each a value a row.

        Where what the model gives for a row depends on the other rows of its batch, each request
        is predicted alone, as it came: no client's rows depend on another's.

        Raises:
            GpuKerasError: as `training.predict()` does.
        """
        kind, interval = requests[0].type, requests[0].interval
        if self._apart:
            return [self._predict(request.rows.features, kind, interval) for request in requests]
        features = rows.join([request.rows.features for request in requests])
        counts = [request.rows.size for request in requests]
        predictions: list[Any] = []
        for start in range(0, sum(counts), self._most):
            count = min(self._most, sum(counts) - start)
            part = rows.take(features, slice(start, start + count))
            padded = rows.pad(part, count, rows.choose_size(count, self._most))
            predictions += self._predict(padded, kind, interval)[:count]
        places = iter(predictions)
        return [[next(places) for _ in range(count)] for count in counts]

    def _predict(self, features: Mapping[str, Any], kind: str, interval: float | None) -> list[Any]:
        if interval is None:
            return to_rows(predict(self.model, features, type=kind))
        return interval_rows(predict_interval(self.model, features, interval=interval))

    def describe(self) -> dict[str, Any]:
        """Returns what clients may know: inputs by name and type, the label, types, the size."""
        return {
            "name": self.model.name,
            "parameters": int(self.model.count_params()) if self.model.built else 0,
            "inputs": describe_inputs(self.recipe, self.shape),
            "label": None if self.recipe is None else describe_label(self.recipe),
            "types": list(TYPES),
            "max_batch": self._most,
        }


def mixes_rows(model: Model, blank: rows.GivenRows | None) -> bool:
    """Whether what a model gives for a row may depend on the other rows of its batch.

    Args:
        model: A model.
        blank: A row as clients give them, which is varied at random; None if none is known.
    """
    if blank is None:
        unknown = rowwise.find_unknown_layer(model)
        return bool(unknown) or tensor_ops.overrides(model, "predict_step")
    recipe, source, _ = open_rows(model, blank.features, None)
    assert isinstance(source, RowSource)  # only a dataset comes in sequence
    row = source.gather(slice(1))
    noise = np.random.default_rng(0).uniform(0, 1, (2 * KERAS_ROWS, *row.shape[1:]))
    varied = (row + noise).astype(row.dtype)  # codes, which are cut to whole numbers, stay

    def take(places: np.ndarray) -> Any:
        return open_device_transform(recipe, len(places), None, source.texts)(varied[places])

    return bool(explain_outputs(model, Sample(len(varied), take), 1))


def load_served(path: str, max_batch: int) -> ServedModel:
    """Loads a file of `gpu_save()` or plain Keras in safe mode, checks and compiles its model.

    Raises:
        GpuKerasError: as `archive.load_archive()` and `ServedModel` do.
    """
    loaded = archive.load_archive(path, "model")
    served = ServedModel(loaded["model"], max_batch)
    served.warm_up()
    return served


# Descriptions -------------------------------------------------------------------------------------


def read_shape(model: Model) -> tuple[int | None, ...] | None:
    """Returns the shape of a row that a model takes; None if it is unknown, or there are several.

    An axis of any length is None.
    """
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or not all(
        length is None or isinstance(length, int) for length in shape
    ):
        return None
    return shape[1:]


def describe_inputs(recipe: Recipe | None, shape: tuple[int | None, ...] | None) -> dict[str, Any]:
    """Returns the form of the rows: `rows` and its columns, or `x` and the shape of a row."""
    features = None if recipe is None else recipe.features
    if isinstance(features, TableEncoding):
        return {
            "form": rows.ROWS,
            "columns": [describe_column(column) for column in features.columns],
        }
    row = rows.row_shape(recipe, shape)
    names = [] if features is None else list(features.names)
    return {"form": rows.ARRAY, "shape": None if row is None else list(row), "names": names}


def describe_column(rule: ColumnRule) -> dict[str, Any]:
    """Returns name, kind and JSON's values of a column, whether null may stand, and its levels."""
    kind = json_kind(rule)
    described: dict[str, Any] = {"name": rule.name, "kind": kind, "values": EXPECTED[kind]}
    if rule.levels:
        described |= {"levels": list(rule.levels), "new_levels": rule.new_levels}
    if rule.units:
        described["units"] = rule.units
    return described


def describe_label(recipe: Recipe) -> dict[str, Any] | None:
    """Returns the formula's left side, and the levels of a class."""
    label: LabelRule | None = recipe.label
    if label is None:
        return None
    name = recipe.formula.split("~")[0].strip() if "~" in recipe.formula else ""
    return {"name": name, "kind": label.kind, "levels": list(label.levels)}


def find_terms(recipe: Recipe | None) -> list[str]:
    """Returns terms of the formula that R computes from columns: clients send their values.

    Such as `log(price)` and `a:b`. A column of that very name is written in backticks.
    """
    if recipe is None or not recipe.formula:
        return []
    right = recipe.formula.split("~", 1)[-1]
    names = [rule.name for rule in recipe.features.columns]
    return [name for name in names if not name.isidentifier() and _is_call(name, right)]


def _is_call(name: str, right: str) -> bool:
    signs = any(sign in name for sign in "(:")
    return signs and f"`{name}`" not in right
