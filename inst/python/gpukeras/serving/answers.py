"""Predictions and errors as values that JSON knows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np

from gpukeras.core.errors import (
    DataError,
    GpuKerasError,
    ModelError,
    OutOfMemoryError,
    ServiceError,
    SpecError,
)

RETRY_AFTER_S = 1
INTERVAL_NAMES = {".pred": "values", ".pred_lower": "lower", ".pred_upper": "upper"}


def to_rows(record: Mapping[str, Any]) -> list[Any]:
    """Returns a prediction's record as one value a row.

    A number, class or text; an object by name for a matrix with column names and for several
    outputs; else an array. null is what JSON has no number for: NaN and infinite numbers.

    Args:
        record: What `training.predict()` returns.

    Raises:
        ModelError: for outputs whose shape varies by row.
    """
    if "outputs" in record:
        names = [part["name"] for part in record["outputs"]]
        return _name_values(names, [to_rows(part) for part in record["outputs"]])
    if "values" not in record:
        raise ModelError("`model` gives rows of different shapes.", arg="model")
    values, levels = np.asarray(record["values"]), list(record.get("levels") or ())
    if levels:
        return _take_levels(values, levels)
    if record.get("logical") and values.ndim == 1:
        return [value == 1 for value in values.tolist()]
    names = list(record.get("names") or ())
    if values.ndim == 2 and len(names) == values.shape[1]:
        return _name_values(names, [_plain(column) for column in values.T])
    return _plain(values)


def interval_rows(record: Mapping[str, Any]) -> list[Any]:
    """Returns predictions with intervals as objects with R's names of the columns."""
    columns = [_plain(np.asarray(record[part])) for part in INTERVAL_NAMES.values()]
    return _name_values(list(INTERVAL_NAMES), columns)


def _name_values(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[Any]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _take_levels(codes: np.ndarray, levels: Sequence[str]) -> list[Any]:
    named = np.array([None, *levels], object)
    return named[codes].tolist()


def _plain(values: np.ndarray) -> list[Any]:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        known = values.astype(object)
        known[~np.isfinite(values)] = None
        return known.tolist()
    return values.tolist()


def spread(rows: Sequence[Any], complete: np.ndarray | None) -> list[Any]:
    """Returns predictions with null where a row is not complete; None for all complete."""
    if complete is None:
        return list(rows)
    left = iter(rows)
    return [next(left) if whole else None for whole in complete]


# Errors -------------------------------------------------------------------------------------------


def status_of(error: GpuKerasError) -> int:
    """Returns the HTTP status of an error: its own, or that of its class."""
    if "status" in error.details:
        return int(error.details["status"])
    if isinstance(error, (DataError, SpecError, ModelError)):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    busy = isinstance(error, OutOfMemoryError)
    return HTTPStatus.SERVICE_UNAVAILABLE if busy else HTTPStatus.INTERNAL_SERVER_ERROR


def error_body(error: GpuKerasError) -> dict[str, Any]:
    """Returns an error as JSON: its code, message and hint, and the argument or column it names."""
    fields: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint}
    for name in ("arg", "column"):
        fields[name] = error.details.get(name, "")
    return {"error": {name: value for name, value in fields.items() if value}}


def name_rows(error: GpuKerasError, arg: str) -> GpuKerasError:
    """Returns an error of `predict()`, which knows rows as R's `newdata`, in a request's words.

    Args:
        error: The error.
        arg: The field of the request that holds the rows.
    """
    named = {"arg": arg} if error.details.get("arg") == "newdata" else {}
    message, hint = (
        re.sub("(?<!olumn )`newdata`", f"`{arg}`", text) for text in (error.message, error.hint)
    )
    return type(error)(message, hint=hint, **{**error.details, **named})


def http_error(status: int, message: str, hint: str = "", **details: Any) -> ServiceError:
    """Returns an error of a request with an HTTP status of its own."""
    return ServiceError(message, hint=hint, status=int(status), **details)


def busy_error(message: str) -> ServiceError:
    """Returns the error of a request for which the server has no room now (503)."""
    hint = f"Ask again after {RETRY_AFTER_S} s."
    return http_error(HTTPStatus.SERVICE_UNAVAILABLE, message, hint, retry_after=RETRY_AFTER_S)
