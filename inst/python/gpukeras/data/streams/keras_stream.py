"""Trains on the batches that Keras' own `fit()` would take, in its order and as they are.

    Keras' epoch iterator --many batches a call--> blocks of batches of one size --> engine
                                                   others, the short last one, alone --> engine

Nothing is encoded, cast or regrouped, so this serves rows of any kind: pipelines that shuffle,
generators, arrays of whole numbers. It needs TensorFlow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.keras_batches import KerasBatches
from gpukeras.core.options import DatasetSpec
from gpukeras.core.pulling import Puller
from gpukeras.data.plan import StreamFacts
from gpukeras.data.streams.dataset import IterableDataset
from gpukeras.data.streams.passthrough import VARIES, AsIsDataset, count_rows, find_obstacle
from gpukeras.data.streams.rebatch import HostBlock
from gpukeras.data.streams.tfdata import pull_element

WHAT = "by Keras' own iterator, many batches a call"
SAMPLE_ROWS = 32  # of zeros, from which a model's variables are built


@dataclass
class KerasStream:
    """Batches as Keras takes them.

    Args:
        batches: Keras' iterator.
        why: Why batches cannot be joined, see `find_obstacle()`, or "".
    """

    batches: KerasBatches
    why: str
    what: str = WHAT
    source_kind = "pipeline"

    def __post_init__(self) -> None:
        """Reads the first batch, whose size is that of the blocks' batches."""
        self.reader = KerasPass(self.batches, self.why)

    def open(self, data: IterableDataset, size: int, capacity: int, training: bool) -> KerasPass:
        """Returns the only pass over the batches, since reading may change what comes next.

        Args:
            data: Ignored.
            size: Ignored; batches keep their size.
            capacity: Batches per block.
            training: Ignored; Keras' iterator determines order and last batch.
        """
        self.reader.capacity = capacity
        return self.reader


class KerasPass:
    """Successive epochs of batches as Keras takes them.

    Args:
        batches: Keras' iterator.
        why: Why batches cannot be joined, or "".

    Attributes:
        capacity: Batches per block.
        rows: Rows of the first batch; blocks are of batches with as many.
        spec: What a batch is, as TensorFlow's specs; that of the first one, if batches are joined.
    """

    stage = "pull"
    dropped = 0

    def __init__(self, batches: KerasBatches, why: str) -> None:
        """Reads the first batch."""
        self._batches, self.capacity = batches, 1
        self.whole = f"Keras' iterator gives {why}, a batch at a time" if why else ""
        self.idle: Callable[[], None] = lambda: None
        self._puller: Puller | None = None
        batches.joins = not why
        self._first = self._pull(1)
        self.rows = 0 if self._first is None else count_rows(self._first[0])
        self.spec = batches.spec
        if self._first is not None and not why:  # with the lengths that the spec leaves open
            spec = runtime.tensorflow().type_spec_from_value
            self.spec = runtime.tree().map_structure(spec, self._first[0])

    def blocks(self, epoch: int) -> Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1."""
        try:
            pulled, self._first = self._first or self._pull(epoch), None
            while pulled is not None:
                yield from self._cut(*pulled)
                pulled = self._pull(epoch)
        finally:
            self.close()

    def close(self) -> None:
        """Abandons the current epoch."""
        if self._puller is not None:
            self._puller.close()
        self._puller = None

    def _pull(self, epoch: int) -> Any:
        self._puller = self._puller or Puller(lambda: self._batches.epoch(lambda: self.capacity))
        return pull_element(self._puller, epoch, self.idle)

    def _cut(self, arrays: Any, sizes: list[int]) -> Iterator[HostBlock]:
        """Cuts what was pulled into batches of the common size, and others alone."""
        if not sizes:
            self.whole = self.whole or f"Keras' iterator gives {VARIES}, a batch at a time"
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
    tf = runtime.tensorflow()

    def take(array: Any) -> Any:
        part = array if rows == len(array) else array[start : start + rows]
        if room <= rows:
            return part
        return tf.pad(part, [[0, room - rows]] + [[0, 0]] * (len(part.shape) - 1))

    return take


def open_keras_rows(
    model: Any, rows: Mapping[str, Any], resets: bool = False
) -> tuple[AsIsDataset, int | None]:
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
    stream = KerasStream(batches, why_not_joined(batches.spec))
    size, known = max(1, stream.reader.rows), batches.count
    head = _blank(stream.reader.spec, min(size, SAMPLE_ROWS))
    numbers = sum(np.asarray(part).nbytes for part in runtime.tree().flatten(head))
    facts = StreamFacts(
        what=WHAT,
        chunk_rows=size,
        rows=(known or 0) * size,
        row_bytes=max(1, numbers // min(size, SAMPLE_ROWS)),
    )
    data = AsIsDataset(stream, DatasetSpec(), head, facts, "batches as Keras takes them")
    data.wrapped = isinstance(batches.spec, tuple)
    return data, known


def why_not_joined(spec: Any) -> str:
    """Returns why batches of this spec cannot be joined, as part of a sentence; "" if they can.

    Lengths that the spec leaves open are found out: see `KerasBatches.joins`.
    """
    parts = runtime.reader().nest.flatten(spec)
    plain = all(type(part).__name__ == "TensorSpec" for part in parts)
    if plain and any(not part.shape.rank for part in parts):
        return "rows of unknown shape"
    found = find_obstacle(spec, True)
    return "" if found == VARIES else found or ("" if plain else "sparse rows")


def _blank(spec: Any, rows: int) -> Any:
    """Returns a batch of zeros of such elements, 1 where a length is unknown."""
    tf = runtime.tensorflow()

    def zeros(part: Any) -> Any:
        lengths = (part.shape[0] or rows, *(length or 1 for length in part.shape[1:]))
        return tf.zeros(lengths, part.dtype)

    return tf.nest.map_structure(zeros, spec)
