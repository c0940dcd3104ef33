"""A `tf.data.Dataset` of the user's as blocks of batches.

TensorFlow itself puts the elements together to blocks (`rebatch`), so that Python touches no row,
and makes the next block while this one is trained. The order is the user's own.

Elements are `x`, `(x, y)` or `(x, y, weights)`, each a tensor of numbers, batched or not:
`parse_elements()` says how that is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of, find_reason
from gpukeras.core.options import check_count, check_flag, describe
from gpukeras.core.pulling import Puller
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.streams.rebatch import HostBlock

PEEK_ROWS = 1024  # of a dataset that is not batched: what a recipe is learned from
INFINITE, UNKNOWN = -1, -2  # tf.data's own numbers
GIVE_PAIRS = "Map it to (x, y), each a tensor of numbers, with its own map()."


@dataclass(frozen=True)
class Elements:
    """What the elements of a dataset are.

    Args:
        batched: Whether one holds many rows.
        row_shape: Shape of one row of `x`; a number is a row of one.
        label_shape: Shape of one row of `y`.
        label_kind: "integer", "logical", "numeric" or "matrix" (see `targets`), or "" without `y`.
        weight_shape: Shape of the weights of one row.
        batch_rows: Rows of an element, where all have as many; or None.
        dtype: Name of the type of `x`.
    """

    batched: bool
    row_shape: tuple[int, ...]
    label_shape: tuple[int, ...]
    label_kind: str
    weight_shape: tuple[int, ...]
    batch_rows: int | None
    dtype: str


def parse_elements(spec: Any, batched: bool | None = None) -> Elements:
    """What elements of this `element_spec` are.

    With labels that are single numbers, elements are rows. Otherwise a first dimension that is
    unknown, or that `x` (a matrix or more) and `y` share, is that of a batch. What is left open is
    asked for by name.

    Args:
        spec: `element_spec` of a dataset.
        batched: Whether elements are batches; None where the shapes tell.

    Raises:
        DataError: for elements that cannot be trained on.
        SpecError: if `batched` must be given.
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
    """A part of the elements is a tensor of numbers of known rank."""
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
    """Whether elements are batches, from the shapes of their tensors; see `parse_elements()`."""
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
    """Shape of one row of labels, and their kind."""
    check_known(row, "y")
    known = tuple(length for length in row if length is not None)
    if math.prod(known) != 1:
        return known, "matrix"
    if part.dtype.is_bool:
        return known, "logical"
    return known, "integer" if part.dtype.is_integer else "numeric"


def check_known(row: tuple[int | None, ...], name: str) -> None:
    """All dimensions of a row are known."""
    if None in row or 0 in row:
        raise DataError(
            f"A row of `{name}` of the tf.data dataset has the shape {row}: it must be known.",
            hint="Give it a shape by tf.ensure_shape() in its map(), or use padded_batch().",
            arg="x",
        )


# Reading -----------------------------------------------------------------------------------------


