"""The programs of stacks of one structure and size: steps over blocks of batches, and predictions.

Tracing and compiling take seconds, so the programs of the last stacks are kept for the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import cpp_log, runtime, stacking, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.loader import Block
from gpukeras.engine.program_cache import find_program, keep_program
from gpukeras.engine.programs import cut, take
from gpukeras.engine.trip_counts import knows_trip_counts
from gpukeras.many.batches import Piece
from gpukeras.many.step import Batch, State, StatelessModel
from gpukeras.many.structure import Path, Structure, bind_numbers, is_rate


class StackPrograms:
    """Programs of stacks of models.

    Args:
        model: One of the models, compiled and built; only its structure is used.
        paths: Settings in which the models differ, see `structure`; arguments of the programs.
        size: Models of a stack.
        device: Where they run.
        compiled: Whether XLA compiles them.
    """

    def __init__(
        self, model: Model, paths: Sequence[Path], size: int, device: str, compiled: bool
    ) -> None:
        """Traces nothing yet."""
        self.model = model
        self.size = size
        self.device = device
        self._compiled = compiled
        self._one = StatelessModel(model, bind_numbers(model, paths))
        self._static = knows_trip_counts(device, deterministic=False)  # no times decide
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def run(
        self,
        kind: str,
        state: State,
        numbers: Any,
        block: Block,
        *,
        piece: Piece,
        counts: Any,
        rates: tuple[Any, ...] = (),
    ) -> State:
        """Returns the state after the steps of a block, in the memory of the state before on JAX.

        Where the trip count is part of the program, it is that of the block's capacity: in steps
        beyond the block's batches no row counts, so they change nothing, and the last block of an
        epoch shares the program of the others. Such steps are fewer than the blocks of an epoch.

        Args:
            kind: "train" or "evaluate".
            state: The state; on JAX nobody may use it after the call.
            numbers: The settings in which the models differ, (models, settings).
            block: The rows; a step has those of all models, one after another.
            piece: The steps that the block is a part of.
            counts: Rows that count, (steps, models), int32, with zeros up to the block's capacity.
            rates: See `Batch.rates`, with an axis of models first; none for those in the state.
        """
        count = int(counts.shape[0]) if self._static else 0
        key = kind, piece.partial, len(rates), piece.batch_size, count
        program = self._program(key, partial(self.loop, *key), donates=True)
        scalars = [0] if count else [0, block.batches]
        indices = [self._put(np.int32(scalar)) for scalar in scalars]
        after: State = program(state, numbers, block.arrays, counts, *rates, *indices)
        return after

    def predict(self, state: State, numbers: Any, arrays: Any, step: int, batch_size: int) -> Any:
        """Returns the models' outputs, each for its own rows of a step of a block."""
        rows = batch_size * self.size
        x = take(runtime.keras().utils.unpack_x_y_sample_weight(arrays)[0], step * rows, rows)
        divided = self._divide(x, batch_size)
        return self._program(("predict",), self._predict)(state, numbers, divided)

    def predict_same(self, state: State, numbers: Any, features: Any) -> Any:
        """Returns all models' outputs for the same rows: (models, rows, ...)."""
        return self._program(("same",), self._predict_same)(state, numbers, features)

    def read_logs(self, state: State) -> dict[str, Any]:
        """Returns the loss and the metrics of each model."""
        return dict(self._program(("results",), self._results)(state))

    # Traced --------------------------------------------------------------------------------------

    def loop(
        self, kind: str, filled: bool, scheduled: int, size: int, count: int, *arguments: Any
    ) -> State:
        """Traced: the state after steps over the batches of a block.

        Args:
            kind: "train" or "evaluate".
            filled: Whether rows that do not count fill up batches.
            scheduled: How many of the arguments are `Batch.rates`.
            size: Rows per batch of a model.
            count: The trip count; 0 where the last argument tells it.
            arguments: State, numbers, rows and counts as in `run()`, rates, and the first batch: it
                is 0, but where XLA knows that, it copies each batch by a launch beside the step's
                CUDA graph.
        """
        state, numbers, arrays, counts, *others = arguments
        rates, others = others[:scheduled], others[scheduled:]
        first, number = others[0], count or others[1]
        step = getattr(self._one, kind)

        def one(state: State, data: Any, numbers: Any, rows: Any, *rates: Any) -> State:
            return step(state, Batch(data, rows, rates or None, _unstack(numbers)), filled)

        def body(index: Any, state: State) -> State:
            place = first + index
            batches = cut(arrays, place * size * self.size, size * self.size)
            data, rows = self._divide(batches, size), _row(counts, place)
            return stacking.map_stack(one, state, data, numbers, rows, *rates)

        return stacking.repeat(number, body, state)

    def _predict(self, state: State, numbers: Any, x: Any) -> Any:
        def one(state: State, numbers: Any, x: Any) -> Any:
            return self._one.predict(state, x, _unstack(numbers))

        return stacking.map_stack(one, state, numbers, x)

    def _predict_same(self, state: State, numbers: Any, x: Any) -> Any:
        def one(state: State, numbers: Any) -> Any:
            return self._one.predict(state, x, _unstack(numbers))

        return stacking.map_stack(one, state, numbers)

    def _results(self, state: State) -> Any:
        return stacking.map_stack(self._one.results, state)

    def _divide(self, arrays: Any, size: int) -> Any:
        """Returns the batches of a step, each array of shape (models, size, ...)."""
        ops = runtime.keras().ops
        return runtime.tree().map_structure(
            lambda array: ops.reshape(array, (self.size, size, *array.shape[1:])), arrays
        )

    # Calls ---------------------------------------------------------------------------------------

    def _program(
        self, key: tuple[Any, ...], function: Callable[..., Any], donates: bool = False
    ) -> Callable[..., Any]:
        """Returns a program, traced and compiled when it is first called."""
        if key not in self._made:
            program = stacking.as_program(function, self._compiled, self.device, donates=donates)

            def run(*arguments: Any) -> Any:
                with cpp_log.muted_cpp_log(), tensor_ops.device_scope(self.device):
                    return program(*arguments)

            self._made[key] = run
        return self._made[key]

    def _put(self, value: Any) -> Any:
        return tensor_ops.put(value, self.device)


def _unstack(numbers: Any) -> list[Any]:
    return [numbers[place] for place in range(numbers.shape[-1])]


def _row(values: Any, place: Any) -> Any:
    """Returns a row of a matrix."""
    ops = runtime.keras().ops
    return ops.slice(values, (place, 0), (1, values.shape[1]))[0]


def open_programs(
    model: Model,
    structure: Structure,
    paths: Sequence[Path],
    size: int,
    device: str,
    *,
    compiled: bool = True,
) -> StackPrograms:
    """Returns kept programs for such a stack, or new ones.

    Args:
        model: See `StackPrograms`; nobody may change it afterwards.
        structure: Its structure. Numbers that are no arguments are part of the programs.
        paths: See `StackPrograms`.
        size: See `StackPrograms`.
        device: See `StackPrograms`.
        compiled: See `StackPrograms`.
    """
    fixed = [(path, number) for path, number in structure.numbers.items() if not is_rate(path)]
    constants = tuple(sorted((item for item in fixed if item[0] not in paths), key=str))
    key = "stack", structure.key, constants, tuple(paths), size, device, compiled
    kept = find_program(key)
    if kept is None:  # the structure holds objects whose identity is in its key
        kept = keep_program(key, (StackPrograms(model, paths, size, device, compiled), structure))
    programs: StackPrograms = kept[0]
    return programs
