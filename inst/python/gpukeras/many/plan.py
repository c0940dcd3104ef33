"""Plans which models train at a time, and says why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.backend import keras_private, keras_stateless, runtime, tensor_ops
from gpukeras.backend.graph_reader import read_program
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import count_of
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.loader.loader import Block, iterate_rows, sample_rows
from gpukeras.engine.batch_dependence import explain_outputs, sample_of
from gpukeras.engine.batch_rows import count_row_bytes, fixed_rows
from gpukeras.engine.engine_facts import has_convolutions
from gpukeras.engine.program_cache import find_program, keep_program
from gpukeras.engine.row_guard import RowGuard
from gpukeras.engine.value_ranges import CHECKED
from gpukeras.many.batches import split_models
from gpukeras.many.step import state_variables
from gpukeras.many.structure import describe_structure
from gpukeras.models.losses import weighing_rows
from gpukeras.models.variables import other_optimizers

MEMORY_SHARE = 0.5  # of what is free; rows, results and the system use the rest
# Copies of a state at a time: the models', the best ones, that before the epoch, and one more while
# a step runs on TensorFlow, or the best ones are chosen.
STATES = 4
# Outputs of layers that are alive at a time, forward and backward. For stacks of five models,
# compiled by XLA for a T4 and an RTX 3060, the plan counts 1.1 to 3.9 times what the program takes,
# cuBLAS' 4 MiB left out (`make gpu-programs`).
OUTPUTS = 3
# Models of a stack where memory allows more. Milliseconds of a model's epoch with 32, 64, 128, 256
# and 512 at a time: 13, 13, 10, 17, 17 (`make bench-many`, 2 cores).
MOST = 128
UNKNOWN_BYTES = 4096  # of a row's outputs, where layers do not say their shapes
# Work of a step above which a stack was no faster than one model after another, on 2 cores, see
# `describe_work()`. There is no such limit for GPUs: none was measured.
CPU_FLOPS = 20_000_000
# Seconds of a processor that a stack costs more than models alone, and that it saves for each model
# and for each of its steps (small models, 2 cores; searches of 9 structures with 2 and 5 folds).
COMPILE_S = 2.0
FIT_S = 0.15
STEP_S = 1.5e-4
STEPS = "train_step", "test_step", "predict_step", "compute_metrics"  # a stack has its own
STEP_FLOPS = 6  # of a product going forward: 2 for it, and 4 for the gradients of both


@dataclass(frozen=True)
class ModelFacts:
    """What a model needs.

    Args:
        state_bytes: Bytes of its variables.
        step_bytes: Bytes of a batch and of all layers' outputs for it.
        step_flops: Roughly the floating-point operations of a step, from its layers' weights.
        convolves: Whether there are convolutions.
    """

    state_bytes: int
    step_bytes: int
    step_flops: int = 0
    convolves: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the model in training."""
        return STATES * self.state_bytes + OUTPUTS * self.step_bytes


@dataclass(frozen=True)
class Candidate:
    """A model that may be stacked.

    Args:
        key: Equal for models that may share a program.
        rows: Training rows.
        facts: What the model needs.
        alone: Why it trains alone, or "".
    """

    key: str
    rows: int
    facts: ModelFacts
    alone: str = ""


@dataclass(frozen=True)
class StackPlan:
    """Which models train together.

    Args:
        stacks: Places of the models of each stack, in the order of training.
        alone: Places of the models that train each by itself.
        structures: How many structures the models have.
        reason: Why.
    """

    stacks: tuple[tuple[int, ...], ...]
    alone: tuple[int, ...]
    structures: int
    reason: str

    @property
    def most(self) -> int:
        """Models of the largest stack."""
        return max(map(len, self.stacks), default=1)

    def without(self, stacks: Sequence[tuple[int, ...]], why: str) -> StackPlan:
        """Returns a plan in which the models of stacks train alone."""
        left = tuple(place for stack in stacks for place in stack)
        kept = tuple(stack for stack in self.stacks if stack not in stacks)
        reason = f"{count_of(len(left), 'model')} alone: {why}"
        reason = f"{self.reason}; {reason}" if kept or self.alone else reason
        return replace(self, stacks=kept, alone=(*self.alone, *left), reason=reason)

    def without_small(self, steps: Sequence[int]) -> StackPlan:
        """Returns a plan without stacks that are no faster than their models alone.

        Args:
            steps: Steps of each model.
        """
        small = [stack for stack in self.stacks if not is_worth(len(stack), steps[stack[0]])]
        return self.without(small, "too few have their structure") if small else self


