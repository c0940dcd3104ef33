"""Computes how the rows of a batch are divided among the replicas of a model.

A batch counts the rows of all replicas together, in the same order as on one device. Replica r
takes the r-th of equal parts, so that training on several devices differs from training on one in
the order of additions only. The parts of a short last batch may differ by a row; if it has fewer
rows than there are replicas, each replica takes all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpukeras.core.errors import SpecError


@dataclass(frozen=True)
class BatchSharding:
    """The division of each batch among replicas.

    Args:
        replicas: The number of replicas of the model on all hosts together.
        first: The number of this process's first replica, from 0; its others follow.
        devices: The devices of this process's replicas, such as ("GPU:0", "GPU:1").
    """

    replicas: int
    first: int
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that the replicas of this process are among all replicas."""
        if not self.devices or not 0 <= self.first <= self.replicas - len(self.devices):
            raise SpecError("A process needs replicas, and they must be among all there are.")

    @property
    def ranks(self) -> range:
        """The numbers of this process's replicas."""
        return range(self.first, self.first + len(self.devices))

    def count_part(self, batch_size: int) -> int:
        """Returns the rows of each replica's part of a full batch."""
        return batch_size // self.replicas

    def is_whole(self, rows: int) -> bool:
        """Whether every replica takes all of a batch of `rows` rows."""
        return rows < self.replicas

    def count_tail(self, rows: int, rank: int) -> int:
        """Returns the rows of a replica's part of a short last batch."""
        if self.is_whole(rows):
            return rows
        return rows // self.replicas + (rank < rows % self.replicas)

    def weigh_tail(self, rows: int, rank: int) -> float:
        """Returns the weight of a replica's mean loss in a short last batch: its rows / mean rows.

        The mean is over the replicas; the weight is 1 if every replica takes all rows.
        """
        return 1.0 if self.is_whole(rows) else self.count_tail(rows, rank) * self.replicas / rows

    def find_run(self, rows: int) -> tuple[int, int]:
        """Returns start and end of this process's contiguous part of `rows` rows."""
        ends = [
            rows * rank // self.replicas for rank in (self.first, self.first + len(self.devices))
        ]
        return ends[0], ends[1]

    def count_here(self, batch_size: int) -> int:
        """Returns the rows of a full batch that this process takes."""
        return self.count_part(batch_size) * len(self.devices)

    def split(self, rows: np.ndarray, batch_size: int, tail: bool) -> list[np.ndarray]:
        """Splits rows into the parts of this process's replicas.

        Args:
            rows: The rows of full batches, or of the short last one.
            batch_size: Rows per full batch.
            tail: Whether `rows` is the short last batch.
        """
        return self.split_tail(rows) if tail else self.split_batches(rows, batch_size)

    def split_batches(self, rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
        """Splits full batches into the parts of this process's replicas, batch after batch.

        Args:
            rows: Shape (batches * batch_size, ...).
            batch_size: A multiple of the number of replicas.
        """
        parts = rows.reshape(-1, self.replicas, self.count_part(batch_size), *rows.shape[1:])
        return [parts[:, rank].reshape(-1, *rows.shape[1:]) for rank in self.ranks]

    def split_tail(self, rows: np.ndarray) -> list[np.ndarray]:
        """Splits a short last batch into the parts of this process's replicas."""
        if self.is_whole(len(rows)):
            return [rows for _ in self.ranks]
        parts = np.array_split(rows, self.replicas)
        return [parts[rank] for rank in self.ranks]


def round_batch_size(batch_size: int, replicas: int) -> int:
    """Returns the largest multiple of `replicas` up to `batch_size`, but at least `replicas`."""
    return max(replicas, batch_size // replicas * replicas)


def check_batch_size(batch_size: int, replicas: int) -> None:
    """Checks that the replicas can share a batch equally.

    Raises:
        SpecError: if `batch_size` is not a multiple of `replicas`.
    """
    if batch_size % replicas:
        below = round_batch_size(batch_size, replicas)
        raise SpecError(
            f"`batch_size` is {batch_size}, which {replicas} replicas of the model cannot share "
            "evenly: it counts the rows of all of them together.",
            hint=f"Use {below} or {below + replicas}.",
            arg="batch_size",
        )
