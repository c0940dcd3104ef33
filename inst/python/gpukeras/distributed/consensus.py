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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median
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
from gpukeras.distributed.timeouts import CALL, ClusterTimes
from gpukeras.models.state import apply_snapshot, take_snapshot

CHANGE = "{what} is {here}, and the chief's is {there}"
OF_ROWS = ("source", "rows", "validation_rows", "row_shape", "batch_size", "seed", "labels")
ALL_ALIKE = (
    "All workers run the same script on the same data; gpu_dataset() and gpu_mlp() draw their "
    "seeds from R, so call set.seed() before them."
)
SAME_ROWS = "Give the functions of all workers the same seed, or use files."
ALIKE = ("epochs", "engine", "early_stopping")  # compared besides the training's identity
# NVIDIA's Resiliency Extension reports a straggler where a worker's relative performance is below
# 0.7: the median of the others' times divided by its own.
SCORE = 0.7
LEAST_S = 1.0  # shorter delays of a whole training are noise
# How a worker's answer differs from the chief's, to follow its name; "" if it does not.
Tell = Callable[[Mapping[str, Any], Mapping[str, Any]], str]


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

    def gather(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Returns the arrays of every process, on all of them, in the order of the processes."""
        return [list(arrays)]

    def leave(self, error: BaseException) -> None:
        """Sends the others that this process leaves the work."""

    def explain(self) -> list[str]:
        """Returns notes on how the processes worked together, as sentences."""
        return []


class DistributedConsensus(LocalConsensus):
    """The decisions of several processes.

    Args:
        channel: The control channel.
        times: The cluster's observed times, from which the time-out of calls is learned.
    """

    def __init__(self, channel: Channel, times: ClusterTimes) -> None:
        """Takes the time-out; nothing is agreed yet."""
        self.is_chief = channel.index == 0
        self._channel = channel
        self._times = times
        limit_s = times.timeout(CALL).seconds
        self._limit_s = limit_s if math.isfinite(limit_s) else None
        self._last: float | None = None  # when the last agreement ended
        self._own_s = 0.0  # outside of steps since the training began
        self._longest_s = 0.0  # between two agreements of an epoch
        self._of_all = [0.0] * channel.size

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
            if self._longest_s:
                self._times.add(CALL, self._longest_s)
                self._longest_s = 0.0
        return {name: any(answer[name] for answer in answers) for name in wishes}

    def explain(self) -> list[str]:
        """Names the workers that the others waited for."""
        return explain_stragglers(self._of_all, self._channel.workers)

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
        self._compare(kind, own, tell_work, ALL_ALIKE)

    def _compare(self, kind: str, own: Mapping[str, Any], tell: Tell, hint: str) -> None:
        """Raises an error about the first worker that is told to differ from the chief."""
        answers = self._channel.exchange(kind, own)
        for worker, answer in enumerate(answers):
            if difference := tell(answer, answers[0]):
                raise worker_error(worker, self._channel.workers[worker], difference, hint)

    def share_state(self, state: TrainingState | None, model: Model) -> TrainingState | None:
        """Sends the chief's state, or otherwise its model's, to all workers."""
        begins = state is None
        if self.is_chief:
            whole = TrainingState(take_snapshot(model)) if state is None else state
            self._channel.gather(pack_bytes(whole, begins))
            return state
        sent, begins = unpack_bytes(self._channel.gather(b"")[0])
        if not begins:
            return sent
        apply_snapshot(model, sent.snapshot)
        return None

    def gather(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Returns the arrays of every worker, in their order."""
        return [unpack_arrays(sent) for sent in self._channel.gather(pack_arrays(arrays))]

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
            self._compare("block", own, tell_blocks, SAME_ROWS)
            if block is None:
                return
            yield block


def tell_work(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Returns why a worker cannot begin what the chief (`there`) begins, or ""."""
    if "failed" in here:
        return f"goes no further: {here['failed'].rstrip('.')}"
    difference = tell_difference(here["told"], there["told"])
    return difference and f"is not like the chief: {difference.rstrip('.')}"


def tell_blocks(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Returns how a worker's next block has other batches than the chief's (`there`), or ""."""
    if here == there:
        return ""
    rows = "every worker must be given the same rows in the same order"
    return f"has {_describe_block(here)} next, the chief {_describe_block(there)}: {rows}"


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


def explain_stragglers(own_s: Sequence[float], workers: Sequence[str]) -> list[str]:
    """Returns a sentence for each worker that the others wait for.

    In synchronous training every step takes as long as the slowest worker's. A slow device is not
    told apart from waiting for one.

    Args:
        own_s: The seconds that each worker spent, since the training began, outside of the engine's
            calls, in which all of them wait for each other: on rows, callbacks and R.
        workers: The workers' addresses.
    """
    notes = []
    for worker, own in enumerate(own_s):
        others = [seconds for place, seconds in enumerate(own_s) if place != worker]
        usual = median(others or [own])
        if own - usual >= LEAST_S and usual < SCORE * own:
            notes.append(
                f"Worker {worker + 1} ({workers[worker]}) was slow: outside of the steps it took "
                f"{own:.1f} s for its rows, callbacks and R, and the others {usual:.1f} s "
                "(median), so they waited for it."
            )
    return notes


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
