"""Finds operations of a traced program whose checks of values XLA would drop.

TensorFlow's kernels refuse an index outside of its table, a label outside of its classes, a
division by 0, a failed assertion; XLA computes something instead. What an operation would check is
settled before it runs if its inputs are the same in all batches, or if they lie in a range that it
takes. So each tensor gets a range, from the ranges of the rows on, through all functions and loops
(abstract interpretation: Cousot & Cousot 1977). What is not known to be right counts as unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.program_graph import MOST_COLUMNS, Graph, Node, Tensor


@dataclass(frozen=True)
class Range:
    """What is known of a tensor's values.

    Args:
        varies: Whether they depend on rows, weights or random numbers.
        low: The least, a number or one for each column of the last axis.
        high: The largest.
    """

    varies: bool
    low: np.ndarray = field(default_factory=lambda: np.array(-np.inf))
    high: np.ndarray = field(default_factory=lambda: np.array(np.inf))

    def within(self, low: Any, high: Any) -> bool:
        """Whether all values lie between two numbers."""
        return bool((self.low >= low).all() and (self.high <= high).all())

    def whole(self) -> Range:
        """The range of all columns together."""
        return Range(self.varies, self.low.min(), self.high.max())

    def join(self, other: Range) -> Range:
        """The range of both."""
        one, two = (self, other) if self.low.shape == other.low.shape else _flat(self, other)
        low, high = np.minimum(one.low, two.low), np.maximum(one.high, two.high)
        return Range(one.varies or two.varies, low, high)


UNKNOWN, SAME = Range(True), Range(False)


def find_unchecked(graph: Graph, ranges: Sequence[Range]) -> str:
    """Returns the first operation whose check XLA would drop, such as "GatherV2"; "" if none.

    Args:
        graph: The graph of a traced function.
        ranges: Ranges of its first inputs; the others are the same in all batches.
    """
    inputs = [*ranges, *[SAME] * (len(graph.inputs) - len(ranges))]
    unchecked: list[str] = []
    _walk(graph, inputs, unchecked)
    return unchecked[0] if unchecked else ""


def _flat(*ranges: Range) -> list[Range]:
    return [each.whole() for each in ranges]


def _last(tensor: Tensor) -> int | None:
    """Returns the length of a tensor's last axis; None if it has none, or it is unknown."""
    return tensor.shape[-1] if tensor.shape else None


def _rank(tensor: Tensor) -> int | None:
    return None if tensor.shape is None else len(tensor.shape)


def _walk(graph: Graph, inputs: Sequence[Range], unchecked: list[str]) -> list[Range]:
    """Returns the ranges of a graph's outputs; adds its unchecked operations to `unchecked`."""
    known: dict[int, Range] = {
        id(tensor): ranges for tensor, ranges in zip(graph.inputs, inputs, strict=True)
    }
    for op in graph.nodes:
        ranges = [known.get(id(tensor), UNKNOWN) for tensor in op.inputs]
        check = CHECKS.get(op.type)
        if check is not None and not check(op, ranges):
            unchecked.append(op.type)
        for tensor, value in zip(op.outputs, _run(op, ranges, unchecked), strict=True):
            known[id(tensor)] = value
    return [known.get(id(tensor), UNKNOWN) for tensor in graph.outputs]


def _run(op: Node, ranges: list[Range], unchecked: list[str]) -> list[Range]:
    """Returns the ranges of an operation's outputs."""
    if not op.outputs and op.type not in CALLS:
        return []
    if op.type in CALLS:
        return CALLS[op.type](op, ranges, unchecked)
    rule = RULES.get(op.type)
    if rule is not None:
        return _spread(op, rule(op, ranges))
    varies = any(each.varies for each in ranges) or (not op.inputs and op.stateful)
    return [Range(varies)] * len(op.outputs)


def _spread(op: Node, value: Range | list[Range]) -> list[Range]:
    """Returns a value for each output, by column only where the last axis has these columns."""
    values = value if isinstance(value, list) else [value] * len(op.outputs)
    return [
        one if not one.low.ndim or one.low.shape[0] == _last(tensor) else one.whole()
        for one, tensor in zip(values, op.outputs, strict=True)
    ]


# Functions ---------------------------------------------------------------------------------------


def _call(op: Node, ranges: list[Range], unchecked: list[str]) -> list[Range]:
    return _walk(op.functions["f"], ranges, unchecked)


