"""Grows masks while a model is trained: the smallest weights are set to 0, a few at a time.

The share of zeros follows Zhu & Gupta (2017): after step t it is

    s(t) = final + (initial - final) * (1 - (t - first) / (last - first)) ** 3

It grows fast at first, when many weights are redundant, and slower later, when each one matters.
The masks are updated at a fixed interval, inside the step: the optimizer's step count determines
when, and the weights are sorted on their device. So no engine pauses for an update, and all engines
produce the same masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.compression.masks import Kernel, Mask, own_constraint, set_mask

POWERS = {"cubic": 3, "linear": 1, "constant": 0}  # 0: all of it at the first step
UPDATES = 50  # of the masks, if there are enough steps
MOST_STEPS = 100  # from one update to the next, by default
LEAST_LEFT = 0.01  # of each kernel under a global threshold: an empty kernel would block the signal


@dataclass(frozen=True)
class Ramp:
    """The growth of the share of zeros.

    Args:
        initial: Share of zeros at the start, in [0, 1).
        final: Share of zeros at the end, in (0, 1).
        first: Step of the training, counted from 1, with the first update of the masks.
        last: Step with the last update.
        every: Steps from one update to the next.
        power: 3 is cubic, 1 linear; 0 is all of it at once.
    """

    initial: float
    final: float
    first: int
    last: int
    every: int
    power: int = 3

    def share(self, step: Any) -> Any:
        """Returns the share of zeros after a step; works on plain numbers and on tensors."""
        if self.power == 0 or self.last <= self.first:
            return step * 0.0 + self.final
        done = (step - self.first) / (self.last - self.first)
        return self.final + (self.initial - self.final) * (1.0 - done) ** self.power


def plan_ramp(
    steps: int,
    final: float,
    schedule: str = "cubic",
    *,
    initial: float = 0.0,
    part: float = 0.75,
    every: int | None = None,
) -> Ramp:
    """Plans when the masks grow in a training.

    Args:
        steps: Steps of the whole training.
        final: Share of zeros at the end.
        schedule: A key of `POWERS`.
        initial: Share of zeros at the first step.
        part: Part of the training, in (0, 1], in which the masks grow; in the rest the model
            recovers under fixed masks.
        every: Steps from one update of the masks to the next; None for some 50 updates in all, and
            at most 100 steps.
    """
    last = max(1, min(steps, round(steps * part)))
    last = 1 if POWERS[schedule] == 0 else last
    every = every or max(1, min(MOST_STEPS, last // UPDATES))
    return Ramp(initial, final, min(every, last), last, every, POWERS[schedule])


class Growth:
    """The growing masks of a model's kernels in a training.

    Args:
        kernels: The kernels to prune. Zeros of existing masks are kept and count.
        iterations: The optimizer's step count.
        ramp: The growth of the share of zeros.
        whole: Whether one threshold applies to all kernels together, instead of one to each.
    """

    def __init__(
        self, kernels: Sequence[Kernel], iterations: Any, ramp: Ramp, whole: bool = False
    ) -> None:
        """Sets a mask on each kernel; the first mask triggers the updates."""
        self._ramp, self._whole, self._iterations = ramp, whole, iterations
        self._variables = [kernel.variable for kernel in kernels]
        self._start = int(np.asarray(iterations))
        self._masks = _set_masks(kernels, self._grow)

    @property
    def state(self) -> list[Any]:
        """The masks' variables, which steps change."""
        return [mask.keep for mask in self._masks]

    def _grow(self, mask: Mask) -> None:
        """Updates all masks if the step is due; traced, called once per step."""
        ops, ramp = runtime.keras().ops, self._ramp
        step = ops.cast(self._iterations, "int32") - self._start + 1
        regular = ops.logical_and((step - ramp.first) % ramp.every == 0, step >= ramp.first)
        due = ops.logical_or(ops.logical_and(regular, step <= ramp.last), step == ramp.last)

        def update() -> list[Any]:
            share = ramp.share(ops.cast(step, "float32"))
            return _find_masks(self._variables, self._masks, share, self._whole)

        masks = ops.cond(due, update, lambda: [ops.convert_to_tensor(mask) for mask in self.state])
        for variable, keep in zip(self.state, masks, strict=True):
            variable.assign(keep)

    def finish(self) -> None:
        """Sets the final share of zeros, in case steps were skipped."""
        _update_masks(self._variables, self._masks, self._ramp.final, self._whole)
        for variable, mask in zip(self._variables, self._masks, strict=True):
            variable.assign(mask.cover(variable.value))


