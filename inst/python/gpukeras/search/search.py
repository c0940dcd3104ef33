"""`gpu_tune()`: checks a search, runs its trials, and reports what was found."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.checkpoint.fingerprint import describe_order, describe_rows, read_versions
from gpukeras.checkpoint.manager import FolderSpec
from gpukeras.checkpoint.owned_folder import open_kept
from gpukeras.core.errors import GpuKerasError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import MOST_SEED
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.chunks import GeneratorInterrupt
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.many.resamples import (
    Resample,
    digest_numbers,
    note_absent,
    open_resamples,
    read_classes,
    split_dataset,
)
from gpukeras.search.alone_trainer import AloneTrainer
from gpukeras.search.halving import choose_dropped, choose_job, plan_epochs
from gpukeras.search.options import (
    HELD_OUT,
    TRIALS,
    SearchSpec,
    check_design,
    check_fit,
    check_mode,
    check_trials,
)
from gpukeras.search.report import (
    Tuning,
    count_epochs,
    find_best,
    make_trace,
    mean_of,
    note_failures,
    read_results,
)
from gpukeras.search.sampling import draw_settings
from gpukeras.search.space import Space, describe_space, parse_grid, parse_space
from gpukeras.search.stacked_trainer import StackedTrainer
from gpukeras.search.stopper import Stopper
from gpukeras.search.study import KIND, Study
from gpukeras.search.trial_models import Build, TrialModels
from gpukeras.search.trials import Outcome, Trial
from gpukeras.training.evaluate import evaluate
from gpukeras.training.model_guard import kept_model

PROBED = 32  # held-out rows on which a first model shows its metrics


@dataclass(frozen=True)
class Request:
    """A search as it was asked for, checked as far as no model is needed.

    Args:
        spec: Its options.
        space: Its settings.
        grid: The settings of all trials, or None to draw them.
        fit: Options of the trainings.
        builder: The user's function as text.
    """

    spec: SearchSpec
    space: Space
    grid: list[dict[str, Any]] | None
    fit: dict[str, Any]
    builder: str

    @property
    def options(self) -> dict[str, Any]:
        """The options of the trainings: with a seed of the user's no clock chooses an engine."""
        engine = self.fit.get("engine", "auto")
        repeats = self.spec.seed is not None and engine == "auto"
        return {**self.fit, "engine": "repeatable" if repeats else engine}

    def identity(self, seed: int, data: Dataset, resamples: Sequence[Resample]) -> dict[str, Any]:
        """Returns JSON values by which the search is recognised, see `study.WORDS`."""
        spec = self.spec
        names = ("design", "metric", "epochs", "min_epochs", "eta")
        return {
            "space": describe_space(self.space),
            "grid": self.grid,
            **{name: getattr(spec, name) for name in names},
            "mode": spec.rule.mode,
            "fit": self.fit,
            "seed": seed,
            "builder": self.builder,
            "data": {**describe_rows(data), "batch_size": data.spec.batch_size},
            "order": describe_order(data),
            "resamples": {
                each.name: [digest_numbers(each.train), digest_numbers(each.held_out)]
                for each in resamples
            },
            "versions": read_versions(),
        }

    def draw(self, seed: int, drawn: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the settings of all trials; those that were drawn before come first."""
        count = (self.spec.trials or TRIALS) - len(drawn)
        settings = list(drawn) if self.grid is None else []
        if self.grid is not None:
            fixed = self.space.place(np.zeros(0))
            settings = [{**fixed, **row} for row in self.grid]
        elif count > 0:
            settings += draw_settings(self.space, count, self.spec.design, seed, drawn)
        check_trials(settings)
        return settings


@dataclass
class Search:
    """A search in progress.

    Args:
        request: What was asked for.
        seed: The seed of settings, folds and models.
        resamples: The splits of the rows.
        study: What is known of the trials.
        stopper: The clock and the listener.
        absent: Sentences about classes that a resample lacks.

    Attributes:
        trials: All trials, by number.
        found: Trials that the study's folder held.
    """

    request: Request
    seed: int
    resamples: Sequence[Resample]
    study: Study
    stopper: Stopper
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Draws the trials."""
        drawn = self.request.draw(self.seed, self.study.drawn)
        numbered = enumerate(drawn, start=1)
        self.trials = {n: Trial(n, each, draw_seed(self.seed, n)) for n, each in numbered}
        self.found = len(self.study.outcomes)

    def run(self, trainer: StackedTrainer) -> None:
        """Trains what the rule asks for, until nothing is left or the search is to end.

        The rule is asked from the start, and the folder answers for what it knows: a search that
        was ended within a job goes on with the rest of that job.
        """
        rule, known = self.request.spec.rule, self.study.outcomes
        asked: dict[int, dict[int, Outcome]] = {}
        while not self.stopper.look():
            results = read_results(asked, self.request.spec.metric)
            begun = results.get(rule.rungs[0], {})
            waiting = [number for number in self.trials if number not in begun]
            job = choose_job(rule, results, waiting, trainer.width)
            if job is None:
                return
            trials = [self.trials[number] for number in job.trials]
            missing = [each for each in trials if job.epochs not in known.get(each.number, {})]
            for outcome in trainer.train(missing, job.epochs) if missing else ():
                self._record(outcome)
            for number in job.trials:
                if job.epochs in known.get(number, {}):
                    asked.setdefault(number, {})[job.epochs] = known[number][job.epochs]
            results = read_results(asked, self.request.spec.metric)
            dropped = choose_dropped(rule, results, len(self.trials))
            trainer.drop([trial for trial in trials if trial.number in dropped])

    def report(self, together: str) -> Tuning:
        """Returns what is known now; `together` says which trials were stacked, and why."""
        spec, outcomes = self.request.spec, self.study.outcomes
        return Tuning(
            metric=spec.metric,
            mode=spec.rule.mode,
            best=find_best(spec.rule, spec.metric, self.trials, outcomes),
            trace=make_trace(spec.metric, self.trials, outcomes),
            settings=describe_space(self.request.space),
            trials=len(self.trials),
            failed=sum(any(o.error for o in rungs.values()) for rungs in outcomes.values()),
            rungs=spec.rule.rungs,
            resamples=tuple(each.name for each in self.resamples),
            epochs_spent=count_epochs(outcomes, len(self.resamples)),
            found=self.found,
            stopped=self.stopper.stopped or "completed",
            seed=self.seed,
            folder="" if self.study.folder is None else str(self.study.folder),
            unsaved=self.study.unsaved,
            elapsed_s=self.stopper.elapsed_s,
            together=together,
            notes=(
                *self.study.notes,
                *self.absent,
                *self._note_few(),
                *note_failures(outcomes),
            ),
        )

    def _record(self, outcome: Outcome) -> None:
        spec, number = self.request.spec, outcome.trial
        judged = judge(outcome, spec.metric)
        self.study.record(self.trials[number], judged)
        best = find_best(spec.rule, spec.metric, self.trials, self.study.outcomes)
        event = {"kind": "trial", "trial": number, "trials": len(self.trials)}
        event |= {"epochs": judged.epochs, "metric": spec.metric, "error": judged.error}
        event["value"] = mean_of(judged, spec.metric)
        event["best"] = None if best is None else best.value
        event["step"] = count_epochs(self.study.outcomes, 1)
        event["steps"] = plan_epochs(spec.rule, len(self.trials))
        self.stopper.emit(event)

    def _note_few(self) -> tuple[str, ...]:
        drawn = len(self.trials)
        if self.request.grid is not None or drawn >= (self.request.spec.trials or TRIALS):
            return ()
        return (f"The settings have {count_of(drawn, 'combination')}: all of them are trials.",)


def search(
    data: Dataset,
    build: Build,
    options: Mapping[str, Any],
    *,
    settings: Mapping[str, Any] | None = None,
    grid: Sequence[Mapping[str, Any]] | None = None,
    resamples: Any = None,
    groups: Any = None,
    times: Any = None,
    fit: Mapping[str, Any] | None = None,
    builder: str = "",
    new_seed: float = 0,
    on_event: OnEvent | None = None,
) -> Tuning:
    """Searches settings of models.

    Args:
        data: The rows.
        build: The user's function, see `building`.
        options: Fields of `SearchSpec`.
        settings: The settings by name, see `space.parse_space()`.
        grid: Rows of a grid, each with the settings of a trial; those of `settings` are then fixed.
        resamples: See `resamples.open_resamples()`.
        groups: One number a row: rows of one group stay together.
        times: One number a row: no later row trains than those held out.
        fit: Fields of `FitSpec` among `FIT_OPTIONS`.
        builder: The user's function as text, by which a folder's search is recognised.
        new_seed: The seed if neither the options nor the folder have one.
        on_event: Called with plain dicts: `{kind: "trial", ...}` after each outcome, and
            `{kind: "waiting"}` in between; true ends the search.

    Raises:
        SpecError, DataError: for settings, resamples or options that cannot be.
        ModelError, GeneratorError: if no trial has a model that fits the rows.
        CheckpointError: if the folder cannot be used, or holds another search.
        PreemptedError: if the process was asked to end, and the search is saved in its folder.
    """
    spec = SearchSpec.from_dict(options)
    rows = None if grid is None else parse_grid(grid)
    request = Request(spec, parse_space(settings or {}), rows, check_fit(fit or {}), builder)
    check_design(request.space, rows, spec)
    with open_kept(spec.folder or FolderSpec(), KIND, Study) as study:
        stopper = Stopper(spec.seconds, on_event, study.notice)
        seed = int(study.known.get("seed", new_seed)) if spec.seed is None else spec.seed
        planned = open_resamples(data, resamples, groups=groups, times=times, seed=seed)
        assert isinstance(data, MapDataset)  # `open_resamples()` refuses others
        identity = request.identity(seed, data, planned)
        study.compare(identity)
        named = [replace(each, name=f"`{each.name}`") for each in planned]
        absent = note_absent(named, read_classes(data))
        running = Search(request, seed, planned, study, stopper, absent)
        with _open_states(study, spec) as states:
            models = TrialModels(build, data, planned, request.options, states, stopper)
            _check_models(models, running.trials, spec)
            study.begin(identity, [dict(trial.settings) for trial in running.trials.values()])
            with study.ending(), ExitStack() as resources:
                alone = AloneTrainer(models, spec.workers, resources)
                trainer = StackedTrainer(alone, study, spec.most)
                running.run(trainer)
        if not stopper.stopped:
            study.remove_states()
    return running.report(trainer.reason)


def draw_seed(seed: int, number: int) -> int:
    """Returns the seed of a trial."""
    return int(np.random.default_rng([seed, number]).integers(MOST_SEED))


def judge(outcome: Outcome, metric: str) -> Outcome:
    """Returns the outcome, as a failure if it lacks the metric or has no number for it."""
    if outcome.error:
        return outcome
    if metric not in outcome.metrics:
        return replace(outcome, error=f"the model has no metric `{metric}`")
    if not all(map(math.isfinite, outcome.metrics[metric])):
        return replace(outcome, error=f"`{metric}` is not finite")
    return outcome


def _check_models(models: TrialModels, trials: Mapping[int, Trial], spec: SearchSpec) -> None:
    """Checks that a trial has a model that fits the rows, and that it has the metric.

    Raises:
        SpecError: for an unknown metric, or one that belies its name.
        GpuKerasError: why there is no model, if no trial has one.
    """
    problem: GpuKerasError | None = None
    for trial in trials.values():
        try:
            model = models.model(trial)
        except GeneratorInterrupt:
            raise
        except GpuKerasError as error:
            problem = error
            continue
        resample = models.resamples[0]
        part = split_dataset(models.data, resample.train, resample.held_out[:PROBED])
        with kept_model(model):
            metrics = evaluate(model, part, "validation")["metrics"]
        if spec.metric.removeprefix(HELD_OUT) not in metrics:
            raise SpecError(
                f"`metric` is `{spec.metric}`, and the model of trial {trial.number} has no such.",
                hint=f"It has {', '.join(HELD_OUT + name for name in metrics)}.",
                arg="metric",
            )
        check_mode(spec, keras_private.metric_directions(model))
        return
    assert problem is not None  # there is at least one trial
    raise problem


@contextmanager
def _open_states(study: Study, spec: SearchSpec) -> Iterator[Path | None]:
    """Yields the folder of the checkpoints; None where no training would ever go on."""
    if study.folder is not None:
        yield study.folder / "states"
    elif len(spec.rule.rungs) == 1:
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
            yield Path(folder)