def _while(op: Node, ranges: list[Range], unchecked: list[str]) -> list[Range]:
    body, values = op.functions["body"], ranges
    while True:
        after = _walk(body, values, [])
        joined = [one.join(two) for one, two in zip(values, after, strict=True)]
        if all(_equal(value, two) for value, two in zip(values, joined, strict=True)):
            break
        values = [
            one if _equal(one, two) else Range(two.varies)
            for one, two in zip(values, joined, strict=True)
        ]
    _walk(op.functions["cond"], values, unchecked)
    _walk(body, values, unchecked)
    return values


def _equal(one: Range, two: Range) -> bool:
    return (
        one.varies == two.varies
        and np.array_equal(one.low, two.low)
        and np.array_equal(one.high, two.high)
    )


def _if(op: Node, ranges: list[Range], unchecked: list[str]) -> list[Range]:
    condition, inputs = ranges[0], ranges[1:]
    branches = ["then_branch", "else_branch"]
    if condition.within(1, 1) or condition.within(0, 0):
        branches = branches[:1] if condition.within(1, 1) else branches[1:]
    results = [_walk(op.functions[name], inputs, unchecked) for name in branches]
    return _joined(results, condition)


def _case(op: Node, ranges: list[Range], unchecked: list[str]) -> list[Range]:
    graphs = op.functions.values()
    return _joined([_walk(graph, ranges[1:], unchecked) for graph in graphs], ranges[0])


def _joined(results: list[list[Range]], condition: Range) -> list[Range]:
    first, *others = results
    for other in others:
        first = [one.join(two) for one, two in zip(first, other, strict=True)]
    return [Range(one.varies or condition.varies, one.low, one.high) for one in first]


CALLS: dict[str, Callable[[Node, list[Range], list[str]], list[Range]]] = {
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), _call),
    **dict.fromkeys(("While", "StatelessWhile"), _while),
    **dict.fromkeys(("If", "StatelessIf"), _if),
    **dict.fromkeys(("Case", "StatelessCase"), _case),
}


# Values ------------------------------------------------------------------------------------------

Rule = Callable[[Node, list[Range]], "Range | list[Range]"]


def _const(op: Node, ranges: list[Range]) -> Range:
    tensor = op.outputs[0]
    if tensor.value is None or tensor.value.ndim != 1:
        return Range(False, np.array(tensor.least), np.array(tensor.most))
    return Range(False, tensor.value.astype(float), tensor.value.astype(float))


def _first(op: Node, ranges: list[Range]) -> Range:
    return ranges[0]


def _all(op: Node, ranges: list[Range]) -> Range:
    """The range of all inputs together."""
    flat = _flat(*ranges)
    for each in flat[1:]:
        flat[0] = flat[0].join(each)
    return flat[0]


def _cast(op: Node, ranges: list[Range]) -> Range:
    values, whole = ranges[0], op.outputs[0].kind == "i"
    if op.outputs[0].kind == "b":
        return Range(values.varies, np.array(0.0), np.array(1.0))
    return Range(values.varies, np.trunc(values.low), np.trunc(values.high)) if whole else values


def _moved(op: Node, ranges: list[Range]) -> Range:
    """The range of what has another shape: by column only where the columns stay as they were."""
    same = _last(op.inputs[0]) == _last(op.outputs[0])
    return Range(
        ranges[0].varies or any(each.varies for each in ranges[1:]),
        *((ranges[0].low, ranges[0].high) if same else (ranges[0].low.min(), ranges[0].high.max())),
    )


def _part(op: Node, ranges: list[Range]) -> Range:
    """The range of a strided slice; columns that are known are taken."""
    values = Range(any(each.varies for each in ranges), ranges[0].low, ranges[0].high)
    if not values.low.ndim:
        return values
    begin, end, strides = (tensor.value for tensor in op.inputs[1:4])
    sizes = [size or 2**20 for size in op.inputs[0].shape or ()]
    sizes[:-1] = [min(size, 2**20) for size in sizes[:-1]]
    if begin is None or end is None or strides is None:
        return values.whole() if _last(op.inputs[0]) != _last(op.outputs[0]) else values
    places = np.broadcast_to(np.arange(sizes[-1]), sizes)
    try:
        taken = places[_key(op, begin, end, strides)]
    except (IndexError, ValueError):
        return values.whole()
    while taken.ndim > 1:
        taken = taken[0] if len(taken) else taken.reshape(-1)
    fewer = (_rank(op.outputs[0]) or 0) < (_rank(op.inputs[0]) or 0)
    chosen = np.unique(taken) if fewer else taken
    low, high = values.low[chosen], values.high[chosen]
    if np.ndim(taken) == 0 or len(np.atleast_1d(chosen)) != _last(op.outputs[0]):
        return Range(values.varies, np.min(low), np.max(high))
    return Range(values.varies, np.atleast_1d(low), np.atleast_1d(high))


