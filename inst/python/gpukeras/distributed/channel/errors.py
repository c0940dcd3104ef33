"""Errors of a cluster: which worker is lost, and how a worker differs from the chief."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import ClusterError
from gpukeras.core.messages import find_reason
from gpukeras.distributed.channel.protocol import AuthenticationError, is_count

AGAIN = "start all workers again to continue from the last checkpoint."
RESTART = f"Its own log says more; {AGAIN}"
ALIKE = "All workers must have the same versions, the same model and the same data."
NAMED = 3  # differences that a message names; the rest are counted
SHOWN = 60  # characters of a value in a message
TOLD = 500  # characters of an error that is sent to other workers


class LostConnectionError(ClusterError):
    """TensorFlow lost its connection to another worker, and none is known to be lost.

    Args:
        reason: TensorFlow's reason.
    """

    def __init__(self, reason: str) -> None:
        """Names no worker: TensorFlow does not, and this one has not failed."""
        super().__init__(
            f"TensorFlow lost its connection to another worker: {reason}.",
            hint="See the other workers' logs and the network between them; " + AGAIN,
            reason=reason,
        )


@dataclass(frozen=True)
class Fault:
    """The event that ended the collective work.

    Args:
        worker: Number of the worker that it happened to, from 0.
        reason: What happened, such as "has ended"; it follows the worker's name.
    """

    worker: int
    reason: str


def parse_fault(record: Mapping[str, Any], size: int) -> Fault:
    """Parses the fault in a message from another worker.

    Raises:
        AuthenticationError: if it names no worker of `size`.
    """
    worker, reason = record.get("worker"), record.get("reason")
    if not is_count(worker, size) or not isinstance(reason, str):
        raise AuthenticationError("a fault that names no worker")
    return Fault(worker, reason[:TOLD])


def worker_error(
    worker: int, address: str, text: str, hint: str, *, is_own: bool = False, **details: Any
) -> ClusterError:
    """Returns an error about a worker, which messages name with numbers from 1.

    Args:
        worker: Its number, from 0.
        address: Its address.
        text: The rest of the sentence, without its full stop.
        hint: What the user can do about it.
        is_own: Whether it is this process.
        **details: More fields of the error; `reason` is `text` by default.
    """
    name = f"worker {worker + 1} ({address})"
    if worker == 0:
        name = f"the chief, {name},"
    if is_own:
        name = f"this worker, {name.removesuffix(',')},"
    fields = {"worker": worker + 1, "address": address, "reason": text, **details}
    return ClusterError(f"{name[0].upper()}{name[1:]} {text}.", hint=hint, **fields)


def explain_fault(fault: Fault, workers: Sequence[str], own: int) -> ClusterError:
    """Returns the error that every call of worker `own` raises after a fault.

    Args:
        fault: The fault.
        workers: All addresses.
        own: This worker's number, from 0.
    """
    worker = fault.worker
    return worker_error(worker, workers[worker], fault.reason, RESTART, is_own=worker == own)


def explain_failure(error: BaseException) -> str:
    """Returns why a worker leaves, for the other workers: its error's type and reason."""
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    if isinstance(error, LostConnectionError):
        return f"has left: {error.message}"[:TOLD].rstrip(".")
    name = type(error).__name__
    line = find_reason(error).strip().partition("\n")[0]
    return f"has failed: {name}{'' if line in ('', name) else f': {line}'}"[:TOLD].rstrip(".")


def explain_difference(
    worker: int, address: str, own: Mapping[str, Any], other: Mapping[str, Any]
) -> ClusterError | None:
    """Returns the error for a worker whose description differs from the chief's, or None.

    Args:
        worker: The worker's number, from 0.
        address: Its address.
        own: The chief's description, plain values by name.
        other: The worker's.
    """
    ours, theirs = _as_texts(own), _as_texts(other)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if not names:
        return None
    told = []
    for name in names[:NAMED]:
        has = f"{name} {_shorten(theirs[name])}" if name in theirs else f"no {name}"
        wanted = _shorten(ours[name]) if name in ours else "none"
        told.append(f"{has}, the chief has {wanted}")
    if len(names) > NAMED:
        told.append(f"{len(names) - NAMED} more differ")
    return worker_error(worker, address, f"has {'; '.join(told)}", ALIKE, differences=names)


def _as_texts(record: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(record[name], sort_keys=True, ensure_ascii=False) for name in record}


def _shorten(text: str) -> str:
    plain = text[1:-1] if text.startswith('"') else text
    return plain if len(plain) <= SHOWN else f"{plain[: SHOWN - 3]}..."
