"""What many trainings gave: histories, predictions, and each model as a Keras model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import Value
from gpukeras.core.options import check_count
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.recipe.decoding import decode_outputs
from gpukeras.many.group_scaling import GroupScaling
from gpukeras.many.members import Member
from gpukeras.many.plan import StackPlan
from gpukeras.many.resamples import split_dataset
from gpukeras.many.step import state_variables
from gpukeras.many.structure import Structure
from gpukeras.models import clone, model_checks, model_recipes
from gpukeras.models.families import predictions
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.spec import Family
from gpukeras.models.label_numbers import NOTHING, LabelNumbers, apply_numbers
from gpukeras.training.fit import fill_baseline
from gpukeras.training.keras_functions import build_on
from gpukeras.training.trainer import tie_data


@dataclass
class ModelHistory:
    """What one model has come to in its training.

    Args:
        metrics: Each metric's value after each epoch.
        stopped: "" while it trains, then "completed", "early", "interrupted", "non_finite" or,
            where a worker could not train it, "failed".
        best_epoch: The epoch, from 1, whose weights it ends with; 0 for the last one.
    """

    metrics: dict[str, list[Value]] = field(default_factory=dict)
    stopped: str = ""
    best_epoch: int = 0

    @property
    def epochs(self) -> int:
        """Epochs in the history."""
        return len(self.metrics.get("loss", ()))


State = Mapping[str, Sequence[np.ndarray]]


@dataclass(frozen=True)
class Fitted:
    """A trained model.

    Args:
        history: Its history and end.
        state: Its state, see `step.state_variables()`.
        outputs: Its outputs for the rows that it held out, or None.
        error: Why its training failed, a sentence without its period, or "".
    """

    history: ModelHistory
    state: State
    outputs: Any
    error: str = ""


@dataclass(frozen=True)
class ModelProgress:
    """Where a model's training stands.

    Args:
        fitted: Its history so far and its state; its outputs once it is finished.
        epoch: Epochs that its stack has trained; a model that has stopped has fewer.
        finished: Whether nothing of it is left to train.
        best: The state that early stopping would restore, or None.
        monitors: `MetricMonitor.get_state()` of the stack's callbacks, by their names.
        factor: See `StackRates.factors`.
    """

    fitted: Fitted
    epoch: int = 0
    finished: bool = False
    best: State | None = None
    monitors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    factor: float = 1.0


@dataclass(frozen=True)
class Start:
    """Where a model's training begins.

    Args:
        member: Its rows.
        model: A compiled and built model, which nobody changes afterwards.
        structure: The model's structure, with what was learned from labels.
        learned: What its training rows' labels give, which the model has from others.
        begun: Where an earlier process has left it, or None.
    """

    member: Member
    model: Model
    structure: Structure
    learned: LabelNumbers = NOTHING
    begun: ModelProgress | None = None


def make_initial(
    model: Model, seed: int | None, data: MapDataset, learned: LabelNumbers = NOTHING
) -> Any:
    """Returns a copy of a model that has all variables, as a training of it begins.

    Args:
        model: A compiled and built model.
        seed: Seed of initial weights and dropout; None for the model's own weights.
        data: Rows that its variables are made for.
        learned: What its training rows' labels give, in the place of what the model has.

    Raises:
        ModelError: if Keras cannot copy it.
    """
    copy = clone.copy_model(model) if seed is None else clone.copy_with_seed(model, seed)
    apply_numbers(copy, learned)
    build_on(copy, data)
    return copy


def write_state(model: Model, state: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Puts a state of `Stack.read()` into a model."""
    for part, variables in state_variables(model).items():
        for variable, value in zip(variables, state[part], strict=True):
            variable.assign(value)


def prepare(model: Model, data: MapDataset) -> None:
    """Checks that a model fits the rows, and creates its variables.

    Raises:
        ModelError, DataError: if it does not.
    """
    model_checks.check_model(model)
    model_checks.check_rows(model, data, fits=True)
    build_on(model, data)


