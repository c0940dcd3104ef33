"""Finds out what the elements of a tf.data pipeline are: rows or batches, labels, weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.options import check_flag

GIVE_PAIRS = "Map it to (x, y), each a tensor of numbers, with its own map()."


@dataclass(frozen=True)
class Elements:
    """The structure of a dataset's elements.

    Args:
        batched: Whether an element is a batch of rows.
        row_shape: Shape of one row of `x`; a single number has shape (1,).
        label_shape: Shape of one row of `y`.
        label_kind: "integer", "logical", "numeric" or "matrix" (see `targets`), or "" without `y`.
        weight_shape: Shape of the weights of one row.
        batch_rows: Rows per element, or None if they vary.
        dtype: Name of the dtype of `x`.
    """

    batched: bool
    row_shape: tuple[int, ...]
    label_shape: tuple[int, ...]
    label_kind: str
    weight_shape: tuple[int, ...]
    batch_rows: int | None
    dtype: str


def parse_elements(spec: Any, batched: bool | None = None) -> Elements:
    """Infers the structure of elements from their `element_spec`.

    If a part is a single number, elements are rows. Otherwise they are batches if the first
    dimensions are unknown, or if `x` (of rank 2 or more) and `y` share the first dimension. In an
    ambiguous case the user must give `batched`.

    Args:
        spec: `element_spec` of a dataset.
        batched: Whether elements are batches; None to infer it from the shapes.

    Raises:
        DataError: for elements that cannot be trained on.
        SpecError: if the shapes are ambiguous and `batched` is None.
    """
    parts = list(spec) if isinstance(spec, (tuple, list)) else [spec]
    if not 1 <= len(parts) <= 3:
        raise DataError(
            f"Elements of the tf.data dataset have {len(parts)} parts.", hint=GIVE_PAIRS, arg="x"
        )
    for part, name in zip(parts, ("x", "y", "weights"), strict=False):
        check_part(part, name)
    shapes = [tuple(part.shape) for part in parts]
    many = choose_batched(shapes) if batched is None else check_flag("batched", batched)
    rows = [shape[1:] for shape in shapes] if many else shapes
    row_shape = rows[0] or (1,)
    label_shape, kind = parse_labels(rows[1], parts[1]) if len(parts) > 1 else ((), "")
    check_known(row_shape, "x")
    check_known(rows[2] if len(parts) > 2 else (), "weights")
    return Elements(
        batched=many,
        row_shape=row_shape,
        label_shape=label_shape,
        label_kind=kind,
        weight_shape=rows[2] if len(parts) > 2 else (),
        batch_rows=shapes[0][0] if many else 1,
        dtype=parts[0].dtype.name,
    )


def check_part(part: Any, name: str) -> None:
    """Checks that a part of the elements is a tensor of numbers of known rank.

    Raises:
        DataError: if it is not.
    """
    kind = type(part).__name__
    if kind != "TensorSpec":
        found = "several tensors" if isinstance(part, (dict, tuple, list)) else f"a {kind}"
        raise DataError(
            f"`{name}` of the tf.data dataset is {found}, not a tensor.", hint=GIVE_PAIRS, arg="x"
        )
    if not (part.dtype.is_floating or part.dtype.is_integer or part.dtype.is_bool):
        text = part.dtype.name == "string"
        raise DataError(
            f"`{name}` of the tf.data dataset must be numeric, not {part.dtype.name}.",
            hint="Apply a text or lookup layer in its map()." if text else "",
            arg="x",
        )
    if part.shape.rank is None:
        raise DataError(
            f"`{name}` of the tf.data dataset has no known number of dimensions.",
            hint="Give it a shape by tf.ensure_shape() in its map().",
            arg="x",
        )


def choose_batched(shapes: list[tuple[int | None, ...]]) -> bool:
    """Whether elements are batches, by the shapes of their tensors; see `parse_elements()`."""
    x = shapes[0]
    if any(shape == () for shape in shapes):
        return False
    if all(shape[0] is None for shape in shapes):
        return True
    if len(shapes) > 1:
        return len(x) > 1 and x[0] == shapes[1][0]
    if len(x) == 1:
        return False
    raise SpecError(
        "Elements of the tf.data dataset may be rows or batches: their shape does not tell.",
        hint="Say `batched = TRUE` or `batched = FALSE`.",
        arg="batched",
    )


def parse_labels(row: tuple[int | None, ...], part: Any) -> tuple[tuple[int, ...], str]:
    """Returns the shape of one row of labels, and their kind."""
    check_known(row, "y")
    known = tuple(length for length in row if length is not None)
    if math.prod(known) != 1:
        return known, "matrix"
    if part.dtype.is_bool:
        return known, "logical"
    return known, "integer" if part.dtype.is_integer else "numeric"


def check_known(row: tuple[int | None, ...], name: str) -> None:
    """Raises DataError if a dimension of a row is unknown or 0."""
    if None in row or 0 in row:
        raise DataError(
            f"A row of `{name}` of the tf.data dataset has the shape {row}: it must be known.",
            hint="Give it a shape by tf.ensure_shape() in its map(), or use padded_batch().",
            arg="x",
        )
