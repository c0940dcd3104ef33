"""The structure of a `tf.data.Dataset`'s elements, and of several tensors packed into one.

    {image, table}, {price, cut} --Elements.pack()--> [image | table], [price | cut]

Elements are `x`, `(x, y)` or `(x, y, weights)`, batched or not; each part is a tensor of numbers,
or a dict or tuple of tensors. Those of a tuple are named "input_1", "output_1" and so on.
TensorFlow packs them side by side in the user's pipeline, so that all later code handles one tensor
of features and one of labels (see `inputs` and `multi_output`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.options import check_flag
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.targets import SEVERAL
from gpukeras.data.recipe.weights import Weights

GIVE_PAIRS = "Map it to (x, y), each a tensor of numbers, with its own map()."
PARTS = {"x": "input", "y": "output", "weights": "output"}  # and what one of several is called


@dataclass(frozen=True)
class Slot:
    """One of the tensors of `x`, `y` or the weights.

    Args:
        name: The tensor's key, or the name of its position; "" for the only one.
        shape: Shape of one row; a single number among features has shape (1,).
        kind: Kind of labels, see `targets`; "" for others.
    """

    name: str
    shape: tuple[int, ...]
    kind: str = ""

    @property
    def width(self) -> int:
        """Numbers per row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Tensors:
    """The tensors of `x`, `y` or the weights, in their order in a row.

    Args:
        slots: The tensors; none for a part that elements lack.
        several: Whether they were a dict, tuple or list, however many it has.
        listed: Whether that was a tuple or list.
    """

    slots: tuple[Slot, ...] = ()
    several: bool = False
    listed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row of the packed tensor."""
        if self.several:
            return (sum(slot.width for slot in self.slots),)
        return self.slots[0].shape if self.slots else ()

    def pack(self, tensors: Mapping[str, Any], batched: bool) -> Any:
        """Returns TensorFlow's tensors as one of float32."""
        tf, rows = runtime.reader(), (-1,) if batched else ()
        parts = [
            tf.reshape(tf.cast(tensors[slot.name], tf.float32), (*rows, slot.width))
            for slot in self.slots
        ]
        return tf.concat(parts, -1)

    def split(self, values: np.ndarray) -> list[tuple[Slot, np.ndarray]]:
        """Returns the slots with their part of packed rows."""
        ends = np.cumsum([slot.width for slot in self.slots])
        return [
            (slot, values[:, end - slot.width : end].reshape(-1, *slot.shape))
            for slot, end in zip(self.slots, ends, strict=True)
        ]


@dataclass(frozen=True)
class Elements:
    """The structure of a dataset's elements.

    Args:
        batched: Whether an element is a batch of rows.
        x: The features.
        y: The labels.
        weights: The weights.
        batch_rows: Rows per element, or None if they vary.
        dtype: Name of the dtype of packed features.
    """

    batched: bool
    x: Tensors
    y: Tensors
    weights: Tensors
    batch_rows: int | None
    dtype: str

    def pack(self, dataset: Any) -> Any:
        """Returns the dataset, with one tensor each for features, labels and weights."""
        parts = [part for part in (self.x, self.y, self.weights) if part.slots]
        if not any(part.several for part in parts):
            return dataset

        def pack(*elements: Any) -> Any:
            packed = [
                part.pack(_name_tensors(element, what), self.batched) if part.several else element
                for part, element, what in zip(parts, elements, PARTS.values(), strict=False)
            ]
            return tuple(packed) if len(packed) > 1 else packed[0]

        return dataset.map(pack)

    def features(self, values: np.ndarray) -> dict[str, Any]:
        """Converts packed features to the form in which they come from R."""
        if not self.x.several:
            return {"kind": "array", "values": values, "names": []}
        inputs = [
            {"name": slot.name, "features": {"kind": "array", "values": part, "names": []}}
            for slot, part in self.x.split(values)
        ]
        return {"kind": "inputs", "inputs": inputs, "listed": self.x.listed}

    def labels(self, values: np.ndarray) -> dict[str, Any]:
        """Converts packed labels to the form in which they come from R."""
        if not self.y.several:
            return {"name": "y", "kind": self.y.slots[0].kind, "values": values}
        outputs = [
            {"name": slot.name, "labels": {"kind": slot.kind, "values": part}}
            for slot, part in self.y.split(values)
        ]
        return {"kind": SEVERAL, "outputs": outputs, "listed": self.y.listed}

    def weigh(self, values: np.ndarray) -> Weights:
        """Converts packed weights to the form in which they come from R."""
        if not self.weights.several:
            return values
        split = self.weights.split(values)
        return {"outputs": [{"name": slot.name, "values": part} for slot, part in split]}


def unname_pairs(dataset: Any, recipe: Recipe | None) -> Any:
    """Converts elements {x, y}, as tfdatasets' `dataset_prepare()` makes them, to pairs (x, y)."""
    spec, inputs = dataset.element_spec, set(_input_names(recipe) or ())
    if not isinstance(spec, Mapping) or set(spec) != {"x", "y"} or inputs == {"x", "y"}:
        return dataset
    return dataset.map(lambda element: (element["x"], element["y"]))


