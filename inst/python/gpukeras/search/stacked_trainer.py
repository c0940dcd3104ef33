"""Trains trials side by side: models of one structure as a stack, the others in turns.

A trial has a model for each resample. Those of all trials of a job that have one structure, batch
size and number of epochs behind them are trained by one program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpukeras.backend import devices
from gpukeras.checkpoint.format import DamagedError
from gpukeras.checkpoint.owned_folder import Kept
from gpukeras.checkpoint.store import CheckpointStore, Saved
from gpukeras.core.errors import CheckpointError, ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of, find_reason
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.plan import choose_batch_size
from gpukeras.many.batches import count_steps
from gpukeras.many.fits import Fitted, ModelProgress, Start, State
from gpukeras.many.members import Member
from gpukeras.many.plan import (
    Candidate,
    ModelFacts,
    explain_alone,
    is_worth,
    plan_stacks,
    read_model_facts,
)
from gpukeras.many.resamples import Resample
from gpukeras.many.saved import SAVE_S, is_like, not_begun, pack_progress, unpack_progress
from gpukeras.many.stack import read_state
from gpukeras.many.structure import Structure, adapt_structure, describe_structure
from gpukeras.many.training import ManySpec, Task, train_stack
from gpukeras.models.label_numbers import LabelNumbers
from gpukeras.search.alone_trainer import AloneTrainer
from gpukeras.search.options import BATCH_SIZE
from gpukeras.search.trial_models import TrialModels
from gpukeras.search.trials import Outcome, Trial, summarise
from gpukeras.training.listener import ProgressReporter

STACK = "stack"  # folder of a trial's models that were stacked
MOST_MODELS = 256  # of a job: each trial's model is built before it begins
TIME_SHARE = 4  # a job may take one part in so many of the time that is left
FIRST = 4  # trials of the first job of a search with a limit of time


@dataclass
class _OpenTrial:
    """A trial whose model is built.

    Args:
        trial: The trial.
        model: Its model, with initial weights.
        structure: The model's structure; None for one that trains alone.
        facts: What the model needs.
        progress: Where it stands on each resample.
        learned: What it has to learn from the labels of each resample.
    """

    trial: Trial
    model: Model
    structure: Structure | None
    facts: ModelFacts
    progress: list[ModelProgress | None]
    learned: list[LabelNumbers]


@dataclass
class StackedTrainer:
    """A trainer of many models at a time.

    Args:
        alone: Trains the trials that cannot be stacked.
        kept: Where the search is kept.
        most: Models that train at a time, or "auto" (by memory).
    """

    alone: AloneTrainer
    kept: Kept = field(default_factory=Kept)
    most: int | str = "auto"
    _measured: int = 0  # parameters of which a save was measured
    _speed: float = 0.0  # seconds of a trial's epoch in the job before
    _alone: dict[int, str] = field(default_factory=dict)  # why a trial trains alone, by its number
    _together: dict[int, int] = field(default_factory=dict)  # models of its stack, by trial

    @property
    def models(self) -> TrialModels:
        """What makes the models of trials."""
        return self.alone.models

    @property
    def width(self) -> int:
        """Most trials of a job."""
        return max(1, MOST_MODELS // len(self.models.resamples))

    @property
    def reason(self) -> str:
        """Which trials trained together, and why others did not."""
        why, workers = next(iter(self._alone.values()), ""), self.alone.reason
        if not self._together:
            others = f"one model after another: {why}" if why else ""
            if self.alone.crossed:
                others = f"{workers}; not in stacks: {why}" if why else workers
            elif workers and others:
                others += f"; {workers}"
            return others
        largest = count_of(max(self._together.values()), "model")
        trials = count_of(len(self._together), "trial")
        others = f"; {len(self._alone)} alone: {why}" if why else ""
        others += f"; {workers}" if workers and why else ""
        return f"{trials} in stacks of up to {largest}{others}"

    def train(self, trials: Sequence[Trial], epochs: int) -> Iterator[Outcome]:
        """Yields an outcome a trial as soon as it is known; some may be left for the next call.

        Args:
            trials: Trials that all have trained equally long.
            epochs: Epochs to have trained in all; what earlier calls trained is not repeated where
                its state is kept.
        """
        chosen, began = trials[: self._choose_count(len(trials), epochs)], time.monotonic()
        opened: list[_OpenTrial] = []
        for trial in chosen:
            result = self.models.stopper.attempt(trial, epochs, partial(self._open, trial))
            if isinstance(result, _OpenTrial):
                opened.append(result)
            elif result is not None:
                yield result
        if self.models.stopper.look():
            return
        together = self._choose_together(opened, epochs)
        apart = [[entry] for entry in opened if entry.trial.number in self._alone]
        self._measure([together, *apart])
        yield from self._train_together(_Rung(self.models, together, epochs))
        alone = [entry.trial for entry in opened if entry.trial.number in self._alone]
        for entry in together:
            self.models.built.pop(entry.trial.number, None)
        yield from self.alone.train(alone, epochs)
        if chosen:
            self._speed = (time.monotonic() - began) / len(chosen) / epochs

    def _measure(self, groups: Sequence[Sequence[_OpenTrial]]) -> None:
        """Checks that trials can be saved within the grace period, if they are more than before.

        Args:
            groups: Trials that are saved at a time.

        Raises:
            SpecError, CheckpointError: see `Kept.check_grace()`.
        """
        sizes = [sum(entry.model.count_params() for entry in group) for group in groups]
        size, count = max(sizes), len(self.models.resamples)
        if self.kept.grace_s is None or size <= self._measured:
            return
        self._measured, largest = size, groups[sizes.index(size)]

        def write(folder: Path) -> None:
            for entry in largest:
                progress = [not_begun(entry.model)] * count
                save_checkpoints(folder / f"{entry.trial.number:04d}", progress)

        self.kept.check_grace(write)

    def drop(self, trials: Sequence[Trial]) -> None:
        """Deletes what is kept of trials."""
        self.models.drop(trials)

    def _choose_count(self, count: int, epochs: int) -> int:
        """Returns how many trials to train, so that a search with little time has results."""
        left = self.models.stopper.left_s
        if left is None:
            return count
        if not self._speed:
            return min(count, FIRST)
        return max(1, min(count, int(left / TIME_SHARE / (self._speed * epochs))))

    # Opening -------------------------------------------------------------------------------------

    def _open(self, trial: Trial) -> _OpenTrial:
        model = self.models.model(trial)
        size = find_batch_size(trial, self.models.resamples[0], self.models.data)
        facts = read_model_facts(model, self.models.data.row_bytes, size)
        structure, why = None, self._refuse(trial, model, facts)
        if not why:
            try:
                structure = describe_structure(model)
            except ModelError as error:
                why = find_reason(error)
        if structure is None:
            self._alone.setdefault(trial.number, why)  # the first reason is the cause
        folder, count = self.models.folder(trial), len(self.models.resamples)
        progress: list[ModelProgress | None] = [None] * count
        if folder is not None:
            progress = load_checkpoints(folder / STACK, read_state(model), count)
        learned = self.models.learn(trial)
        return _OpenTrial(trial, model, structure, facts, progress, learned)

    def _refuse(self, trial: Trial, model: Model, facts: ModelFacts) -> str:
        """Returns why a trial trains alone, or ""."""
        options, data = self.models.options, self.models.data
        if self.most == 1:
            return "as asked"
        if options.get("engine", "auto") == "keras":
            return "the engine is Keras'"
        if any(options.get(name) for name in options if name.startswith("clip_")):
            return "gradients are clipped"
        if self.models.keeps(trial):
            return "it began alone"
        return explain_alone(model, data, facts, devices.current().device, self.most)

    def _choose_together(self, opened: Sequence[_OpenTrial], epochs: int) -> list[_OpenTrial]:
        """Returns the trials that are stacked: those with enough others, or that have begun so."""
        keys = [None if entry.structure is None else entry.structure.key for entry in opened]
        together = []
        for entry, key in zip(opened, keys, strict=True):
            if key is None:
                continue
            resample, data = self.models.resamples[0], self.models.data
            size = find_batch_size(entry.trial, resample, data)
            steps = epochs * count_steps(len(resample.train), size)
            if any(entry.progress) or is_worth(keys.count(key) * len(self.models.resamples), steps):
                together.append(entry)
            else:
                self._alone[entry.trial.number] = "too few models have its structure"
        return together

    # Training ------------------------------------------------------------------------------------

    def _train_together(self, rung: _Rung) -> Iterator[Outcome]:
        stopper, began = self.models.stopper, time.monotonic()
        for starts, task in rung.plan(self.most):
            if stopper.look():
                break
            self._run(rung, starts, task)
        each = (time.monotonic() - began) / max(1, len(rung.opened))
        for entry in rung.opened:
            if entry.trial.number not in self._alone:
                outcome = rung.judge(entry, each)
                if outcome is not None:
                    yield outcome
        rung.save()  # where that fails, no outcome is lost

    def _run(self, rung: _Rung, starts: Sequence[Start], task: Task) -> None:
        numbers = {rung.places[start.member.number][0].trial.number for start in starts}
        try:
            rung.note(train_stack(starts, task))
        except KeyboardInterrupt:
            self.models.stopper.interrupt()
        except Exception as error:  # alone, a trial shows what is wrong with it
            why = f"a stack of them failed: {find_reason(error)}"
            self._alone |= dict.fromkeys(numbers, why)
        else:
            for number in numbers:
                self._together[number] = max(self._together.get(number, 0), len(starts))


def find_batch_size(trial: Trial, resample: Resample, data: MapDataset) -> int:
    """Returns the rows per step that `fit()` would take for a trial."""
    wanted = trial.settings.get(BATCH_SIZE, data.spec.batch_size)
    return choose_batch_size(len(resample.train), wanted if wanted == "auto" else int(wanted))[0]


class _Rung:
    """The training of trials up to a number of epochs."""

    def __init__(self, models: TrialModels, opened: Sequence[_OpenTrial], epochs: int) -> None:
        """Numbers the models."""
        self._models = models
        self.opened = opened
        self.epochs = epochs
        count = len(models.resamples)
        self.places = [(entry, place) for entry in opened for place in range(count)]
        self._failed: set[int] = set()  # trials whose loss was no number
        self._saved = time.monotonic()

    def plan(self, most: int | str) -> Iterator[tuple[list[Start], Task]]:
        """Yields the stacks: models of one structure, batch size and number of epochs behind."""
        sizes: dict[int, int] = {}
        candidates: list[Candidate] = []
        for number, (entry, place) in enumerate(self.places):
            begun = entry.progress[place]
            done = 0 if begun is None else begun.epoch
            if done < self.epochs and entry.structure is not None:
                resample = self._models.resamples[place]
                size = find_batch_size(entry.trial, resample, self._models.data)
                sizes[number] = size
                key = repr((entry.structure.key, size, done))
                candidates.append(Candidate(key, len(resample.train), entry.facts))
        numbers = list(sizes)
        free_bytes = devices.free_bytes(devices.current().device)
        for places in plan_stacks(candidates, free_bytes=free_bytes, most=most).stacks:
            starts = [self._start(numbers[place]) for place in places]
            yield starts, self._make_task(sizes[numbers[places[0]]])

    def judge(self, entry: _OpenTrial, seconds: float) -> Outcome | None:
        """Returns the outcome of a trial; None if the search ends before it has trained enough."""
        number = entry.trial.number
        histories = [{} if one is None else one.fitted.history.metrics for one in entry.progress]
        shortest = min(len(each.get("loss", ())) for each in histories)
        if number in self._failed:
            why = f"the loss or a weight is not finite in epoch {shortest + 1}"
            return Outcome(number, self.epochs, seconds=seconds, error=why)
        if shortest < self.epochs:
            return None
        return summarise(number, self.epochs, histories, seconds)

    def save(self) -> None:
        """Writes where the trials stand, for the next job and for a search after a kill."""
        self._saved = time.monotonic()
        for entry in self.opened:
            folder = self._models.folder(entry.trial)
            if folder is not None and entry.trial.number not in self._failed:
                try:
                    save_checkpoints(folder / STACK, entry.progress)
                except (OSError, CheckpointError) as error:
                    if isinstance(error, CheckpointError) and error.__cause__ is None:
                        raise  # not the disk's fault, such as files of the user's
                    self._models.give_up_states(error)

    def _make_task(self, batch_size: int) -> Task:
        def heard(event: Mapping[str, Any]) -> bool:
            return self._models.stopper.emit({"kind": "waiting"})

        return Task(
            self._models.joined[0],
            ManySpec(epochs=self.epochs, predictions=False),
            batch_size,
            devices.current().device,
            ProgressReporter(heard, self.epochs),
            after_epoch=self._save_now_and_then,
        )

    def _start(self, number: int) -> Start:
        entry, place = self.places[number]
        assert entry.structure is not None
        resample, begun = self._models.resamples[place], entry.progress[place]
        member = Member(number, 0, None, resample.name, "", resample.train, resample.held_out)
        structure = adapt_structure(entry.structure, entry.learned[place])
        member = member.shift(self._models.joined[1][place])
        return Start(member, entry.model, structure, entry.learned[place], begun)

    def _save_now_and_then(self, read: Callable[[], dict[int, ModelProgress]]) -> None:
        if time.monotonic() - self._saved > SAVE_S:
            self.note({number: progress.fitted for number, progress in read().items()})
            self.save()

    def note(self, results: Mapping[int, Fitted]) -> None:
        """Notes where models stand, for which a later rung is more epochs of the same training."""
        for number, fitted in results.items():
            entry, place = self.places[number]
            if fitted.history.epochs:
                entry.progress[place] = _go_on(fitted)
            if fitted.history.stopped == "non_finite":
                self._failed.add(entry.trial.number)


# Where the models of stacked trials stand: a store of checkpoints for each trial -----------------


def save_checkpoints(folder: Path, progress: Sequence[ModelProgress | None]) -> None:
    """Writes where a trial stands on each resample.

    Args:
        folder: The trial's folder; it is made if it is missing.
        progress: One entry a resample; None for one that has not begun.

    Raises:
        CheckpointError, OSError: if it cannot be written; what was there stays.
    """
    folder.parent.mkdir(exist_ok=True)
    begun = {place: each for place, each in enumerate(progress) if each is not None}
    plain, arrays = pack_progress(begun)
    with CheckpointStore(folder, keep=1) as store:
        store.save({**plain, "resamples": len(progress)}, arrays)


def load_checkpoints(folder: Path, like: State, count: int) -> list[ModelProgress | None]:
    """Returns where a trial stands on each resample; of nothing that is damaged or another model's.

    Args:
        folder: The trial's folder, which may be missing.
        like: A state of the trial's model.
        count: Number of resamples.
    """
    loaded = dict[int, ModelProgress]()
    if folder.is_dir():
        # Where it fails, the trial begins anew.
        with suppress(CheckpointError), CheckpointStore(folder, keep=1) as store:
            store.load(lambda saved: loaded.update(_read(saved, like, count)))
    return [loaded.get(place) for place in range(count)]


def _read(saved: Saved, like: State, count: int) -> dict[int, ModelProgress]:
    progress = unpack_progress(saved.plain, saved.arrays)
    if saved.plain.get("resamples") != count:
        raise DamagedError("it is of other resamples")
    for each in progress.values():
        if not each.fitted.history.epochs or not is_like(each.fitted.state, like):
            raise DamagedError("it is of another model")
    return {place: _go_on(each.fitted) for place, each in progress.items()}


def _go_on(fitted: Fitted) -> ModelProgress:
    """Returns where a training goes on, by its history and state alone."""
    history = replace(fitted.history, stopped="")
    return ModelProgress(replace(fitted, history=history, outputs=None, error=""), history.epochs)
