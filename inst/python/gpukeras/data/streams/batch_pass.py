"""Successive epochs of batches as they come, joined to blocks where they have one shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from gpukeras.backend import runtime
from gpukeras.backend.joined_batches import Pulled
from gpukeras.core.pulling import Puller
from gpukeras.data.streams.rebatch import HostBlock
from gpukeras.data.streams.tfdata import pull_element

VARIES = "rows whose shape varies"


class Batches(Protocol):
    """Epochs of batches, see `JoinedBatches`."""

    spec: Any
    joins: bool

    def abandon(self) -> None:
        """Called when an epoch was not read to its end."""

    def epoch(self, most: Callable[[], int], number: int) -> Generator[Pulled, None, None]:
        """Yields the batches of an epoch, counted from 1; `most` gives how many to take next."""


class BatchPass:
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

    stage = "pull"
    dropped = 0

    def __init__(
        self, batches: Batches, what: str, why: str, rows: int = 0, capacity: int = 1
    ) -> None:
        """Reads nothing."""
        self._batches = batches
        self.rows = rows
        self.capacity = capacity
        self.spec = batches.spec
        self._first: Pulled | None = None
        self._what = what
        self.whole = self._explain(why) if why else ""
        self.idle: Callable[[], None] = lambda: None
        self._puller: Puller | None = None
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

    def close(self) -> None:
        """Stops reading."""
        if self._puller is not None:
            self._puller.close()
        self._puller = None

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
    tf = runtime.reader()

    def take(array: Any) -> Any:
        part = array if rows == len(array) else array[start : start + rows]
        if room <= rows:
            return part
        return tf.pad(part, [[0, room - rows]] + [[0, 0]] * (len(part.shape) - 1))

    return take


def count_rows(element: Any) -> int:
    """Returns the rows of a batch of any structure."""
    first = runtime.tree().flatten(element)[0]
    return int(first.nrows() if hasattr(first, "nrows") else first.shape[0])
