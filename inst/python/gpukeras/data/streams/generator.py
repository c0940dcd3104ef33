"""Calls a user's function that makes batches, one chunk per call.

The function may be an R function, so it is called only on R's main thread, the one that called
`api.invoke()`, and never inside a step: the loader requests chunks between two calls of the engine,
until a block of batches is full. That block is the bounded queue between the function and the
device. On a GPU an engine's call returns before the device is done, so the next block's chunks are
made while the device works on the previous block; on a CPU a call uses the cores until it returns,
and the two take turns.

A chunk is `{features, labels, weights}`, as `sources`, `targets` and R's `as_features()` describe
them. None marks the end of an epoch. A function that failed returns `{failed: True}`; R keeps the
condition and raises it again when Python has ended cleanly. An interrupt returns
`{interrupted: True}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import DataError, GeneratorError, warn_ended_early
from gpukeras.core.options import check_count
from gpukeras.data.preprocessing.weights import Weights

Call = Callable[[int, int], Mapping[str, Any] | None]


class GeneratorInterrupt(GeneratorError, KeyboardInterrupt):
    """An interrupt of the function by the user.

    A training run stops cleanly; elsewhere R raises the interrupt.
    """


@dataclass(frozen=True)
class Chunk:
    """The result of one call of the function.

    Args:
        features: The features as they come from R.
        labels: The labels as they come from R, or None.
        weights: The weights of each row, see `preprocessing.weights`, or None.
        epoch: The number of the epoch, from 1.
        batch: The number of the call in its epoch, from 1.
    """

    features: Mapping[str, Any]
    labels: Mapping[str, Any] | None
    weights: Weights | None
    epoch: int
    batch: int

    def blame(self, error: DataError) -> DataError:
        """Returns the error with the numbers of batch and epoch added."""
        return DataError(
            f"Batch {self.batch} of epoch {self.epoch}: {error.message}",
            hint=error.hint,
            **{**error.details, "batch": self.batch, "epoch": self.epoch},
        )


class Generator:
    """A user's function that makes the batches of successive epochs.

    Args:
        call: Called with the numbers, from 1, of the epoch and of the batch in it.
        steps: Calls per epoch, or None to call until the function returns None.
    """

    def __init__(self, call: Call, steps: Any = None) -> None:
        """Stores the function without calling it."""
        self._call = call
        self.steps = None if steps is None else check_count("steps", steps)
        self._first: Chunk | None = None

    def peek(self) -> Chunk:
        """Returns the first chunk, which the first epoch yields too, so that no chunk is lost.

        Raises:
            DataError: if the function returns none.
        """
        if self._first is None:
            self._first = self._next(1, 1)
        if self._first is None:
            raise _nothing(1)
        return self._first

    def chunks(self, epoch: int) -> Iterator[Chunk]:
        """Yields the chunks of an epoch, counted from 1; each is made on demand.

        Raises:
            DataError: if there is none.
            GeneratorError: if the function failed.
            GeneratorInterrupt: if the user interrupted it.
        """
        batch = 0
        while self.steps is None or batch < self.steps:
            batch += 1
            first, self._first = self._first, None
            chunk = first or self._next(epoch, batch)
            if chunk is None:
                self._check_end(epoch, batch)
                return
            yield chunk

    def _next(self, epoch: int, batch: int) -> Chunk | None:
        made = self._call(epoch, batch)
        if made is None:
            return None
        if made.get("failed"):
            raise GeneratorError(f"The function failed at batch {batch} of epoch {epoch}.")
        if made.get("interrupted"):
            raise GeneratorInterrupt(f"Interrupted at batch {batch} of epoch {epoch}.")
        _refuse_text(made["features"], epoch, batch)
        return Chunk(made["features"], made.get("labels"), made.get("weights"), epoch, batch)

    def _check_end(self, epoch: int, batch: int) -> None:
        if batch == 1:
            raise _nothing(epoch)
        if self.steps is not None:
            warn_ended_early("The function", batch, epoch)


def _refuse_text(features: Mapping[str, Any], epoch: int, batch: int) -> None:
    """Refuses texts, whose codes need all rows at once."""
    parts = [part["features"] for part in features.get("inputs") or ()] or [features]
    if any(part["kind"] == "strings" for part in parts):
        raise DataError(
            f"Batch {batch} of epoch {epoch}: a function's batches cannot hold text.",
            hint="Give a tf.data pipeline, or a data frame whose text columns `text` names.",
            arg="x",
            batch=batch,
            epoch=epoch,
        )


def _nothing(epoch: int) -> DataError:
    if epoch == 1:
        return DataError(
            "The function gave no batch.",
            hint="It must give list(x, y) at its first call.",
            arg="x",
        )
    return DataError(
        f"The function gave no batch in epoch {epoch}.",
        hint="After its end it must start again; or use `cache = TRUE`, which needs one pass.",
        arg="x",
        epoch=epoch,
        batch=1,
    )