class TfStream:
    """The rows of a `tf.data.Dataset`.

    Args:
        dataset: The user's.
        steps: Batches an epoch, or None: until it ends.
        batched: Whether its elements are batches; None where their shapes tell.
    """

    def __init__(self, dataset: Any, steps: Any = None, batched: bool | None = None) -> None:
        """Looks at the shapes; reads nothing yet.

        Raises:
            SpecError: if it has no end and `steps` is not given, or is no tf.data dataset.
            DataError: for elements that cannot be trained on.
        """
        if not isinstance(dataset, runtime.tensorflow().data.Dataset):
            raise SpecError(f"`x` must be a tf.data.Dataset, not {describe(dataset)}.", arg="x")
        self.dataset = hold_back(dataset)
        self.elements = parse_elements(dataset.element_spec, batched)
        self.cardinality = int(dataset.cardinality())
        self.steps = check_steps(steps, self.cardinality, self.elements.batched)

    def peek(self) -> tuple[np.ndarray, ...]:
        """The first batch, or the first rows, as they are."""
        return self.plain(pull_first(self._rows()))

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """All elements, as they are, many rows at a time."""
        puller = Puller(self._rows)
        try:
            while (element := pull_element(puller, 1)) is not None:
                yield self.plain(element)
        finally:
            puller.close()

    def _rows(self) -> Any:
        return self.dataset if self.elements.batched else self.dataset.batch(PEEK_ROWS)

    def plain(self, element: Any) -> tuple[np.ndarray, ...]:
        """A batch as arrays, a row of `x` never a single number."""
        parts = element if isinstance(element, (tuple, list)) else (element,)
        x, *others = (np.asarray(part) for part in parts)
        return (x.reshape(-1, *self.elements.row_shape), *others)

    def expect_rows(self, first: int) -> int | None:
        """Rows of all elements, from those of the first; None where it cannot be known."""
        if self.cardinality < 0:
            return None
        return self.cardinality * (first if self.elements.batched else 1)

    def open(
        self,
        recipe: Recipe,
        batch_size: int,
        capacity: int,
        *,
        rows: int | None,
        drop_last: bool,
        buffer: int | None,
        seed: int,
    ) -> TfPass:
        """What gives blocks, epoch by epoch; `rows` is the length of an epoch, if it is given."""

        def make(epoch: int) -> Any:
            made = self.dataset
            if buffer is not None:
                made = made.unbatch() if self.elements.batched else made
                made = made.shuffle(buffer, seed=(seed + epoch) % 2**31)
            if rows is not None and self.cardinality >= 0:
                made = made.repeat()
            made = self._rebatch(made, batch_size, capacity, rows, buffer is None)
            return prefetch_one(made.map(lambda *parts: self._encode(recipe, parts)))

        return TfPass(make, batch_size, capacity, rows, drop_last)

    def _rebatch(
        self, made: Any, batch_size: int, capacity: int, rows: int | None, own: bool
    ) -> Any:
        """Blocks; where an epoch has a length, its last block ends with it."""
        room, batched = batch_size * capacity, self.elements.batched and own
        if not batched:
            made = made.batch(room if rows is None else batch_size)
        if rows is not None:
            return made.rebatch([room] * (rows // room) + [rows % room] * (rows % room > 0))
        return made.rebatch(room) if batched else made

    def _encode(self, recipe: Recipe, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Traced: numbers as a model takes them; bytes stay bytes, they become floats later."""
        tf = runtime.tensorflow()
        x = tf.reshape(parts[0], (-1, *self.elements.row_shape))
        if recipe.center is not None:
            x = (tf.cast(x, tf.float64) - recipe.center) / recipe.scale
        if x.dtype != tf.uint8:
            x = tf.debugging.check_numerics(
                tf.cast(x, tf.float32), "`x` has missing or infinite values"
            )
        shapes = (self.elements.label_shape, self.elements.weight_shape)
        others = zip(parts[1:], shapes, strict=False)
        return (x, *(tf.cast(tf.reshape(part, (-1, *row)), tf.float32) for part, row in others))


def prefetch_one(dataset: Any) -> Any:
    """One element ahead, where the pipeline may run ahead, see `hold_back()`."""
    return dataset if keras_private.calls_eager_python(dataset) else dataset.prefetch(1)


def hold_back(dataset: Any) -> Any:
    """The dataset; one that calls `tf.py_function()` makes elements only when they are asked for.

    The function may be R's, which runs on the main thread whenever that comes round: while it
    traces a training step, the function's tensors would become a part of that graph. What the
    user's own prefetch() or num_parallel_calls makes ahead stays so.
    """
    if not keras_private.calls_eager_python(dataset):
        return dataset
    options = runtime.tensorflow().data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # fuses map and batch
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


class TfPass:
    """One epoch after another of a dataset, as blocks of one shape.

    Args:
        make: Gives a dataset of blocks that starts with an epoch.
        batch_size: Rows a batch.
        capacity: Batches a block.
        rows: Rows an epoch: the next one goes on where the last one ended. None: each epoch is
            the whole dataset.
        drop_last: Leave out the short last batch, if there is a full one.
    """

    stage = "pull"  # TensorFlow's own threads overlap what is within
    whole = ""
    dropped = 0

    def __init__(
        self,
        make: Callable[[int], Any],
        batch_size: int,
        capacity: int,
        rows: int | None,
        drop_last: bool,
    ) -> None:
        """Reads nothing yet."""
        self._make, self._batch_size, self._capacity = make, batch_size, capacity
        self._rows, self._drop_last = rows, drop_last
        self._puller: Puller | None = None
        self.idle: Callable[[], None] = lambda: None

    def blocks(self, epoch: int) -> Generator[HostBlock, None, None]:
        """The blocks of an epoch, counted from 1, then its short last batch.

        Raises:
            DataError: if the user's pipeline fails, or ends before an epoch does.
        """
        seen, whole = 0, False
        try:
            while self._rows is None or seen < self._rows:
                element = self._next(epoch, seen)
                if element is None:
                    break
                yield from self._cut(element, seen == 0)
                seen += self._count(element)
            whole = True
        finally:
            if self._rows is None or not whole:
                self.close()

    def close(self) -> None:
        """Leaves the dataset where it is; the next epoch starts it anew."""
        if self._puller is not None:
            self._puller.close()
        self._puller = None

    def _next(self, epoch: int, seen: int) -> Any:
        fresh = self._puller is None
        self._puller = self._puller or Puller(lambda: self._make(epoch))
        element = pull_element(self._puller, epoch, self.idle)
        if element is None and not fresh and seen == 0:  # it ended just with the epoch before
            self.close()
            return self._next(epoch, seen)
        if element is None and (self._rows is not None or seen == 0):
            raise DataError(
                f"The tf.data dataset ended before batch {seen // self._batch_size + 1} "
                f"of epoch {epoch}.",
                hint="Use fewer `steps`, or repeat() it." if self._rows else "",
                arg="steps",
                epoch=epoch,
                batch=seen // self._batch_size + 1,
            )
        return element

    def _count(self, arrays: tuple[Any, ...]) -> int:
        return int(arrays[0].shape[0])

    def _cut(self, arrays: tuple[Any, ...], first: bool) -> Iterator[HostBlock]:
        tf, rows, size = runtime.tensorflow(), self._count(arrays), self._batch_size
        full, room = rows // size, size * self._capacity
        if rows == room:
            yield arrays, full, False
            return
        if full:
            yield tuple(_pad(tf, array, room) for array in arrays), full, False
        if rows % size and not (self._drop_last and (full or not first)):
            yield tuple(array[full * size :] for array in arrays), 1, True


def check_steps(steps: Any, cardinality: int, batched: bool = True) -> int | None:
    """Batches an epoch of a dataset, as the user gave them; None: until it ends.

    Raises:
        SpecError: if it has no end and `steps` is not given, or fewer batches.
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
    """The first element.

    Raises:
        DataError: if there is none.
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
    """The next element; what fails in the user's pipeline is an error in the data."""
    try:
        return puller.pull(idle)
    except runtime.tensorflow().errors.OpError as error:
        raise DataError(
            f"The tf.data dataset failed in epoch {epoch}: {find_reason(error)}.",
            arg="x",
            epoch=epoch,
        ) from error


def _pad(tf: Any, array: Any, room: int) -> Any:
    return tf.pad(array, [[0, room - array.shape[0]]] + [[0, 0]] * (len(array.shape) - 1))
