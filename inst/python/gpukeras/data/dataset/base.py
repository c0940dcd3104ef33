"""The base class of datasets, whose rows have numbers or come in sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.options import DatasetSpec
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.augmentation import AugmentSpec
from gpukeras.data.recipe.recipe import Recipe


class Dataset(ABC):
    """Rows with their recipe; R holds a handle to it.

    Args:
        sources: Features, labels and (optional) weights; of rows in sequence, the first chunk.
        recipe: The encoding that made them.
        spec: The dataset's options.
        na: The policy for missing values: "error", "impute" or "drop".

    Attributes:
        augment: The options of augmentation in training, or None.
        map: The user's function on a block's features on the device, or None.
        wrapped: Whether rows without labels came as `(x,)`, see `block.as_data()`.
        variable_axes: Axes of a row along which the model takes any length.
        dropped: Rows that were dropped for missing values; they have no number.
        skipped: Text on what `on_error = "skip"` left out, or "".
        notes: Sentences about the data that the user may not expect.
        variable_batch_size: Whether steps are traced for batches of any size, and the losses of
            several outputs are means over batches, as in Keras where the last batch is short.
        obstacle: Why rows are not numbers of one shape, see `why_not_batchable()`, or "".
    """

    wrapped = False
    variable_axes: frozenset[int] = frozenset()
    dropped = 0
    skipped = ""
    notes: tuple[str, ...] = ()
    variable_batch_size = False
    obstacle = ""

    def __init__(
        self, sources: tuple[RowSource, ...], recipe: Recipe, spec: DatasetSpec, na: str = "error"
    ) -> None:
        """Stores the parts; tensors are made on first use."""
        self.sources = sources
        self.recipe = recipe
        self.spec = spec
        self.na = na
        self.augment: AugmentSpec | None = None
        self.map: Callable[[Any], Any] | None = None

    @property
    @abstractmethod
    def source_kind(self) -> str:
        """The kind of source: "rows" (by number), "function" or "pipeline" (in sequence)."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Rows of all parts and all workers; None if unknown before the end."""

    @property
    @abstractmethod
    def epoch_rows(self) -> int:
        """Rows per epoch, or 0 if they are unknown before its end."""

    @abstractmethod
    def count(self, part: str) -> int | None:
        """Rows of a part ("train", "validation" or "all"); None if unknown before the end."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Returns what must agree about the source of the rows when a training run resumes."""

    @abstractmethod
    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options."""

    def plan(self, device: str, batch_size: int | str | None = None) -> PipelinePlan:
        """Returns the plan for a device; `batch_size` replaces that of the dataset's options."""
        return self.make_plan(device, self.spec_of(batch_size))

    def spec_of(self, batch_size: int | str | None) -> DatasetSpec:
        """Returns the dataset's options with another batch size, unless that is None."""
        return self.spec if batch_size is None else replace(self.spec, batch_size=batch_size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with label and weight."""
        return sum(source.row_bytes for source in self.sources)

    def has_rows(self, part: str) -> bool:
        """Whether a part ("train", "validation" or "all") has rows."""
        return self.count(part) != 0

    def batch(self, rows: int | np.ndarray) -> tuple[Any, ...]:
        """Returns rows of every source, by their numbers; or so many first ones."""
        taken = slice(rows) if isinstance(rows, int) else rows
        return tuple(source.gather(taken) for source in self.sources)
