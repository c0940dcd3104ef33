"""How many rows go through a model at once where nothing is learned, and where it runs."""

from __future__ import annotations

import math
from typing import Any

from gpukeras.backend import devices, keras_private, runtime, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.data.plan import EVALUATION_ROWS, FEWEST_EVALUATED, choose_evaluation_rows

ALIGNED_ROWS = 16  # of any dtype: a multiple of 64 bytes, so that memory can be adopted


def choose_rows(rows: int, row_bytes: int, model_bytes: int | None, device: str) -> int:
    """Returns the rows per batch: as many as run fast, and about equal in all batches.

    Args:
        rows: Total number of rows.
        row_bytes: Bytes of a row's input.
        model_bytes: Bytes of all layers' outputs for a row, or None if unknown.
        device: Where the model runs.
    """
    if model_bytes is None:
        return choose_evaluation_rows(row_bytes, rows)
    fast = tensor_ops.batch_bytes(device) // max(1, row_bytes + model_bytes)
    most = max(ALIGNED_ROWS, fast // ALIGNED_ROWS * ALIGNED_ROWS)
    each = math.ceil(rows / math.ceil(rows / most))
    return min(rows, math.ceil(each / ALIGNED_ROWS) * ALIGNED_ROWS)


def choose_evaluated_rows(row_bytes: int, model_bytes: int | None, device: str) -> int:
    """Returns the rows per batch of an evaluation, a power of two for few sizes of programs.

    On a CPU all layers' outputs count; on a GPU, where that was never measured, the input only.

    Args:
        row_bytes: Bytes of a row's input.
        model_bytes: See `choose_rows()`.
        device: Where the model runs.
    """
    most = choose_evaluation_rows(row_bytes, EVALUATION_ROWS)
    if not device.startswith("CPU"):
        return most
    fast = choose_rows(most, row_bytes, model_bytes, device)
    return max(FEWEST_EVALUATED, 2 ** round(math.log2(fast)))


def count_row_bytes(model: Model) -> int | None:
    """Returns the bytes of all layers' outputs for one row, or None if unknown before a run."""
    sizes = []
    for layer in model.layers:
        try:
            outputs = runtime.tree().flatten(layer.output)
            sizes += [math.prod(each.shape[1:]) for each in outputs]
            sizes.append(_count_gates(layer))
        except (AttributeError, TypeError, ValueError):  # a subclassed model; an open dimension
            return None
    return 4 * sum(sizes) if sizes else None


def _count_gates(layer: Any) -> int:
    """Returns the numbers that recurrent layers make of a row before their loop.

    They multiply all times at once with their largest matrix: an LSTM of 64 units makes 256 numbers
    for each time.
    """
    layers = runtime.keras().layers
    if not isinstance(layer, (layers.RNN, layers.Bidirectional)):
        return sum(map(_count_gates, getattr(layer, "layers", ())))
    widths = [each.shape[-1] for each in layer.weights if len(each.shape) > 1]
    directions = 2 if isinstance(layer, layers.Bidirectional) else 1
    times = math.prod(size or 1 for size in runtime.tree().flatten(layer.input)[0].shape[1:-1])
    return directions * times * max(widths, default=0)


def has_state(model: Model) -> bool:
    """Whether a model has recurrent layers that keep a state from one batch to the next."""
    return any(getattr(layer, "stateful", False) for layer in keras_private.list_layers(model))


def fixed_rows(model: Model) -> int | None:
    """Returns the rows per batch where the model requires a number, or None.

    Models with stateful recurrent layers do, because they hold one state per row. In other models
    the batch size of the inputs may be that of the first batch that Keras saw, and has no meaning.
    """
    if not has_state(model):
        return None
    try:
        tensors = runtime.tree().flatten(model.inputs)
    except (AttributeError, ValueError):  # a subclassed or unbuilt model
        return None
    known = {tensor.shape[0] for tensor in tensors if len(tensor.shape)} - {None}
    return min(known, default=None)


def reset_states(model: Model) -> None:
    """Resets what recurrent layers keep from one batch to the next."""
    for layer in keras_private.list_layers(model):
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
            layer.reset_state()


def check_whole(fixed: int, last: int) -> None:
    """Refuses a shorter last batch for a model with a fixed batch size; Keras fails there too.

    Args:
        fixed: Rows per batch.
        last: Rows of the last batch.

    Raises:
        ModelError: if there is a shorter one; 0 rows are none.
    """
    if last % fixed:
        raise ModelError(
            f"`model` takes batches of {fixed} rows (`batch_shape`), but the last one has {last}.",
            hint="Use gpu_dataset(drop_last = TRUE), or rows that make whole batches.",
            arg="model",
        )


def model_device(model: Model) -> str:
    """Returns the device of a built model, such as "GPU:0"; without variables, the session's."""
    names = tensor_ops.variable_devices(model)
    return names[0] if names else devices.current().device
