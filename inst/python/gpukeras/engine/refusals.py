"""Tells what an engine cannot run from rows that no engine takes.

TensorFlow raises the same classes for both: InvalidArgumentError where XLA has no kernel of an
operation, and where an index lies outside of a table. An engine is given up for the causes below
alone; everything else is an error of the rows, or one that is raised as it is.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from gpukeras.backend import keras_private, tensor_ops
from gpukeras.core.errors import ModelError, RefusedRowsError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.engine.programs import UntraceableError
from gpukeras.models.embedded_codes import outside

# What the messages of errors have in common, of TensorFlow 2.15 to 2.21, by who refuses.
CAUSES = {
    "XLA": (
        r"XLA_\w+_JIT",  # Detected unsupported operations ... on XLA_CPU_JIT: AsString
        r"tf2xla conversion failed",  # every failed conversion, whatever its sentence is
        r"compile-time constant",
        r"_XlaMustCompile",
        r"XLA compilation",
        r"LLVM (?:ERROR|compilation)",
        r"ptxas|libdevice",
    ),
    "device": (
        r"No OpKernel was registered to support",
        r"Could not satisfy (?:explicit )?device specification",
        r"Cannot assign a device for operation",
        r"Cannot place the graph",
    ),
    "loop": (
        r"was passed \w+ from \S+ incompatible with expected",
        r"loop (?:body|variable).* (?:do not match|shape)",
        r"shape invariant",
        r"couldn't be sorted in topological order",
    ),
}
_KNOWN = re.compile("|".join(pattern for patterns in CAUSES.values() for pattern in patterns))
# The one sentence about a value that comes as an InternalError: a truncated division by 0.
_INTERNAL = "only integer div and mod should have errors"

_NODE = re.compile(r"Detected at node (\S+)|\{\{node ([^\s}]+)\}\}")
_INDEX = re.compile(r"= (-?\d+) is not in \[0, (\d+)\)")
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


def engine_refusals(*more: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Returns the errors of an engine that may not be able to run a model, and `more`."""
    return (UntraceableError, *tensor_ops.refusals(), *more)


def is_inability(error: BaseException, engine: str = "") -> bool:
    """Whether an error says that an engine cannot run a model, not that rows are wrong.

    Args:
        error: One of `engine_refusals()`.
        engine: The engine's name. What XLA's compiler fails with has many texts; its programs
            check no values.
    """
    if isinstance(error, UntraceableError):
        return True
    kind = type(error).__name__
    if kind == "UnimplementedError" or (kind == "InternalError" and engine == "compiled"):
        return True
    return isinstance(error, tensor_ops.refusals()) and bool(_KNOWN.search(str(error)))


def explain_inability(engine: str, error: BaseException) -> ModelError:
    """Returns the error of an engine that cannot run a model; arguments as of `is_inability()`."""
    return ModelError(
        f'The engine "{engine}" cannot run this model: {find_reason(error)}.',
        hint='Use `engine = "keras"`.',
    )


def explain_rows(model: Model, error: BaseException) -> RefusedRowsError | None:
    """Returns the error of rows whose values a kernel did not take; None for another error.

    Args:
        model: The model.
        error: What TensorFlow raised.
    """
    wrong = isinstance(error, tensor_ops.row_errors()) or _INTERNAL in str(error)
    if not wrong or is_inability(error):
        return None
    reason, layer = find_reason(error), find_layer(model, str(error))
    index, label = _INDEX.search(str(error)), _LABEL.search(str(error))
    known: dict[str, Any] = {"arg": "data", "reason": reason, "origin": error}
    if label is not None:
        return RefusedRowsError(
            f"The labels have the class {label[1]}, but the output has {label[2]} "
            f"units. TensorFlow says: {reason}.",
            hint="Classes count from 0: use `y - 1`, a factor, or more output units.",
            found=int(label[1]),
            **known,
        )
    if layer is not None and index is not None and hasattr(layer, "input_dim"):
        return outside(layer, [_code_of(int(index[1]), int(index[2]))], reason, error)
    where = "" if layer is None else f" in the layer `{layer.name}`"
    return RefusedRowsError(
        f"TensorFlow refuses the rows{where}: {reason}.",
        hint="Check the values of the rows, those for validation too.",
        layer="" if layer is None else layer.name,
        **known,
    )


def raise_explained(model: Model, error: BaseException) -> NoReturn:
    """Raises the error of rows that TensorFlow refused, or another error as it is."""
    wrong = explain_rows(model, error)
    if wrong is None:
        raise error
    raise wrong from error


def _code_of(index: int, rows: int) -> int:
    """Returns the code that an index comes from: `keras.ops.take()` adds the rows to negatives."""
    return index if index >= 0 else index - rows


def find_layer(model: Model, said: str) -> Any | None:
    """Returns the innermost layer in whose name scope an operation failed; None if unknown.

    A scope that is entered again has a number behind its name, as another layer may have: an
    index's range tells embeddings apart. The scopes of a program that equal models share are those
    of the first one.
    """
    node, index = _NODE.search(said), _INDEX.search(said)
    scopes = (node[1] or node[2]).split("/") if node else []
    layers = keras_private.list_layers(model, include_self=False)
    if index is not None and scopes and "Gather" in scopes[-1]:
        rows = [layer for layer in layers if getattr(layer, "input_dim", 0) == int(index[2])]
        if len(rows) == 1:
            return rows[0]
        layers = rows or layers
    if not any(_is_scope(scope, model.name) for scope in scopes):
        return None
    for scope in reversed(scopes):
        named = [layer for layer in layers if _is_scope(scope, layer.name)]
        if named:
            return min(named, key=lambda layer: len(layer.name))
    return None


def _is_scope(scope: str, name: str) -> bool:
    return re.fullmatch(re.escape(name) + r"(_\d+)?", scope) is not None
