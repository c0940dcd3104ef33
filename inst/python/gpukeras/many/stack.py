"""Models of one structure, stacked along a first axis and trained by one program.

The rows are those of one dataset, which lie in memory once; each model has batches of its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.half_precision import widen_half
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.loader.loader import Block, LoaderOptions, MapLoader
from gpukeras.data.loader.transforms import device_transform_for
from gpukeras.engine.batch_rows import choose_rows, count_row_bytes
from gpukeras.engine.optimizer import STUCK_STEPS
from gpukeras.many.batches import Piece, plan_epoch
from gpukeras.many.programs import StackPrograms, open_programs
from gpukeras.many.step import METRICS, OPTIMIZER, WEIGHTS, State, state_variables
from gpukeras.many.structure import Path, Structure, is_rate

Orders = Sequence[np.ndarray]
ModelState = Mapping[str, Sequence[np.ndarray]]
NO_ROWS = np.zeros(0, np.int32)


Check = Callable[[], None]  # called between blocks of an epoch, which it ends by an error


@dataclass(frozen=True)
class Epoch:
    """What models train on in an epoch.

    Args:
        orders: Each model's row numbers in the epoch's order; empty for one that rests.
        batch_size: Rows per batch.
        rates: The learning rates of each model's next steps, (models, steps), float32, or None for
            those in the models' state.
        number: The epoch's number, from 0, by which augmentation draws.
        exact: See `plan_epoch()`.
        drop_last: See `plan_epoch()`.
    """

    orders: Orders
    batch_size: int
    rates: np.ndarray | None = None
    number: int = 0
    exact: bool = False
    drop_last: bool = False

    def part(self, models: slice) -> Epoch:
        """Returns the epoch of some of the models."""
        rates = None if self.rates is None else self.rates[models]
        return replace(self, orders=self.orders[models], rates=rates)


class Stack:
    """Models in training: a kind of model to `run_epochs()`, whose metrics are arrays.

    Args:
        programs: The programs of such a stack.
        states: The state of each model, from `read_state()`.
        data: The rows of all models.
        numbers: The settings in which they differ, (models, settings).

    Attributes:
        state: The models' state: the tensors of `state_variables()`, with an axis of models first.
            On JAX, training and evaluation take their memory.
        stop_training: See `run_epochs()`.
        stop_evaluating: See `evaluate_rows()`.
    """

    stop_training = stop_evaluating = False

    def __init__(
        self,
        programs: StackPrograms,
        states: Sequence[ModelState],
        data: MapDataset,
        numbers: np.ndarray,
    ) -> None:
        """Puts the states on the device; traces nothing."""
        self.size = len(states)
        self._programs = programs
        self._data = data
        self._device, self._model = programs.device, programs.model
        self._numbers = self._put(numbers.astype(np.float32))
        self.state = self.load(states)
        blank = blank_metrics(self._model)
        self._blank = [self._put(np.stack([array] * self.size)) for array in blank]
        self._outputs = count_row_bytes(self._model)

    def train(self, epoch: Epoch, check: Check = lambda: None) -> None:
        """Trains an epoch.

        Args:
            epoch: The rows of each model and how they train on them.
            check: Called before each block. After its error the state is one within the epoch.
        """
        rates = () if epoch.rates is None else self._put_rates(epoch.rates)
        pieces = plan_epoch(epoch.orders, epoch.batch_size, epoch.exact, epoch.drop_last)
        for place, piece in enumerate(pieces):
            self._run("train", piece, rates, epoch.number * len(pieces) + place, check)

    def evaluate(self, orders: Orders, batch_size: int | None = None, exact: bool = False) -> None:
        """Updates the metrics of each model with its rows.

        Args:
            orders: Each model's row numbers.
            batch_size: Rows per batch, or None for large batches.
            exact: See `plan_epoch()`.
        """
        for piece in plan_epoch(orders, batch_size or self._large(orders), exact):
            self._run("evaluate", piece)

    def get_metrics_result(self) -> dict[str, np.ndarray]:
        """Returns the loss and the metrics of each model since they were reset."""
        logs = self._programs.read_logs(self.state)
        return {name: np.asarray(values) for name, values in logs.items()}

    def reset_metrics(self) -> None:
        """Resets the metrics."""
        self.state = {**self.state, METRICS: _copy(self._blank)}

    def predict(self, orders: Orders) -> list[Any]:
        """Returns each model's outputs for its rows, in order, as NumPy arrays."""
        size, tree = self._large(orders), runtime.tree()
        parts: list[list[Any]] = [[] for _ in orders]
        for piece in plan_epoch(orders, size):
            for block, first in self._blocks(piece):
                for step in range(block.batches):
                    outputs = self._programs.predict(
                        self.state, self._numbers, block.arrays, step, size
                    )
                    outputs = tree.map_structure(_read, outputs)
                    for model, count in enumerate(piece.counts[first + step]):
                        kept = tree.map_structure(lambda a, m=model, c=count: a[m, :c], outputs)
                        parts[model].append(kept)
        return [tree.map_structure(lambda *each: np.concatenate(each), *kept) for kept in parts]

    def predict_same(self, features: Any) -> Any:
        """Returns all models' outputs for the same rows: (models, rows, ...), as NumPy arrays."""
        outputs = self._programs.predict_same(self.state, self._numbers, features)
        return runtime.tree().map_structure(_read, outputs)

    def copy_state(self) -> State:
        """Returns a copy of the state, whose memory the next step takes on JAX."""
        return {part: _copy(values) for part, values in self.state.items()}

    def keep(self, better: np.ndarray, before: State | None) -> State:
        """Returns a copy of the state of now where `better`, and of that of before for others."""
        if before is None or better.all():
            return self.copy_state()
        ops = runtime.keras().ops

        def choose(new: Any, old: Any) -> Any:
            return ops.where(ops.reshape(better, (-1, *[1] * (len(new.shape) - 1))), new, old)

        return {
            part: [choose(new, old) for new, old in zip(values, before[part], strict=True)]
            for part, values in self.state.items()
        }

    def set_rates(self, rates: Sequence[float]) -> None:
        """Gives each model's optimizer a learning rate."""
        optimizer = keras_private.without_scaling(self._model.optimizer)
        values = list(self.state[OPTIMIZER])
        place = self._find_variable(keras_private.learning_rate(optimizer))
        values[place] = self._put(np.asarray(rates, np.float32))
        self.state = {**self.state, OPTIMIZER: values}

    def count_steps(self) -> np.ndarray:
        """Returns the steps that each model's optimizer has done; loss scaling leaves some out."""
        optimizer = keras_private.without_scaling(self._model.optimizer)
        place = self._find_variable(keras_private.step_count(optimizer))
        return np.asarray(self.state[OPTIMIZER][place]).astype(np.int64)

    def are_stuck(self) -> np.ndarray:
        """Whether loss scaling has halved each model's scale so often that it trains no more."""
        optimizer = self._model.optimizer
        if not keras_private.scales_loss(optimizer):
            return np.zeros(self.size, bool)
        place = self._find_variable(optimizer.dynamic_scale)
        lowest = optimizer.initial_scale * 0.5**STUCK_STEPS
        return np.asarray(self.state[OPTIMIZER][place]) <= lowest

    def are_finite(self) -> np.ndarray:
        """Whether all numbers of each model's trainable weights are finite, (models, weights)."""
        ops = runtime.keras().ops
        finite = [
            np.asarray(ops.all(ops.isfinite(ops.reshape(weight, (self.size, -1))), axis=1))
            for weight in self.state[WEIGHTS]
        ]
        return np.reshape(np.array(finite, bool), (len(finite), self.size)).T

    def load(self, states: Sequence[ModelState]) -> State:
        """Returns a state of the stack, on the device, from one of each model."""
        return {
            part: [self._put(np.stack(arrays)) for arrays in zip(*lists, strict=True)]
            for part in states[0]
            for lists in [[state[part] for state in states]]
        }

    def read(self, state: State | None = None) -> list[dict[str, list[np.ndarray]]]:
        """Returns each model's state as NumPy arrays, which are parts of those of the stack.

        Args:
            state: A state of the stack; None for that of now.
        """
        tensors = self.state if state is None else state
        whole = {part: list(map(np.asarray, values)) for part, values in tensors.items()}
        return [
            {part: [array[place] for array in arrays] for part, arrays in whole.items()}
            for place in range(self.size)
        ]

    def _run(
        self,
        kind: str,
        piece: Piece,
        rates: tuple[Any, ...] = (),
        draw: int = 0,
        check: Check = lambda: None,
    ) -> None:
        """Runs all steps of a piece; `draw` is the number by which augmentation draws."""
        for block, first in self._blocks(piece, kind == "train", draw):
            check()
            room, last = self._capacity(block, piece), first + block.batches
            counts = self._put(_pad(piece.counts[first:last], room))
            self.state = self._programs.run(
                kind, self.state, self._numbers, block, piece=piece, counts=counts, rates=rates
            )

    def _put_rates(self, rates: np.ndarray) -> tuple[Any, Any]:
        """Returns the rates of a call; trainings of about as many steps share a program."""
        room = 2 ** int(rates.shape[1] - 1).bit_length()
        padded = np.pad(rates, ((0, 0), (0, room - rates.shape[1])), mode="edge")
        return self._put(padded), self._put(self.count_steps().astype(np.int32))

    def _find_variable(self, variable: Any) -> int:
        """Returns the place of a variable among the optimizer's."""
        return [each is variable for each in self._model.optimizer.variables].index(True)

    # Rows ----------------------------------------------------------------------------------------

    def _blocks(
        self, piece: Piece, training: bool = False, draw: int = 0
    ) -> Iterator[tuple[Block, int]]:
        """Yields blocks of consecutive steps, each with the place of its first step."""
        rows = piece.batch_size * self.size
        loader = MapLoader(
            self._data,
            self._data.plan(self._device, "auto"),
            rows,
            piece.steps,
            LoaderOptions(device_transform_for(self._data, training, rows)),
            rows=NO_ROWS,
        )
        first = 0
        for block in loader.blocks(piece.rows.reshape(-1), draw):
            yield block, first
            first += block.batches

    def _capacity(self, block: Block, piece: Piece) -> int:
        rows = runtime.tree().flatten(block.arrays)[0].shape[0]
        return int(rows) // (piece.batch_size * self.size)

    def _large(self, orders: Orders) -> int:
        """Returns rows per batch of a model where nothing is learned."""
        rows = max(1, *map(len, orders)) * self.size
        most = choose_rows(rows, self._data.row_bytes, self._outputs, self._device)
        return max(1, most // self.size)

    def _put(self, value: Any) -> Any:
        return tensor_ops.put(value, self._device)


def open_stack(
    models: Sequence[Model],
    structures: Sequence[Structure],
    data: MapDataset,
    device: str,
    *,
    states: Sequence[ModelState] | None = None,
    compiled: bool = True,
) -> Stack:
    """Returns a stack of models of one structure, with the settings in which they differ.

    Args:
        models: Compiled and built models, which nobody changes afterwards.
        structures: The structure of each.
        data: The rows of all of them.
        device: Where they train.
        states: The state of each; None for that of the models.
        compiled: Whether XLA compiles the programs.
    """
    if states is None:
        read = {id(model): read_state(model) for model in dict.fromkeys(models)}
        states = [read[id(model)] for model in models]
    paths = [path for path in structures[0].numbers if _differs(structures, path)]
    numbers = np.array(
        [[structure.numbers[path] for path in paths] for structure in structures], np.float32
    )
    programs = open_programs(
        models[0], structures[0], paths, len(models), device, compiled=compiled
    )
    return Stack(programs, states, data, numbers.reshape(len(models), len(paths)))


def _read(output: Any) -> np.ndarray:
    """Returns a model's output as a NumPy array, in which means have all of their digits."""
    values: np.ndarray = widen_half(np.asarray(output))
    return values


def _copy(tensors: Sequence[Any]) -> list[Any]:
    """Returns tensors that stay when a program takes the memory of the given ones."""
    return list(map(runtime.keras().ops.copy, tensors))


def _differs(structures: Sequence[Structure], path: Path) -> bool:
    """Whether models differ in a number, or from the model whose step is traced."""
    changed = any(path in structure.changed for structure in structures)
    return not is_rate(path) and (
        changed or len({structure.numbers[path] for structure in structures}) > 1
    )


def _pad(values: np.ndarray, steps: int) -> np.ndarray:
    """Returns rows of a matrix with zeros after them, so that every block has equally many."""
    return np.pad(values, ((0, steps - len(values)), (0, 0)))


def read_state(model: Model) -> dict[str, list[np.ndarray]]:
    """Returns the values of `state_variables()` as NumPy arrays."""
    return {
        part: [np.array(variable.numpy()) for variable in variables]
        for part, variables in state_variables(model).items()
    }


def blank_metrics(model: Model) -> list[np.ndarray]:
    """Returns the values of a model's metrics' variables after they were reset."""
    model.reset_metrics()
    return read_state(model)[METRICS]
