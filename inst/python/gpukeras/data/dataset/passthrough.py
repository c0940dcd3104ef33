"""Passes batches of a tf.data pipeline to the model unchanged.

    rows whose shape the pipeline does not tell --> blocks of batches, until one has another shape
    text, ragged rows, rows whose shape varies  --> one block per batch --> Keras' function

Blocks of several batches need rows of numbers of one shape. Other batches are neither encoded nor
regrouped: Keras' train function takes them in the structure that the pipeline gives. They stay in
host memory; TensorFlow sends the numbers to the device, and keeps the texts.

Keras' own epoch iterator is such a pipeline too: its batches are taken in its order and as they
are, many of one size in a call. That serves rows of any kind, and needs TensorFlow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.features import require_feature
from gpukeras.backend.joined_batches import JoinedBatches, Pulled
from gpukeras.backend.keras_batches import KerasBatches
from gpukeras.core.errors import DataError, SpecError, warn_ended_early
from gpukeras.core.options import DatasetSpec, check_flag
from gpukeras.core.pulling import Puller
from gpukeras.data.dataset.iterable_dataset import (
    BlockOptions,
    HostBlock,
    IterableDataset,
    Learned,
    Pass,
)
from gpukeras.data.dataset.tfdata import (
    check_steps,
    choose_batched,
    disable_prefetch,
    map_elements,
    no_rows,
    pad_rows,
    prefetch_one,
    pull_element,
    pull_first,
    unname_pairs,
)
from gpukeras.data.plan import PipelinePlan, StreamFacts
from gpukeras.data.recipe.recipe import BatchesEncoding, Recipe

# Passes -------------------------------------------------------------------------------------------

VARIES = "rows whose shape varies"


class BatchPass(Pass):
    """Successive epochs of batches as they come.

    Args:
        batches: The batches.
        what: What gives the batches, for messages.
        why: Why batches cannot be joined, or "".
        rows: Rows of the first batch; blocks are of batches with as many.
        capacity: Batches per block.

    Attributes:
        spec: What a batch is, as TensorFlow's specs; that of the first one, if it was read.
        whole: Why only Keras' train function can take the batches, or "".
    """

    def __init__(
        self, batches: JoinedBatches, what: str, why: str, rows: int = 0, capacity: int = 1
    ) -> None:
        """Reads nothing."""
        super().__init__()
        self._batches = batches
        self.rows = rows
        self.capacity = capacity
        self.spec = batches.spec
        self._first: Pulled | None = None
        self._what = what
        self.whole = self._explain(why) if why else ""
        batches.joins = not why

    def read_first(self) -> None:
        """Reads the first batch, which tells the lengths that the spec leaves open."""
        self._first = self._pull(1)
        if self._first is None:
            return
        self.rows = count_rows(self._first[0])
        if self._batches.joins:
            spec = runtime.reader().type_spec_from_value
            self.spec = runtime.tree().map_structure(spec, self._first[0])

    def blocks(self, epoch: int) -> Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1."""
        ended = False
        try:
            pulled, self._first = self._first or self._pull(epoch), None
            while pulled is not None:
                yield from self._cut(*pulled)
                pulled = self._pull(epoch)
            ended = True
        finally:
            self.close()
            if not ended:
                self._batches.abandon()

    def _explain(self, why: str) -> str:
        return f"{self._what} gives {why}, a batch at a time"

    def _pull(self, epoch: int) -> Pulled | None:
        self._puller = self._puller or Puller(
            lambda: self._batches.epoch(lambda: self.capacity, epoch)
        )
        pulled: Pulled | None = pull_element(self._puller, epoch, self.idle)
        return pulled

    def _cut(self, arrays: Any, sizes: list[int]) -> Iterator[HostBlock]:
        """Cuts what was pulled into batches of the common size, and others alone."""
        if not sizes:
            self.whole = self.whole or self._explain(VARIES)
            yield arrays, 1, True
            return
        start = 0
        for size, group in itertools.groupby(sizes):
            count, common = len(list(group)), size == self.rows
            for batches in [count] if common else [1] * count:
                rows = batches * size
                cut = _take(start, rows, size * self.capacity if common else rows)
                yield runtime.tree().map_structure(cut, arrays), batches, not common
                start += rows


