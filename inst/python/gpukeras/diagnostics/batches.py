"""Makes the batches of the training steps that `gpu_check()` measures, and reads facts of them."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import Block, open_loader, sample_rows
from gpukeras.data.loader.transforms import as_data
from gpukeras.data.reader.rows import MemoryRows


class UnreadError(Exception):
    """A fact that cannot be read here; the message gives the reason."""


def read_parts(use: dict[str, Any], readers: Mapping[str, Callable[[], Any]]) -> None:
    """Reads facts in their order; one that cannot be read is None, with the reason in `unread`.

    Args:
        use: The facts so far, with `unread`; changed in place.
        readers: A function for each fact.
    """
    for name, read in readers.items():
        use[name] = None
        try:
            use[name] = read()
        except UnreadError as reason:
            use["unread"][name] = str(reason)
        except Exception as error:  # the other parts must still be read
            use["unread"][name] = f"{type(error).__name__}: {find_reason(error)}"


class Source:
    """Batches on the device, from a dataset as gpukeras feeds it or from plain arrays.

    Args:
        data: See `read_use()`.
        device: Device for the batches.
        batch_size: Rows per batch, or None for the dataset's batch size (32 for arrays).
    """

    def __init__(self, data: Any, device: str, batch_size: int | None = None) -> None:
        """Checks the data and chooses the batch size; copies nothing to the device."""
        own = isinstance(data, Dataset)
        self.sources = data.sources if own else tuple(MemoryRows(array) for array in data)
        if not own and (len(data) < 2 or len({len(array) for array in data}) != 1):
            raise DataError("Features and labels of one length are needed.", arg="data")
        self._dataset = data if own else None
        self._wrapped = own and data.wrapped
        self._device = device
        self.wait_s = 0.0
        if self._dataset is not None:
            self._plan = self._dataset.plan(device, batch_size)
            self.batch_size = self._plan.batch_size
        else:
            self.batch_size = min(batch_size or 32, len(self.sources[0]))

    def batch(self, rows: int) -> tuple[np.ndarray, ...]:
        """Returns the first rows, in host memory."""
        if self._dataset is not None:
            first = sample_rows(self._dataset, rows)
            return runtime.tree().map_structure(np.asarray, first)
        return tuple(source.gather(slice(rows)) for source in self.sources)

    def place(self, arrays: Iterable[np.ndarray]) -> Any:
        """Copies arrays to the device in the structure that a step takes."""
        put = functools.partial(tensor_ops.put, device=self._device)
        with runtime.on_device(self._device, soft=True):
            return as_data(runtime.tree().map_structure(put, tuple(arrays)), self._wrapped)

    def passes(self, count: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yields lists of at most `count` batches forever; `wait_s` is the last load time."""
        blocks = self._copies(count) if self._dataset is None else self._blocks(count)
        while True:
            began = time.perf_counter()
            block = next(blocks)
            self.wait_s = time.perf_counter() - began
            yield [block.batch(index) for index in range(block.batches)]

    def _copies(self, count: int) -> Iterator[Block]:
        rows = np.arange(count * self.batch_size) % len(self.sources[0])
        arrays = [source.gather(rows) for source in self.sources]
        while True:
            yield Block(self.place(arrays), count, self.batch_size)

    def _blocks(self, count: int) -> Iterator[Block]:
        assert self._dataset is not None  # arrays use `_copies()`
        loader = open_loader(self._dataset, self._plan, most=count)
        for epoch in itertools.count():
            for block in loader.epoch(epoch):
                if not block.tail:
                    yield block
