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
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import devices, runtime
from .choosing import Chooser, EngineFacts
from .errors import ModelError
from .feeding import Block

BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")

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
        self._model, self._kind, self.batch_size = model, kind, batch_size
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
        size = self.batch_size
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
        tf, size = runtime.tensorflow(), self.batch_size

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
    rows: int = 0
    stopped: bool = False
    ended: bool = False
    _blocks: Iterator[Block] = field(default_factory=lambda: iter(()))
    _block: Block | None = None
    _first: int = 0
    _logs: Logs = field(default_factory=dict)

    def begin(self, blocks: Iterator[Block]) -> None:
        """Starts an epoch."""
        if isinstance(self._blocks, Generator):
            self._blocks.close()  # left to the garbage collector it would swallow an interrupt
        self._blocks, self._block, self._first = blocks, None, 0
        self.position, self.rows, self.ended = 0, 0, False

    def advance(self, target: float = math.inf) -> Logs:
        """Runs batches until `target` of the epoch's batches, or all, are done.

        Returns:
            The last logs.
        """
        while self.position < target and not self.stopped:
            if self._block is None:
                self._block, self._first = next(self._blocks, None), 0
            if self._block is None:
                self.ended = True
                break
            self._call(self._block, target - self.position)
            self.stopped = self.after_call(self.position, self._logs)
        return self._logs

    def _call(self, block: Block, wanted: float) -> None:
        if block.tail:
            self._logs = self.engines.run_tail(self.chooser.engine, block)
            count, self.rows = 1, self.rows + len(block.arrays[0])
        else:
            left = block.batches - self._first
            count = self._call_engine(block, left if wanted > left else int(wanted))
            self.rows += count * self.engines.batch_size
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


# Facts -------------------------------------------------------------------------------------------


def read_engine_facts(model: Any, wanted: str, callbacks: Sequence[Any] = ()) -> EngineFacts:
    """What decides which engines are candidates, from the model, its callbacks and the session."""
    setup = devices.current()
    return EngineFacts(
        wanted=wanted,
        jit=setup.jit,
        model_jit=runtime.allows_xla(model),
        eager=bool(model.run_eagerly),
        deterministic=setup.deterministic,
        batch_hook=find_batch_hook(callbacks),
        own_function=runtime.overrides(model, "make_train_function"),
    )


def find_batch_hook(callbacks: Sequence[Any]) -> str:
    """The name of the first callback, not Keras' own, that works on every batch; or ""."""
    base = runtime.keras().callbacks.Callback
    for callback in callbacks:
        lambdas = isinstance(callback, runtime.keras().callbacks.LambdaCallback)
        if type(callback).__module__.startswith("keras.") and not lambdas:
            continue  # Keras' own know of several batches a call (`steps_per_execution`)
        for hook in BATCH_HOOKS:
            method = getattr(callback, hook)
            if getattr(method, "__func__", method) is not getattr(base, hook):
                return type(callback).__name__
    return ""
