"""How many batches a call, compiled or not: chosen by measuring.

Three engines run the same Keras step on the same blocks of batches:

- "keras": Keras' own function, called once a batch. Every step pays for Python.
- "superstep": one call loops over many batches inside a TensorFlow graph.
- "compiled": the same loop as one XLA program.

None is always best (XLA's convolutions on a CPU are 8 times slower than oneDNN's), so in the first
epoch each trains real batches for a moment, and the fastest goes on. Nothing is wasted: these are
updates of the same model. Tracing and compiling are only tried where the steps left can pay for it.

The loop's trip count and first batch are run-time values, so one program serves calls of any size;
only the short last batch of an epoch needs a function of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import runtime
from .errors import ModelError
from .pipeline import Block

CALL_S = 0.2  # seconds a call should take: progress and interrupts stay alive
TRIAL_S = 0.05  # seconds a timed trial must last to be trusted
FIRST_COUNT = 4  # batches of the first timed round; doubled until TRIAL_S is reached
PRICE_S = {"keras": 0.0, "superstep": 0.6, "compiled": 2.0}  # tracing, compiling (2 slow cores)
PAYBACK = 2.0  # try an engine when the time left is this many times its price


# Decisions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineFacts:
    """What decides which engines are candidates.

    Args:
        wanted: "auto" or the name of an engine.
        jit: The session's wish from `gpu_setup(jit = )`: "auto", true or false.
        model_jit: Whether the model's layers and compile settings allow XLA.
        eager: Whether the model was compiled with `run_eagerly`.
        deterministic: Whether the session asked for determinism.
        batch_hook: Name of a callback that must see every batch, or "".
        own_function: Whether the model's class brings its own `make_train_function()`.
    """

    wanted: str = "auto"
    jit: str | bool = "auto"
    model_jit: bool = True
    eager: bool = False
    deterministic: bool = False
    batch_hook: str = ""
    own_function: bool = False


@dataclass(frozen=True)
class Trial:
    """One engine's measurement.

    Args:
        engine: Its name.
        start_s: Seconds of its first batch, tracing and compiling included.
        batch_s: Seconds a batch afterwards; None if it was refused.
        refused: Why it could not run, or "".
    """

    engine: str
    start_s: float
    batch_s: float | None
    refused: str = ""


@dataclass(frozen=True)
class EngineChoice:
    """The engine that trains, why, and what was measured."""

    engine: str
    reason: str
    trials: tuple[Trial, ...] = ()


def choose_candidates(facts: EngineFacts) -> tuple[tuple[str, ...], str]:
    """The engines to measure, in order of their price; with one, why it is alone."""
    if facts.wanted != "auto":
        return (facts.wanted,), "as asked"
    for condition, engine, reason in (
        (facts.eager, "keras", "the model was compiled with run_eagerly"),
        (facts.own_function, "keras", "the model brings its own train function"),
        (bool(facts.batch_hook), "keras", f"callback {facts.batch_hook} works on every batch"),
        (facts.deterministic, "superstep", "a choice by timing would not repeat (deterministic)"),
        (facts.jit is True, "compiled", "gpu_setup(jit = TRUE)"),
    ):
        if condition:
            return (engine,), reason
    if facts.jit is False or not facts.model_jit:
        return ("keras", "superstep"), ""
    return ("keras", "superstep", "compiled"), ""


def choose_count(batch_s: float | None, left: int) -> int:
    """Batches for the next call, so that it takes about `CALL_S`."""
    if batch_s is None:
        return 1
    return max(1, min(left, int(CALL_S / max(batch_s, 1e-9))))


def is_worth_trying(engine: str, best_batch_s: float, batches_left: int) -> bool:
    """Whether the time that is left can pay for tracing and compiling another engine."""
    return best_batch_s * batches_left > PAYBACK * PRICE_S[engine]


def choose_fastest(trials: tuple[Trial, ...], skipped: tuple[str, ...]) -> EngineChoice:
    """The fastest of the engines tried, with the figures."""
    ran = sorted((t for t in trials if t.batch_s is not None), key=lambda t: t.batch_s or 0.0)
    best, others = ran[0], ran[1:]
    reason = f"{_micro(best)} a batch"
    if others:
        figures = " and ".join(f"{_micro(t)} ({t.engine})" for t in others)
        reason = f"measured fastest: {reason} against {figures}"
    if skipped:
        reason += f"; too few batches left to pay for trying {' and '.join(skipped)}"
    return EngineChoice(best.engine, reason, trials)


def _micro(trial: Trial) -> str:
    return f"{1e6 * (trial.batch_s or 0.0):,.0f} us"


class Chooser:
    """Decides call by call which engine runs how many batches; knows time, not TensorFlow.

    Args:
        candidates: Engines to measure, cheapest first.
        batches: Batches of all epochs.
        reason: Why there is only one candidate, if so.
    """

    def __init__(self, candidates: tuple[str, ...], batches: int, reason: str = "") -> None:
        """Starts with the first candidate."""
        self._waiting = list(candidates[1:])
        self._batches_left = batches
        self._alone = reason if len(candidates) == 1 else ""
        self._start_s: float | None = None
        self._count = FIRST_COUNT
        self._batch_s: float | None = None
        self.trials: tuple[Trial, ...] = ()
        self.engine = candidates[0]
        self.choice: EngineChoice | None = None

    def count(self, left: int) -> int:
        """Batches for the next call, at most `left`."""
        if self.choice:
            return choose_count(self._batch_s, left)
        return 1 if self._start_s is None else min(left, self._count)

    def record(self, count: int, seconds: float) -> None:
        """Takes the time of a call that trained `count` batches."""
        self._batches_left -= count
        if self.choice:
            # A call that is cut short by a small block says little about the cost of a batch.
            self._batch_s = min(self._batch_s or seconds / count, seconds / count)
        elif self._start_s is None:
            self._start_s = seconds
        elif seconds < TRIAL_S and count >= self._count:
            self._count *= 2
        else:
            self._end_trial(seconds / count)

    def refuse(self, why: str) -> bool:
        """The current engine cannot run this model; false if there is no other."""
        self.trials += (Trial(self.engine, 0.0, None, why),)
        if not self._waiting and not any(t.batch_s for t in self.trials):
            return False
        self._go_on()
        return True

    def finish(self) -> EngineChoice:
        """The choice, made from what is known if the batches ran out during a trial."""
        if self.choice is None:
            known = tuple(t for t in self.trials if t.batch_s is not None)
            if known:
                return choose_fastest(self.trials, ())
            return EngineChoice(self.engine, self._alone or "too few batches to measure another")
        return self.choice

    def _end_trial(self, batch_s: float) -> None:
        self.trials += (Trial(self.engine, self._start_s or 0.0, batch_s),)
        self._go_on()

    def _go_on(self) -> None:
        ran = [t.batch_s for t in self.trials if t.batch_s is not None]
        best = min(ran, default=float("inf"))
        self._start_s, self._count = None, FIRST_COUNT
        skipped = []
        while self._waiting:
            engine = self._waiting.pop(0)
            if is_worth_trying(engine, best, self._batches_left):
                self.engine = engine
                return
            skipped.append(engine)
        choice = choose_fastest(self.trials, tuple(skipped))
        reason = f"{self._alone}: {choice.reason}" if self._alone else choice.reason
        self.choice = EngineChoice(choice.engine, reason, self.trials)
        self.engine, self._batch_s = choice.engine, best


# Engines -----------------------------------------------------------------------------------------

Logs = Mapping[str, Any]
Run = Callable[[Block, int, int], Logs]


class Engines:
    """The three engines of one model, each made when it is first run.

    Args:
        model: A compiled Keras model whose variables exist.
        kind: "train" or "test": which of the model's steps.
        batch_size: Rows a batch.
        device: Where the model runs; decides how dropout draws under XLA.
    """

    def __init__(self, model: Any, kind: str, batch_size: int, device: str) -> None:
        """Takes Keras' own function before gpukeras puts itself in its place."""
        self._model, self._kind, self._batch_size = model, kind, batch_size
        self._device = device
        getattr(model, f"make_{kind}_function")(force=True)
        self._keras_function = getattr(model, f"{kind}_function")
        self._step = getattr(model, f"{kind}_step")
        self._made: dict[str, Run] = {}
        self._single: Callable[[Any], Logs] | None = None

    def run(self, engine: str, block: Block, first: int, count: int) -> Logs:
        """Runs `count` batches of a block from batch `first`; gives the metrics after them."""
        if engine == "keras":
            return self._run_keras(block, first, count)
        if engine not in self._made:
            self._made[engine] = self._make(engine, block)
        return self._made[engine](block, first, count)

    def run_tail(self, engine: str, block: Block) -> Logs:
        """Runs the short last batch of an epoch."""
        if engine == "keras":
            return self._keras_function(iter([block.arrays]))
        if self._single is None:
            self._single = runtime.tensorflow().function(self._step, reduce_retracing=True)
        return self._single(block.arrays)

    def _run_keras(self, block: Block, first: int, count: int) -> Logs:
        size = self._batch_size
        for start in range(first * size, (first + count) * size, size):
            batch = tuple(array[start : start + size] for array in block.arrays)
            logs = self._keras_function(iter([batch]))
        return logs

    def _make(self, engine: str, block: Block) -> Run:
        tf = runtime.tensorflow()
        compiled = engine == "compiled"
        specs = tuple(tf.TensorSpec(array.shape, array.dtype) for array in block.arrays)
        scalar = tf.TensorSpec([], tf.int32)
        on_cpu = compiled and self._device.startswith("CPU")
        with runtime.threefry_dropout() if on_cpu else contextlib.nullcontext():
            program = tf.function(self._program, autograph=False, jit_compile=compiled)
            concrete = program.get_concrete_function(specs, scalar, scalar)
        return lambda block, first, count: concrete(
            block.arrays, tf.constant(first), tf.constant(count)
        )

    def _program(self, arrays: tuple[Any, ...], first: Any, count: Any) -> Logs:
        """Traced: steps over batches `first` to `first + count`."""
        tf = runtime.tensorflow()
        model, end = self._model, first + count

        def loop(end: Any) -> None:
            def body(index: Any) -> tuple[Any]:
                self._step(self._batch(arrays, index))
                return (index + 1,)

            tf.while_loop(lambda index: index < end, body, (first,))

        own = getattr(type(model), f"{self._kind}_step")
        if own is getattr(runtime.keras().Model, f"{self._kind}_step"):
            loop(end)
            return model.get_metrics_result()
        loop(end - 1)  # a step of the user's own may log more than the metrics
        return self._step(self._batch(arrays, end - 1))

    def _batch(self, arrays: tuple[Any, ...], index: Any) -> tuple[Any, ...]:
        tf, size = runtime.tensorflow(), self._batch_size

        def cut(array: Any) -> Any:
            begin = tf.concat([[index * size], tf.zeros(len(array.shape) - 1, tf.int32)], 0)
            return tf.slice(array, begin, [size, *array.shape[1:]])

        return tuple(cut(array) for array in arrays)


