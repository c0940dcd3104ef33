"""Reads a traced program's graph into plain records."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.program_graph import MOST_COLUMNS, Graph, Node, Tensor

FUNCTIONS = ("f", "body", "cond", "then_branch", "else_branch")
LOOPS = ("While", "StatelessWhile", "If", "StatelessIf")
CALLS = (*LOOPS, "PartitionedCall", "StatefulPartitionedCall", "Case", "StatelessCase")
# Whole numbers of operations that decide which values they take.
MASKS = ("shrink_axis_mask", "new_axis_mask", "begin_mask", "end_mask", "ellipsis_mask")
ATTRIBUTES = (*MASKS, "axis", "seq_dim", "num_partitions")
# Inputs whose values are found by following shapes and the like, not constants alone.
FOLLOWED = {
    "StridedSlice": (1, 2, 3),
    "GatherV2": (1, 2),
    "ConcatV2": (-1,),
    "ArgMax": (1,),
    "ArgMin": (1,),
    "ScatterNd": (2,),
    "UnsortedSegmentSum": (2,),
    "UnsortedSegmentMax": (2,),
    "UnsortedSegmentMin": (2,),
    "UnsortedSegmentProd": (2,),
}


def read_program(concrete: Any) -> Graph:
    """Returns the graph of a concrete function, with those that it calls."""
    shapes = {id(v.handle): tuple(v.shape) for v in concrete.graph.variables}
    known = {
        id(inner): shapes[id(outer)]
        for outer, inner in concrete.graph.captures
        if id(outer) in shapes
    }
    return _read(concrete.graph, [known.get(id(tensor)) for tensor in concrete.graph.inputs])


def _read(graph: Any, variables: list[Any]) -> Graph:
    """Reads a graph; `variables` are the shapes of those that its inputs refer to, or None."""
    tensors = {
        id(tensor): _read_tensor(tensor, variable)
        for tensor, variable in zip(graph.inputs, variables, strict=True)
    }
    nodes = []
    for op in graph.get_operations():
        if op.type != "Placeholder":
            nodes.append(_read_node(op, tensors))
    nothing = Tensor(None)
    outputs = tuple(tensors.get(id(tensor), nothing) for tensor in graph.outputs)
    return Graph(tuple(tensors[id(tensor)] for tensor in graph.inputs), tuple(nodes), outputs)


def _read_node(op: Any, tensors: dict[int, Tensor]) -> Node:
    nothing, given = Tensor(None), list(op.inputs)
    inputs = [tensors.get(id(tensor), nothing) for tensor in given]
    for place in FOLLOWED.get(op.type, ()):
        if inputs[place].value is None:
            found = _value_of(given[place])
            inputs[place] = inputs[place] if found is None else _constant(inputs[place], found)
    for tensor in op.outputs:
        tensors[id(tensor)] = _read_tensor(tensor)
    if op.type == "Const":
        (tensor,) = op.outputs
        value = _value_of(tensor)
        if value is not None:
            tensors[id(tensor)] = _constant(tensors[id(tensor)], value)
    names = op.node_def.attr if op.type in CALLS or op.type in _READ else ()
    return Node(
        op.type,
        tuple(inputs),
        tuple(tensors[id(tensor)] for tensor in op.outputs),
        {name: op.get_attr(name) for name in ATTRIBUTES if name in names and op.type not in CALLS},
        _read_functions(op, [one.variable for one in inputs]) if op.type in CALLS else {},
        bool(op.op_def.is_stateful),
    )


_READ = ("StridedSlice", "Pack", "ReverseSequence", "DynamicPartition")


def _read_functions(op: Any, variables: list[Any]) -> dict[str, Graph]:
    passed = variables[1:] if op.type.endswith(("If", "Case")) else variables
    if op.type.endswith("Case"):
        names = {str(place): one.name for place, one in enumerate(op.get_attr("branches"))}
    else:
        names = {key: op.get_attr(key).name for key in FUNCTIONS if key in op.node_def.attr}
    return {
        key: _read(keras_private.graph_of(op.graph, name), passed) for key, name in names.items()
    }


def _read_tensor(tensor: Any, variable: Any = None) -> Tensor:
    shape, dtype = tensor.shape, tensor.dtype
    kind = "i" if dtype.is_integer else "f" if dtype.is_floating else "b" if dtype.is_bool else ""
    known = None if shape.rank is None else tuple(shape)
    return Tensor(known, kind, variable=variable)


def _value_of(tensor: Any) -> np.ndarray | None:
    value = runtime.tensorflow().get_static_value(tensor)
    return (
        None if value is None or np.asarray(value).dtype.kind not in "fiub" else np.asarray(value)
    )


def _constant(tensor: Tensor, value: np.ndarray) -> Tensor:
    kept = value if value.size <= MOST_COLUMNS else None
    if not value.size:
        return Tensor(tensor.shape, tensor.kind, kept)
    return Tensor(tensor.shape, tensor.kind, kept, float(value.min()), float(value.max()))
