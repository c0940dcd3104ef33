"""The programs of a model, as gpukeras makes them, with arguments that have only shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from models import Case

from gpukeras.backend import stacking, tensor_ops
from gpukeras.backend.jax_models import open_prediction
from gpukeras.backend.jax_state import find_weights
from gpukeras.engine.batch_rows import choose_rows, count_row_bytes
from gpukeras.many.plan import read_model_facts
from gpukeras.many.programs import StackPrograms
from gpukeras.many.step import state_variables
from gpukeras.profiler.aot.training_loop import describe_rows, take_loop
from gpukeras.system.cards import Card

STACKED = 4  # models of a stack
ANY = "_any"  # the program of any length, by which first blocks run
KINDS = ("train", "test", "predict", "stack", f"train{ANY}", f"test{ANY}")


@dataclass(frozen=True)
class Program:
    """A program that is not compiled yet.

    Args:
        jitted: What `jax.jit()` returned.
        arguments: Its arguments.
        state: The old state whose memory the new one takes; () where it keeps its own.
        rows: The rows among the arguments.
        batches: Batches of a call.
        planned_bytes: What gpukeras reckons with for the state and all else but the rows.
        open_loops: Loops whose trip count is a run-time value.
    """

    jitted: Any
    arguments: tuple[Any, ...]
    state: Any
    rows: Any
    batches: int
    planned_bytes: float = math.inf
    open_loops: int = 0


def open_program(case: Case, kind: str, card: Card) -> Program:
    """Returns a program of a model.

    Args:
        case: The model.
        kind: One of `KINDS`.
        card: The card, whose memory decides how large blocks are.
    """
    batches = case.count_batches(card)
    rows = describe_rows(case.rows)
    steps, any_length = read_step(kind), kind.endswith(ANY)
    jitted, arguments = take_loop(
        case.model, rows, case.batch_size, batches, kind=steps, static=not any_length
    )
    if kind == "predict":
        return open_prediction_of(case, arguments[2][0])
    if kind == "stack":
        return open_stack_of(case, arguments[2], max(1, batches // STACKED))
    state = arguments[0] if steps == "train" else ()  # evaluation keeps the weights
    return Program(jitted, arguments, state, arguments[2], batches, open_loops=int(any_length))


def read_step(kind: str) -> str:
    """Returns which of the model's steps a kind of program runs."""
    return "test" if kind.startswith("test") else "train"


def open_prediction_of(case: Case, features: Any) -> Program:
    """Returns the prediction of a large batch, of as many rows as `gpu_predict()` takes at once."""
    row_bytes = case.rows[0][:1].nbytes
    rows = choose_rows(
        case.steps * case.batch_size, row_bytes, count_row_bytes(case.model), "GPU:0"
    )
    features = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype), features
    )
    arguments = find_weights(case.model).read(), features
    planned = tensor_ops.batch_bytes("GPU:0")
    return Program(open_prediction(case.model), arguments, (), features, 1, planned)


def open_stack_of(case: Case, block: Any, batches: int) -> Program:
    """Returns the training of several models, each of which has a part of a step's rows.

    Args:
        case: The model.
        block: Arrays of a block of one model.
        batches: Steps of a block.
    """
    programs = StackPrograms(case.model, (), STACKED, "GPU:0", True)
    shape = jax.ShapeDtypeStruct
    rows = batches * STACKED * case.batch_size
    state = {
        part: [shape((STACKED, *one.shape), one.value.dtype) for one in variables]
        for part, variables in state_variables(case.model).items()
    }
    block = jax.tree.map(lambda array: shape((rows, *array.shape[1:]), array.dtype), block)
    numbers, counts = shape((STACKED, 0), "float32"), shape((batches, STACKED), "int32")
    loop = partial(programs.loop, "train", False, 0, case.batch_size, batches)
    jitted = stacking.as_program(loop, True, "GPU:0", donates=True)
    arguments = state, numbers, block, counts, shape((), "int32")
    row_bytes = sum(array[:1].nbytes for array in case.rows)
    planned = STACKED * read_model_facts(case.model, row_bytes, case.batch_size).bytes
    return Program(jitted, arguments, state, block, batches, planned)