def read_model_facts(model: Model, row_bytes: int, batch_size: int) -> ModelFacts:
    """Reads what a model needs.

    Args:
        model: A built model.
        row_bytes: Bytes of a row of the data.
        batch_size: Rows per step.
    """
    variables = [variable for part in state_variables(model).values() for variable in part]
    state = sum(
        tensor_ops.dtype_bytes(variable.dtype) * math.prod(variable.shape) for variable in variables
    )
    outputs = count_row_bytes(model)
    each = row_bytes + (UNKNOWN_BYTES if outputs is None else outputs)
    flops = STEP_FLOPS * batch_size * _count_products(model)
    return ModelFacts(state, each * batch_size, flops, has_convolutions(model))


def _count_products(model: Model) -> int:
    """Returns the products of weights and numbers for a row, going forward; about."""
    total = 0
    for layer in model.layers:
        if hasattr(layer, "layers"):
            total += _count_products(layer)
        elif type(layer).__name__ != "Embedding":  # which looks up
            weights = sum(math.prod(weight.shape) for weight in layer.weights)
            total += weights * _count_places(layer)
    return total


def _count_places(layer: Any) -> int:
    """Returns how often a layer uses its weights for a row: at each pixel, or at each time."""
    try:
        return math.prod(size or 1 for size in layer.input.shape[1:-1])
    except REFUSALS:  # several inputs, or not called yet
        return 1


def describe_work(facts: ModelFacts, device: str) -> str:
    """Returns why models train faster one after another than as a stack, or "".

    Ten models of three layers, 18,000 x 20 rows in batches of 128, seconds of an epoch alone by
    those in a stack (2 cores, load 4 to 6, start-up left out, which a stack pays once): 7.7 with 16
    units (0.5 MFLOP a step), 1.2 and 1.5 with 128 units (15 MFLOP), 0.4 with 256 units (55 MFLOP),
    0.7 with 512 units (210 MFLOP). With two convolutions of 8 filters 0.4.

    Args:
        facts: What the models need.
        device: Where they train.
    """
    if not device.startswith("CPU"):
        return ""
    if facts.convolves:
        return "convolutions of several models at a time are slower on a CPU"
    if facts.step_flops > CPU_FLOPS:
        millions = round(facts.step_flops / 1e6)
        return f"a step of {millions:,} MFLOP keeps a CPU busy"
    return ""


def explain_alone(
    model: Model, data: MapDataset, facts: ModelFacts, device: str, most: int | str = "auto"
) -> str:
    """Returns why a model trains alone: it cannot be stacked, or a stack is slower; "" if neither.

    Args:
        model: A compiled and built model.
        data: Its rows.
        facts: What it needs.
        device: Where it trains.
        most: Models that the user allows at a time; a number asks for stacks wherever they can be.
    """
    return find_refusal(model, data) or (describe_work(facts, device) if most == "auto" else "")


def is_worth(models: int, steps: int) -> bool:
    """Whether a stack takes less time than its models one after another, compiling included.

    Args:
        models: Models of the stack.
        steps: Steps of each.
    """
    return models > 1 and models * (FIT_S + steps * STEP_S) > COMPILE_S


def plan_stacks(
    candidates: Sequence[Candidate], *, free_bytes: float | None, most: int | str
) -> StackPlan:
    """Plans stacks: models of one structure and of similar numbers of rows train together.

    Args:
        candidates: The models.
        free_bytes: Free memory of the device, or None if unknown.
        most: Models that the user allows at a time, or "auto".
    """
    groups: dict[str, list[int]] = {}
    for place, candidate in enumerate(candidates):
        if not candidate.alone:
            groups.setdefault(candidate.key, []).append(place)
    stacks: list[tuple[int, ...]] = []
    limits = set()
    for group in groups.values():
        need = max(candidates[place].facts.bytes for place in group)
        limit, why = _choose_most(need, free_bytes, most)
        if limit < len(group):
            limits.add(why)
        parts = split_models([candidates[place].rows for place in group], limit)
        stacks += [tuple(group[place] for place in part) for part in parts]
    left = tuple(place for place, candidate in enumerate(candidates) if candidate.alone)
    reasons = [_explain(len(groups), stacks, limits)] if stacks else []
    if left:
        reasons.append(f"{count_of(len(left), 'model')} alone: {candidates[left[0]].alone}")
    structures = {candidate.key for candidate in candidates}
    return StackPlan(tuple(stacks), left, len(structures), "; ".join(reasons))


