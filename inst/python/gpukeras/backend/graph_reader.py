"""Reads what matters of a traced program's graph into plain records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.program_graph import MOST_COLUMNS, Graph, Node, Tensor

FUNCTIONS = ("f", "body", "cond", "then_branch", "else_branch")
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
CALLS = (*LOOPS, *BRANCHES, "PartitionedCall", "StatefulPartitionedCall")
# Whole numbers of operations that decide which values they take.
MASKS = ("shrink_axis_mask", "new_axis_mask", "begin_mask", "end_mask", "ellipsis_mask")
ATTRIBUTES = (*MASKS, "axis", "seq_dim", "num_partitions")
_READ = ("StridedSlice", "Pack", "ReverseSequence", "DynamicPartition")
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


def read_program(concrete: Any, checked: Mapping[str, Sequence[int]]) -> Graph:
    """Returns what some checks depend on in a concrete function, and in those that it calls.

    Most of a training step, such as its gradients, decides nothing that is checked, and reading it
    would take as long as a third of an epoch.

    Args:
        concrete: A concrete function.
        checked: The types of operations that check values, and which of their inputs they check.
    """
    shapes = {id(v.handle): tuple(v.shape) for v in concrete.graph.variables}
    known = {
        id(inner): shapes[id(outer)]
        for outer, inner in concrete.graph.captures
        if id(outer) in shapes
    }
    variables = [known.get(id(tensor)) for tensor in concrete.graph.inputs]
    return _Reader(checked).read(concrete.graph, variables, frozenset())


@dataclass(frozen=True)
class _Live:
    """What matters in a graph.

    Args:
        operations: Operations by identity, each with the outputs that matter, by number. For a
            loop these are the variables that matter.
        inputs: Numbers of the graph's inputs that matter.
    """

    operations: dict[int, frozenset[int]]
    inputs: frozenset[int]


class _Reader:
    """Reads graphs, and what of them matters (liveness: Aho et al., Compilers, 2nd ed., 9.2.5)."""

    def __init__(self, checked: Mapping[str, Sequence[int]]) -> None:
        self._checked = checked
        self._live: dict[tuple[int, frozenset[int]], _Live] = {}

    def read(self, graph: Any, variables: list[Any], wanted: frozenset[int]) -> Graph:
        """Reads a graph.

        Args:
            graph: TensorFlow's graph of a function.
            variables: Shapes of the variables that its inputs refer to, or None.
            wanted: Numbers of its outputs that matter.
        """
        live = self.find_live(graph, wanted)
        tensors = {
            id(tensor): _read_tensor(tensor, variable)
            for tensor, variable in zip(graph.inputs, variables, strict=True)
        }
        nodes = [
            self._read_node(op, tensors, live.operations[id(op)])
            for op in graph.get_operations()
            if id(op) in live.operations
        ]
        nothing = Tensor(None)
        outputs = tuple(tensors.get(id(tensor), nothing) for tensor in graph.outputs)
        inputs = tuple(tensors[id(tensor)] for tensor in graph.inputs)
        return Graph(inputs, tuple(nodes), outputs, live.inputs)

    def find_live(self, graph: Any, wanted: frozenset[int]) -> _Live:
        """Returns what decides the checks of a graph and some of its outputs."""
        key = id(graph), wanted
        if key not in self._live:
            self._live[key] = self._follow(graph, wanted)
        return self._live[key]

    def _follow(self, graph: Any, wanted: frozenset[int]) -> _Live:
        tensors = {id(graph.outputs[place]) for place in wanted}
        operations = {}
        for op in reversed(graph.get_operations()):
            outputs = frozenset(n for n, tensor in enumerate(op.outputs) if id(tensor) in tensors)
            kind = op.type
            inputs: Iterable[int]
            if kind in CALLS:
                outputs, inputs, matters = self._follow_call(op, outputs)
            else:
                matters = bool(outputs) or kind in self._checked
                inputs = range(len(op.inputs)) if outputs else self._checked.get(kind, ())
            if not matters or kind == "Placeholder":
                continue
            operations[id(op)] = outputs
            arguments = list(op.inputs)
            tensors.update(id(arguments[place]) for place in inputs)
            tensors.update(id(tensor) for tensor in arguments if tensor.op.type == "Const")
        places = (n for n, tensor in enumerate(graph.inputs) if id(tensor) in tensors)
        return _Live(operations, frozenset(places))

    def _follow_call(
        self, op: Any, wanted: frozenset[int]
    ) -> tuple[frozenset[int], frozenset[int], bool]:
        """Returns outputs and inputs of a call that matter, and whether it does."""
        graphs = _list_functions(op)
        if op.type in LOOPS:
            condition = self.find_live(graphs["cond"], frozenset())
            wanted = wanted | condition.inputs
            body = self.find_live(graphs["body"], wanted)
            while not body.inputs <= wanted:
                wanted = wanted | body.inputs
                body = self.find_live(graphs["body"], wanted)
            return wanted, wanted, bool(wanted or body.operations or condition.operations)
        called = [self.find_live(graph, wanted) for graph in graphs.values()]
        matters = bool(wanted) or any(graph.operations for graph in called)
        inputs = frozenset[int]().union(*(graph.inputs for graph in called))
        if op.type in BRANCHES and matters:
            inputs = frozenset({0, *(place + 1 for place in inputs)})
        return wanted, inputs, matters

    def _read_node(self, op: Any, tensors: dict[int, Tensor], wanted: frozenset[int]) -> Node:
        arguments = list(op.inputs)
        inputs = [tensors.get(id(tensor)) or _read_tensor(tensor) for tensor in arguments]
        for place in FOLLOWED.get(op.type, ()):
            if inputs[place].value is None:
                constant = _value_of(arguments[place])
                inputs[place] = (
                    inputs[place] if constant is None else _constant(inputs[place], constant)
                )
        for tensor in op.outputs:
            tensors[id(tensor)] = _read_tensor(tensor)
        if op.type == "Const":
            (tensor,) = op.outputs
            value = _value_of(tensor)
            if value is not None:
                tensors[id(tensor)] = _constant(tensors[id(tensor)], value)
        names = op.node_def.attr if op.type in _READ else ()
        variables = [tensor.variable for tensor in inputs]
        return Node(
            op.type,
            tuple(inputs),
            tuple(tensors[id(tensor)] for tensor in op.outputs),
            {name: op.get_attr(name) for name in ATTRIBUTES if name in names},
            self._read_functions(op, variables, wanted) if op.type in CALLS else {},
            bool(op.op_def.is_stateful),
        )

    def _read_functions(
        self, op: Any, variables: list[Any], wanted: frozenset[int]
    ) -> dict[str, Graph]:
        passed = variables[1:] if op.type in BRANCHES else variables
        return {
            key: self.read(graph, passed, frozenset() if key == "cond" else wanted)
            for key, graph in _list_functions(op).items()
        }


def _list_functions(op: Any) -> dict[str, Any]:
    """Returns the graphs of the functions that an operation calls."""
    if op.type.endswith("Case"):
        names = {str(place): branch.name for place, branch in enumerate(op.get_attr("branches"))}
    else:
        names = {key: op.get_attr(key).name for key in FUNCTIONS if key in op.node_def.attr}
    return {key: keras_private.graph_of(op.graph, name) for key, name in names.items()}


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