def _take(start: int, rows: int, room: int) -> Callable[[Any], Any]:
    """Returns the function that takes rows of a tensor, padded to `room` rows."""

    def take(array: Any) -> Any:
        part = array if rows == len(array) else array[start : start + rows]
        if room <= rows:
            return part
        return pad_rows(part, room)

    return take


def count_rows(element: Any) -> int:
    """Returns the rows of a batch of any structure."""
    first = runtime.tree().flatten(element)[0]
    return int(first.nrows() if hasattr(first, "nrows") else first.shape[0])


# Which batches are passed on ----------------------------------------------------------------------

PAD = "Batch it with padded_batch() or ragged_batch()."
UNBATCHED_ROWS = 32  # per batch if the elements are rows; Keras' default


def why_not_batchable(spec: Any, batched: bool | None = None) -> str:
    """Returns why elements of this `element_spec` cannot form blocks of numbers.

    Args:
        spec: `element_spec` of a dataset.
        batched: Whether elements are batches; None to infer it from the shapes.

    Returns:
        "text", "ragged rows" or "rows whose shape varies"; "" if they can.
    """
    parts = _leaves(spec)
    if any(_is_ragged(part) for part in parts):
        return "ragged rows"
    if not all(type(part).__name__ == "TensorSpec" for part in parts):
        return ""
    texts = [part for part in parts if part.dtype.name == "string"]
    if texts:  # text labels are refused elsewhere
        features = _leaves(spec[0] if isinstance(spec, (tuple, list)) else spec)
        return "text" if len(texts) == sum(p.dtype.name == "string" for p in features) else ""
    rows = [tuple(part.shape)[1:] for part in parts if part.shape.rank]
    varies = any(None in row for row in rows) and _are_batches(spec, batched)
    return VARIES if varies else ""


def _are_batches(spec: Any, batched: bool | None) -> bool:
    """Whether elements are batches; vectors of texts and labels of equal length are."""
    if batched is not None:
        return check_flag("batched", batched)
    if any(_is_ragged(part) and (part.shape.rank or 0) < 2 for part in _leaves(spec)):
        return False
    shapes = [(None,) if s.rank is None else tuple(s) for s in (p.shape for p in _leaves(spec))]
    if all(len(shape) == 1 for shape in shapes) and len(set(shapes)) == 1:
        return True
    return choose_batched(shapes)


def _is_ragged(part: Any) -> bool:
    return type(part).__name__ == "RaggedTensorSpec"


def _leaves(spec: Any) -> list[Any]:
    return runtime.reader().nest.flatten(spec)


# Building ----------------------------------------------------------------------------------------