def _key(op: Node, begin: Any, end: Any, strides: Any) -> tuple[Any, ...]:
    """Returns NumPy's index of a strided slice."""
    masks = {
        name: op.attributes[f"{name}_mask"]
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    key: list[Any] = []
    for place in range(len(begin)):
        has = {name: bool(mask >> place & 1) for name, mask in masks.items()}
        if has["ellipsis"]:
            key.append(Ellipsis)
        elif has["new_axis"]:
            key.append(None)
        elif has["shrink_axis"]:
            key.append(int(begin[place]))
        else:
            first = None if has["begin"] else int(begin[place])
            last = None if has["end"] else int(end[place])
            key.append(slice(first, last, int(strides[place])))
    return tuple(key)


def _gathered(op: Node, ranges: list[Range]) -> Range:
    table, index = ranges[0], ranges[1]
    varies = table.varies or index.varies
    places, rank = op.inputs[1].value, _rank(op.inputs[0])
    axis = op.inputs[2].value if len(op.inputs) > 2 else np.array(0)
    last = axis is not None and rank and int(axis) in (-1, rank - 1)
    if table.low.ndim and last and places is not None and places.ndim <= 1:
        columns = np.atleast_1d(places)
        if (columns < len(table.low)).all() and (columns >= 0).all():
            low, high = table.low[columns], table.high[columns]
            return Range(varies, *((low, high) if places.ndim else (low.min(), high.max())))
    keeps = not last and _last(op.inputs[0]) == _last(op.outputs[0])
    table = table if keeps else table.whole()
    return Range(varies, table.low, table.high)


def _packed(op: Node, ranges: list[Range]) -> Range:
    axis, rank = op.attributes["axis"], _rank(op.outputs[0])
    if rank and axis in (-1, rank - 1):
        flat = _flat(*ranges)
        varies = any(each.varies for each in flat)
        return Range(varies, np.array([f.low for f in flat]), np.array([f.high for f in flat]))
    return _all(op, ranges)


def _concatenated(op: Node, ranges: list[Range]) -> Range:
    axis, rank = op.inputs[-1].value, _rank(op.outputs[0])
    parts, lengths = ranges[:-1], [_last(tensor) for tensor in op.inputs[:-1]]
    widths = [width for width in lengths if width is not None]
    last = axis is not None and rank and int(axis) in (-1, rank - 1)
    if last and len(widths) == len(lengths) and sum(widths) <= MOST_COLUMNS:
        low = [np.broadcast_to(p.low, w) for p, w in zip(parts, widths, strict=True)]
        high = [np.broadcast_to(p.high, w) for p, w in zip(parts, widths, strict=True)]
        varies = any(each.varies for each in parts)
        return Range(varies, np.concatenate(low), np.concatenate(high))
    return _all(op, parts)


def _split(op: Node, ranges: list[Range]) -> list[Range]:
    values = ranges[1] if op.type == "Split" else ranges[0]
    return [values.whole()] * len(op.outputs)


def _select(op: Node, ranges: list[Range]) -> Range:
    condition, yes, no = ranges
    if condition.within(0, 0):
        return no
    if condition.within(1, 1):
        return yes
    joined = yes.join(no)
    return Range(joined.varies or condition.varies, joined.low, joined.high)


def _compare(op: Node, ranges: list[Range]) -> Range:
    one, two = _flat(*ranges)
    strict = op.type in ("Less", "Greater")
    if op.type in ("Greater", "GreaterEqual"):
        one, two = two, one
    always = one.high < two.low if strict else one.high <= two.low
    never = one.low >= two.high if strict else one.low > two.high
    varies = one.varies or two.varies
    return Range(varies, np.array(float(always)), np.array(float(not never)))


def _logical(op: Node, ranges: list[Range]) -> Range:
    one, two = _flat(*ranges)
    join = np.minimum if op.type == "LogicalAnd" else np.maximum
    return Range(one.varies or two.varies, join(one.low, two.low), join(one.high, two.high))


def _not(op: Node, ranges: list[Range]) -> Range:
    return Range(ranges[0].varies, 1 - ranges[0].high, 1 - ranges[0].low)


def _arithmetic(op: Node, ranges: list[Range]) -> Range:
    one, two = ranges
    if one.low.shape != two.low.shape and one.low.ndim and two.low.ndim:
        one, two = _flat(one, two)
    with np.errstate(all="ignore"):
        low, high = BOUNDS[op.type](one, two)
    wrong = np.isnan(low) | np.isnan(high)
    low, high = np.where(wrong, -np.inf, low), np.where(wrong, np.inf, high)
    return Range(one.varies or two.varies, low, high)


def _products(one: Range, two: Range) -> tuple[Any, Any]:
    ends = [a * b for a in (one.low, one.high) for b in (two.low, two.high)]
    return np.min(np.broadcast_arrays(*ends), 0), np.max(np.broadcast_arrays(*ends), 0)


def _quotients(one: Range, two: Range) -> tuple[Any, Any]:
    """Quotients by positive numbers; others are not followed."""
    if not two.within(np.finfo(float).tiny, np.inf):
        return np.array(np.nan), np.array(np.nan)
    ends = [a / b for a in (one.low, one.high) for b in (two.low, two.high)]
    return np.min(np.broadcast_arrays(*ends), 0), np.max(np.broadcast_arrays(*ends), 0)


def _floors(one: Range, two: Range) -> tuple[Any, Any]:
    low, high = _quotients(one, two)
    return np.floor(low), np.floor(high)


def _remainders(one: Range, two: Range) -> tuple[Any, Any]:
    low = np.zeros(np.broadcast_shapes(one.low.shape, two.low.shape))
    return (low, low + two.high) if two.within(1, np.inf) else (low * np.nan, low * np.nan)


BOUNDS: dict[str, Callable[[Range, Range], tuple[Any, Any]]] = {
    "AddV2": lambda one, two: (one.low + two.low, one.high + two.high),
    "Sub": lambda one, two: (one.low - two.high, one.high - two.low),
    "Minimum": lambda one, two: (np.minimum(one.low, two.low), np.minimum(one.high, two.high)),
    "Maximum": lambda one, two: (np.maximum(one.low, two.low), np.maximum(one.high, two.high)),
    "Mul": _products,
    "RealDiv": _quotients,
    "FloorDiv": _floors,
    "FloorMod": _remainders,
}
BOUNDS["Add"] = BOUNDS["AddV2"]


def _negated(op: Node, ranges: list[Range]) -> Range:
    return Range(ranges[0].varies, -ranges[0].high, -ranges[0].low)


def _place(op: Node, ranges: list[Range]) -> Range:
    """The range of an index of the largest or least of an axis."""
    axis, shape = op.inputs[1].value, op.inputs[0].shape
    return _up_to(None if axis is None or shape is None else shape[int(axis)], ranges[0].varies)


def _up_to(size: int | None, varies: bool) -> Range:
    """The range of places in an axis."""
    return Range(varies, np.array(0.0), np.array(np.inf if size is None else size - 1.0))


def _sorted(op: Node, ranges: list[Range]) -> list[Range]:
    return [ranges[0].whole(), _up_to(_last(op.inputs[0]), ranges[0].varies)]


def _where(op: Node, ranges: list[Range]) -> Range:
    sizes = [np.inf if size is None else size - 1.0 for size in op.inputs[0].shape or (None,)]
    return Range(ranges[0].varies, np.zeros(len(sizes)), np.array(sizes))


def _counted(op: Node, ranges: list[Range]) -> Range:
    start, limit, step = _flat(*ranges)
    varies = any(each.varies for each in ranges)
    if not step.within(1, np.inf):
        return Range(varies)
    return Range(varies, start.low, np.maximum(start.low, limit.high - 1))


def _rounded(op: Node, ranges: list[Range]) -> Range:
    values, by = ranges[0], ROUNDING[op.type]
    return Range(values.varies, by(values.low), by(values.high))


ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.round,
    "Rint": np.rint,
}


