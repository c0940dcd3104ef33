"""Raises one error whenever a device runs out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpukeras.backend import tensor_ops
from gpukeras.core.errors import OutOfMemoryError


def explain_exhaustion(
    device: str, batch_size: object, hint: str, how: str = ""
) -> OutOfMemoryError:
    """Returns the error of work that does not fit into a device's memory.

    Args:
        device: Its name.
        batch_size: Rows of the batch that did not fit.
        hint: What the user can do.
        how: What was tried, as the end of the sentence.
    """
    return OutOfMemoryError(
        f"{device} ran out of memory at batch size {batch_size}{how}.",
        hint=hint,
        device=device,
        batch_size=batch_size,
    )


@contextmanager
def memory_errors(explain: Callable[[], OutOfMemoryError]) -> Iterator[None]:
    """Raises the error that `explain` returns if a device runs out of memory."""
    try:
        with tensor_ops.memory_faults():
            yield
    except tensor_ops.exhausted() as error:
        raise explain() from error
