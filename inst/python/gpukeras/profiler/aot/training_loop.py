"""Makes the program that a training on JAX would run on a GPU, without rows; nothing runs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.jax_module import jax
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.transforms import as_data
from gpukeras.engine.engine_cache import open_watch
from gpukeras.engine.jax_engines import JaxEngines
from gpukeras.engine.train_step import TrainingStep
from gpukeras.models.variables import build_variables

SAMPLE = 2  # rows from which the variables are built
_SPEC = re.compile(r"(\w+)\[([\d,]*)\]")


def describe_rows(rows: tuple[Any, ...]) -> list[Any]:
    """Returns rows as plain values: for each array a text such as "float32[28,28,1]" of one row.

    Args:
        rows: Features, labels and weights as the model takes them, of any number of rows.
    """
    return [runtime.tree().map_structure(_describe, part) for part in rows]


def take_loop(
    model: Model,
    rows: list[Any],
    batch_size: int,
    batches: int,
    *,
    wrapped: bool = False,
    kind: str = "train",
    static: bool = True,
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the loop of a call as a jitted function, with its arguments.

    Args:
        model: A compiled model; its variables are built.
        rows: What `describe_rows()` returned.
        batch_size: Rows per batch.
        batches: Batches of the block, all of which the call runs.
        wrapped: See `block.as_data()`.
        kind: "train" or "test": which of the model's steps.
        static: Whether the number of batches is a part of the program, see `trip_counts`.
    """
    build_variables(model, tuple(_fill(part, np.zeros, SAMPLE) for part in rows), wrapped)
    trains = kind == "train"
    step = TrainingStep(model, None, open_watch(model), None) if trains else None
    engines = JaxEngines(model, kind, batch_size, "CPU:0", step, static=static)
    shapes = tuple(_fill(part, jax().ShapeDtypeStruct, batch_size * batches) for part in rows)
    return engines.list_call(as_data(shapes, wrapped), 0, batches)


def _describe(array: Any) -> str:
    dtype = runtime.keras().backend.standardize_dtype(array.dtype)
    return f"{dtype}[{','.join(map(str, array.shape[1:]))}]"


def _fill(part: Any, make: Any, rows: int) -> Any:
    def fill(spec: str) -> Any:
        match = _SPEC.fullmatch(spec)
        assert match is not None  # made by `_describe()`
        sizes = [int(size) for size in match[2].split(",") if size]
        # JAX has 32 bits where NumPy has 64.
        return make((rows, *sizes), jax().dtypes.canonicalize_dtype(match[1]))

    return runtime.tree().map_structure(fill, part)
