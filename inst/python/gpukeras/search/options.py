"""The options of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.checkpoint.manager import FolderSpec, parse_folder
from gpukeras.core.errors import SpecError
from gpukeras.core.options import (
    MOST_SEED,
    FitSpec,
    Spec,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    check_text,
    option,
)
from gpukeras.many.futures import Futures, check_workers
from gpukeras.models.metric_modes import Mode, choose_mode, find_mode
from gpukeras.search.halving import Rule, plan_rungs
from gpukeras.search.sampling import DESIGNS
from gpukeras.search.space import Space

FIT_OPTIONS = ("engine", "clip_norm", "clip_value", "clip_global_norm", "on_oom")
HELD_OUT = "val_"  # before the names of metrics of held-out rows, in Keras' histories
TRIALS = 20  # by default
MAXIMIZE_HINT = "Say it: `maximize = TRUE` or `maximize = FALSE`."
BATCH_SIZE = "batch_size"  # the setting that the training takes, whether or not the builder does


@dataclass(frozen=True)
class SearchSpec(Spec):
    """Options of a search.

    Args:
        trials: Combinations of settings to try; None for 20, or for all rows of a grid.
        seconds: Seconds after which the search ends, or None.
        epochs: Epochs of the trials that go furthest.
        min_epochs: Epochs after which trials are first compared; `epochs` for no halving.
        eta: Of so many trials one goes on, to so many times the epochs.
        metric: Name of a metric, with or without "val_": it is that of the held-out rows.
        maximize: Whether larger values are better; None decides by the metric's name, and refuses
            one that does not say it.
        design: How settings are drawn, see `sampling`.
        seed: Seed of settings, folds and models; None for that of the folder, or a new one.
        folder: Where the search is kept, also given as a path, or None.
        most: Models that train at a time; 1 for one after another, "auto" by memory and size.
        workers: Processes that train models which do not stack, "auto", or an engine that starts
            them, see `workers.plan`.
    """

    trials: int | None = option(None, check_count, 1, 1_000_000)
    seconds: float | None = option(None, check_positive)
    epochs: int = option(27, check_count)
    min_epochs: int = option(1, check_count)
    eta: int = option(3, check_count, 2)
    metric: str = option("val_loss", check_text, "the name of a metric")
    maximize: bool | None = option(None, check_flag)
    design: str = option("latin", check_choice, DESIGNS)
    seed: int | None = option(None, check_count, 0, MOST_SEED)
    folder: FolderSpec | None = option(None, parse_folder)
    most: str | int = option("auto", check_count)
    workers: str | int | Futures = option("auto", check_workers)

    def __post_init__(self) -> None:
        """Checks and normalizes every field."""
        super().__post_init__()
        if self.min_epochs > self.epochs:
            raise SpecError(
                f"`min_epochs` is {self.min_epochs}, above `epochs`, which is {self.epochs}.",
                arg="min_epochs",
            )
        if not self.metric.startswith(HELD_OUT):
            self._set(metric=HELD_OUT + self.metric)
        _ = self.mode  # fails before any work is done

    @property
    def mode(self) -> Mode:
        """Which values of the metric are better: "max" or "min"."""
        if self.maximize is None:
            return choose_mode(self.metric, arg="maximize", hint=MAXIMIZE_HINT)
        return "max" if self.maximize else "min"

    @property
    def rule(self) -> Rule:
        """The rule by which trials go on."""
        return Rule(plan_rungs(self.epochs, self.min_epochs, self.eta), self.eta, self.mode)


def check_mode(spec: SearchSpec, directions: Mapping[str, str]) -> None:
    """Checks what a metric's name says of its values against what the metric itself says.

    Args:
        spec: What was asked for.
        directions: See `keras_private.metric_directions()`.

    Raises:
        SpecError: if they contradict each other, and `maximize` was not given.
    """
    own = find_mode(spec.metric, directions)
    if spec.maximize is None and own != spec.mode:
        which = "Lower" if spec.mode == "min" else "Higher"
        raise SpecError(
            f"{which} values of `{spec.metric}` are better by its name, but not by its class.",
            hint=MAXIMIZE_HINT,
            arg="metric",
        )


def check_design(space: Space, grid: Sequence[Any] | None, spec: SearchSpec) -> None:
    """Checks that there is something to search, in one way.

    Raises:
        SpecError: without settings that vary, or with a grid beside them.
    """
    if grid is None and not space.varied:
        raise SpecError(
            "There is no setting to search: none has more than one value.",
            hint="Such as learning_rate = tune_range(1e-4, 1e-1, log = TRUE), or `grid`.",
            arg="...",
        )
    if grid is not None and space.varied:
        raise SpecError(
            f"`{space.varied[0].name}` varies beside `grid`, whose rows are all trials.",
            hint="Add a column to `grid`, or give one value.",
            arg=space.varied[0].name,
        )
    if grid is not None and spec.trials is not None:
        raise SpecError("`trials` is the number of rows of `grid`: give only one.", arg="trials")


def check_trials(drawn: Sequence[Mapping[str, Any]]) -> None:
    """Checks the batch size of each trial.

    Raises:
        SpecError: if one is not a whole number of at least 1.
    """
    for settings in drawn:
        if BATCH_SIZE in settings:
            check_count(BATCH_SIZE, settings[BATCH_SIZE])


def check_fit(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of the trainings, checked.

    Raises:
        SpecError: for an option that trainings of a search do not have, or a bad value.
    """
    unknown = [name for name in options if name not in FIT_OPTIONS]
    if unknown:
        raise SpecError(
            f"`fit` has `{unknown[0]}`, which trainings of a search do not take.",
            hint=f"They take {', '.join(FIT_OPTIONS)}.",
            arg="fit",
        )
    spec = FitSpec.from_dict(options)
    return {name: getattr(spec, name) for name in options}
