"""Rows of the user's tf.data pipeline: their elements, and blocks of them.

    {image, table}, {price, cut} --Elements.pack()--> [image | table], [price | cut]

Elements are `x`, `(x, y)` or `(x, y, weights)`, batched or not; each part is a tensor of numbers,
or a dict or tuple of tensors. Those of a tuple are named "input_1", "output_1" and so on.
TensorFlow packs them side by side in the user's pipeline, so that all later code handles one tensor
of features and one of labels (see `inputs` and `multi_output`).

TensorFlow assembles the elements into blocks, see `TfStream.open()`, so that Python handles no row,
and makes the next block while the current one is trained. The dataset determines the order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import DataError, SpecError, warn_ended_early
from gpukeras.core.messages import count_of, find_reason
from gpukeras.core.options import check_count, check_flag, refused_value
from gpukeras.core.pulling import Puller
from gpukeras.data.arrays import divisors, side_by_side
from gpukeras.data.dataset.iterable_dataset import (
    BlockOptions,
    HostBlock,
    IterableDataset,
    Learned,
    Pass,
)
from gpukeras.data.recipe.multi_output import Weights
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, Recipe
from gpukeras.data.recipe.targets import SEVERAL

# Elements -----------------------------------------------------------------------------------------

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
        places = side_by_side(slot.width for slot in self.slots)
        pairs = zip(self.slots, places, strict=True)
        return [(slot, values[:, place].reshape(-1, *slot.shape)) for slot, place in pairs]


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

        return map_elements(dataset, pack)

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
    return map_elements(dataset, lambda element: (element["x"], element["y"]))


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


# Blocks -------------------------------------------------------------------------------------------

PEEK_ROWS = 1024  # rows of an unbatched dataset from which a recipe is learned
INFINITE, UNKNOWN = -1, -2  # tf.data's cardinality constants


class TfStream:
    """The rows of a `tf.data.Dataset`.

    Args:
        dataset: The user's dataset.
        steps: Batches per epoch, or None to read to the dataset's end.
        batched: Whether its elements are batches; None to infer it from their shapes.
        recipe: An encoding to apply, which determines the order of several tensors; or None.
    """

    def __init__(
        self,
        dataset: Any,
        steps: Any = None,
        batched: bool | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        """Parses the element shapes without reading from the dataset.

        Raises:
            SpecError: if it is not a tf.data dataset, or is infinite and `steps` is not given.
            DataError: for elements that cannot be trained on.
        """
        if not isinstance(dataset, runtime.reader().data.Dataset):
            raise refused_value("x", dataset, "a tf.data.Dataset")
        dataset = unname_pairs(dataset, recipe)
        self.elements = parse_elements(dataset.element_spec, batched, recipe)
        self.dataset = disable_prefetch(self.elements.pack(dataset))
        self.cardinality = int(dataset.cardinality())
        self.steps = check_steps(steps, self.cardinality, self.elements.batched)

    def peek(self) -> tuple[np.ndarray, ...]:
        """Returns the first batch, or the first rows, not encoded."""
        return self.plain(pull_first(self._rows()))

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields all elements in batches, not encoded."""
        puller = Puller(self._rows)
        try:
            while (element := pull_element(puller, 1)) is not None:
                yield self.plain(element)
        finally:
            puller.close()

    def _rows(self) -> Any:
        return self.dataset if self.elements.batched else self.dataset.batch(PEEK_ROWS)

    def plain(self, element: Any) -> tuple[np.ndarray, ...]:
        """Converts a batch to arrays; a row of `x` has at least one dimension."""
        parts = element if isinstance(element, (tuple, list)) else (element,)
        x, *others = (np.asarray(part) for part in parts)
        return (x.reshape(-1, *self.elements.x.shape), *others)

    def expect_rows(self, first: int) -> int | None:
        """Estimates the rows of all elements from those of the first; None if unknown."""
        if self.cardinality < 0:
            return None
        return self.cardinality * (first if self.elements.batched else 1)

    def open(self, encoding: Encoding, rows: int | None, how: BlockOptions) -> TfPass:
        """Opens a pass over the encoded rows.

        Args:
            encoding: The encoding.
            rows: Rows per epoch, or None to read to the dataset's end.
            how: How they become blocks.
        """

        def make(epoch: int) -> Any:
            made = self.dataset
            if how.buffer is not None:
                made = made.unbatch() if self.elements.batched else made
                made = made.shuffle(how.buffer, seed=(how.seed + epoch) % 2**31)
            if rows is not None and self.cardinality >= 0:
                made = made.repeat()
            made = self._rebatch(made, rows, how)
            encoded = map_elements(made, lambda *parts: self._encode(encoding, parts))
            return prefetch_one(encoded)

        once = functools.cache(lambda: make(0))  # without a buffer TensorFlow traces it once
        begin = make if how.buffer is not None else lambda epoch: once()
        return TfPass(begin, rows, how)

    def _rebatch(self, made: Any, rows: int | None, how: BlockOptions) -> Any:
        """Groups elements into blocks; with `rows`, the last block ends with the epoch."""
        room = how.batch_size * how.capacity
        batched = self.elements.batched and how.buffer is None
        if not batched:
            made = made.batch(room if rows is None else how.batch_size)
        if rows is not None:
            return made.rebatch([room] * (rows // room) + [rows % room] * (rows % room > 0))
        return made.rebatch(room) if batched else made

    def _encode(self, encoding: Encoding, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Encodes a block in the dataset's graph; bytes stay bytes and become floats later."""
        tf = runtime.reader()
        x = tf.reshape(parts[0], (-1, *self.elements.x.shape))
        if isinstance(encoding, ArrayEncoding) and not encoding.keeps_values:
            scale = 1.0 if encoding.scale is None else divisors(encoding.scale)
            x = (tf.cast(x, tf.float64) - (encoding.center or 0.0)) / scale
        if x.dtype != tf.uint8:
            x = tf.debugging.check_numerics(
                tf.cast(x, tf.float32), "`x` has missing or infinite values"
            )
        shapes = (self.elements.y.shape, self.elements.weights.shape)
        others = zip(parts[1:], shapes, strict=False)
        return (x, *(tf.cast(tf.reshape(part, (-1, *row)), tf.float32) for part, row in others))


def map_elements(dataset: Any, function: Callable[..., Any]) -> Any:
    """Applies a function of gpukeras' own to each element of a dataset.

    AutoGraph is left out: it translates each function that is called, 10 ms apiece, to find
    conditions on tensors, and ours have none.
    """
    plain = runtime.reader().autograph.experimental.do_not_convert(function)
    return dataset.map(plain)


def disable_prefetch(dataset: Any) -> Any:
    """Returns the dataset; one that calls `tf.py_function()` makes elements only on request.

    The function may be R's, which runs on R's main thread. If it ran there while a training step is
    traced, the function's tensors would become a part of that graph. Elements that the user's own
    prefetch() or num_parallel_calls makes ahead stay so.
    """
    if not keras_private.uses_py_function(dataset):
        return dataset
    options = runtime.reader().data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # fuses map and batch
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def prefetch_one(dataset: Any) -> Any:
    """Prefetches one element, unless an option forbids it, see `disable_prefetch()`."""
    forbidden = dataset.options().experimental_optimization.inject_prefetch is False
    return dataset if forbidden else dataset.prefetch(1)


class TfPass(Pass):
    """Successive epochs of a tf.data dataset, in blocks of one shape.

    Args:
        make: Returns a dataset of blocks that starts with the given epoch.
        rows: Rows per epoch; the next epoch goes on where the last one ended. None if each epoch
            is the whole dataset.
        how: How rows become blocks.
    """

    def __init__(self, make: Callable[[int], Any], rows: int | None, how: BlockOptions) -> None:
        """Stores the settings without reading from the dataset."""
        super().__init__()
        self._make, self._rows, self._how = make, rows, how

    def blocks(self, epoch: int) -> Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1, then its short last batch.

        Raises:
            DataError: if the user's pipeline fails, or is empty.
        """
        seen, whole = 0, False
        try:
            while self._rows is None or seen < self._rows:
                element = self._next(epoch, seen)
                if element is None:
                    self.close()
                    break
                yield from self._cut(element, seen == 0)
                seen += int(element[0].shape[0])
            whole = True
        finally:
            if self._rows is None or not whole:
                self.close()

    def _next(self, epoch: int, seen: int) -> Any:
        fresh = self._puller is None
        self._puller = self._puller or Puller(lambda: self._make(epoch))
        element = pull_element(self._puller, epoch, self.idle)
        if element is None and not fresh and seen == 0:  # it ended with the previous epoch
            self.close()
            return self._next(epoch, seen)
        if element is None and seen == 0:
            raise no_rows(epoch)
        if element is None and self._rows is not None:
            warn_ended_early("The tf.data dataset", seen // self._how.batch_size + 1, epoch)
        return element

    def _cut(self, arrays: tuple[Any, ...], first: bool) -> Iterator[HostBlock]:
        rows = int(arrays[0].shape[0])
        size = self._how.batch_size
        full, room = rows // size, size * self._how.capacity
        if rows == room:
            yield _give(arrays), full, False
            return
        if full:
            yield _give(pad_rows(array, room) for array in arrays), full, False
        if rows % size and not (self._how.drop_last and (full or not first)):
            yield _give(array[full * size :] for array in arrays), 1, True


class PipelineDataset(IterableDataset):
    """The encoded rows of a `tf.data.Dataset`.

    Args:
        learned: See `IterableDataset`.
        stream: The user's dataset.
        rows: Rows per epoch if `steps` is given, or None.
    """

    def __init__(self, learned: Learned, stream: TfStream, rows: int | None) -> None:
        """Stores the parts."""
        super().__init__(learned)
        self._stream, self._rows = stream, rows

    def open_blocks(self, how: BlockOptions) -> Pass:
        """Opens a pass of blocks that TensorFlow assembles."""
        return self._stream.open(self.recipe.features, self._rows, how)


def check_steps(steps: Any, cardinality: int, batched: bool = True) -> int | None:
    """Checks the user's `steps`: batches per epoch, or None to read to the dataset's end.

    Args:
        steps: The user's value.
        cardinality: The dataset's number of elements, or `INFINITE` or `UNKNOWN`.
        batched: Whether elements are batches.

    Raises:
        SpecError: if the dataset is infinite and `steps` is None, or has fewer batches than
            `steps`.
    """
    if steps is None and cardinality == INFINITE:
        raise SpecError(
            "The tf.data dataset has no end: `steps` must say how many batches an epoch has.",
            arg="steps",
        )
    steps = None if steps is None else check_count("steps", steps)
    if batched and 0 <= cardinality < (steps or 0):
        raise SpecError(
            f"`steps` is {steps}, but the tf.data dataset has {count_of(cardinality, 'batch')}.",
            hint="Leave `steps` out, or repeat() the dataset.",
            arg="steps",
        )
    return steps


def pull_first(dataset: Any) -> Any:
    """Returns the first element.

    Raises:
        DataError: if the dataset is empty or fails.
    """
    puller = Puller(lambda: dataset.take(1))
    try:
        first = pull_element(puller, 1)
    finally:
        puller.close()
    if first is None:
        raise DataError("The tf.data dataset has no rows.", arg="x")
    return first


def pull_element(puller: Puller, epoch: int, idle: Callable[[], None] = lambda: None) -> Any:
    """Returns the next element, or None at the end.

    Args:
        puller: The puller of the dataset.
        epoch: The epoch's number, for messages.
        idle: Called now and then while the puller waits.

    Raises:
        DataError: if the user's pipeline fails.
    """
    try:
        return puller.pull(idle)
    except runtime.reader().errors.OpError as error:
        raise DataError(
            f"The tf.data dataset failed in epoch {epoch}: {find_reason(error)}.",
            arg="x",
            epoch=epoch,
        ) from error


def _give(arrays: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(tensor_ops.take_over, arrays))


def pad_rows(array: Any, room: int) -> Any:
    """Appends rows of zeros to a tensor, up to a number of rows."""
    padding = [[0, room - array.shape[0]]] + [[0, 0]] * (len(array.shape) - 1)
    return runtime.reader().pad(array, padding)


def no_rows(epoch: int) -> DataError:
    """Returns the error for a dataset that is empty."""
    message = f"The tf.data dataset has no rows in epoch {epoch}."
    return DataError(message, arg="x", epoch=epoch)
