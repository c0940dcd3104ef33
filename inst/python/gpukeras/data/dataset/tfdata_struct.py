"""Packs elements of a `tf.data.Dataset` with several inputs or outputs into one tensor each.

    {image, table}, {price, cut} --pack_elements()--> [image | table], [price | cut]

Elements hold dicts or tuples; the parts of a tuple are named "input_1", "output_1" and so on.

TensorFlow packs them side by side in the user's pipeline, so that all later code handles one tensor
of features and one of labels (see `multi_input` and `multi_output`).
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
from gpukeras.data.dataset.tfdata import check_known, check_part, choose_batched, parse_labels
from gpukeras.data.recipe.recipe import InputsEncoding, Recipe
from gpukeras.data.recipe.targets import SEVERAL
from gpukeras.data.recipe.weights import Weights

PARTS = ("input", "output", "output")  # of the parts of x, y and weights


@dataclass(frozen=True)
class Slot:
    """One of several tensors of an element.

    Args:
        name: The tensor's key, or the name of its position.
        shape: Shape of one row; a single number among features has shape (1,).
        kind: Kind of labels, see `targets`; "" for features.
    """

    name: str
    shape: tuple[int, ...]
    kind: str = ""

    @property
    def width(self) -> int:
        """Numbers per row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The structure of a dataset's elements before packing.

    Args:
        batched: Whether an element is a batch of rows.
        inputs: The tensors of `x`, in their order in a row; none if `x` is one tensor.
        outputs: The tensors of `y`, likewise.
        weights: The weights of each output, in the order of `outputs`; none if they are one tensor.
        listed: Whether `x`, and whether `y`, were tuples or lists.
    """

    batched: bool
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    weights: tuple[Slot, ...] = ()
    listed: tuple[bool, bool] = (False, False)

    def features(self, values: np.ndarray) -> dict[str, Any]:
        """Converts packed features to the form in which they come from R."""
        if not self.inputs:
            return {"kind": "array", "values": values, "names": []}
        inputs = [
            {
                "name": slot.name,
                "features": {"kind": "array", "values": part.reshape(-1, *slot.shape), "names": []},
            }
            for slot, part in _split(self.inputs, values)
        ]
        return {"kind": "inputs", "inputs": inputs, "listed": self.listed[0]}

    def labels(self, values: np.ndarray) -> dict[str, Any]:
        """Converts packed labels of several outputs to the form in which they come from R."""
        outputs = [
            {
                "name": slot.name,
                "labels": {
                    "kind": slot.kind,
                    "values": part.reshape(-1, *slot.shape),
                },
            }
            for slot, part in _split(self.outputs, values)
        ]
        return {"kind": SEVERAL, "outputs": outputs, "listed": self.listed[1]}

    def weigh(self, values: np.ndarray) -> Weights:
        """Converts packed weights to the form in which they come from R."""
        if not self.weights:
            return values
        outputs = [
            {"name": slot.name, "values": part.reshape(-1, *slot.shape)}
            for slot, part in _split(self.weights, values)
        ]
        return {"outputs": outputs}


def _split(slots: Sequence[Slot], values: np.ndarray) -> list[tuple[Slot, np.ndarray]]:
    ends = np.cumsum([slot.width for slot in slots])
    return [
        (slot, values[:, end - slot.width : end]) for slot, end in zip(slots, ends, strict=True)
    ]


def pack_elements(
    dataset: Any, batched: bool | None, recipe: Recipe | None
) -> tuple[Any, Layout | None]:
    """Packs the elements of a dataset, and returns their original structure too.

    Args:
        dataset: The user's dataset.
        batched: Whether its elements are batches; None to infer it from their shapes.
        recipe: An encoding to apply, which determines the order of the parts; or None.

    Returns:
        The packed dataset and its layout; the dataset itself and None if `x` and `y` are one
        tensor each.

    Raises:
        DataError: for anything but tensors of numbers, or with other keys than the recipe.
    """
    dataset = _unname(dataset, recipe)
    spec = getattr(dataset, "element_spec", None)
    parts = list(spec) if isinstance(spec, (tuple, list)) else [spec]
    if not any(isinstance(part, (Mapping, tuple, list)) for part in parts[:3]):
        return dataset, None
    layout = parse_layout(parts, batched, recipe)

    def pack(*elements: Any) -> Any:
        packed = list(elements)
        for place, slots in enumerate((layout.inputs, layout.outputs, layout.weights)):
            if slots:
                named = _by_name(elements[place], PARTS[place])
                packed[place] = _join(named, slots, layout.batched)
        return tuple(packed) if len(packed) > 1 else packed[0]

    return dataset.map(pack), layout


def _unname(dataset: Any, recipe: Recipe | None) -> Any:
    """Converts elements {x, y}, as tfdatasets' `dataset_prepare()` makes them, to pairs (x, y)."""
    spec = getattr(dataset, "element_spec", None)
    inputs = set(_input_names(recipe) or ())
    if not isinstance(spec, Mapping) or set(spec) != {"x", "y"} or inputs == {"x", "y"}:
        return dataset
    return dataset.map(lambda element: (element["x"], element["y"]))