def _choose_most(need: int, free_bytes: float | None, most: int | str) -> tuple[int, str]:
    """Returns the models of a stack at most, and what decided that."""
    if most != "auto":
        return int(most), "as asked"
    room = MOST if free_bytes is None else int(MEMORY_SHARE * free_bytes // max(1, need))
    if room < MOST:
        return max(1, room), "as many as fit into half of the free memory"
    return MOST, "more at a time were not faster"


def _explain(structures: int, stacks: Sequence[Sequence[int]], limits: set[str]) -> str:
    models = count_of(sum(map(len, stacks)), "model")
    kinds = "one structure" if structures == 1 else count_of(structures, "structure")
    if len(stacks) == structures:
        return f"{models} of {kinds}: those of one structure train together"
    largest = count_of(max(map(len, stacks)), "model")
    return f"{models} of {kinds}, up to {largest} at a time: {', '.join(sorted(limits))}"


def _loops(model: Model) -> bool:
    """Whether a model has loops that `vectorized_map()` makes nothing of that XLA compiles."""
    if runtime.backend() != "tensorflow":
        return False
    recurrent = runtime.keras().layers.RNN
    layers = keras_private.list_layers(model)
    return any(isinstance(layer, recurrent) and not layer.unroll for layer in layers)


def find_refusal(model: Model, data: MapDataset) -> str:
    """Returns why a model cannot be stacked, as "its step is its own"; "" if it can."""
    optimizer = keras_private.without_scaling(model.optimizer)
    reasons = {
        "its step is its own": any(tensor_ops.overrides(model, name) for name in STEPS),
        "it has several optimizers": bool(
            other_optimizers(model) or keras_private.inner_optimizers(optimizer)
        ),
        "its optimizer averages weights": bool(optimizer.use_ema),
        "TensorFlow has no program for stacks of its optimizer": (
            keras_stateless.updates_otherwise(optimizer)
        ),
        "its recurrent layers keep a state between batches": fixed_rows(model) is not None,
        "it runs eagerly": bool(model.run_eagerly),
        "it takes texts": data.recipe.features.has_texts,
        "TensorFlow has no program for stacks of recurrent layers": _loops(model),
        # `vectorized_map()` makes nothing of the branch in which Keras applies them.
        "TensorFlow has no program for stacks that accumulate gradients": (
            runtime.backend() == "tensorflow" and bool(optimizer.gradient_accumulation_steps)
        ),
        "rows of a batch are mixed": data.recipe.mixed,
    }
    refusal = next((why for why, holds in reasons.items() if holds), "")
    return refusal or explain_outputs(model, sample_of(data), 1) or find_unchecked_rows(model, data)


# Rows whose values TensorFlow would check, where XLA checks nothing ------------------------------
# A stack is one program of XLA. Models that train alone meet the checks, see `engine.row_guard`.


def find_unchecked_rows(model: Model, data: MapDataset) -> str:
    """Returns why rows are not right for XLA's program of a model, or "".

    The validation rows are looked at too: a stack evaluates them.

    Args:
        model: A compiled and built model.
        data: Its rows.
    """
    if runtime.backend() != "tensorflow":  # JAX checks nothing, alone neither
        return ""
    try:
        guard = _open_guard(model, sample_rows(data, 1))
    except tensor_ops.exhausted():
        return ""  # the stack is halved then
    except (*REFUSALS, TypeError, ValueError):
        return "its step cannot be read"
    if not guard.graph.nodes:
        return ""
    for arrays in iterate_rows(data):
        why = guard.refuse(Block(arrays, 1, len(data)))
        if why or not guard.measures:
            return why
    return ""


def _open_guard(model: Model, arrays: Any) -> RowGuard:
    """Returns the guard of a model's forward pass, loss and metrics."""
    structure = describe_structure(model)
    tree = runtime.tree()
    tf = runtime.tensorflow()
    flat = tree.flatten(arrays)
    specs = [tf.TensorSpec([2, *array.shape[1:]], array.dtype) for array in flat]
    key = "checks", structure.key, str(tree.pack_sequence_as(arrays, specs))
    kept = find_program(key)
    if kept is None:  # the structure holds objects whose identity is in its key
        traced = tf.function(lambda *tensors: _step(model, tree.pack_sequence_as(arrays, tensors)))
        program = read_program(traced.get_concrete_function(*specs), CHECKED)
        kept = keep_program(key, (RowGuard(program), structure))
    guard: RowGuard = kept[0]
    return guard


def _step(model: Model, arrays: Sequence[Any]) -> Any:
    """Traced: the loss and the metrics of a batch in training."""
    x, y, weights = runtime.keras().utils.unpack_x_y_sample_weight(arrays)
    training = {"training": True} if keras_private.takes_training(model) else {}
    outputs = model(x, **training)
    with weighing_rows(model):
        loss = keras_private.compute_loss(
            model, x=x, y=y, y_pred=outputs, sample_weight=weights, training=True
        )
        return loss, model.compute_metrics(x, y, outputs, weights)
