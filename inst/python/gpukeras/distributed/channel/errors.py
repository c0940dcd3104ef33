"""Errors of a cluster: which worker is lost, and how a worker differs from the chief."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import ClusterError
from gpukeras.core.messages import find_reason
from gpukeras.distributed.channel.authentication import AuthenticationError
from gpukeras.distributed.channel.protocol import is_count

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


def name_worker(worker: int, address: str) -> str:
    """Returns a worker's name for messages, with numbers from 1."""
    called = f"worker {worker + 1} ({address})"
    return f"the chief, {called}," if worker == 0 else called


def worker_error(worker: int, name: str, text: str, hint: str, **details: Any) -> ClusterError:
    """Returns an error about a worker.

    Args:
        worker: Its number, from 0.
        name: Its name, see `name_worker()`.
        text: The rest of the sentence, without its full stop.
        hint: What the user can do about it.
        **details: Further fields of the error, such as `address` and `reason`.
    """
    message = f"{name[0].upper()}{name[1:]} {text}."
    return ClusterError(message, hint=hint, worker=worker + 1, **details)


def explain_fault(fault: Fault, workers: Sequence[str], own: int) -> ClusterError:
    """Returns the error that every call of worker `own` raises after a fault.

    Args:
        fault: The fault.
        workers: All addresses.
        own: This worker's number, from 0.
    """
    worker = fault.worker
    reason = fault.reason
    address = workers[fault.worker]
    name = name_worker(worker, address)
    if worker == own:
        name = f"this worker, {name.removesuffix(',')},"
    return worker_error(worker, name, reason, RESTART, address=address, reason=reason)


def explain_failure(error: BaseException) -> str:
    """Returns why a worker leaves, for the other workers: its error's type and reason."""
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    if isinstance(error, LostConnectionError):
        return f"has left: {error.message}"[:TOLD].rstrip(".")
    name = type(error).__name__
    line = find_reason(error).strip().partition("\n")[0]
    return f"has failed: {name}{'' if line in ('', name) else f': {line}'}"[:TOLD].rstrip(".")


def find_differences(
    own: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Returns the differences between two descriptions.

    Args:
        own: The chief's description, nested records of plain values.
        other: Another worker's.

    Returns:
        By name (`"packages.keras"`), the chief's value and the other's as JSON, or None where
        one of them has no such entry; an empty record counts as no entry.
    """
    ours, theirs = _flatten(own), _flatten(other)
    names = dict.fromkeys([*ours, *theirs])
    return {
        name: (ours.get(name), theirs.get(name))
        for name in names
        if ours.get(name) != theirs.get(name)
    }


def explain_difference(
    worker: int, address: str, differences: Mapping[str, tuple[str | None, str | None]]
) -> ClusterError:
    """Returns the error for one worker and its differences.

    Args:
        worker: The worker's number, from 0.
        address: Its address.
        differences: See `find_differences()`.
    """
    told = [_compare(name, *pair) for name, pair in list(differences.items())[:NAMED]]
    more = len(differences) - len(told)
    also = f"; {more} more differ" if more else ""
    reason = f"has {'; '.join(told)}{also}"
    details = {"address": address, "reason": reason, "differences": list(differences)}
    return worker_error(worker, name_worker(worker, address), reason, ALIKE, **details)


def _compare(name: str, own: str | None, other: str | None) -> str:
    theirs = f"no {name}" if other is None else f"{name} {_shorten(other)}"
    ours = "none" if own is None else _shorten(own)
    return f"{theirs}, the chief has {ours}"


def _shorten(text: str) -> str:
    plain = text[1:-1] if text.startswith('"') else text
    return plain if len(plain) <= SHOWN else f"{plain[: SHOWN - 3]}..."


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return flat