def _input_names(recipe: Recipe | None) -> list[str] | None:
    """Returns the names of a recipe's inputs, none for a single one; None without a recipe."""
    return None if recipe is None else [part.name for part in recipe.features.inputs]


def _join(values: Mapping[str, Any], slots: Sequence[Slot], batched: bool) -> Any:
    tf = runtime.reader()
    rows = (-1,) if batched else ()
    parts = [
        tf.reshape(tf.cast(values[slot.name], tf.float32), (*rows, slot.width)) for slot in slots
    ]
    return tf.concat(parts, -1)


def parse_layout(parts: Sequence[Any], batched: bool | None, recipe: Recipe | None) -> Layout:
    """Parses the layout of elements with several tensors, see `pack_elements()`.

    Args:
        parts: The specs of `x`, `y` and weights.
        batched: Whether elements are batches; None to infer it from the shapes.
        recipe: An encoding to apply, which determines the order of the parts; or None.

    Raises:
        DataError: for anything but tensors of numbers, or with other keys than the recipe.
    """
    listed = [isinstance(part, (tuple, list)) for part in parts[:2]]
    parts = [_by_name(*pair) for pair in zip(parts, PARTS, strict=False)]
    named = [
        (f"{name}${key}", tensor)
        for name, part in zip(("x", "y", "weights"), parts, strict=False)
        for key, tensor in (part.items() if isinstance(part, Mapping) else [("", part)])
    ]
    for name, tensor in named:
        check_part(tensor, name.removesuffix("$"))
    shapes = [tuple(tensor.shape) for _, tensor in named]
    many = choose_batched(shapes) if batched is None else check_flag("batched", batched)
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    if isinstance(parts[0], Mapping):
        known = _input_names(recipe)
        inputs = tuple(_input(name, parts[0][name], many) for name in _order(parts[0], known, "x"))
    if len(parts) > 1 and isinstance(parts[1], Mapping):
        rule = None if recipe is None else recipe.label
        known = None if rule is None else [output.name for output in rule.outputs]
        outputs = tuple(
            _output(name, parts[1][name], many) for name in _order(parts[1], known, "y")
        )
        if sum(slot.width for slot in outputs) == 1:
            raise DataError("`y` has a single output.", hint="Give the tensor itself.", arg="y")
    weights: tuple[Slot, ...] = ()
    if len(parts) > 2 and isinstance(parts[2], Mapping):
        weights = _weight_slots(parts[2], outputs, many)
    return Layout(many, inputs, outputs, weights, (listed[0], listed[1:] == [True]))


def _by_name(part: Any, what: str) -> Any:
    """Names the parts of a tuple or list by position; returns a dict or a tensor unchanged."""
    if not isinstance(part, (tuple, list)):
        return part
    return {f"{what}_{place}": tensor for place, tensor in enumerate(part, 1)}


def _order(part: Mapping[str, Any], known: Sequence[str] | None, arg: str) -> list[str]:
    names = list(part)
    if known is None:
        return names
    if set(known) != set(names):
        raise DataError(
            f"`{arg}` of the tf.data dataset must have {', '.join(known) or 'a single tensor'}, "
            f"as in training, not {', '.join(names)}.",
            arg=arg,
        )
    return list(known)


def _input(name: str, tensor: Any, batched: bool) -> Slot:
    shape = tuple(tensor.shape)[1:] if batched else tuple(tensor.shape)
    check_known(shape, f"x${name}")
    return Slot(name, shape or (1,))


def _output(name: str, tensor: Any, batched: bool) -> Slot:
    row = tuple(tensor.shape)[1:] if batched else tuple(tensor.shape)
    shape, kind = parse_labels(row, tensor)
    return Slot(name, shape, kind)


def _weight_slots(
    given: Mapping[str, Any], outputs: Sequence[Slot], batched: bool
) -> tuple[Slot, ...]:
    """Returns the weights of each output that has some, in the order of the outputs."""
    names = [slot.name for slot in outputs]
    odd = [name for name in given if name not in names]
    if odd:
        raise DataError(
            f"`weights` of the tf.data dataset has weights for `{odd[0]}`, but `y` has "
            f"{', '.join(names) or 'a single output'}.",
            arg="weights",
        )
    slots = []
    for name in (name for name in names if name in given):
        shape = tuple(given[name].shape)[1 if batched else 0 :]
        check_known(shape, f"weights${name}")
        slots.append(Slot(name, shape))
    return tuple(slots)


def check_plain(encoding: InputsEncoding, scale: bool) -> None:
    """Checks that several inputs of a pipeline are not encoded.

    Raises:
        SpecError: if one is to be scaled or imputed, which needs `cache = TRUE`.
    """
    if scale or not encoding.keeps_values or encoding.has_texts:
        raise SpecError(
            "Several inputs of a tf.data dataset are taken as they are, not scaled or imputed.",
            hint="Use `cache = TRUE`, which keeps the rows.",
            arg="scale",
        )
