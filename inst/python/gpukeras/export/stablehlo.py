"""Writes a model's forward pass as StableHLO, by `jax.export`, and runs such files.

The weights are constants of the program, and the number of rows is open, as is each dimension that
the model leaves open. The program takes one dict of arrays, by the names of the model's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.jax_module import jax, jax_export
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.export.parity import read_inputs

PLATFORMS = ("cpu", "cuda")


def write_stablehlo(model: Model, path: str) -> None:
    """Writes a model to a file, for CPUs and NVIDIA GPUs.

    Args:
        model: A built Keras model on JAX.
        path: The file.

    Raises:
        ModelError: if the model does not tell the shape of its input.
    """
    export = jax_export()
    structure, nest = read_inputs(model), runtime.tree()
    if structure is None:
        raise ModelError("it does not tell the shape of its input", arg="model")
    tensors, scope = nest.flatten(structure), export.SymbolicScope()
    specs = {
        tensor.name: jax().ShapeDtypeStruct(_open_shape(place, tensor.shape, scope), tensor.dtype)
        for place, tensor in enumerate(tensors)
    }

    def predict(inputs: Mapping[str, Any]) -> Any:
        rows = nest.pack_sequence_as(structure, [inputs[tensor.name] for tensor in tensors])
        return nest.flatten(model(rows, training=False))

    exported = export.export(jax().jit(predict), platforms=PLATFORMS)(specs)
    Path(path).write_bytes(exported.serialize())


def _open_shape(place: int, shape: tuple[int | None, ...], scope: Any) -> tuple[Any, ...]:
    """Returns an input's shape with a symbol for each open dimension; rows have the same one."""
    export = jax_export()
    sizes = [
        "rows",
        *(f"d{place}_{axis}" if n is None else str(n) for axis, n in enumerate(shape[1:])),
    ]
    symbolic: tuple[Any, ...] = export.symbolic_shape(", ".join(sizes) + ",", scope=scope)
    return symbolic


def read_stablehlo(path: str) -> tuple[Any, list[str]]:
    """Returns a file's program and the names of its inputs."""
    export = jax_export()
    exported = export.deserialize(bytearray(Path(path).read_bytes()))
    (inputs,), _ = jax().tree.unflatten(exported.in_tree, exported.in_avals)
    return exported, list(inputs)


def call_stablehlo(exported: Any, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a program, in the model's order."""
    return [np.asarray(values) for values in exported.call(dict(rows))]
