"""Keeps models out of stacks whose rows TensorFlow would check, where XLA checks nothing.

A stack is one program of XLA. Models that train alone meet the checks, see `engine.row_guard`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.backend.graph_reader import read_program
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.loader.loader import Block, iterate_rows, sample_rows
from gpukeras.engine.program_cache import find_program, keep_program
from gpukeras.engine.row_guard import RowGuard
from gpukeras.engine.value_ranges import CHECKED
from gpukeras.many.structure import describe_structure


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
    loss = keras_private.compute_loss(
        model, x=x, y=y, y_pred=outputs, sample_weight=weights, training=True
    )
    return loss, model.compute_metrics(x, y, outputs, weights)
