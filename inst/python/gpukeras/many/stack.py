"""Models of one structure, stacked along a first axis and trained by one program.

The rows are those of one dataset, which lie in memory once; each model has batches of its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import cpp_log, devices, keras_private, runtime, stacking, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset import MapDataset
from gpukeras.data.loading.loader import MapLoader
from gpukeras.data.loading.transforms import device_transform_for
from gpukeras.data.plan import choose_evaluation_rows
from gpukeras.engine.trip_counts import choose_loop, choose_sizes, split_count
from gpukeras.many.batches import Piece, plan_epoch
from gpukeras.many.numbers import Binding
from gpukeras.many.step import METRICS, OPTIMIZER, Batch, State, StatelessModel, state_variables

Orders = Sequence[np.ndarray]
NO_ROWS = np.zeros(0, np.int32)


class Stack:
    """Models in training.

    Args:
        model: The first of them, compiled and built; only its structure is used.
        states: The state of each model, from `read_state()`.
        data: The rows of all models.
        device: The models' device.
        bindings: Settings in which the models differ.
        numbers: Their values, (models, settings).
        compiled: Whether XLA compiles the programs.

    Attributes:
        state: The models' state: the tensors of `state_variables()`, with an axis of models first.
    """

    def __init__(
        self,
        model: Model,
        states: Sequence[Mapping[str, Sequence[np.ndarray]]],
        data: MapDataset,
        device: str,
        *,
        bindings: Sequence[Binding] = (),
        numbers: np.ndarray | None = None,
        compiled: bool = True,
    ) -> None:
        """Puts the states on the device; traces nothing."""
        self.size, self._data, self._device = len(states), data, device
        self._one, self._compiled = StatelessModel(model, bindings), compiled
        values = np.zeros((self.size, 0), np.float32) if numbers is None else numbers
        self._numbers = self._put(values.astype(np.float32))
        self.state: State = {
            part: [self._put(np.stack(arrays)) for arrays in zip(*lists, strict=True)]
            for part in states[0]
            for lists in [[state[part] for state in states]]
        }
        self._blank = [self._put(np.stack([array] * self.size)) for array in blank_metrics(model)]
        self._static = choose_loop(device, devices.current().deterministic).static
        self._programs: dict[tuple[Any, ...], Callable[..., Any]] = {}

    # What a training does ------------------------------------------------------------------------

    def train(
        self,
        orders: Orders,
        batch_size: int,
        rates: np.ndarray | None = None,
        *,
        exact: bool = False,
        drop_last: bool = False,
    ) -> dict[str, np.ndarray]:
        """Trains an epoch; returns the models' logs.

        Args:
            orders: Each model's row numbers in the epoch's order; empty for one that rests.
            batch_size: Rows per batch.
            rates: The learning rates, (steps, models), or None for those in the state.
            exact: See `plan_epoch()`.
            drop_last: See `plan_epoch()`.
        """
        self._reset()
        for piece in plan_epoch(orders, batch_size, exact, drop_last):
            self._run("train", piece, rates)
        return self._read_logs()

    def evaluate(self, orders: Orders, batch_size: int | None = None) -> dict[str, np.ndarray]:
        """Returns the loss and metrics of each model on its rows; arguments as of `train()`."""
        kept = self.state[METRICS]
        self._reset()
        for piece in plan_epoch(orders, batch_size or self._large(orders)):
            self._run("evaluate", piece, None)
        logs = self._read_logs()
        self.state = {**self.state, METRICS: kept}
        return logs

    def predict(self, orders: Orders) -> list[Any]:
        """Returns each model's outputs for its rows, in order, as NumPy arrays."""
        size, tree = self._large(orders), runtime.tree()
        parts: list[list[Any]] = [[] for _ in orders]
        for piece in plan_epoch(orders, size):
            for block, first in self._blocks(piece):
                for step in range(block.batches):
                    found = self._predict(self._cut(block.arrays, step, size))
                    found = tree.map_structure(np.asarray, found)
                    for model, count in enumerate(piece.counts[first + step]):
                        one = tree.map_structure(lambda a, m=model, c=count: a[m, :c], found)
                        parts[model].append(one)
        return [tree.map_structure(lambda *each: np.concatenate(each), *one) for one in parts]

    def predict_same(self, features: Any) -> Any:
        """Returns all models' outputs for the same rows: (models, rows, ...), as NumPy arrays."""

        def program(state: State, numbers: Any, x: Any) -> Any:
            return stacking.map_stack(
                lambda one, values: self._one.predict(one, x, self._unstack(values)), state, numbers
            )

        found = self._program(("same",), lambda: program)(self.state, self._numbers, features)
        return runtime.tree().map_structure(np.asarray, found)

    def keep(self, better: np.ndarray, before: State | None) -> State:
        """Returns a state of those models of now where `better`, and of the others of before."""
        if before is None or better.all():
            return self.state
        ops = runtime.keras().ops

        def choose(new: Any, old: Any) -> Any:
            return ops.where(ops.reshape(better, (-1, *[1] * (len(new.shape) - 1))), new, old)

        return {
            part: [choose(new, old) for new, old in zip(values, before[part], strict=True)]
            for part, values in self.state.items()
        }

    def set_rates(self, rates: Sequence[float]) -> None:
        """Gives each model's optimizer a learning rate."""
        optimizer = self._one.model.optimizer
        own = keras_private.learning_rate(optimizer)
        values = list(self.state[OPTIMIZER])
        for place, variable in enumerate(optimizer.variables):
            if variable is own:
                values[place] = self._put(np.asarray(rates, np.float32))
        self.state = {**self.state, OPTIMIZER: values}

    def read(self, place: int) -> dict[str, list[np.ndarray]]:
        """Returns one model's state as NumPy arrays."""
        return {part: [np.asarray(one[place]) for one in self.state[part]] for part in self.state}

    # Programs ------------------------------------------------------------------------------------

    def _run(self, kind: str, piece: Piece, rates: np.ndarray | None) -> None:
        """Runs all steps of a piece."""
        for block, first in self._blocks(piece):
            room = self._capacity(block, piece)
            last = first + block.batches
            counts = self._put(_pad(piece.counts[first:last], room))
            asked = slice(piece.first + first, piece.first + last)
            given = () if rates is None else (self._put(_pad(rates[asked], room)),)
            done = 0
            for count in self._parts(block.batches):
                key = kind, piece.partial, rates is None, piece.batch_size, count * self._static
                program = self._program(key, partial(partial, self._loop, *key))
                scalars = [np.int32(done)] if self._static else [np.int32(done), np.int32(count)]
                self.state = program(
                    self.state,
                    self._numbers,
                    block.arrays,
                    counts,
                    *given,
                    *map(self._put, scalars),
                )
                done += count

    def _loop(
        self, kind: str, filled: bool, own_rate: bool, size: int, count: int, *arguments: Any
    ) -> State:
        """Traced: steps over the batches of a block; a `count` above 0 is a known trip count."""
        state, numbers, arrays, counts, *others = arguments
        rates = None if own_rate else others.pop(0)
        first, number = others[0], count if count else others[1]
        step = getattr(self._one, kind)

        def one(state: State, data: Any, numbers: Any, rows: Any, rate: Any) -> State:
            rate = None if own_rate else rate
            return step(state, Batch(data, rows, rate, self._unstack(numbers)), filled)

        def body(index: Any, state: State) -> State:
            place = first + index
            data = self._cut(arrays, place, size)
            rows = _row(counts, place)
            rate = rows if rates is None else _row(rates, place)
            return stacking.map_stack(one, state, data, numbers, rows, rate)

        return stacking.repeat(number, body, state)

    def _predict(self, data: Any) -> Any:
        def one(state: State, x: Any, numbers: Any) -> Any:
            return self._one.predict(state, x, self._unstack(numbers))

        def program(state: State, x: Any, numbers: Any) -> Any:
            return stacking.map_stack(one, state, x, numbers)

        x = runtime.keras().utils.unpack_x_y_sample_weight(data)[0]
        return self._program(("predict",), lambda: program)(self.state, x, self._numbers)

    def _read_logs(self) -> dict[str, np.ndarray]:
        def program(state: State) -> dict[str, Any]:
            return stacking.map_stack(self._one.results, state)

        found = self._program(("results",), lambda: program)(self.state)
        return {name: np.asarray(values) for name, values in found.items()}

    def _program(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Callable[..., Any]:
        """Returns a program, traced and compiled when it is first called."""
        if key not in self._programs:
            program = stacking.as_program(make(), self._compiled, self._device)

            def run(*arguments: Any) -> Any:
                with cpp_log.muted_cpp_log(), tensor_ops.device_scope(self._device):
                    return program(*arguments)

            self._programs[key] = run
        return self._programs[key]

    def _parts(self, count: int) -> list[int]:
        return split_count(count, choose_sizes(count)) if self._static else [count]

    def _unstack(self, numbers: Any) -> list[Any]:
        return [numbers[place] for place in range(numbers.shape[-1])]

    def _reset(self) -> None:
        self.state = {**self.state, METRICS: list(self._blank)}

    # Rows ----------------------------------------------------------------------------------------

    def _blocks(self, piece: Piece) -> Any:
        """Yields blocks of consecutive steps, each with the place of its first step."""
        rows = piece.batch_size * self.size
        loader = MapLoader(
            self._data,
            self._data.plan(self._device, "auto"),
            rows,
            piece.steps,
            device_transform=device_transform_for(self._data, False, rows),
            rows=NO_ROWS,
        )
        first = 0
        for block in loader.blocks(piece.rows.reshape(-1)):
            yield block, first
            first += block.batches

    def _capacity(self, block: Any, piece: Piece) -> int:
        rows = runtime.tree().flatten(block.arrays)[0].shape[0]
        return int(rows) // (piece.batch_size * self.size)

    def _cut(self, arrays: Any, step: Any, size: int) -> Any:
        """Returns a step's batches, each array of shape (models, size, ...)."""
        ops, rows = runtime.keras().ops, size * self.size

        def cut(array: Any) -> Any:
            rest = tuple(array.shape[1:])
            start = (step * rows, *[0] * len(rest))
            return ops.reshape(ops.slice(array, start, (rows, *rest)), (self.size, size, *rest))

        return runtime.tree().map_structure(cut, arrays)

    def _large(self, orders: Orders) -> int:
        """Returns rows per batch of a model where nothing is learned."""
        longest = max(1, *map(len, orders))
        return max(1, min(longest, choose_evaluation_rows(self._data.row_bytes, longest) // 4))

    def _put(self, value: Any) -> Any:
        return tensor_ops.put(value, self._device)


def _row(values: Any, place: Any) -> Any:
    """Traced: returns a row of a matrix."""
    ops = runtime.keras().ops
    return ops.slice(values, (place, 0), (1, values.shape[1]))[0]


def _pad(values: np.ndarray, steps: int) -> np.ndarray:
    """Returns rows of a matrix with zeros after them, so that every block has equally many."""
    return np.pad(values, ((0, steps - len(values)), (0, 0)))


def read_state(model: Model) -> dict[str, list[np.ndarray]]:
    """Returns the values of `state_variables()` as NumPy arrays."""
    return {
        part: [np.array(one.numpy()) for one in variables]
        for part, variables in state_variables(model).items()
    }


def blank_metrics(model: Model) -> list[np.ndarray]:
    """Returns the values of a model's metrics' variables after they were reset."""
    model.reset_metrics()
    return read_state(model)[METRICS]