# Running an epoch --------------------------------------------------------------------------------


@dataclass
class Runner:
    """Runs an epoch's blocks up to a target, through whichever engine the chooser names.

    Args:
        engines: The model's engines.
        chooser: Decides engine and count of each call.
        after_call: Called after each call with (position, logs); true stops the epoch.
    """

    engines: Engines
    chooser: Chooser
    after_call: Callable[[int, Logs], bool] = lambda position, logs: False
    position: int = 0
    stopped: bool = False
    _blocks: Iterator[Block] = field(default_factory=lambda: iter(()))
    _block: Block | None = None
    _first: int = 0
    _logs: Logs = field(default_factory=dict)

    def begin(self, blocks: Iterator[Block]) -> None:
        """Starts an epoch."""
        self._blocks, self._block, self._first, self.position = blocks, None, 0, 0

    def advance(self, target: int) -> Logs:
        """Runs batches until `target` of the epoch's batches are done; gives the last logs."""
        while self.position < target and not self.stopped:
            if self._block is None:
                self._block, self._first = next(self._blocks), 0
            self._call(self._block, target - self.position)
            self.stopped = self.after_call(self.position, self._logs)
        return self._logs

    def _call(self, block: Block, wanted: int) -> None:
        if block.tail:
            self._logs = self.engines.run_tail(self.chooser.engine, block)
            count = 1
        else:
            count = self._call_engine(block, min(wanted, block.batches - self._first))
        self._first += count
        self.position += count
        if block.tail or self._first == block.batches:
            self._block = None

    def _call_engine(self, block: Block, left: int) -> int:
        chooser, trying = self.chooser, self.chooser.choice is None
        count, began = chooser.count(left), time.perf_counter()
        try:
            self._logs = self.engines.run(chooser.engine, block, self._first, count)
        except runtime.refusals() as error:
            if not trying or not chooser.refuse(first_line(error)):
                raise ModelError(
                    f'The engine "{chooser.engine}" cannot run this model: {first_line(error)}',
                    hint='Use `engine = "keras"`.',
                ) from error
            return 0
        if trying:
            wait_for(self._logs)
        chooser.record(count, time.perf_counter() - began)
        return count


def wait_for(logs: Logs) -> None:
    """Returns when the device has really done the work: a GPU's calls return before."""
    for value in list(logs.values())[:1]:
        value.numpy()


def first_line(error: BaseException) -> str:
    """The first line of an error's text, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
