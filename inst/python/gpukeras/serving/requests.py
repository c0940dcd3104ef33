"""Reads a request's body: what is asked of the model, and on which rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn

from gpukeras.core.errors import SpecError
from gpukeras.core.options import check_choice, check_fraction
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.serving.answers import http_error
from gpukeras.serving.rows import ARRAY, COLUMNS, ROWS, GivenRows, Shape, find_form, read_rows

TYPES = ("response", "class")
FIELDS = (ROWS, COLUMNS, ARRAY, "type", "interval")


@dataclass(frozen=True)
class Request:
    """A request for predictions.

    Args:
        rows: The rows.
        type: "response" or "class".
        interval: The probability of an interval, or None for none.
        arg: The field that holds the rows, for messages.
    """

    rows: GivenRows
    type: str = "response"
    interval: float | None = None
    arg: str = ROWS

    @property
    def group(self) -> tuple[Any, ...]:
        """What requests must have in common to be predicted together."""
        return (self.type, self.interval, *self.rows.form)


def parse_request(body: bytes, recipe: Recipe | None, shape: Shape = None) -> Request:
    """Parses and checks a request's body.

    Args:
        body: The body.
        recipe: The recipe of the model, or None.
        shape: See `read_rows()`.

    Raises:
        ServiceError: if it is not JSON (400).
        SpecError: for an unknown field, type or interval.
        DataError: for rows that do not fit the recipe, see `read_rows()`.
    """
    body_json = parse_json(body)
    unknown = [name for name in body_json if name not in FIELDS]
    if unknown:
        raise SpecError(
            f"A request has an unknown field, beside {len(body_json) - len(unknown)} known ones.",
            hint=f"Fields are {', '.join(FIELDS)}.",
            arg="body",
        )
    kind = check_choice("type", body_json.get("type", "response"), TYPES)
    interval = body_json.get("interval")
    if interval is not None:
        interval = check_fraction("interval", interval)
    if interval is not None and kind != "response":
        raise SpecError('`interval` is of the type "response" only.', arg="interval")
    rows = read_rows(recipe, body_json, shape)
    return Request(rows, kind, interval, find_form(body_json)[0])


def parse_json(body: bytes) -> Mapping[str, Any]:
    """Parses an object of JSON (RFC 8259: UTF-8, no NaN, each name once).

    Raises:
        ServiceError: if it is none.
    """
    try:
        parsed = json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_to_object
        )
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise http_error(
            HTTPStatus.BAD_REQUEST,
            "The body must be an object of JSON.",
            "Numbers are finite, texts are UTF-8, a missing value is null, and an object has each "
            "name once.",
            arg="body",
        )
    return parsed


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


def _to_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; of two values with one name json.loads() would take the last."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members