def _clipped(op: Node, ranges: list[Range]) -> Range:
    values, low, high = _flat(*ranges)
    least = np.minimum(np.maximum(values.low, low.low), high.high)
    return Range(values.varies, least, np.maximum(np.minimum(values.high, high.high), low.low))


def _onehot(op: Node, ranges: list[Range]) -> Range:
    joined = ranges[2].join(ranges[3])
    return Range(ranges[0].varies, joined.low.min(), joined.high.max())


def _between(low: float, high: float) -> Rule:
    return lambda op, ranges: Range(
        any(each.varies for each in ranges), np.array(low), np.array(high)
    )


def _whole(op: Node, ranges: list[Range]) -> Range:
    return Range(any(each.varies for each in ranges), ranges[0].low.min(), ranges[0].high.max())


NO_ROWS = (  # whose results no rows decide
    *("Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs"),
    *("VarHandleOp", "EmptyTensorList", "NoOp"),
)
RULES: dict[str, Rule] = {
    "Const": _const,
    **dict.fromkeys(NO_ROWS, lambda op, ranges: SAME),
    "ZerosLike": lambda op, ranges: Range(False, np.array(0.0), np.array(0.0)),
    "OnesLike": lambda op, ranges: Range(False, np.array(1.0), np.array(1.0)),
    "Fill": lambda op, ranges: ranges[1].whole(),
    **dict.fromkeys(("ReadVariableOp", "ResourceGather"), lambda op, ranges: UNKNOWN),
    **dict.fromkeys(
        ("Identity", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape", "CheckNumerics"),
        _first,
    ),
    "Cast": _cast,
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims", "BroadcastTo", "Tile", "Slice"), _moved),
    **dict.fromkeys(
        ("Transpose", "ReverseV2", "Max", "Min", "Mean", "All", "Any", "GatherNd"), _whole
    ),
    "StridedSlice": _part,
    "GatherV2": _gathered,
    "Pack": _packed,
    "ConcatV2": _concatenated,
    **dict.fromkeys(("Split", "SplitV", "Unpack"), _split),
    **dict.fromkeys(("SelectV2", "Select"), _select),
    **dict.fromkeys(("Less", "LessEqual", "Greater", "GreaterEqual"), _compare),
    **dict.fromkeys(("LogicalAnd", "LogicalOr"), _logical),
    "LogicalNot": _not,
    **dict.fromkeys(BOUNDS, _arithmetic),
    **dict.fromkeys(ROUNDING, _rounded),
    "ClipByValue": _clipped,
    "Neg": _negated,
    **dict.fromkeys(("ArgMax", "ArgMin"), _place),
    "TopKV2": _sorted,
    "Where": _where,
    "Range": _counted,
    "OneHot": _onehot,
    **dict.fromkeys(
        ("Equal", "NotEqual", "IsFinite", "IsNan", "Sigmoid", "Softmax"), _between(0.0, 1.0)
    ),
    "Tanh": _between(-1.0, 1.0),
    "Relu": lambda op, ranges: Range(
        ranges[0].varies, np.maximum(ranges[0].low, 0), np.maximum(ranges[0].high, 0)
    ),
}


# Checks ------------------------------------------------------------------------------------------

Check = Callable[[Node, list[Range]], bool]


def _inside(index: Range, size: int | None, low: float = 0.0) -> bool:
    """Whether an index is the same in all batches, or inside of an axis."""
    return not index.varies or (size is not None and index.within(low, size - 1))


def _takes_rows(op: Node, ranges: list[Range]) -> bool:
    axis, shape = op.inputs[2].value, op.inputs[0].shape
    if axis is None or shape is None:
        return not ranges[1].varies
    return _inside(ranges[1], shape[int(axis)])


def _table_size(op: Node) -> Sequence[int | None]:
    """Returns the shape of the variable behind a resource; unknown sizes if it is not known."""
    return op.inputs[0].variable or [None] * 8


def _takes_places(index: Range, width: int | None, sizes: Sequence[int | None]) -> bool:
    """Whether each column of some places lies inside of its axis."""
    if not index.varies:
        return True
    if width is None or width > len(sizes) or any(size is None for size in sizes[:width]):
        return False
    known = [size - 1.0 for size in sizes[:width] if size is not None]
    return bool((index.low >= 0).all() and (index.high <= np.array(known)).all())


def _places(at: int, table: Callable[[Node], Sequence[int | None]]) -> Check:
    return lambda op, ranges: _takes_places(ranges[at], _last(op.inputs[at]), table(op))


def _shape_of(at: int) -> Callable[[Node], Sequence[int | None]]:
    return lambda op: op.inputs[at].shape or ()


def _scatter_shape(op: Node) -> Sequence[int | None]:
    shape = op.inputs[2].value
    return op.outputs[0].shape or () if shape is None else [int(size) for size in shape]


def _segments(op: Node, ranges: list[Range]) -> bool:
    count = op.inputs[2].value
    size = (op.outputs[0].shape or (None,))[0] if count is None else int(count)
    return _inside(ranges[1], size, -np.inf)


def _same(*places: int) -> Check:
    """Whether some inputs are the same in all batches."""
    return lambda op, ranges: not any(ranges[place].varies for place in places)


def _divides(op: Node, ranges: list[Range]) -> bool:
    if op.inputs[1].kind != "i" or not ranges[1].varies:
        return True
    return ranges[1].within(1, np.inf) or ranges[1].within(-np.inf, -1)


def _raises(op: Node, ranges: list[Range]) -> bool:
    whole = op.inputs[1].kind == "i"
    return not whole or not ranges[1].varies or ranges[1].within(0, np.inf)


def _takes_index(op: Node, ranges: list[Range]) -> bool:
    return not op.attributes["shrink_axis_mask"] or not ranges[1].varies


def _size_at(op: Node, attribute: str) -> int:
    """Returns the length of an axis that an attribute names; -1 if it is unknown."""
    shape = op.inputs[0].shape
    return -1 if shape is None else shape[op.attributes[attribute]] or -1


SEGMENTS = ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
DIVISIONS = ("FloorDiv", "Div", "TruncateDiv", "FloorMod", "TruncateMod", "Mod")
UPDATES = ("Update", "Add", "Sub", "Max", "Min", "Mul", "Div")

CHECKS: dict[str, Check] = {
    "GatherV2": _takes_rows,
    "Gather": lambda op, ranges: _inside(ranges[1], (op.inputs[0].shape or (None,))[0]),
    "ResourceGather": lambda op, ranges: _inside(ranges[1], _table_size(op)[0]),
    "GatherNd": _places(1, _shape_of(0)),
    "ResourceGatherNd": _places(1, _table_size),
    "ScatterNd": _places(0, _scatter_shape),
    **{f"TensorScatter{name}": _places(1, _shape_of(0)) for name in UPDATES},
    **{f"ResourceScatterNd{name}": _places(1, _table_size) for name in UPDATES},
    **{
        f"ResourceScatter{name}": lambda op, ranges: _inside(ranges[1], _table_size(op)[0])
        for name in UPDATES
    },
    **dict.fromkeys(SEGMENTS, _segments),
    "SegmentSumV2": _segments,
    **dict.fromkeys(("Slice", "MatrixBandPart"), _same(1, 2)),
    "StridedSlice": _takes_index,
    **dict.fromkeys(DIVISIONS, _divides),
    "Pow": _raises,
    **dict.fromkeys(
        ("MatrixInverse", "InvertPermutation", "MatrixSolve", "CheckNumerics", "CheckNumericsV2"),
        _same(0),
    ),
    "Assert": lambda op, ranges: not ranges[0].varies or ranges[0].within(1, 1),
    "SparseSoftmaxCrossEntropyWithLogits": lambda op, ranges: _inside(
        ranges[1], _last(op.inputs[0])
    ),
    "ReverseSequence": lambda op, ranges: (
        not ranges[1].varies or ranges[1].within(0, _size_at(op, "seq_dim"))
    ),
    "DynamicPartition": lambda op, ranges: _inside(ranges[1], op.attributes["num_partitions"]),
    **dict.fromkeys(("Bincount", "DenseBincount"), lambda op, ranges: _inside(ranges[0], 2**63)),
}
FIRST = (
    *("ScatterNd", "MatrixInverse", "InvertPermutation", "MatrixSolve", "Assert"),
    *("CheckNumerics", "CheckNumericsV2", "Bincount", "DenseBincount"),
)
# The inputs that each operation checks; where it stands and how large they are needs no range.
CHECKED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(CHECKS, (1,)),
    **dict.fromkeys(FIRST, (0,)),
    **dict.fromkeys(("Slice", "MatrixBandPart"), (1, 2)),
}
