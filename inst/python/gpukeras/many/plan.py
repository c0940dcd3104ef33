"""Plans which models train at a time, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpukeras.backend import keras_private, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.data.dataset import MapDataset
from gpukeras.engine.predict_loop import count_row_bytes, fixed_rows
from gpukeras.many.batches import split_models
from gpukeras.many.step import state_variables
from gpukeras.models.variables import other_optimizers

MEMORY_SHARE = 0.5  # of what is free; rows, results and the system use the rest
STATES = 4  # copies of a state at a time: before and after a step, the best one, the epoch before
# Outputs of layers that are alive at a time, forward and backward.
OUTPUTS = 3
MOST = 256  # models of a stack where memory allows more
UNKNOWN_BYTES = 4096  # of a row's outputs, where layers do not say their shapes


@dataclass(frozen=True)
class ModelFacts:
    """What a model needs.

    Args:
        state_bytes: Bytes of its variables.
        step_bytes: Bytes of a batch and of all layers' outputs for it.
    """

    state_bytes: int
    step_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of the model in training."""
        return STATES * self.state_bytes + OUTPUTS * self.step_bytes


@dataclass(frozen=True)
class StackPlan:
    """Which models train together.

    Args:
        stacks: Places of the models of each stack, in the order of training.
        structures: How many structures the models have.
        reason: Why.
    """

    stacks: tuple[tuple[int, ...], ...]
    structures: int
    reason: str

    @property
    def most(self) -> int:
        """Models of the largest stack."""
        return max(map(len, self.stacks))


def read_model_facts(model: Model, row_bytes: int, batch_size: int) -> ModelFacts:
    """Reads what a model needs.

    Args:
        model: A built model.
        row_bytes: Bytes of a row of the data.
        batch_size: Rows per step.
    """
    variables = [one for part in state_variables(model).values() for one in part]
    state = sum(tensor_ops.dtype_bytes(one.dtype) * _count(one.shape) for one in variables)
    outputs = count_row_bytes(model)
    each = row_bytes + (UNKNOWN_BYTES if outputs is None else outputs)
    return ModelFacts(state, each * batch_size)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def plan_stacks(
    structures: Sequence[str],
    sizes: Sequence[int],
    facts: Sequence[ModelFacts],
    settings: Sequence[int],
    *,
    free_bytes: float | None,
    most: int | str,
) -> StackPlan:
    """Plans stacks: models of one structure and of similar numbers of rows train together.

    Args:
        structures: The key of each model's structure.
        sizes: Training rows of each model.
        facts: What the models of each setting need.
        settings: The setting of each model.
        free_bytes: Free memory of the device, or None if unknown.
        most: Models that the user allows at a time, or "auto".
    """
    places: dict[str, list[int]] = {}
    for place, key in enumerate(structures):
        places.setdefault(key, []).append(place)
    stacks: list[tuple[int, ...]] = []
    limits = set()
    for group in places.values():
        need = max(facts[settings[place]].bytes for place in group)
        limit, why = _choose_most(need, free_bytes, most)
        if limit < len(group):
            limits.add(why)
        parts = split_models([sizes[place] for place in group], limit)
        stacks += [tuple(group[place] for place in part) for part in parts]
    return StackPlan(tuple(stacks), len(places), _explain(len(places), stacks, limits))


def _choose_most(need: int, free_bytes: float | None, most: int | str) -> tuple[int, str]:
    """Returns the models of a stack at most, and what decided that."""
    if most != "auto":
        return int(most), "as asked"
    room = MOST if free_bytes is None else int(MEMORY_SHARE * free_bytes // max(1, need))
    if room < MOST:
        return max(1, room), "as many as fit into half of the free memory"
    return MOST, "more at a time are not faster"


def _explain(structures: int, stacks: Sequence[Sequence[int]], limits: set[str]) -> str:
    models = count_of(sum(map(len, stacks)), "model")
    kinds = "one structure" if structures == 1 else count_of(structures, "structure")
    if len(stacks) == structures:
        return f"{models} of {kinds}: those of one structure train together"
    largest = count_of(max(map(len, stacks)), "model")
    return f"{models} of {kinds}, up to {largest} at a time: {', '.join(sorted(limits))}"


def refuse_structure(model: Model, data: MapDataset) -> None:
    """Refuses a model that cannot be stacked.

    Raises:
        ModelError: naming why.
    """
    inner = getattr(model.optimizer, "inner_optimizer", None)
    reasons = {
        "its step is its own": any(
            tensor_ops.overrides(model, name) for name in ("train_step", "test_step")
        ),
        "its optimizer scales the loss (mixed_float16)": inner is not None,
        "it has several optimizers": bool(
            other_optimizers(model) or keras_private.inner_optimizers(model.optimizer)
        ),
        "its recurrent layers keep a state between batches": fixed_rows(model) is not None,
        "it runs eagerly": bool(model.run_eagerly),
        "it takes texts": data.recipe.has_texts,
    }
    found = [why for why, holds in reasons.items() if holds]
    if found:
        raise ModelError(
            f"`model` cannot be trained beside others in one program: {found[0]}.",
            hint="Train one after another by gpu_fit().",
            arg="model",
        )
