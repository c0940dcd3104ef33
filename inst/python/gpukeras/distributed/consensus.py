"""What the processes of a training decide together, so that each makes the same calls.

Whether it is time to save, how long a call took, whether a user wants to stop: each process knows
it of itself. Operations that add up over all of them wait for all, so whatever decides which is
called next must be the same everywhere.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from gpukeras.checkpoint.fingerprint import describe_training
from gpukeras.checkpoint.identity import find_mismatch
from gpukeras.checkpoint.state import TrainingState, pack_state, unpack_state
from gpukeras.core.errors import ClusterError, GpuKerasError
from gpukeras.core.messages import count_of
from gpukeras.core.options import FitSpec
from gpukeras.data.loading.block import Block
from gpukeras.data.plan import PipelinePlan
from gpukeras.models.state import apply_snapshot, take_snapshot

CHANGE = "{what} is {here}, and the chief's is {there}"
OF_ROWS = ("source", "rows", "validation_rows", "row_shape", "batch_size", "seed", "labels")
ALL_ALIKE = (
    "All workers run the same script on the same data; gpu_dataset() and gpu_mlp() draw their "
    "seeds from R, so call set.seed() before them."
)
ALIKE = ("epochs", "engine", "early_stopping")  # besides what makes a training the one it is


class Channel(Protocol):
    """What is asked of the workers' channel; see `channel`."""

    def exchange(self, kind: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Gives what every worker gave, in their order."""

    def broadcast(self, data: bytes | None) -> bytes:
        """Gives what the chief gave."""

    def gather(self, data: bytes) -> list[bytes]:
        """Gives what every worker gave, in their order."""

    def fail(self, error: BaseException) -> None:
        """Tells the others why this worker leaves."""


class LocalConsensus:
    """One process decides for itself."""

    is_chief = True

    def agree_time(self, seconds: float) -> float:
        """The seconds that all go by."""
        return seconds

    def agree(self, kind: str, **wishes: bool) -> dict[str, bool]:
        """Which wishes anybody has."""
        return wishes

    def compare(self, model: Any, data: Any, plan: PipelinePlan, spec: FitSpec) -> None:
        """Raises an error where processes do not train the same."""

    def begin(self, kind: str, **facts: Any) -> None:
        """Raises an error where processes do not do the same work."""

    def refuse(self, kind: str, error: GpuKerasError) -> None:
        """Tells the others, who begin some work, why this process does not."""

    def share_state(self, state: TrainingState | None, model: Any) -> TrainingState | None:
        """The chief's state to go on from, or None; then the model has the chief's weights."""
        return state

    def keep_step(self, blocks: Iterator[Block], exact: bool) -> Iterator[Block]:
        """The blocks, of which all processes must have equally many."""
        return blocks

    def gather(self, sent: bytes) -> list[bytes]:
        """What each process gives, on all of them."""
        return [sent]

    def leave(self, error: BaseException) -> None:
        """Tells the others that this process goes on without them."""


class DistributedConsensus(LocalConsensus):
    """Several processes decide together.

    Args:
        channel: Connects them.
        index: The place of this one.
        names: What they are called, in their order.
    """

    def __init__(self, channel: Channel, index: int, names: tuple[str, ...]) -> None:
        """Takes the channel."""
        self._channel, self._names = channel, names
        self.is_chief = index == 0

    def agree_time(self, seconds: float) -> float:
        """The slowest's, as the others wait for it."""
        given = self._channel.exchange("time", {"seconds": seconds})
        return max(one["seconds"] for one in given)

    def agree(self, kind: str, **wishes: bool) -> dict[str, bool]:
        """Which wishes any of them has."""
        given = self._channel.exchange(kind, {name: bool(value) for name, value in wishes.items()})
        return {name: any(one[name] for one in given) for name in wishes}

    def compare(self, model: Any, data: Any, plan: PipelinePlan, spec: FitSpec) -> None:
        """Compares each worker's training with the chief's.

        Raises:
            ClusterError: on every worker, naming the first that differs, and in what.
        """
        here = describe_training(model, data, plan, vars(spec))
        here["options"] = {name: repr(getattr(spec, name)) for name in ALIKE}
        self._meet("fit", {"told": here})

    def begin(self, kind: str, **facts: Any) -> None:
        """Sees to it that all workers do the same work.

        Raises:
            ClusterError: on every worker, naming the first that does not.
        """
        self._meet(kind, {"told": {"options": {name: repr(one) for name, one in facts.items()}}})

    def refuse(self, kind: str, error: GpuKerasError) -> None:
        """Takes part in the comparison that the others wait in, and says why it goes no further."""
        error.told = True  # type: ignore[attr-defined]
        with suppress(ClusterError):
            self._meet(kind, {"failed": f"{type(error).__name__}: {error.message}"})

    def _meet(self, kind: str, own: Mapping[str, Any]) -> None:
        given = self._channel.exchange(kind, own)
        for number, (one, name) in enumerate(zip(given, self._names, strict=True), 1):
            reason = one.get("failed") or tell_difference(one["told"], given[0]["told"])
            if reason:
                does = "goes no further" if "failed" in one else "is not like the chief"
                raise ClusterError(
                    f"{_begin(name)} {does}: {reason.rstrip('.')}.",
                    hint=ALL_ALIKE,
                    worker=number,
                    reason=reason,
                )

    def share_state(self, state: TrainingState | None, model: Any) -> TrainingState | None:
        """Sends the chief's state, or else its model's, to all."""
        begins = state is None
        if self.is_chief:
            whole = TrainingState(take_snapshot(model)) if state is None else state
            self._channel.broadcast(pack_bytes(whole, begins))
            return state
        given, begins = unpack_bytes(self._channel.broadcast(None))
        if not begins:
            return given
        apply_snapshot(model, given.snapshot)
        return None

    def gather(self, sent: bytes) -> list[bytes]:
        """What each worker gives, in their order."""
        return self._channel.gather(sent)

    def leave(self, error: BaseException) -> None:
        """Tells the others, who cannot go on without it."""
        self._channel.fail(error)

    def keep_step(self, blocks: Iterator[Block], exact: bool) -> Iterator[Block]:
        """The blocks; a stream that ends earlier on one worker would leave the others waiting.

        Raises:
            ClusterError: naming such a worker.
        """
        return blocks if exact else self._compare_blocks(blocks)

    def _compare_blocks(self, blocks: Iterator[Block]) -> Iterator[Block]:
        while True:
            block = next(blocks, None)
            own = {} if block is None else {"batches": block.batches, "rows": block.rows}
            given = self._channel.exchange("block", own)
            check_blocks(given, self._names)
            if block is None:
                return
            yield block


def check_blocks(given: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """All workers have equally many batches of as many rows next.

    Raises:
        ClusterError: naming the first that differs from the chief.
    """
    for one, name in zip(given, names, strict=True):
        if one != given[0]:
            raise ClusterError(
                f"{_begin(name)} has {_tell(one)} next, the chief {_tell(given[0])}: every worker "
                "must be given the same rows in the same order.",
                hint="Give the functions of all workers the same seed, or use files.",
                worker=names.index(name) + 1,
            )


def _begin(name: str) -> str:
    """A worker's name where a sentence begins; its address as it is."""
    return name[0].upper() + name[1:]


def _tell(block: Mapping[str, Any]) -> str:
    if not block:
        return "no more rows"
    return f"{count_of(block['batches'], 'batch')} of {count_of(block['rows'], 'row')}"


def tell_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """In what a worker's work differs from the chief's (`there`), as part of a sentence.

    The rows come first: a model made for other rows differs too.
    """
    rows = {name: value for name, value in here.items() if name in OF_ROWS}
    for part in (rows, here):
        if found := find_mismatch(part, there, CHANGE):
            return found
    for name, now in here["options"].items():
        was = there["options"].get(name)
        if was != now:
            return CHANGE.format(what=f"`{name}`", here=now, there=was)
    return ""


def pack_bytes(state: TrainingState, begins: bool) -> bytes:
    """A state to be sent, and whether it is that of a training's beginning."""
    plain, arrays = pack_state(state)
    told = np.frombuffer(json.dumps([plain, list(arrays), begins]).encode(), np.uint8)
    return pack_arrays([told, *arrays.values()])


def unpack_bytes(sent: bytes) -> tuple[TrainingState, bool]:
    """What was sent."""
    told, *arrays = unpack_arrays(sent)
    plain, names, begins = json.loads(told.tobytes())
    return unpack_state(plain, dict(zip(names, arrays, strict=True))), begins


def pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Arrays to be sent."""
    file = io.BytesIO()
    np.savez(file, *arrays)
    return file.getvalue()


def unpack_arrays(sent: bytes) -> list[np.ndarray]:
    """Arrays that were sent."""
    with np.load(io.BytesIO(sent), allow_pickle=False) as file:
        return [file[f"arr_{place}"] for place in range(len(file.files))]
