"""Decisions that the processes of a training make together, so that each makes the same calls.

Whether to save now, how long a call took, whether the user wants to stop: each process knows only
its own answer. Collective operations wait for all processes, so every decision about the next
operation must be the same everywhere.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gpukeras.checkpoint.fingerprint import describe_training
from gpukeras.checkpoint.identity import find_mismatch
from gpukeras.checkpoint.state import TrainingState, pack_state, unpack_state
from gpukeras.core.errors import ClusterError, GpuKerasError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import FitSpec
from gpukeras.data.loader.loader import Block
from gpukeras.data.plan import PipelinePlan
from gpukeras.distributed.channel.channel import Channel
from gpukeras.distributed.channel.errors import worker_error
from gpukeras.distributed.stragglers import explain_stragglers
from gpukeras.distributed.timeouts import CALL, ClusterTimes
from gpukeras.models.state import apply_snapshot, take_snapshot

CHANGE = "{what} is {here}, and the chief's is {there}"
OF_ROWS = ("source", "rows", "validation_rows", "row_shape", "batch_size", "seed", "labels")
ALL_ALIKE = (
    "All workers run the same script on the same data; gpu_dataset() and gpu_mlp() draw their "
    "seeds from R, so call set.seed() before them."
)
ALIKE = ("epochs", "engine", "early_stopping")  # compared besides the training's identity


class LocalConsensus:
    """The decisions of a single process."""

    is_chief = True

    def agree_time(self, seconds: float) -> float:
        """Returns the seconds that all processes use."""
        return seconds

    def agree(self, kind: str, **wishes: bool) -> dict[str, bool]:
        """Returns which of the wishes at least one process has."""
        return wishes

    def compare(self, model: Model, data: Any, plan: PipelinePlan, spec: FitSpec) -> None:
        """Raises an error where processes do not train the same."""

    def begin(self, kind: str, **facts: Any) -> None:
        """Raises an error where processes do not do the same work."""

    def refuse(self, kind: str, error: GpuKerasError) -> None:
        """Sends the others, which begin some work, why this process does not."""

    def share_state(self, state: TrainingState | None, model: Model) -> TrainingState | None:
        """Returns the chief's state to resume from; without one it copies the chief's weights."""
        return state

    def keep_step(self, blocks: Iterator[Block], exact: bool) -> Iterator[Block]:
        """Returns the blocks; raises an error where processes have different numbers of batches."""
        return blocks

    def gather(self, sent: bytes) -> list[bytes]:
        """Returns the bytes of every process, on all of them."""
        return [sent]

    def leave(self, error: BaseException) -> None:
        """Sends the others that this process leaves the work."""

    def explain(self) -> list[str]:
        """Returns notes on how the processes worked together, as sentences."""
        return []


class DistributedConsensus(LocalConsensus):
    """The decisions of several processes.

    Args:
        channel: The control channel.
        index: The index of this process.
        names: The names of all processes, in order.
        times: The cluster's observed times, from which the time-out of calls is learned.
    """

    def __init__(
        self,
        channel: Channel,
        index: int,
        names: tuple[str, ...],
        times: ClusterTimes | None = None,
    ) -> None:
        """Keeps the channel and the names."""
        self._channel, self._names, self._times = channel, names, times
        self.is_chief = index == 0
        limit_s = times.timeout(CALL).seconds if times else math.inf
        self._limit_s = limit_s if math.isfinite(limit_s) else None
        self._last: float | None = None  # when the last agreement ended
        self._own_s = self._longest_s = 0.0
        self._of_all = [0.0] * len(names)

    def agree_time(self, seconds: float) -> float:
        """Returns the longest time, because the other processes wait for the slowest."""
        answers = self._call("time", {"seconds": seconds}, seconds)
        return max(answer["seconds"] for answer in answers)

    def agree(self, kind: str, **wishes: bool) -> dict[str, bool]:
        """Returns which of the wishes at least one process has."""
        told: dict[str, Any] = {name: bool(value) for name, value in wishes.items()}
        answers = self._call(kind, {**told, "own_s": self._own_s})
        if kind == "epoch":
            self._of_all = [float(answer["own_s"]) for answer in answers]
            if self._times is not None and self._longest_s:
                self._times.add(CALL, self._longest_s)
                self._longest_s = 0.0
        return {name: any(answer[name] for answer in answers) for name in wishes}

    def explain(self) -> list[str]:
        """Names the workers that the others waited for."""
        return explain_stragglers(self._of_all, self._names)

    def _call(
        self, kind: str, values: Mapping[str, Any], in_steps_s: float = 0.0
    ) -> list[dict[str, Any]]:
        """Exchanges values, and measures the time from one agreement to the next."""
        if self._last is not None:
            passed_s = time.monotonic() - self._last
            self._own_s += max(0.0, passed_s - in_steps_s)
            self._longest_s = max(self._longest_s, passed_s)
        answers = self._channel.exchange(kind, values, self._limit_s)
        self._last = time.monotonic()
        return answers

    def compare(self, model: Model, data: Any, plan: PipelinePlan, spec: FitSpec) -> None:
        """Compares each worker's training with the chief's.

        Args:
            model: The compiled model.
            data: The dataset.
            plan: Its pipeline plan.
            spec: The options of the training.

        Raises:
            ClusterError: on every worker, naming the first that differs, and the difference.
        """
        here = describe_training(model, data, plan, vars(spec))
        here["options"] = {name: repr(getattr(spec, name)) for name in ALIKE}
        self._meet("fit", {"told": here})

    def begin(self, kind: str, **facts: Any) -> None:
        """Checks that all workers begin the same work.

        Raises:
            ClusterError: on every worker, naming the first that does not.
        """
        self._meet(
            kind, {"told": {"options": {name: repr(value) for name, value in facts.items()}}}
        )

    def refuse(self, kind: str, error: GpuKerasError) -> None:
        """Takes part in the comparison that the others wait in, and sends its reason to stop."""
        error.told = True  # type: ignore[attr-defined]
        with suppress(ClusterError):
            self._meet(kind, {"failed": f"{type(error).__name__}: {error.message}"})

    def _meet(self, kind: str, own: Mapping[str, Any]) -> None:
        answers = self._channel.exchange(kind, own)
        for number, (answer, name) in enumerate(zip(answers, self._names, strict=True)):
            reason = answer.get("failed") or tell_difference(answer["told"], answers[0]["told"])
            if reason:
                does = "goes no further" if "failed" in answer else "is not like the chief"
                text = f"{does}: {reason.rstrip('.')}"
                raise worker_error(number, name, text, ALL_ALIKE, reason=reason)

    def share_state(self, state: TrainingState | None, model: Model) -> TrainingState | None:
        """Sends the chief's state, or otherwise its model's, to all workers."""
        begins = state is None
        if self.is_chief:
            whole = TrainingState(take_snapshot(model)) if state is None else state
            self._channel.broadcast(pack_bytes(whole, begins))
            return state
        sent, begins = unpack_bytes(self._channel.broadcast(None))
        if not begins:
            return sent
        apply_snapshot(model, sent.snapshot)
        return None

    def gather(self, sent: bytes) -> list[bytes]:
        """Returns the bytes of every worker, in their order."""
        return self._channel.gather(sent)

    def leave(self, error: BaseException) -> None:
        """Sends the error to the others, which cannot continue without this worker."""
        self._channel.fail(error)

    def keep_step(self, blocks: Iterator[Block], exact: bool) -> Iterator[Block]:
        """Yields the blocks; where a stream ends earlier on one worker, the others would wait.

        Raises:
            ClusterError: naming such a worker.
        """
        return blocks if exact else self._compare_blocks(blocks)

    def _compare_blocks(self, blocks: Iterator[Block]) -> Iterator[Block]:
        while True:
            block = next(blocks, None)
            own = {} if block is None else {"batches": block.batches, "rows": block.rows}
            described = self._channel.exchange("block", own)
            check_blocks(described, self._names)
            if block is None:
                return
            yield block


def check_blocks(blocks: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Checks that the next blocks of all workers have equally many batches of equal size.

    Raises:
        ClusterError: naming the first worker that differs from the chief.
    """
    for block, name in zip(blocks, names, strict=True):
        if block != blocks[0]:
            here, chief = _describe_block(block), _describe_block(blocks[0])
            rows = "every worker must be given the same rows in the same order"
            text = f"has {here} next, the chief {chief}: {rows}"
            hint = "Give the functions of all workers the same seed, or use files."
            raise worker_error(names.index(name), name, text, hint)


