"""Compiles a training for a card in a child process, whose environment can do that."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.child_process import run_child
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason
from gpukeras.models.identity import describe_own_code
from gpukeras.system.environment import current_variables

LIMIT_S = 600.0
VARIABLES = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "GPUKERAS_XLA_CACHE": "off"}
# They are for this process' Python and its JAX.
OWN_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "XLA_FLAGS", "LD_PRELOAD")


class CompilingError(Exception):
    """The training could not be compiled; the text says why."""


@dataclass(frozen=True)
class TrainingProgram:
    """The program of a call of a training, as XLA compiled it for a card.

    Args:
        state_bytes: Of weights, optimizer, metrics and counters.
        block_bytes: Of a block of rows.
        argument_bytes: Of its arguments: state, block and numbers.
        output_bytes: Of its results.
        aliased_bytes: Of the results that take the memory of arguments.
        temporary_bytes: Of all else, while it runs.
        kernels: Kernels, library calls and copies of a step; None if unknown.
        launches: What the host sends in a step; None if unknown.
        graphs: CUDA graphs of a step.
        unknown_trips: Loops for whose iterations the host waits.
        host_transfers: Instructions that exchange data with the host.
        conditionals: Branches that are chosen while it runs.
        seconds: Of compiling.
    """

    state_bytes: int
    block_bytes: int
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    kernels: int | None
    launches: int | None
    graphs: int
    unknown_trips: int
    host_transfers: int
    conditionals: int
    seconds: float


@dataclass(frozen=True)
class CallShape:
    """What of a call's rows the program depends on.

    Args:
        rows: What `training_loop.describe_rows()` returned.
        batch_size: Rows per batch.
        batches: Batches of the block, all of which the call runs.
        wrapped: See `block.as_data()`.
    """

    rows: list[Any]
    batch_size: int
    batches: int
    wrapped: bool


def compile_training(python: str, model: Model, card: str, shape: CallShape) -> TrainingProgram:
    """Returns the program of a training on a card.

    Args:
        python: An interpreter with the packages of `requirements.txt`.
        model: A compiled and built model; it is not changed.
        card: The card's name in the table.
        shape: The shape of a call.

    Raises:
        CompilingError: if the model cannot cross to the other process, or is not compiled there.
    """
    if describe_own_code(model):
        raise CompilingError("the model has functions or classes of your own")
    with tempfile.TemporaryDirectory(prefix="gpukeras-aot-") as name:
        folder = Path(name)
        try:
            runtime.keras().saving.save_model(model, folder / "model.keras")
        except (*REFUSALS, OSError) as error:
            raise CompilingError(f"the model cannot be saved: {find_reason(error)}") from error
        request = json.dumps({"card": card, **vars(shape)})
        (folder / "request.json").write_text(request, "utf-8")
        inherited = current_variables()
        variables = {key: inherited[key] for key in inherited if key not in OWN_VARIABLES}
        command = ("-m", "gpukeras.profiler.aot", name)
        ended = run_child(python, command, {**variables, **VARIABLES}, LIMIT_S)
        answer = folder / "answer.json"
        if ended.problem or not answer.exists():
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            raise CompilingError(f"{python} {ended.problem or 'gave no answer'}: {last[:200]}")
        answered = json.loads(answer.read_text("utf-8"))
    if "error" in answered:
        raise CompilingError(answered["error"])
    return TrainingProgram(**answered)
