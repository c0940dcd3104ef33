"""What a model is trained on, of either style: rows by number, or rows in sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpukeras.core.options import DatasetSpec
from gpukeras.data.augmentation import AugmentSpec
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.sources.row_store import RowSource


class Dataset(ABC):
    """Rows with their recipe: the handle that R holds.

    Args:
        sources: Features, labels and (optional) weights, as far as they have row numbers.
        recipe: The encoding that made them.
        spec: The options given.
        na: What happened to missing values: "error", "impute" or "drop".

    Attributes:
        augment: How rows are varied in training, or None.
        map: Applied to a block's features on the device, or None.
        wrapped: Whether rows without labels came as `(x,)`, see `block.as_data()`.
        open_axes: Axes of a row along which the model takes any length.
        dropped: Rows that were left out for missing values; they are not numbered.
        skipped: What `on_error = "skip"` left out, or "".
        notes: Sentences about the data that their owner may not expect.
        obstacle: Why rows are no numbers of one shape, see `find_obstacle()`, or "".
    """

    wrapped = False
    open_axes: frozenset[int] = frozenset()
    dropped = 0
    skipped = ""
    notes: tuple[str, ...] = ()
    obstacle = ""

    def __init__(
        self, sources: tuple[RowSource, ...], recipe: Recipe, spec: DatasetSpec, na: str = "error"
    ) -> None:
        """Keeps the parts; tensors are made on first use."""
        self.sources, self.recipe, self.spec, self.na = sources, recipe, spec, na
        self.augment: AugmentSpec | None = None
        self.map: Callable[[Any], Any] | None = None

    @property
    @abstractmethod
    def source_kind(self) -> str:
        """Where rows come from: "rows" (by number), "function" or "pipeline" (in sequence)."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Rows of all parts and all workers; None where only the end tells."""

    @property
    @abstractmethod
    def epoch_rows(self) -> int:
        """Rows of an epoch, as far as that can be told before; 0 where it cannot."""

    @abstractmethod
    def count(self, part: str) -> int | None:
        """Rows of a part ("train", "validation" or "all"); None where only the end tells."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What must agree, of where the rows come from, when a training goes on."""

    @abstractmethod
    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """The plan for a device and options."""

    def plan(self, device: str, batch_size: int | str | None = None) -> PipelinePlan:
        """The plan for a device; `batch_size` replaces the dataset's own."""
        spec = self.spec if batch_size is None else replace(self.spec, batch_size=batch_size)
        return self.make_plan(device, spec)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with label and weight."""
        return sum(source.row_bytes for source in self.sources)

    def has_rows(self, part: str) -> bool:
        """Whether a part ("train", "validation" or "all") has rows."""
        return self.count(part) != 0

    def batch(self, rows: int) -> tuple[Any, ...]:
        """The first rows of every source, to build a model's variables from."""
        return tuple(source.gather(slice(rows)) for source in self.sources)
