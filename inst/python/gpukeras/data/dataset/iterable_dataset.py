"""Defines datasets of rows in sequence, which allow no full shuffle and no validation split.

    the user's function --------chunks--> encode --> Rebatcher --> blocks of batches
    the user's tf.data.Dataset -----------------------TensorFlow--> blocks of batches

The recipe is learned from the first chunk. With `cache = TRUE` all chunks are collected once into
a dataset of rows by number, with a full shuffle and every plan; the user's code is not called
again.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset.generator import Chunk, Generator, Parts, check_parts, encode_chunk
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.dataset.rebatch import Arrays, HostBlock, Pass, Rebatcher, align, shuffle_rows
from gpukeras.data.dataset.tfdata import TfStream
from gpukeras.data.plan import PipelinePlan, StreamFacts, plan_stream
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.recipe.multi_output import widen_labels
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.stage_timer import end_stage

BUFFER_BYTES = 64 * 2**20  # the most for a shuffle buffer


class CodeCheck(Protocol):
    """Checks the codes that a model looks up, block by block."""

    def add(self, features: Any) -> None:
        """Takes the features of a block; raises an error for a code that the model lacks."""

    def finish(self) -> None:
        """Checks what is not checked yet, at the end of an epoch."""


class IterableDataset(Dataset):
    """A dataset of rows in sequence, made by a function or a pipeline.

    Args:
        recipe: The encoding, learned from the first chunk or given.
        spec: The dataset's options.
        head: The first chunk, encoded: features, labels and weights.
        facts: The facts from which the plan is made.

    Attributes:
        code_check: Checks the codes that the model looks up; None where it has nothing to check.
    """

    source_kind = "pipeline"
    size = None
    code_check: CodeCheck | None = None

    def __init__(self, recipe: Recipe, spec: DatasetSpec, head: Arrays, facts: StreamFacts) -> None:
        """Stores the parts."""
        super().__init__(tuple(MemoryRows(array) for array in head), recipe, spec, facts.na)
        self.facts = facts

    @abstractmethod
    def open_pass(self, size: int, capacity: int, training: bool) -> Pass:
        """Opens a pass over the rows, which reads nothing yet.

        Args:
            size: Rows per batch.
            capacity: Batches per block.
            training: Whether rows are shuffled and the short last batch may be left out.
        """

    @property
    def epoch_rows(self) -> int:
        """Rows per epoch if all chunks are like the first; 0 if the end is unknown."""
        return self.facts.rows

    def count(self, part: str) -> int | None:
        """Rows of a part: 0 for "validation", as there is no split; else None, for unknown."""
        return 0 if part == "validation" else None

    def identity(self) -> dict[str, Any]:
        """Returns how the rows are made; the rows may differ each time and are not compared."""
        return {"source": self.facts.what, "rows": self.facts.rows, "buffer": self.buffer}

    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options."""
        return plan_stream(replace(self.facts, device=device), spec)

    def widen_label(self, labels: np.ndarray) -> bool:
        """Extends the recipe's range to more labels; returns whether that changed it."""
        rule = self.recipe.label
        if rule is None or not len(labels):
            return False
        wider = widen_labels(rule, labels)
        self.recipe = replace(self.recipe, label=wider)
        return wider != rule

    @property
    def buffer(self) -> int | None:
        """Rows of the shuffle buffer, or None to keep the user's order."""
        if not self.spec.shuffle or self.spec.buffer == "auto":
            return None
        return max(1, min(int(self.spec.buffer), BUFFER_BYTES // max(1, self.row_bytes)))


# Functions ---------------------------------------------------------------------------------------


class GeneratorDataset(IterableDataset):
    """The encoded chunks of a function.

    Args:
        generator: The function.
        parts: The labels and weights that chunks have, see `read_parts()`.
        arg: The user's name for the features.
        recipe: See `IterableDataset`.
        spec: See `IterableDataset`.
        head: See `IterableDataset`.
        facts: See `IterableDataset`.
    """

    source_kind = "function"

    def __init__(
        self,
        generator: Generator,
        parts: Parts,
        arg: str,
        *,
        recipe: Recipe,
        spec: DatasetSpec,
        head: Arrays,
        facts: StreamFacts,
    ) -> None:
        """Stores the parts."""
        super().__init__(recipe, spec, head, facts)
        self.generator = generator
        self._parts = parts
        self._arg = arg

    def open_pass(self, size: int, capacity: int, training: bool) -> Pass:
        """Opens a pass over the function's chunks, see `IterableDataset.open_pass()`."""
        rebatcher = Rebatcher(size, capacity, training and self.spec.drop_last)
        return GeneratorPass(self, rebatcher, self.buffer if training else None)

    def encode(self, chunk: Chunk) -> tuple[Arrays, int]:
        """Encodes a chunk, and counts the rows that were dropped.

        Raises:
            DataError: for a chunk that does not fit; names the batch.
        """
        recipe = self._fit_shape(chunk.features)
        try:
            check_parts(self._parts, chunk)
            return encode_chunk(chunk, recipe, self.na, self._arg)
        except DataError as error:
            raise chunk.blame(error) from error

    def _fit_shape(self, features: Mapping[str, Any]) -> Recipe:
        """Returns the recipe for rows whose shape may differ along the model's open axes.

        Raises:
            SpecError: for such rows, if `batch_size` or `buffer` regroups them.
        """
        shape = self.recipe.shape
        row_shape = np.shape(features["values"])[1:] if features["kind"] == "array" else shape
        axes = {
            a
            for a, (length, other) in enumerate(zip(row_shape, shape, strict=False))
            if length != other
        }
        same_rank = len(row_shape) == len(shape) and self.recipe.keeps_values
        if not axes or not same_rank or not axes <= self.variable_axes:
            return self.recipe
        asked = "batch_size" if self.spec.batch_size != "auto" else "buffer"
        if asked == "batch_size" or self.buffer is not None:
            raise SpecError(
                f"`{asked}` needs rows of one shape: those of the function vary.",
                hint="Leave it out: batches are then taken as they come.",
                arg=asked,
            )
        return self.recipe.with_row_shape(row_shape)


class GeneratorPass(Pass):
    """Successive epochs of a function, which is called between blocks.

    Args:
        data: The dataset of the function.
        rebatcher: Makes blocks of chunks.
        buffer: Rows of the shuffle buffer, or None to keep the order.
    """

    stage = "gather"

    def __init__(self, data: GeneratorDataset, rebatcher: Rebatcher, buffer: int | None) -> None:
        """Stores the parts without calling the function."""
        super().__init__()
        self._data = data
        self._rebatcher = rebatcher
        self._buffer = buffer

    def blocks(self, epoch: int) -> abc.Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1; the function is called between them."""
        self.dropped = 0
        chunks = self._encoded(epoch)
        if self._buffer is not None:
            chunks = shuffle_rows(chunks, self._buffer, [self._data.spec.seed, epoch])
        odd: list[Arrays] = []
        yield from self._rebatcher.blocks(self._alike(chunks, odd))
        for arrays in itertools.chain(odd, chunks):  # of other row shapes: each is one batch
            self.whole = "rows vary in shape, so each batch is trained as it comes"
            yield tuple(map(align, arrays)), 1, True

    def _alike(self, chunks: Iterator[Arrays], odd: list[Arrays]) -> Iterator[Arrays]:
        """Yields chunks up to the first one of another row shape, which is appended to `odd`."""
        if self.whole:
            return
        first: Arrays = ()
        for arrays in chunks:
            first = first or arrays
            if arrays[0].shape[1:] != first[0].shape[1:]:
                odd.append(arrays)
                return
            yield arrays

    def _encoded(self, epoch: int) -> Iterator[Arrays]:
        for chunk in self._data.generator.chunks(epoch):
            end_stage("read")
            arrays, dropped = self._data.encode(chunk)
            self.dropped += dropped
            end_stage("decode")
            if len(arrays[0]):
                yield arrays
                end_stage("gather")  # into a block, or first into the shuffle buffer


# tf.data -----------------------------------------------------------------------------------------


class PipelineDataset(IterableDataset):
    """The encoded rows of a `tf.data.Dataset`.

    Args:
        given: The user's dataset.
        rows: Rows per epoch if `steps` is given, or None.
        recipe: See `IterableDataset`.
        spec: See `IterableDataset`.
        head: See `IterableDataset`.
        facts: See `IterableDataset`.
    """

    def __init__(
        self,
        stream: TfStream,
        rows: int | None,
        *,
        recipe: Recipe,
        spec: DatasetSpec,
        head: Arrays,
        facts: StreamFacts,
    ) -> None:
        """Stores the parts."""
        super().__init__(recipe, spec, head, facts)
        self._given, self._rows = stream, rows

    def open_pass(self, size: int, capacity: int, training: bool) -> Pass:
        """Opens a pass of blocks that TensorFlow assembles, see `IterableDataset.open_pass()`."""
        return self._given.open(
            self.recipe.features,
            size,
            capacity,
            rows=self._rows,
            drop_last=training and self.spec.drop_last,
            buffer=self.buffer if training else None,
            seed=self.spec.seed,
        )
