"""Runs an epoch: its blocks, call by call, with the engine that the autotuner chooses."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.data.loader.loader import Block, DataLoader
from gpukeras.engine.autotune import EngineAutotuner
from gpukeras.engine.autotune_cache import store_choice
from gpukeras.engine.batch_rows import model_device
from gpukeras.engine.engines import Engines
from gpukeras.engine.programs import Logs, UncheckedError
from gpukeras.engine.refusals import (
    engine_refusals,
    explain_inability,
    is_inability,
    raise_explained,
)
from gpukeras.engine.trip_counts import choose_size
from gpukeras.models.losses import weighing_rows
from gpukeras.models.state import Snapshot, apply_snapshot, take_snapshot

CALL_S = 0.05  # seconds of a measured call, so that the call's overhead is 2 % at most

AfterCall = Callable[[int, Logs], bool]
BackOff = Callable[[BaseException], tuple[Engines, EngineAutotuner]]
Drawn = Generator[tuple[Block, float], None, None]
Rewind = Callable[[], tuple[Iterator[Block], int]]


@dataclass
class EpochLoop:
    """Runs an epoch's blocks up to a target, with the engine that the autotuner chooses.

    Args:
        engines: The model's engines.
        chooser: Decides engine and count of each call.
        back_off: Returns engines and chooser that need less memory. None: running out of memory is
            an error.
        rewind: Restores the model's state at the start of the epoch, and returns its blocks again
            with the number of batches that were done before.
        loader: The data loader, if it can adapt its blocks to an engine.
        agree_time: Maps the seconds of a call in this process to a time that all processes use, so
            that they choose the same engine.
        by_batch: Whether losses of several outputs stay means over batches, as Keras has them.
    """

    engines: Engines
    chooser: EngineAutotuner
    back_off: BackOff | None = None
    rewind: Rewind = lambda: (iter(()), 0)
    loader: DataLoader | None = None
    agree_time: Callable[[float], float] = lambda seconds: seconds
    by_batch: bool = False
    position: int = 0
    rows: int = 0
    stopped: bool = False
    ended: bool = False
    _blocks: Iterator[Block] = field(default_factory=lambda: iter(()))
    _block: Block | None = None
    _first: int = 0
    _logs: Logs = field(default_factory=dict)
    _early: bool = field(init=False)  # whether calls return before the device has computed

    def __post_init__(self) -> None:
        """Asks whether calls return early."""
        self._early = tensor_ops.returns_early(model_device(self.engines.model))

    def begin(self, blocks: Iterator[Block], done: int = 0) -> None:
        """Starts an epoch, of which `done` batches were trained before this process began."""
        self.close()
        self._blocks = blocks
        self._block = None
        self._first = 0
        self.position = 0
        self.rows = 0
        self.ended = False
        self._skip(done)

    def close(self) -> None:
        """Closes the generator of the epoch's blocks."""
        if isinstance(self._blocks, Generator):
            self._blocks.close()  # the garbage collector would swallow an interrupt

    def end(self) -> None:
        """Closes the last epoch and frees the loader's memory: the model refers to the training."""
        self.close()
        if self.loader is not None:
            self.loader.release()

    def _skip(self, done: int) -> None:
        while self.position < done:
            self._block = next(self._blocks, None)
            if self._block is None:
                return
            self._take(min(done - self.position, 1 if self._block.tail else self._block.batches))

    def advance(
        self, target: float = math.inf, after_call: AfterCall = lambda position, logs: False
    ) -> Logs:
        """Runs batches until `target` of the epoch's batches, or all, are done.

        Args:
            target: Number of batches, counted from the start of the epoch.
            after_call: Called after each call with (position, logs); true stops the epoch.

        Returns:
            The last logs.
        """
        while self.position < target and self.has_more():
            assert self._block is not None  # guaranteed by has_more()
            with weighing_rows(self.engines.model, by_batch=self.by_batch):
                self._call(self._block, target - self.position)
            self.stopped = after_call(self.position, self._logs)
        return self._logs

    @property
    def finished(self) -> bool:
        """Whether all batches of the epoch are done, as far as is known without its next block."""
        loader = self.loader
        whole = loader is not None and loader.exact and self.position == loader.steps
        return self.ended or whole

    def has_more(self) -> bool:
        """Whether batches of the epoch are left to run; takes the next block to find out."""
        if self.stopped:
            return False
        if self._block is None:
            self._block, self._first = next(self._blocks, None), 0
            self.ended = self._block is None
        return self._block is not None

    def _call(self, block: Block, requested: float) -> None:
        left = block.batches - self._first
        if block.whole and self.chooser.engine != "keras":
            self.chooser.settle("keras", block.whole)
        self.engines.batch_s = self.chooser.batch_s
        if not block.tail:
            self._prepare(block)
        with self._retry_on_oom(block) as survived:
            if block.tail:
                self._logs = self.engines.run_tail(self.chooser.engine, block)
                survived.append(1)
            else:
                survived.append(
                    self._call_engine(block, left if requested > left else int(requested))
                )
        self._take(survived[0])

    def _take(self, count: int) -> None:
        """Records that `count` batches of the block are done."""
        block = self._block
        if block is None or not count:
            return
        self.rows += count * block.rows
        self._first += count
        self.position += count
        if block.tail or self._first == block.batches:
            self._block, self._first = None, 0

    @contextlib.contextmanager
    def _retry_on_oom(self, block: Block) -> Iterator[list[int]]:
        """Backs off where the device's memory runs out; no batch is lost or trained twice.

        Memory runs out in a function's first run, if ever: before it the whole state is copied to
        host memory. Later calls are too frequent for a copy; if one fails, the epoch restarts. (The
        number of finished steps of a failed call is unknown: TensorFlow runs the updates of a step
        in any order, so a step may have been done in part.)
        """
        function = f"{self.chooser.engine}{' tail' if block.tail else ''}"
        survived, first = list[int](), function not in self.engines.ran
        before, logs = self._copy(first), self._logs
        try:
            yield survived
            if first and self.back_off is not None:
                wait_for(self._logs)  # JAX may fail after the call
        except tensor_ops.exhausted() as error:
            if self.back_off is None:
                raise
            survived[:], self._logs = [0], logs
            if not first:
                self.begin(*self.rewind())
            else:
                self._undo(before)
            self.engines, self.chooser = self.back_off(error)
        except tensor_ops.refusals() as error:
            raise_explained(self.engines.model, error)
        else:
            if survived[0]:
                self.engines.ran.add(function)
            else:  # the engine may have done some of what it turned out not to be able to do
                self._undo(before)

    def _copy(self, first: bool) -> Snapshot | dict[int, np.ndarray]:
        """Copies the state that a call changes, where it is a function's first; else nothing."""
        if not first:
            return {}
        model = self.engines.model
        if self.back_off is not None:
            return take_snapshot(model, self.engines.variables)
        return {id(variable): variable.numpy() for variable in model.metrics_variables}

    def _undo(self, before: Snapshot | dict[int, np.ndarray]) -> None:
        """Restores a copied state."""
        model = self.engines.model
        if isinstance(before, Snapshot):
            apply_snapshot(model, before, self.engines.variables)
            return
        for variable in model.metrics_variables:
            if id(variable) in before:
                variable.assign(before[id(variable)])

    def _call_engine(self, block: Block, left: int) -> int:
        chooser = self.chooser
        trying = self.chooser.choice is None
        before = self._logs
        known = self.engines.knows_count(chooser.engine)
        count = chooser.count(left, block.batches if known else 0)
        settled = self.engines.is_settled(chooser.engine, block, count)
        began = time.perf_counter()
        try:
            self._logs = self.engines.run(chooser.engine, block, self._first, count)
        except UncheckedError as error:
            chooser.keep_checks(str(error))
            return 0
        except engine_refusals() as error:
            if not is_inability(error, chooser.engine):
                raise
            if not trying or not chooser.refuse(find_reason(error)):
                raise explain_inability(chooser.engine, error) from error
            return 0
        timed = settled if trying else not self._early or count < left
        if trying or (self._early and timed):
            wait_for(self._logs)
        elif self._early:  # a call as long as its block tells nothing: the device need not idle
            keep_pace(before)
        chooser.started_s = chooser.started_s or self.engines.started_s
        took_s = self.agree_time(time.perf_counter() - began)
        chooser.record(count, took_s if timed else math.inf, self.engines.compiled_s)
        self.engines.started_s = chooser.started_s
        if trying and chooser.choice:
            self.engines.chosen = chooser.choice.engine
            store_choice(self.engines, chooser.choice)
        return count

    def _prepare(self, block: Block) -> None:
        """Prepares the engine that the chooser wants to try next."""
        chooser, engine = self.chooser, self.chooser.preparing
        if not engine:
            return
        try:
            ready = self.engines.prepare(engine, block)
        except UncheckedError as error:
            chooser.keep_checks(str(error))
            return
        except engine_refusals() as error:
            chooser.refuse(find_reason(error))
            return
        # Programs that know their number of batches are tried on whole blocks: of the rest of one
        # there is none.
        begun = self._first > 0 and self.engines.knows_count(engine)
        if ready and self.engines.takes(engine, block) and not begun:
            chooser.try_prepared(self.engines.prepared_s)