def _describe_block(block: Mapping[str, Any]) -> str:
    if not block:
        return "no more rows"
    return f"{count_of(block['batches'], 'batch')} of {count_of(block['rows'], 'row')}"


def tell_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Returns how a worker's work differs from the chief's (`there`), as part of a sentence.

    The rows are compared first: a model that was built for other rows differs too.
    """
    rows = {name: value for name, value in here.items() if name in OF_ROWS}
    for part in (rows, here):
        if mismatch := find_mismatch(part, there, CHANGE):
            return mismatch
    for name, now in here["options"].items():
        was = there["options"].get(name)
        if was != now:
            return CHANGE.format(what=f"`{name}`", here=now, there=was)
    return ""


def pack_bytes(state: TrainingState, begins: bool) -> bytes:
    """Packs a state for sending, with a flag for the start of a training."""
    plain, arrays = pack_state(state)
    told = np.frombuffer(json.dumps([plain, list(arrays), begins]).encode(), np.uint8)
    return pack_arrays([told, *arrays.values()])


def unpack_bytes(sent: bytes) -> tuple[TrainingState, bool]:
    """Unpacks the result of `pack_bytes()`."""
    told, *arrays = unpack_arrays(sent)
    plain, names, begins = json.loads(told.tobytes())
    return unpack_state(plain, dict(zip(names, arrays, strict=True))), begins


def pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Packs arrays for sending."""
    file = io.BytesIO()
    np.savez(file, *arrays)
    return file.getvalue()


def unpack_arrays(sent: bytes) -> list[np.ndarray]:
    """Unpacks the result of `pack_arrays()`."""
    with np.load(io.BytesIO(sent), allow_pickle=False) as file:
        return [file[f"arr_{place}"] for place in range(len(file.files))]
