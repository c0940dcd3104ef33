"""Checks the codes that a model's embeddings look up, where rows meet the model.

JAX and GPUs look up another row, or none, for a code outside of an embedding, and say nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import RefusedRowsError
from gpukeras.core.keras_types import Model


def find_embeddings(model: Model) -> list[Any]:
    """Returns the embeddings that look up all numbers of a model's single input.

    On a CPU TensorFlow's kernels check codes themselves, wherever they come from: then none.
    """
    checked = runtime.backend() == "tensorflow" and not runtime.physical_devices("GPU")
    if checked and not getattr(model, "jit_compile", False):
        return []
    graph = keras_private.functional_of(model) or model
    inputs = getattr(graph, "inputs", None)
    if not isinstance(inputs, list) or len(inputs) != 1:
        return []
    embedding = runtime.keras().layers.Embedding
    return [
        layer
        for layer in graph.layers
        if isinstance(layer, embedding) and keras_private.takes(layer, inputs[0])
    ]


def check_codes(embeddings: list[Any], rows: np.ndarray, arg: str = "data") -> None:
    """Checks that embeddings have a row for each code.

    Negative codes count from an embedding's end, as in Keras.

    Args:
        embeddings: See `find_embeddings()`.
        rows: Rows of codes.
        arg: The user's name for the rows.

    Raises:
        RefusedRowsError: if one has not.
    """
    if not embeddings or not rows.size or rows.dtype.kind not in "fiu":
        return
    low, high = float(rows.min()), float(rows.max())
    for layer in embeddings:
        if not -layer.input_dim - 1 < low <= high < layer.input_dim:
            raise outside(layer, [int(low), int(high)], arg=arg)


def outside(
    layer: Any,
    found: list[int],
    reason: str = "",
    origin: BaseException | None = None,
    arg: str = "data",
) -> RefusedRowsError:
    """Returns the error of codes that an embedding has no rows for.

    Args:
        layer: The embedding.
        found: The code, or the smallest and largest ones.
        reason: TensorFlow's sentence, or "".
        origin: TensorFlow's error, or None.
        arg: The user's name for the rows.
    """
    last = int(layer.input_dim) - 1
    codes = " to ".join(str(code) for code in dict.fromkeys(found))
    says = f" TensorFlow says: {reason}." if reason else ""
    return RefusedRowsError(
        f"The layer `{layer.name}` takes the codes 0 to {last}, but the rows have {codes}.{says}",
        hint=f"R counts from 1: subtract 1, or give the layer `input_dim = {max(found) + 1}`."
        if max(found) > last
        else "Give codes that count from 0.",
        arg=arg,
        layer=layer.name,
        found=found[-1],
        reason=reason,
        origin=origin,
    )