def wait_for(logs: Logs) -> None:
    """Waits until the device has done the work: calls on a GPU return earlier."""
    for value in runtime.tree().flatten(list(logs.values())[:1])[:1]:
        tensor_ops.wait(value)


def keep_pace(logs: Logs) -> None:
    """Waits for an earlier call, where the backend would take any number of them."""
    for value in list(logs.values())[:1]:
        tensor_ops.keep_pace(value)


def draw(loader: DataLoader) -> Drawn:
    """Yields blocks of full batches, epoch after epoch, with the seconds spent waiting for each.

    Raises:
        DataError: if an epoch has none.
    """
    for number in itertools.count():
        full, began = False, time.perf_counter()
        with contextlib.closing(loader.epoch(number)) as blocks:
            for block in blocks:
                if not block.tail:
                    full = True
                    yield block, time.perf_counter() - began
                began = time.perf_counter()
        if not full:
            raise DataError(
                f"An epoch has fewer rows than a batch of {loader.batch_size:,}.",
                hint="Use a smaller `batch_size`.",
                arg="batch_size",
            )


def calibrate(
    engines: Engines, engine: str, block: Block, take: Callable[[int], float]
) -> tuple[int, float]:
    """Returns the number of batches of a call that can be timed, and its seconds.

    It takes about `CALL_S`; where XLA has to know the number, it is that of a training's calls.

    Args:
        engines: The model's engines.
        engine: The engine; it has run a batch of the block.
        block: A block.
        take: Runs a call of so many batches of the block, and returns its seconds.
    """
    count, run_s = 1, take(1)
    if engines.knows_count(engine):
        count = choose_size(block.batches, run_s)
        engines.warm(block, engine, count)
        return count, take(count)
    while run_s < CALL_S / 2 and count < block.batches:
        count = min(8 * count, block.batches, int(CALL_S * count / run_s) + 1)
        run_s = take(count)
    return count, run_s
