"""Checks JAX's programs of training, evaluation and prediction, compiled for cards not here.

    make gpu-programs OPTIONS="--card T4 'RTX 3060' --model mlp conv1d"

Prints a table, and exits with 1 where an invariant fails, see `invariants`. A call of the compiled
loop runs a block; beside it stands the bare loop, Keras' own step in a `lax.scan` over the block.
A prediction is one large batch; a stack is the training of four models. Nothing runs, so it says
nothing of time.

- kernels: kernels, library calls and copies of a step; an inner loop counts with all iterations
- launches: what the host sends for a step; a CUDA graph counts as one
- graph: whether a step is one CUDA graph, or how many there are
- precision: float32, or with `--precision auto` what gpu_setup() chooses for the card
- temporary: memory beside arguments and results
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", GPUKERAS_XLA_CACHE="off")

import jax
import keras
from invariants import find_failures
from models import MODELS, Case
from programs import KINDS, STACKED, Program, open_program, read_step

from gpukeras.backend.mixed_precision import Gpu, choose_policy
from gpukeras.many.step import PARTS
from gpukeras.profiler.aot.compile import CompiledProgram, compile_for
from gpukeras.system.cards import Card, choose_card

CARDS = ("T4", "RTX 3060", "A100", "H100", "RTX 5090")
COLUMNS = ("model", "kind", "card", "batches", "kernels", "bare", "launches", "graph")
COLUMNS += ("block MiB", "temporary MiB", "fails")
MIB = 2**20
BARE_PARTS = {"train": 4, "test": 3}  # of the state, which Keras' own step takes


@dataclass(frozen=True)
class Checked:
    """A row of the table, and whether an invariant fails."""

    row: tuple[str, ...]
    fails: bool


def count_bytes(arrays: Any) -> int:
    """Returns the bytes of all arrays of a nested structure."""
    return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(arrays))


def count_bare_kernels(case: Case, kind: str, card: Card, program: Program) -> int | None:
    """Returns the kernels of a step of Keras' own step in a bare loop; for stacks, by `vmap()`.

    A bare loop of a stack too leaves models as they are that have no rows in a step. Without that
    XLA writes fewer of Adam's numbers in another layout, from which it copies them: the ResNet's
    loop has 298 kernels instead of 304 on an RTX 5090.
    """
    steps, size = read_step(kind), (case.batch_size,)
    step = getattr(case.model, f"{steps}_step")
    if kind == "stack":
        step, size = jax.vmap(step), (STACKED, case.batch_size)

    def run(state: Any, counts: Any, batches: Any) -> Any:
        def body(state: Any, given: Any) -> Any:
            rows, batch = given
            logs, after = step(state, batch)
            kept = jax.tree.map(lambda new, old: new.astype(old.dtype), list(after), state)
            return kept if rows is None else keep_idle(kept, state, rows), logs

        state, logs = jax.lax.scan(body, state, (counts, batches))
        return jax.tree.map(lambda values: values[-1], logs), state

    def divide(array: Any) -> Any:
        return jax.ShapeDtypeStruct((program.batches, *size, *array.shape[1:]), array.dtype)

    state = program.arguments[0]
    parts = [state[part] for part in PARTS] if kind == "stack" else list(state[: BARE_PARTS[steps]])
    bare = jax.jit(run, donate_argnums=0)
    rows = jax.tree.map(divide, program.rows)
    shape = program.batches, STACKED
    counts = jax.ShapeDtypeStruct(shape, "int32") if kind == "stack" else None
    return compile_for(card, bare, list(map(list, parts)), counts, rows).loop.kernels


def keep_idle(after: Any, before: Any, rows: Any) -> Any:
    """Returns the state of stacked models after a step, of those without rows that before it."""
    keep = jax.vmap(lambda new, old, count: jax.numpy.where(count > 0, new, old))
    return jax.tree.map(lambda new, old: keep(new, old, rows), after, before)


def check(name: str, kind: str, card_name: str, precision: str = "float32") -> Checked:
    """Compiles a model's program for a card and checks it.

    Args:
        name: The model's.
        kind: One of `KINDS`.
        card_name: The card's.
        precision: As of `gpu_setup()`; "auto" is what suits the card.
    """
    card = choose_card(card_name)
    major, minor = card.capability
    policy = choose_policy(precision, [Gpu(f"{major}.{minor}", card.name)]).policy
    keras.config.set_dtype_policy(policy)
    case = MODELS[name]()
    program = open_program(case, kind, card)
    compiled = compile_for(card, program.jitted, *program.arguments)
    bare = None if kind == "predict" else count_bare_kernels(case, kind, card, program)
    largest = max(map(count_bytes, jax.tree.leaves(program.rows)))
    # Layers of a large batch may be as large as its rows: only loops have a block to copy.
    block = math.inf if kind == "predict" else largest
    state = count_bytes(program.state)
    most = math.inf if bare is None else bare
    planned, open_loops = program.planned_bytes, program.open_loops
    failures = list(find_failures(compiled, state, block, most, planned, open_loops))
    figures = list(describe(compiled, bare, program.batches, count_bytes(program.rows)))
    return Checked((name, kind, card_name, *figures, "; ".join(failures) or "-"), bool(failures))


def describe(
    program: CompiledProgram, bare: int | None, batches: int, block_bytes: int
) -> Iterator[str]:
    """Yields the figures of a row."""
    loop = program.loop
    yield str(batches)
    yield str(loop.kernels)
    yield "-" if bare is None else str(bare)
    yield str(loop.launches)
    yield "one" if loop.is_graph else f"{loop.graphs} parts"
    yield f"{block_bytes / MIB:.1f}"
    yield f"{program.memory.temporary / MIB:.1f}"


def read_arguments() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--card", nargs="+", default=CARDS)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--precision", choices=("float32", "auto"), default="float32")
    return parser.parse_args()


def main() -> int:
    """Checks all that was asked for; returns the exit status."""
    given, failed = read_arguments(), False
    print("\t".join(COLUMNS), flush=True)
    for card in given.card:
        for name in given.model:
            for kind in given.kind:
                found = check(name, kind, card, given.precision)
                failed = failed or found.fails
                print("\t".join(found.row), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