def build_as_is(
    features: Mapping[str, Any], spec: DatasetSpec, recipe: Recipe | None, why: str
) -> AsIsDataset:
    """Builds a dataset whose batches are passed on unchanged.

    Args:
        features: `{kind: "tfdata", dataset, steps, batched}`.
        spec: The options.
        recipe: The model's recipe, which must not encode values, or None.
        why: See `why_not_batchable()`.

    Raises:
        SpecError: for an option that needs rows of one shape.
        DataError: for a recipe that encodes, or elements that are neither batches nor rows.
    """
    require_feature("pipeline as it is")
    _check_options(spec, why)
    if recipe is not None and not recipe.keeps_values:
        raise DataError(
            f"The tf.data dataset gives {why}, but `model` was trained on encoded rows.",
            hint="Give rows of the kind that trained it.",
            arg="x",
        )
    dataset = _as_batches(features, why)
    cardinality = int(dataset.cardinality())
    steps = check_steps(features.get("steps"), cardinality)
    head = pull_first(dataset)
    rows = count_rows(head)
    facts = StreamFacts(
        what=f"by the user's tf.data pipeline, a batch at a time as it comes: {why}",
        chunk_rows=rows,
        rows=(steps or max(0, cardinality)) * rows,
        row_bytes=max(1, count_bytes(head) // max(1, rows)),
        ahead=1,
    )
    if steps is not None and cardinality >= 0:
        dataset = dataset.repeat()  # an epoch goes on where the last ended
    return AsIsDataset((dataset, steps), spec, head, facts, why)


def _check_options(spec: DatasetSpec, why: str) -> None:
    asked = {
        "batch_size": spec.batch_size not in ("auto", None),
        "buffer": spec.buffer != "auto",
        "drop_last": spec.drop_last,
        "scale": spec.scale,
        "na": spec.na != "error",
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise _refuse(name, why)


def _refuse(name: str, why: str) -> SpecError:
    return SpecError(
        f"`{name}` needs rows of numbers of one shape: the tf.data dataset gives {why}.",
        hint="Its batches are taken as they come: say it in the pipeline.",
        arg=name,
    )


def _as_batches(features: Mapping[str, Any], why: str) -> Any:
    """Returns the user's dataset; elements that are rows are batched."""
    dataset = unname_pairs(disable_prefetch(features["dataset"]), None)
    if _are_batches(dataset.element_spec, features.get("batched")):
        return dataset
    if why != "text" or any(None in tuple(part.shape) for part in _leaves(dataset.element_spec)):
        raise DataError(f"Elements of the tf.data dataset are {why}.", hint=PAD, arg="x")
    return dataset.batch(UNBATCHED_ROWS)


def count_bytes(element: Any) -> int:
    """Returns the bytes of a batch's tensors; a text counts 8, its reference."""
    parts = runtime.reader().nest.flatten(element, expand_composites=True)
    return sum(int(part.shape.num_elements() or 0) * (part.dtype.size or 8) for part in parts)


# Reading -----------------------------------------------------------------------------------------


class PipelineBatches(JoinedBatches):
    """Epochs of a pipeline's batches; if `steps` is given, an epoch goes on where the last ended.

    Args:
        dataset: The user's dataset, batched.
        steps: Batches per epoch, or None to read to the dataset's end.
    """

    def __init__(self, dataset: Any, steps: int | None) -> None:
        """Prepares the dataset without reading from it."""
        super().__init__(dataset.element_spec)
        self._dataset, self._steps = dataset, steps
        self._iterator: Any = None

    def epoch(self, most: Callable[[], int], number: int) -> Generator[Pulled, None, None]:
        """Yields the batches of an epoch, see `JoinedBatches.epoch()`.

        Raises:
            DataError: if the pipeline is empty.
        """
        done, left = 0, self._steps or math.inf
        while done < left:
            fresh = self._iterator is None
            iterator = iter(self._dataset) if self._iterator is None else self._iterator
            self._iterator = iterator
            asked = int(min(most() if self.joins else 1, left - done))
            taken = yield from self.pull(iterator, asked)
            done += taken
            if taken == asked:
                continue
            self._iterator = None
            if done and self._steps is not None:
                warn_ended_early("The tf.data dataset", done + 1, number)
            if done:
                return
            if fresh:  # otherwise it ended with the epoch before
                raise no_rows(number)

    def abandon(self) -> None:
        """Starts the dataset anew in the next epoch."""
        self._iterator = None


class BatchesDataset(IterableDataset):
    """A dataset whose batches are passed on unchanged.

    Args:
        spec: The dataset's options.
        head: The first batch.
        facts: The facts from which the plan is made.
        why: Why they are passed on unchanged.
    """

    def __init__(self, spec: DatasetSpec, head: Any, facts: StreamFacts, why: str) -> None:
        """Stores the parts."""
        unshuffled = replace(spec, shuffle=False)  # the pipeline determines the order
        super().__init__(Learned(Recipe(BatchesEncoding()), unshuffled, (), facts))
        self.obstacle = why
        self._head = head if isinstance(head, tuple) else (head,)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the first batch."""
        return self.facts.row_bytes

    def plan(self, device: str, batch_size: int | str | None = None) -> PipelinePlan:
        """Returns the plan for a device.

        Raises:
            SpecError: if `batch_size` is given, as batches keep their size.
        """
        if batch_size not in (None, "auto"):
            raise _refuse("batch_size", self.obstacle)
        return replace(super().plan(device), na_reason="as the pipeline gives them")

    def batch(self, rows: int | np.ndarray) -> tuple[Any, ...]:
        """Returns the first batch unchanged, to build a model's variables; ignores `rows`."""
        return self._head


class AsIsDataset(BatchesDataset):
    """The batches of a pipeline of the user's.

    Args:
        batches: The pipeline, batched, and its steps.
        spec: See `BatchesDataset`.
        head: See `BatchesDataset`.
        facts: See `BatchesDataset`.
        why: See `why_not_batchable()`.
    """

    def __init__(
        self,
        batches: tuple[Any, int | None],
        spec: DatasetSpec,
        head: Any,
        facts: StreamFacts,
        why: str,
    ) -> None:
        """Stores the parts."""
        super().__init__(spec, head, facts, why)
        self._dataset, self._steps = batches

    def open_blocks(self, how: BlockOptions) -> BatchPass:
        """Opens a pass over the batches, whose order and last batch the pipeline determines."""
        dataset = prefetch_one(self._dataset)
        if not isinstance(dataset.element_spec, tuple):
            dataset = map_elements(dataset, lambda batch: (batch,))
        joins = self.obstacle == VARIES and runtime.backend() == "tensorflow"
        why = "" if joins else self.obstacle  # equal lengths are found out
        batches = PipelineBatches(dataset, self._steps)
        return BatchPass(batches, "the tf.data pipeline", why, how.batch_size, how.capacity)


# Batches of Keras ---------------------------------------------------------------------------------

SAMPLE_ROWS = 32  # of zeros, from which a model's variables are built


class KerasDataset(BatchesDataset):
    """Batches as Keras takes them.

    Args:
        batches: Keras' iterator.
        reader: The only pass over them, since reading may change what comes next.
        head: See `BatchesDataset`.
        facts: See `BatchesDataset`.
    """

    def __init__(
        self, batches: KerasBatches, reader: BatchPass, head: Any, facts: StreamFacts
    ) -> None:
        """Stores the parts."""
        super().__init__(DatasetSpec(), head, facts, "batches as Keras takes them")
        self.batches, self.reader = batches, reader
        self.wrapped = isinstance(batches.spec, tuple)

    def open_blocks(self, how: BlockOptions) -> BatchPass:
        """Returns the pass; batches keep their size, and Keras' iterator determines their order."""
        self.reader.capacity = how.capacity
        return self.reader


def open_keras_rows(
    model: Any, rows: Mapping[str, Any], resets: bool = False
) -> tuple[KerasDataset, int | None]:
    """Opens rows as Keras takes them.

    Args:
        model: The model.
        rows: Keras' arguments, see `KerasBatches`.
        resets: Whether each pass starts anew, as in an evaluation.

    Returns:
        The dataset, and the batches of an epoch, None if they are unknown.

    Raises:
        DataError: if the first batch cannot be made.
    """
    batches = KerasBatches(model, rows, resets)
    reader = BatchPass(batches, "Keras' iterator", why_not_joined(batches.spec))
    reader.read_first()  # its size is that of the blocks' batches
    size, known = max(1, reader.rows), batches.count
    head = _blank(reader.spec, min(size, SAMPLE_ROWS))
    numbers = sum(np.asarray(part).nbytes for part in runtime.tree().flatten(head))
    facts = StreamFacts(
        what="by Keras' own iterator, many batches a call",
        chunk_rows=size,
        rows=(known or 0) * size,
        row_bytes=max(1, numbers // min(size, SAMPLE_ROWS)),
    )
    return KerasDataset(batches, reader, head, facts), known


def why_not_joined(spec: Any) -> str:
    """Returns why batches of this spec cannot be joined, as part of a sentence; "" if they can.

    Lengths that the spec leaves open are found out: see `KerasBatches.joins`.
    """
    parts = runtime.reader().nest.flatten(spec)
    plain = all(type(part).__name__ == "TensorSpec" for part in parts)
    if plain and any(not part.shape.rank for part in parts):
        return "rows of unknown shape"
    why = why_not_batchable(spec, True)
    return "" if why == VARIES else why or ("" if plain else "sparse rows")


def _blank(spec: Any, rows: int) -> Any:
    """Returns a batch of zeros of such elements, 1 where a length is unknown."""
    tf = runtime.tensorflow()

    def zeros(part: Any) -> Any:
        lengths = (part.shape[0] or rows, *(length or 1 for length in part.shape[1:]))
        return tf.zeros(lengths, part.dtype)

    return tf.nest.map_structure(zeros, spec)
