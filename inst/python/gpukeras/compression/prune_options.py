"""Options of pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpukeras.compression.layer_options import check_names, check_options
from gpukeras.compression.report import ReportSpec
from gpukeras.compression.sparsity_schedule import POWERS
from gpukeras.compression.structured import NORMS, TARGETS
from gpukeras.core.errors import SpecError
from gpukeras.core.options import (
    FitSpec,
    check_choice,
    check_count,
    check_flag,
    check_fraction,
    check_positive,
    option,
)
from gpukeras.training.callbacks.early_stopping import parse_early_stopping

SCOPES = ("layer", "global")
NOT_FIT = ("checkpoint", "tensorboard")  # options of a training: a pruning cannot be resumed later


@dataclass(frozen=True)
class PruneSpec(ReportSpec):
    """Options of a pruning, with the fields of `ReportSpec`.

    Args:
        sparsity: Share that is removed, in (0, 1): of the weights; of the FLOPs or units if
            structured.
        schedule: "cubic", "linear", or "constant" (all at the first step).
        structured: Remove whole units and filters, so that the model gets smaller and faster.
        epochs: Epochs of training; 0 prunes the model without training.
        scope: "layer" (the same share of each layer) or "global" (the smallest weights of all
            layers).
        exclude: Names of layers that are not pruned.
        frequency: Steps from one update of the masks to the next, or None.
        initial: Share of zeros at the start, below `sparsity`.
        ramp: Part of the training, in (0, 1], in which the share of zeros grows.
        target: If structured, what `sparsity` is a share of: "flops" or "units".
        norm: If structured, how a unit is scored: "l2", "l1" (of its weights), or "bn" (the scale
            of the batch normalization after it).
        learning_rate: Of the training, or None for the model's own.
        fit: More fields of `FitSpec`.
    """

    sparsity: float = option(0.8, check_fraction)
    schedule: str = option("cubic", check_choice, tuple(POWERS))
    structured: bool = option(False, check_flag)
    epochs: int = option(5, check_count, 0)
    scope: str = option("layer", check_choice, SCOPES)
    exclude: tuple[str, ...] = option((), check_names)
    frequency: int | None = option(None, check_count)
    initial: float = 0.0
    ramp: float = option(0.75, check_positive, 1.0)
    target: str = option("flops", check_choice, TARGETS)
    norm: str = option("l2", check_choice, NORMS)
    learning_rate: float | None = option(None, check_positive)
    fit: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks and normalizes every field."""
        super().__post_init__()
        self._set(fit=_check_fit(self.fit), initial=_check_initial(self.initial, self.sparsity))

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings for the report: the fields that affect this kind of pruning."""
        shown = ["sparsity", "structured", "epochs", "scope", "exclude"]
        shown += ["target", "norm"] if self.structured else ["schedule", "ramp"]
        return {name: getattr(self, name) for name in shown}


def _check_fit(options: Any) -> dict[str, Any]:
    """Checks the training's options; R's empty list arrives as a list."""
    checked = check_options(options)
    for name in NOT_FIT:
        if checked.get(name) is not None:
            raise SpecError(
                f"`{name}` is not for pruning, whose masks grow in one training.",
                hint="Train the pruned model on with gpu_fit(): its zeros stay.",
                arg=name,
            )
    FitSpec.from_dict(checked)  # fails before any work is done
    return checked


def _check_initial(initial: Any, final: float) -> float:
    value = 0.0 if initial == 0 else check_fraction("initial", initial)
    if value > final:
        raise SpecError("`initial` must not be above `sparsity`.", arg="initial")
    return value


def late_stopping(spec: PruneSpec, epoch: int) -> dict[str, Any]:
    """Returns the training's options; early stopping ignores epochs in which the masks grow."""
    options = dict(spec.fit)
    if options.get("early_stopping") is not None:
        requested = parse_early_stopping(options["early_stopping"])
        start = max(requested.start_epoch, epoch + 1)
        options["early_stopping"] = asdict(replace(requested, start_epoch=start))
    return options
