"""Counts FLOPs of single TensorFlow operations, for layers without a formula.

The counting follows `layer_flops`. Only floating-point numbers count: computing shapes or indices
is free. The count of an unknown operation is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpukeras.profiler.cost.layer_flops import SOFTMAX

OPEN = "an open dimension"


def names(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


# Ops that move, read or make numbers without arithmetic.
FREE = names(
    """
    Const Placeholder Identity IdentityN StopGradient PreventGradient NoOp ReadVariableOp
    VariableV2 Cast Reshape ExpandDims Squeeze Transpose Shape ShapeN Size Rank Fill ZerosLike
    OnesLike Pack Unpack Concat ConcatV2 Split SplitV Slice StridedSlice Gather GatherV2 GatherNd
    ResourceGather Tile Pad PadV2 MirrorPad BroadcastTo ReverseV2 Reverse Select SelectV2 Where
    OneHot Range SpaceToBatchND BatchToSpaceND SpaceToDepth DepthToSpace EnsureShape Snapshot
    MatrixDiagV3 MatrixBandPart ScatterNd TensorScatterUpdate ResizeNearestNeighbor Roll
    InvertPermutation DynamicPartition DynamicStitch
    """
)
# Ops with one FLOP per number of the output.
EACH = names(
    """
    Add AddV2 Sub Mul Div RealDiv DivNoNan FloorDiv FloorMod Mod Maximum Minimum Pow
    SquaredDifference BiasAdd Neg Abs Sign Square Sqrt Rsqrt Exp Expm1 Log Log1p Reciprocal Inv Sin
    Cos Tan Asin Acos Atan Atan2 Sinh Cosh Tanh Erf Erfc Sigmoid Relu Relu6 LeakyRelu Elu Selu
    Softplus Softsign Round Floor Ceil ClipByValue L2Loss MulNoNan Xlogy
    RandomUniform RandomStandardNormal StatelessRandomUniform StatelessRandomUniformV2
    StatelessRandomNormal StatelessRandomNormalV2 Cumsum Cumprod
    """
)
# Ops with one FLOP per number of the first input.
REDUCED = names("Sum Mean Prod Max Min EuclideanNorm SegmentSum UnsortedSegmentSum")


@dataclass(frozen=True)
class CountedOp:
    """An operation of JAX, see `jaxpr_flops`.

    Args:
        type: Its name.
        flops: Its FLOPs; None if it is unknown.
    """

    type: str
    flops: float | None


def op_flops(op: Any) -> float | None:
    """Returns the FLOPs of an operation of a graph.

    Args:
        op: A `tf.Operation`, which is only read, or a `CountedOp`.

    Returns:
        None for an unknown operation, NaN if a dimension is open.
    """
    if isinstance(op, CountedOp):
        return op.flops
    floating = any(out.dtype.is_floating or out.dtype.is_complex for out in op.outputs)
    opaque = any(out.dtype.name in ("variant", "resource") for out in op.outputs)
    if op.type in FREE or op.type == "VarHandleOp" or not (floating or opaque):
        return 0
    return _count(op)


def count_ops(ops: Iterable[Any]) -> tuple[float, list[str]]:
    """Returns the FLOPs of the known operations, and the reasons for the others, each once."""
    pairs = [(op.type, op_flops(op)) for op in ops]
    known = [flops for _, flops in pairs if flops is not None]
    unknown = list(dict.fromkeys(kind for kind, flops in pairs if flops is None))
    counted = [flops for flops in known if not math.isnan(flops)]
    return sum(counted), unknown + [OPEN] * (len(counted) < len(known))


def tensor_shape(tensor: Any) -> tuple[float, ...]:
    """Returns a tensor's static shape; NaN for an unknown dimension or an unknown rank."""
    if isinstance(tensor.shape, tuple):  # of JAX or Keras
        return tuple(math.nan if size is None else size for size in tensor.shape)
    rank = tensor.shape.rank
    if rank is None:
        return (math.nan,)
    return tuple(math.nan if size is None else size for size in tensor.shape.as_list())


def element_bytes(dtype: Any) -> int:
    """Returns the bytes of a number of TensorFlow's or NumPy's dtype; 0 for a resource."""
    size = getattr(dtype, "itemsize", None)
    return int(dtype.size if size is None else size)


def _count(op: Any) -> float | None:
    if op.type in EACH:
        return math.prod(tensor_shape(op.outputs[0]))
    if op.type in REDUCED:
        return math.prod(tensor_shape(op.inputs[0]))
    formula = _FORMULAS.get(op.type)
    return None if formula is None else formula(op)


def _softmax(op: Any) -> float:
    return SOFTMAX * math.prod(tensor_shape(op.outputs[0]))


def _add_n(op: Any) -> float:
    return math.prod(tensor_shape(op.outputs[0])) * (len(op.inputs) - 1)


def _matmul(op: Any) -> float:
    shape, turned = tensor_shape(op.inputs[0]), op.get_attr("transpose_a")
    return 2 * math.prod(tensor_shape(op.outputs[0])) * shape[-2 if turned else -1]


def _batch_matmul(op: Any) -> float:
    shape, turned = tensor_shape(op.inputs[0]), op.get_attr("adj_x")
    return 2 * math.prod(tensor_shape(op.outputs[0])) * shape[-2 if turned else -1]


def _einsum(op: Any) -> float:
    """Counts one loop for every label of the inputs."""
    operands = op.get_attr("equation").decode().partition("->")[0].split(",")
    sizes: dict[str, float] = {}
    for labels, tensor in zip(operands, op.inputs, strict=True):
        shape = tensor_shape(tensor)
        if len(labels) != len(shape):  # "..." stands for several
            return math.nan
        sizes.update(zip(labels, shape, strict=True))
    return 2 * math.prod(sizes.values())


def _conv(op: Any) -> float:
    return 2 * math.prod(tensor_shape(op.outputs[0])) * math.prod(tensor_shape(op.inputs[1])[:-1])


def _depthwise(op: Any) -> float:
    return 2 * math.prod(tensor_shape(op.outputs[0])) * math.prod(tensor_shape(op.inputs[1])[:2])


def _conv_transpose(op: Any) -> float:
    """Counts each input number times the kernel's taps and the output channels."""
    kernel = tensor_shape(op.inputs[1])
    return 2 * math.prod(tensor_shape(op.inputs[2])) * math.prod(kernel[:-1])


def _pool(op: Any) -> float:
    return math.prod(tensor_shape(op.outputs[0])) * math.prod(op.get_attr("ksize"))


def _batch_norm(op: Any) -> float:
    return 2 * math.prod(tensor_shape(op.outputs[0]))


_FORMULAS: dict[str, Callable[[Any], float]] = {
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "AddN": _add_n,
    "MatMul": _matmul,
    "BatchMatMul": _batch_matmul,
    "BatchMatMulV2": _batch_matmul,
    "BatchMatMulV3": _batch_matmul,
    "Einsum": _einsum,
    "Conv2D": _conv,
    "Conv3D": _conv,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _conv_transpose,
    "Conv3DBackpropInputV2": _conv_transpose,
    "MaxPool": _pool,
    "AvgPool": _pool,
    "MaxPool3D": _pool,
    "AvgPool3D": _pool,
    "FusedBatchNormV3": _batch_norm,
}