class FittedModels:
    """The models of a table; R holds it as a handle, so it is no record.

    Args:
        data: The rows.
        starts: Where each model's training began.
        fitted: What each has become.
        plan: Which models trained together.
        batch_size: Rows per step of a model.
        device: Where they trained.
        elapsed_s: Seconds in all.
        notes: Sentences about the splits that the user may not expect.
        scaling: How the rows were scaled by group, or None.
    """

    def __init__(
        self,
        data: MapDataset,
        starts: Sequence[Start],
        fitted: Sequence[Fitted],
        plan: StackPlan,
        *,
        batch_size: int,
        device: str,
        elapsed_s: float,
        notes: tuple[str, ...] = (),
        scaling: GroupScaling | None = None,
    ) -> None:
        """Keeps them."""
        self.data = data
        self.starts = starts
        self.fitted = fitted
        self.plan = plan
        self.members = [start.member for start in starts]
        self.batch_size, self.device = batch_size, device
        self.elapsed_s, self.notes = elapsed_s, notes
        self.scaling = scaling

    def model(self, number: int) -> Any:
        """Returns a model, by its number from 1, as a compiled Keras model of its own.

        Raises:
            SpecError: if there is no such model.
        """
        place = check_count("number", number, 1) - 1
        if place >= len(self.members):
            raise SpecError(
                f"There is no model {place + 1}: there are {len(self.members)}.", arg="number"
            )
        made, rows = self.initial(place + 1)
        write_state(made, self.fitted[place].state)
        tie_data(made, rows)
        fill_baseline(made, rows)
        return made

    def initial(self, number: int) -> tuple[Any, MapDataset]:
        """Returns a model before its training, and its rows: what `fit()` takes for the same."""
        start = self.starts[number - 1]
        made = make_initial(start.model, None, self.data, start.learned)
        member = start.member
        rows = split_dataset(self.data, member.train, member.held_out, member.seed)
        if self.scaling is not None:
            rows.recipe = self.scaling.recipe(rows.recipe, member.group)
        return made, rows

    def encoder(self) -> Any:
        """Returns a model that encodes new rows as `data` was encoded, before any scaling."""
        made = make_initial(self.starts[0].model, None, self.data)
        model_recipes.tie_recipe(made, self.data.recipe)
        return made

    def family(self, place: int) -> Family | None:
        """Returns the family of a model, with what it learned from its labels; None without one."""
        start = self.starts[place]
        return start.learned.family or family_of(start.model)

    def describe(self) -> dict[str, Any]:
        """Returns the table as plain values for R."""
        return {
            "members": [self._describe(place) for place in range(len(self.members))],
            "plan": self.plan,
            "batch_size": self.batch_size,
            "device": self.device,
            "elapsed_s": self.elapsed_s,
            "notes": list(self.notes),
        }

    def _describe(self, place: int) -> dict[str, Any]:
        member, history = self.members[place], self.fitted[place].history
        return {
            "model": member.number,
            "setting": member.setting + 1,
            "seed": member.seed,
            "fold": member.fold,
            "group": member.group,
            "rows": len(member.train),
            "held_out": len(member.held_out),
            "epochs": history.epochs,
            "best_epoch": history.best_epoch,
            "stopped": history.stopped,
            "history": history.metrics,
            "error": self.fitted[place].error,
        }

    def held_out(self, number: int) -> dict[str, Any] | None:
        """Returns a model's predictions for the rows that it held out, and their numbers from 1."""
        place = number - 1
        outputs, rule = self.fitted[place].outputs, self.data.recipe.label
        if not isinstance(outputs, np.ndarray):
            return None
        family = self.family(place)
        if family is None:
            (record,) = decode_outputs({"": rule} if rule else {}, {"": outputs}, {})
        else:
            record = predictions.read_output(family, outputs, "response")
        return {**record, "rows": (self.members[place].held_out + 1).astype(np.int32)}


def read_table(fits: FittedModels) -> dict[str, Any]:
    """Returns `FittedModels.describe()`."""
    return fits.describe()


def read_model(fits: FittedModels, number: Any) -> Any:
    """Returns `FittedModels.model()`."""
    return fits.model(number)


def read_held_out(fits: FittedModels) -> dict[str, Any] | None:
    """Returns what all models held out, one after another, with the model of each row."""
    held_out = [fits.held_out(member.number) for member in fits.members]
    records = [record for record in held_out if record is not None]
    if not records:
        return None
    counts = [0 if record is None else len(record["rows"]) for record in held_out]
    models = np.repeat(np.arange(1, len(held_out) + 1, dtype=np.int32), counts)
    joined = {
        name: np.concatenate([record[name] for record in records]) for name in ("rows", "values")
    }
    return {**records[0], **joined, "models": models}
