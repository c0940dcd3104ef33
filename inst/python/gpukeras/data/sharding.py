"""How the rows of a batch are shared out among the replicas of a model: pure arithmetic.

The batch is that of all replicas together, and its rows and their order are those that one device
alone would train. Replica r takes the r-th of equal parts, so a training on several devices differs
from that on one in the order of additions only. A short last batch has parts that differ by a row;
where it has fewer rows than there are replicas each takes it whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpukeras.core.errors import SpecError


@dataclass(frozen=True)
class BatchSharding:
    """Which part of each batch is whose.

    Args:
        replicas: Of the model, on all computers together.
        first: Number of this process's first one, from 0; the others follow it.
        devices: Where those of this process are, such as ("GPU:0", "GPU:1").
    """

    replicas: int
    first: int
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that the process's replicas are among all."""
        if not self.devices or not 0 <= self.first <= self.replicas - len(self.devices):
            raise SpecError("A process needs replicas, and they must be among all there are.")

    @property
    def ranks(self) -> range:
        """The numbers of this process's replicas."""
        return range(self.first, self.first + len(self.devices))

    def count_part(self, batch_size: int) -> int:
        """Rows of each replica's part of a full batch."""
        return batch_size // self.replicas

    def is_whole(self, rows: int) -> bool:
        """Whether a batch of so many rows goes to every replica whole."""
        return rows < self.replicas

    def count_tail(self, rows: int, rank: int) -> int:
        """Rows that a replica takes of a short last batch."""
        if self.is_whole(rows):
            return rows
        return rows // self.replicas + (rank < rows % self.replicas)

    def weigh_tail(self, rows: int, rank: int) -> float:
        """What a replica's mean loss counts, relative to an equal part: rows taken / mean rows."""
        return 1.0 if self.is_whole(rows) else self.count_tail(rows, rank) * self.replicas / rows

    def find_run(self, rows: int) -> tuple[int, int]:
        """The rows that this process takes where nothing is shared: from the first to the last."""
        ends = [
            rows * rank // self.replicas for rank in (self.first, self.first + len(self.devices))
        ]
        return ends[0], ends[1]

    def count_here(self, batch_size: int) -> int:
        """Rows of a full batch that are this process's."""
        return self.count_part(batch_size) * len(self.devices)

    def split(self, rows: np.ndarray, batch_size: int, tail: bool) -> list[np.ndarray]:
        """For each replica here its part, of full batches or of the short last one."""
        return self.split_tail(rows) if tail else self.split_batches(rows, batch_size)

    def split_batches(self, rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
        """For each replica here its part of several full batches, one batch after another.

        Args:
            rows: Shape (batches * batch_size, ...).
            batch_size: A multiple of the number of replicas.
        """
        parts = rows.reshape(-1, self.replicas, self.count_part(batch_size), *rows.shape[1:])
        return [parts[:, rank].reshape(-1, *rows.shape[1:]) for rank in self.ranks]

    def split_tail(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each replica here its part of a short last batch."""
        if self.is_whole(len(rows)):
            return [rows for _ in self.ranks]
        parts = np.array_split(rows, self.replicas)
        return [parts[rank] for rank in self.ranks]


def round_batch_size(batch_size: int, replicas: int) -> int:
    """The largest multiple of the number of replicas that is no more, or else that number."""
    return max(replicas, batch_size // replicas * replicas)


def check_batch_size(batch_size: int, replicas: int) -> None:
    """Every replica gets the same part of a batch.

    Raises:
        SpecError: if that cannot be.
    """
    if batch_size % replicas:
        below = round_batch_size(batch_size, replicas)
        raise SpecError(
            f"`batch_size` is {batch_size}, which {replicas} replicas of the model cannot share "
            "evenly: it counts the rows of all of them together.",
            hint=f"Use {below} or {below + replicas}.",
            arg="batch_size",
        )
