"""Compiles a training for a card: `python -m gpukeras.profiler.aot FOLDER`, a child process.

FOLDER/request.json, model.keras --> answer.json

It runs in an environment of its own, see `requirements.txt`, with Keras on JAX.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpukeras.core.messages import find_reason


def main(folder: Path) -> None:
    """Writes the answer: the program's figures, or why there is none."""
    request = json.loads((folder / "request.json").read_text("utf-8"))
    try:
        answer = _compile(folder / "model.keras", request)
    except Exception as error:  # what Keras, JAX and XLA refuse of a user's model
        answer = {"error": find_reason(error)}
    (folder / "answer.json").write_text(json.dumps(answer), "utf-8")


def _compile(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    from gpukeras.backend.jax_module import jax
    from gpukeras.backend.keras_files import load_model
    from gpukeras.profiler.aot.compile import compile_for
    from gpukeras.profiler.aot.training_loop import take_loop
    from gpukeras.system.cards import choose_card

    card = choose_card(request.pop("card"))
    program, arguments = take_loop(load_model(path), **request)
    state, _, arrays, *_ = arguments
    compiled = compile_for(card, program, *arguments)
    loop = compiled.loop
    return {
        "state_bytes": _count_bytes(jax().tree.leaves(state)),
        "block_bytes": _count_bytes(jax().tree.leaves(arrays)),
        "argument_bytes": compiled.memory.arguments,
        "output_bytes": compiled.memory.outputs,
        "aliased_bytes": compiled.memory.aliased,
        "temporary_bytes": compiled.memory.temporary,
        "kernels": loop.kernels,
        "launches": loop.launches,
        "graphs": loop.graphs,
        "unknown_trips": sum(count is None for count in compiled.trip_counts.values()),
        "host_transfers": len(compiled.host_transfers),
        "conditionals": compiled.conditionals,
        "seconds": compiled.seconds,
    }


def _count_bytes(arrays: list[Any]) -> int:
    return sum(array.size * array.dtype.itemsize for array in arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