def _input_names(recipe: Recipe | None) -> list[str] | None:
    """Returns the names of a recipe's inputs, none for a single one; None without a recipe."""
    return None if recipe is None else [part.name for part in recipe.features.inputs]


def _output_names(recipe: Recipe | None) -> list[str] | None:
    """Returns the names of a recipe's outputs, likewise; None without labels too."""
    label = None if recipe is None else recipe.label
    return None if label is None else [output.name for output in label.outputs]


# Parsing ------------------------------------------------------------------------------------------


def parse_elements(
    spec: Any, batched: bool | None = None, recipe: Recipe | None = None
) -> Elements:
    """Infers the structure of elements from their `element_spec`.

    If a part is a single number, elements are rows. Otherwise they are batches if the first
    dimensions are unknown, or if `x` (of rank 2 or more) and `y` share the first dimension. In an
    ambiguous case the user must give `batched`.

    Args:
        spec: `element_spec` of a dataset.
        batched: Whether elements are batches; None to infer it from the shapes.
        recipe: An encoding to apply, which determines the order of several tensors; or None.

    Raises:
        DataError: for elements that cannot be trained on, or with other keys than the recipe.
        SpecError: if the shapes are ambiguous and `batched` is None.
    """
    parts = list(spec) if isinstance(spec, (tuple, list)) else [spec]
    if not 1 <= len(parts) <= 3:
        raise DataError(
            f"Elements of the tf.data dataset have {len(parts)} parts.", hint=GIVE_PAIRS, arg="x"
        )
    named = {
        arg: _name_tensors(part, what)
        for (arg, what), part in zip(PARTS.items(), parts, strict=False)
    }
    for arg, tensors in named.items():
        for name, tensor in tensors.items():
            check_part(tensor, f"{arg}${name}".removesuffix("$"))
    shapes = [tuple(tensor.shape) for tensors in named.values() for tensor in tensors.values()]
    many = choose_batched(shapes) if batched is None else check_flag("batched", batched)
    rows = {
        arg: {name: tuple(tensor.shape)[many:] for name, tensor in tensors.items()}
        for arg, tensors in named.items()
    }
    slots = {"x": _place_inputs(rows["x"], recipe)}
    if "y" in rows:
        slots["y"] = _place_outputs(rows["y"], named["y"], recipe)
    if "weights" in rows:
        slots["weights"] = _place_weights(rows["weights"], [slot.name for slot in slots["y"]])
    parsed = {arg: Tensors() for arg in PARTS}
    for arg, part in zip(slots, parts, strict=True):
        listed = isinstance(part, (tuple, list))
        parsed[arg] = Tensors(slots[arg], listed or isinstance(part, Mapping), listed)
    return Elements(
        many,
        **parsed,
        batch_rows=shapes[0][0] if many else 1,
        dtype="float32" if parsed["x"].several else parts[0].dtype.name,
    )


def _name_tensors(part: Any, what: str) -> Mapping[str, Any]:
    """Returns tensors by name: by their key, by their position, or "" for a single one."""
    if isinstance(part, Mapping):
        return part
    if isinstance(part, (tuple, list)):
        return {f"{what}_{place}": tensor for place, tensor in enumerate(part, 1)}
    return {"": part}


def _place_inputs(rows: Mapping[str, Any], recipe: Recipe | None) -> tuple[Slot, ...]:
    names = [""] if [*rows] == [""] else _order(rows, _input_names(recipe), "x")
    for name in names:
        check_known(rows[name], f"x${name}".removesuffix("$"))
    return tuple(Slot(name, rows[name] or (1,)) for name in names)


def _place_outputs(
    rows: Mapping[str, Any], tensors: Mapping[str, Any], recipe: Recipe | None
) -> tuple[Slot, ...]:
    if [*rows] == [""]:
        return (Slot("", *parse_labels(rows[""], tensors[""])),)
    names = _order(rows, _output_names(recipe), "y")
    slots = tuple(Slot(name, *parse_labels(rows[name], tensors[name])) for name in names)
    if sum(slot.width for slot in slots) == 1:
        raise DataError("`y` has a single output.", hint="Give the tensor itself.", arg="y")
    return slots


def _place_weights(rows: Mapping[str, Any], outputs: Sequence[str]) -> tuple[Slot, ...]:
    """Returns the weights of all outputs, or of each that has some, in the order of the outputs."""
    if [*rows] == [""]:
        check_known(rows[""], "weights")
        return (Slot("", rows[""]),)
    outputs = [name for name in outputs if name]
    odd = [name for name in rows if name not in outputs]
    if odd:
        raise DataError(
            f"`weights` of the tf.data dataset has weights for `{odd[0]}`, but `y` has "
            f"{', '.join(outputs) or 'a single output'}.",
            arg="weights",
        )
    names = [name for name in outputs if name in rows]
    for name in names:
        check_known(rows[name], f"weights${name}")
    return tuple(Slot(name, rows[name]) for name in names)


def _order(rows: Mapping[str, Any], known: Sequence[str] | None, arg: str) -> list[str]:
    if known is None:
        return list(rows)
    if set(known) != set(rows):
        raise DataError(
            f"`{arg}` of the tf.data dataset must have {', '.join(known) or 'a single tensor'}, "
            f"as in training, not {', '.join(rows)}.",
            arg=arg,
        )
    return list(known)


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
