"""Trains on the batches that Keras' own `fit()` would take, in its order and as they are.

    Keras' epoch iterator --many batches a call--> blocks of batches of one size --> engine
                                                   others, the short last one, alone --> engine

Nothing is encoded, cast or regrouped, so this serves rows of any kind: pipelines that shuffle,
generators, arrays of whole numbers. It needs TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.keras_batches import KerasBatches
from gpukeras.core.options import DatasetSpec
from gpukeras.data.plan import StreamFacts
from gpukeras.data.streams.batch_pass import VARIES, BatchPass
from gpukeras.data.streams.dataset import IterableDataset
from gpukeras.data.streams.passthrough import AsIsDataset, why_not_batchable

WHAT = "by Keras' own iterator, many batches a call"
SAMPLE_ROWS = 32  # of zeros, from which a model's variables are built


@dataclass
class KerasStream:
    """Batches as Keras takes them.

    Args:
        batches: Keras' iterator.
        why: Why batches cannot be joined, see `why_not_batchable()`, or "".
    """

    batches: KerasBatches
    why: str
    what: str = WHAT
    source_kind = "pipeline"

    def __post_init__(self) -> None:
        """Reads the first batch, whose size is that of the blocks' batches."""
        self.reader = BatchPass(self.batches, "Keras' iterator", self.why)
        self.reader.read_first()

    def open(self, data: IterableDataset, size: int, capacity: int, training: bool) -> BatchPass:
        """Returns the only pass over the batches, since reading may change what comes next.

        Args:
            data: Ignored.
            size: Ignored; batches keep their size.
            capacity: Batches per block.
            training: Ignored; Keras' iterator determines order and last batch.
        """
        self.reader.capacity = capacity
        return self.reader


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
    found = why_not_batchable(spec, True)
    return "" if found == VARIES else found or ("" if plain else "sparse rows")


def _blank(spec: Any, rows: int) -> Any:
    """Returns a batch of zeros of such elements, 1 where a length is unknown."""
    tf = runtime.tensorflow()

    def zeros(part: Any) -> Any:
        lengths = (part.shape[0] or rows, *(length or 1 for length in part.shape[1:]))
        return tf.zeros(lengths, part.dtype)

    return tf.nest.map_structure(zeros, spec)
