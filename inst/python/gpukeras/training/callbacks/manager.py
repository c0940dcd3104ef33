"""The features that accompany a training: rates, clipping, averages, early stopping, TensorBoard.

Each has a state that a checkpoint must keep; this module opens, queries and closes them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from gpukeras.checkpoint.state import Kept, TrainingState
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import FitSpec
from gpukeras.data.loader.loader import DataLoader
from gpukeras.engine.optimizer import (
    Rates,
    count_steps,
    hold_clipping,
    override_schedule,
    require_plain_rate,
)
from gpukeras.engine.schedules import ConstantSpec, PlateauSpec, parse_schedule
from gpukeras.engine.train_step import Averages
from gpukeras.training.callbacks.early_stopping import (
    EarlyStopping,
    Plateau,
    parse_early_stopping,
)
from gpukeras.training.callbacks.keras_class import as_callback
from gpukeras.training.callbacks.tensorboard import Board, open_board
from gpukeras.training.progress import Progress


@dataclass(frozen=True)
class CallbackManager:
    """The callbacks and other features of one training.

    Args:
        averages: Averages of the weights, or None.
        rates: The schedule's rates, or None for the optimizer's own.
        early: The Keras callback of early stopping, or None.
        plateau: The Keras callback that lowers the rates, or None.
        board: The Keras callback of TensorBoard, or None.
    """

    averages: Averages | None
    rates: Rates | None
    early: Any
    plateau: Any
    board: Board | None

    @property
    def callbacks(self) -> list[Any]:
        """The Keras callbacks that look at metrics."""
        return [callback for callback in (self.early, self.plateau) if callback is not None]

    @property
    def folder(self) -> str:
        """The folder of TensorBoard's files, or ""."""
        return "" if self.board is None else self.board.spec.folder

    @property
    def stopped(self) -> bool:
        """Whether early stopping has ended the training."""
        return self.early is not None and self.early.stopped

    @property
    def best_epoch(self) -> int:
        """The epoch, from 1, whose weights early stopping keeps; 0 where it keeps none."""
        return 0 if self.early is None else self.early.best_epoch

    @property
    def keeps_best(self) -> bool:
        """Whether the model ends with the weights of its best epoch."""
        return self.best_epoch > 0

    @property
    def reason(self) -> str:
        """Why early stopping ended the training, or ""."""
        if not self.stopped:
            return ""
        patience = count_of(self.early.spec.patience, "epoch")
        return f"{self.early.explain()} has not improved for {patience}"

    def explain(self) -> list[str]:
        """Returns notes about the training, as sentences."""
        notes = [] if self.board is None else self.board.notes
        epochs = [] if self.plateau is None else self.plateau.reductions
        if epochs:
            shown = ", ".join(map(str, epochs[:5])) + (", ..." if epochs[5:] else "")
            noun = "epochs" if epochs[1:] else "epoch"
            return [f"The learning rate was lowered after {noun} {shown}.", *notes]
        return list(notes)

    def show_averages(self) -> None:
        """Shows the averages to the validation and to callbacks at an epoch's end."""
        if self.averages is not None:
            self.averages.show()

    def hide_averages(self) -> None:
        """Restores the weights."""
        if self.averages is not None:
            self.averages.hide()

    def settle(self) -> None:
        """Gives the model its final weights."""
        if self.keeps_best:
            self.hide_averages()
            self.early.restore_best()
        else:
            self.show_averages()

    def get_state(self) -> dict[str, Kept]:
        """Returns the state for a checkpoint."""
        return {name: keeper.get_state() for name, keeper in self._keepers().items()}

    def set_state(self, kept: Mapping[str, Kept]) -> None:
        """Restores the state of a checkpoint; features that it lacks start anew."""
        for name, keeper in self._keepers().items():
            if name in kept:
                keeper.set_state(*kept[name])

    def _keepers(self) -> dict[str, Any]:
        names = ("averages", "early", "plateau", "rates")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@contextmanager
def open_callback_manager(
    model: Model,
    spec: FitSpec,
    progress: Progress,
    loader: DataLoader,
    *,
    state: TrainingState | None,
    rate_factor: float = 1.0,
    skips: bool = False,
) -> Iterator[CallbackManager]:
    """Opens the callbacks of a training; afterwards the optimizer has its own rate and clipping.

    Args:
        model: A compiled model whose variables exist.
        spec: The options of the training.
        progress: The progress of the training.
        loader: The data loader.
        state: A checkpoint's state, from which the callbacks resume, or None.
        rate_factor: The factor of all rates.
        skips: Whether some epochs are not validated; what watches the validation waits in these.

    Raises:
        SpecError: for options that do not fit each other, the model or the data.
    """
    early = None if spec.early_stopping is None else parse_early_stopping(spec.early_stopping)
    schedule = None if spec.schedule is None else parse_schedule(spec.schedule)
    if schedule is None and rate_factor != 1.0:
        require_plain_rate(model, "rate_scaling")
        schedule = ConstantSpec()
    kept = {} if state is None else state.keepers
    holding: AbstractContextManager[Rates | None] = nullcontext()
    steps = loader.steps if loader.exact else None
    if schedule is not None:
        start = kept["rates"][0].get("start") if "rates" in kept else None
        if state is None and progress.epoch:  # `initial_epoch`
            start = count_steps(model) - progress.epoch * (steps or 0)
        holding = override_schedule(model, schedule, steps, spec.epochs, start)
    clipping = hold_clipping(model, spec.clip_norm, spec.clip_value, spec.clip_global_norm)
    with clipping, holding as rates, open_board(model, spec, progress, loader) as board:
        lowers = rates is not None and isinstance(schedule, PlateauSpec)
        manager = CallbackManager(
            averages=None if spec.ema is None else Averages(model, spec.ema),
            rates=rates,
            early=None if early is None else as_callback(EarlyStopping, early),
            plateau=as_callback(Plateau, schedule, rates) if lowers else None,
            board=board,
        )
        if rates is not None:
            rates.factor.assign(rate_factor)
        for callback in manager.callbacks:
            callback.skips = skips
            callback.set_model(model)  # Keras does so too, but a fit may fail before that
        manager.set_state(kept)
        yield manager
