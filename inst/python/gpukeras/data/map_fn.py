"""Traces a user's function on the features of a block, to run on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError
from gpukeras.core.messages import find_reason
from gpukeras.core.options import describe, refused_value


def trace_map(function: Callable[[Any], Any], shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Traces a function into a graph, so that neither R nor Python is called again.

    Args:
        function: Maps a float32 tensor of rows to another; a Keras layer, a model, or a function.
        shape: Shape of one row, which must not change: models are checked against it.

    Returns:
        The graph, for any number of rows.

    Raises:
        SpecError: if `function` is not callable.
        DataError: if it cannot be traced, or changes the rows' number, shape or dtype.
    """
    if not callable(function):
        raise refused_value("map", function, "a Keras layer or a function")
    require_feature("map")
    tf = runtime.tensorflow()
    spec = tf.TensorSpec([None, *shape], tf.float32)
    try:
        graph = tf.function(function, autograph=False).get_concrete_function(spec)
    except Exception as error:  # the user's code or R may raise any error
        raise DataError(
            f"`map` cannot be traced: {find_reason(error)}.",
            hint="It must compute with tensors, by operations of TensorFlow or Keras.",
            arg="map",
        ) from error
    _check_output(graph.structured_outputs, shape)
    probed = graph(tf.zeros([2, *shape]))
    if len(probed) != 2:
        raise _changed(f"{len(probed)} of 2 rows", shape)
    return graph


def _check_output(output: Any, shape: tuple[int, ...]) -> None:
    given = getattr(output, "shape", None)
    if given is None or getattr(output.dtype, "as_numpy_dtype", None) is not np.float32:
        found = describe(output) if given is None else f"{output.dtype.name} values"
        raise _changed(found, shape)
    if given.rank != len(shape) + 1 or tuple(given[1:]) != tuple(shape):
        raise _changed(f"rows of shape {tuple(given[1:])}", shape)


def _changed(found: str, shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"`map` must give as many float32 rows of shape {tuple(shape)} as it takes, not {found}.",
        hint="What changes the shape belongs into the model, as its first layer.",
        arg="map",
    )


def unmapped(arg: str) -> DataError:
    """Returns the error for rows whose recipe needs a `map` function, which no recipe can hold."""
    return DataError(
        f"Training mapped its rows by a function: `{arg}` needs it too.",
        hint="Use gpu_dataset(recipe = , map = ) with the same function.",
        arg=arg,
    )