def zero_smallest(kernels: Sequence[Kernel], share: float, whole: bool = False) -> None:
    """Masks the smallest weights of kernels at once; for arguments see `Growth`.

    Args:
        kernels: The kernels to prune.
        share: Share of zeros.
        whole: Whether one threshold applies to all kernels together.
    """
    masks = _set_masks(kernels, None)
    variables = [kernel.variable for kernel in kernels]
    _update_masks(variables, masks, share, whole)
    for variable, mask in zip(variables, masks, strict=True):
        variable.assign(mask.cover(variable.value))


def _set_masks(kernels: Sequence[Kernel], before: Callable[[Mask], None] | None) -> list[Mask]:
    """Sets masks with the existing zeros; the first mask calls `before`."""
    masks = []
    for place, kernel in enumerate(kernels):
        first = None if place else before
        mask = Mask(kernel.variable, _keep_now(kernel), own_constraint(kernel.variable), first)
        set_mask(kernel.variable, mask)
        masks.append(mask)
    return masks


def _update_masks(variables: Sequence[Any], masks: Sequence[Mask], share: Any, whole: bool) -> None:
    """Sets new masks from the current weights."""
    kept = _find_masks(variables, masks, share, whole)
    for mask, keep in zip(masks, kept, strict=True):
        mask.keep.assign(keep)


def _find_masks(
    variables: Sequence[Any], masks: Sequence[Mask], share: Any, whole: bool
) -> list[Any]:
    """Returns new masks from the current weights (traced)."""
    ops = runtime.keras().ops
    sizes = [
        ops.abs(ops.cast(mask.cover(variable.value), "float32"))
        for variable, mask in zip(variables, masks, strict=True)
    ]
    thresholds = _find_thresholds(sizes, share, whole)
    return [
        ops.logical_and(ops.convert_to_tensor(mask.keep), size > threshold)
        for mask, size, threshold in zip(masks, sizes, thresholds, strict=True)
    ]


def _keep_now(kernel: Kernel) -> np.ndarray:
    constraint = kernel.variable.constraint
    if isinstance(constraint, Mask):
        return np.asarray(constraint.keep)
    return np.ones(kernel.variable.shape, bool)


def _find_thresholds(sizes: Sequence[Any], share: Any, whole: bool) -> list[Any]:
    """Returns for each kernel the largest magnitude to prune (traced); below 0 to prune none."""
    ops = runtime.keras().ops
    ordered = [ops.sort(ops.reshape(size, (-1,))) for size in sizes]
    if not whole:
        return [_take(each, share) for each in ordered]
    threshold = _take(ops.sort(ops.concatenate(ordered, 0)), share)
    return [ops.minimum(threshold, _take(each, 1.0 - LEAST_LEFT)) for each in ordered]


def _take(ordered: Any, share: Any) -> Any:
    """Returns the last of this share of some numbers in rising order; -1 for a share of 0."""
    ops = runtime.keras().ops
    total = int(ordered.shape[0])
    # float32 cannot count the weights of a large model; JAX has no other by default.
    wide = ops.cast(share, tensor_ops.widest_float())
    count = ops.minimum(ops.cast(ops.round(wide * total), "int32"), total - 1)
    return ops.where(count > 0, ops.take(ordered, ops.maximum(count - 1, 0)), -1.0)
