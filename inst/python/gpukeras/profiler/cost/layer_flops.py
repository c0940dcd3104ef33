"""Counts FLOPs of Keras' own layers by closed formulas, from the shapes of a call.

The counting follows TensorFlow's profiler. A multiplication and the addition after it are two FLOPs
(a product of m x k and k x n takes 2 m k n). The same holds for every tap of a convolution,
including taps on "same" padding. A bias is one addition per number, a function of one number (relu,
tanh, a root) one, a softmax five per number (maximum, difference, exponential, sum, division).
Moving numbers (flatten, concatenate, an embedding's lookup) is free. The forward pass of a
prediction is counted: dropout and noise do nothing, and batch normalization is one product and one
sum per number.

With p positions (rows of the batch included), T steps, c input channels or numbers:

    Dense               2 p c units
    Conv                2 p_out k c/groups filters        k: taps of the kernel
    ConvTranspose       2 p_in k c filters
    DepthwiseConv       2 p_out k c multiplier
    SeparableConv       2 p_out c multiplier (k + filters)
    LSTM                T (8 u (c + u) + 13 u)            4 u of them the bias, 9 u the gates' work
    GRU                 T (6 u (c + u) + 15 u)            reset_after; 6 u biases, 9 u gates
    GRU, reset before   T (6 u (c + u) + 11 u)            3 u biases, 8 u gates
    SimpleRNN           T (2 u (c + u) + 2 u)
    MultiHeadAttention  four projections as Dense, and for each of h heads over S attended positions
                        p S (2 key_dim + 1 + 5 + 2 value_dim): product, scale, softmax, product
    Attention           p S (2 c + 5 + 2 value's numbers)

Sources: the cells' equations in Hochreiter & Schmidhuber (1997) and Cho et al. (2014) as Keras
computes them; Vaswani et al. (2017) for attention; Howard et al. (2017) for separable convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KERAS = "keras.src.layers"
SOFTMAX = 5  # per number: maximum, difference, exponential, sum, division

Shape = tuple[float, ...]  # an unknown dimension is NaN, and so is every count with it


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Args:
        layer: A Keras layer.
        inputs: By argument of its `call`: a shape with the batch in front, or a list of shapes.
        output: Shape of the (first) output.
    """

    layer: Any
    inputs: Mapping[str, Any] = field(default_factory=dict)
    output: Shape = ()

    @property
    def first(self) -> Shape:
        """Shape of the first input tensor."""
        first_input = next(iter(self.inputs.values()), ())
        return first_input[0] if isinstance(first_input, list) else first_input

    @property
    def many(self) -> int:
        """Number of tensors in the first argument."""
        first_input = next(iter(self.inputs.values()), ())
        return len(first_input) if isinstance(first_input, list) else 1


def layer_flops(call: Call) -> float | None:
    """Counts the FLOPs of a call for the whole batch.

    Returns:
        The FLOPs, or None if there is no formula (see `has_formula()`) or a dimension is unknown.
    """
    formula = find_formula(call.layer)
    if formula is None:
        return None
    flops = formula(call)
    return None if math.isnan(flops) else flops


def has_formula(layer: Any) -> bool:
    """Whether a formula gives the layer's FLOPs, without tracing its operations."""
    return find_formula(layer) is not None


def find_formula(layer: Any) -> Callable[[Call], float] | None:
    """Returns the formula of a layer; None also for a subclass that overrides Keras' `call`."""
    kind = keras_kind(layer)
    if kind in ("RNN", "LSTM", "GRU", "SimpleRNN"):
        return _recurrent if _cell_formula(layer.cell) else None
    if kind == "UpSampling2D" and layer.interpolation != "nearest":
        return None
    return _FORMULAS.get(kind)


def keras_kind(layer: Any) -> str:
    """Returns the name of the Keras class whose `call` a layer runs; "" for a custom class."""
    maker = next((kind for kind in type(layer).__mro__ if "call" in vars(kind)), object)
    if not is_keras_layer(maker):
        return ""
    return next(filter(is_keras_layer, type(layer).__mro__)).__name__


def is_keras_layer(kind: type) -> bool:
    """Whether a class is one of Keras' own layers; a class made in R may have no module."""
    return getattr(kind, "__module__", "").startswith(KERAS)


# Products ----------------------------------------------------------------------------------------


def _finish(call: Call) -> float:
    """Returns the FLOPs of bias and activation."""
    numbers = math.prod(call.output)
    return numbers * bool(call.layer.use_bias) + activation_flops(call.layer.activation, numbers)


def activation_flops(function: Any, numbers: float) -> float:
    """Returns the FLOPs of an activation function on `numbers` numbers."""
    name = getattr(function, "__name__", "")
    if function is None or name == "linear":
        return 0
    return numbers * (SOFTMAX if name in ("softmax", "log_softmax") else 1)


def _channels(call: Call) -> float:
    return call.first[1 if call.layer.data_format == "channels_first" else -1]


def _dense(call: Call) -> float:
    return 2 * math.prod(call.first) * call.layer.units + _finish(call)


def _einsum_dense(call: Call) -> float:
    """Counts one loop for every label of input and kernel."""
    operands, _, _ = call.layer.equation.replace(" ", "").partition("->")
    left, kernel = operands.split(",")
    if "." in operands:
        return math.nan
    sizes = dict(zip(left, call.first, strict=True))
    sizes.update(zip(kernel, call.layer.kernel.shape, strict=True))
    numbers = math.prod(call.output)
    bias = numbers * (call.layer.bias_axes is not None)
    return 2 * math.prod(sizes.values()) + bias + activation_flops(call.layer.activation, numbers)


def _conv(call: Call) -> float:
    taps = math.prod(call.layer.kernel_size)
    return 2 * math.prod(call.output) * taps * _channels(call) / call.layer.groups + _finish(call)


def _conv_transpose(call: Call) -> float:
    taps = math.prod(call.layer.kernel_size)
    return 2 * math.prod(call.first) * taps * call.layer.filters + _finish(call)


def _depthwise(call: Call) -> float:
    return 2 * math.prod(call.output) * math.prod(call.layer.kernel_size) + _finish(call)


def _separable(call: Call) -> float:
    layer = call.layer
    between = math.prod(call.output) / layer.filters * _channels(call) * layer.depth_multiplier
    return 2 * between * (math.prod(layer.kernel_size) + layer.filters) + _finish(call)


# Attention ---------------------------------------------------------------------------------------


def _attended(call: Call) -> tuple[Shape, Shape, Shape]:
    """Returns the shapes of query, value and key; the key defaults to the value."""
    if "query" in call.inputs:
        query, value = call.inputs["query"], call.inputs["value"]
        return query, value, call.inputs.get("key") or value
    query, value, *key = next(iter(call.inputs.values()))
    return query, value, key[0] if key else value


def _project(shape: Shape, width: float, bias: bool) -> float:
    return math.prod(shape[:-1]) * width * (2 * shape[-1] + bias)


def _multi_head(call: Call) -> float:
    layer, (query, value, key) = call.layer, _attended(call)
    heads, pairs, wide, deep = _heads(layer)
    bias = bool(layer.use_bias)
    inside = (*query[:-1], heads * deep)
    return (
        _project(query, heads * wide, bias)
        + _project(key, pairs * wide, bias)
        + _project(value, pairs * deep, bias)
        + attention_scores(call)
        + _project(inside, call.output[-1], bias)
    )


def _heads(layer: Any) -> tuple[int, int, int, int]:
    """Returns the heads of queries and of keys/values, and a key's and a value's head size."""
    if hasattr(layer, "num_key_value_heads"):  # GroupedQueryAttention
        return (
            layer.num_query_heads,
            layer.num_key_value_heads,
            layer.head_dim,
            layer.head_dim,
        )
    return layer.num_heads, layer.num_heads, layer.key_dim, layer.value_dim


def attention_scores(call: Call) -> float:
    """Returns the part of a MultiHeadAttention that grows with the square of the length.

    For each pair of positions: a product, its scaling, the softmax, the values' weighted sum.
    """
    query, _, key = _attended(call)
    heads, _, wide, deep = _heads(call.layer)
    axes = getattr(call.layer, "attention_axes", None)
    attended = math.prod(key[axis] for axis in axes) if axes else math.prod(key[1:-1])
    return math.prod(query[:-1]) * heads * attended * (2 * wide + 1 + SOFTMAX + 2 * deep)


def _attention(call: Call) -> float:
    """Counts each query's scores with each key, their softmax, and the values' weighted sum."""
    query, value, _ = _attended(call)
    pairs, width = math.prod(query[:-1]) * value[-2], query[-1]
    if keras_kind(call.layer) == "Attention" and call.layer.score_mode == "dot":
        score = 2 * width + bool(call.layer.use_scale)
    else:  # the sum of tanh(query + key), each number times its scale if scales are learned
        score = width * (3 + bool(call.layer.use_scale))
        score += keras_kind(call.layer) == "Attention"  # concat_score_weight
    return pairs * (score + SOFTMAX + 2 * value[-1])


# Recurrent ---------------------------------------------------------------------------------------


def _recurrent(call: Call) -> float:
    steps, inside = math.prod(call.first[:2]), call.first[2:]
    return steps * _count_cell(call.layer.cell, inside)


def _count_cell(cell: Any, inside: Shape) -> float:
    formula = _cell_formula(cell)
    assert formula is not None  # otherwise the layer would have no formula either
    return formula(cell, inside)


def _cell_formula(cell: Any) -> Callable[[Any, Shape], float] | None:
    """Returns the formula of a cell: FLOPs of a time step, from the shape of the step's input."""
    kind = keras_kind(cell)
    if kind == "StackedRNNCells" and not all(_cell_formula(inner) for inner in cell.cells):
        return None
    return _CELLS.get(kind)


def _lstm(cell: Any, step: Shape) -> float:
    units = cell.units
    return 8 * units * (step[-1] + units) + units * (4 * bool(cell.use_bias) + 9)


def _gru(cell: Any, step: Shape) -> float:
    units = cell.units
    biases, gates = (6, 9) if cell.reset_after else (3, 8)
    return 6 * units * (step[-1] + units) + units * (biases * bool(cell.use_bias) + gates)


def _simple_rnn(cell: Any, step: Shape) -> float:
    units = cell.units
    return 2 * units * (step[-1] + units) + units * (bool(cell.use_bias) + 1)


def _stacked(cell: Any, step: Shape) -> float:
    total = 0.0
    for inner in cell.cells:
        total += _count_cell(inner, step)
        step = (inner.units,)
    return total


def _conv_lstm(call: Call) -> float:
    """Counts four gates: a convolution of the input, and one of the state with "same" padding."""
    layer, steps = call.layer, call.first[1]
    channels = call.first[2 if layer.data_format == "channels_first" else -1]
    numbers = math.prod(call.output) * (1 if layer.return_sequences else steps)
    taps = math.prod(layer.kernel_size)
    return numbers * (8 * taps * (channels + layer.filters) + 4 * bool(layer.use_bias) + 9)


_CELLS: dict[str, Callable[[Any, Shape], float]] = {
    "LSTMCell": _lstm,
    "GRUCell": _gru,
    "SimpleRNNCell": _simple_rnn,
    "StackedRNNCells": _stacked,
}


# Number by number --------------------------------------------------------------------------------


def _each(flops: float) -> Callable[[Call], float]:
    return lambda call: math.prod(call.output) * flops


def _nothing(call: Call) -> float:
    return 0


def _merge(call: Call) -> float:
    return math.prod(call.output) * (call.many - 1)


def _activation(call: Call) -> float:
    return activation_flops(call.layer.activation, math.prod(call.output))


def _normalise(call: Call) -> float:
    """Counts mean, difference, square, its mean, product; then the learned scale and offset."""
    learned = bool(call.layer.scale) + bool(getattr(call.layer, "center", False))
    return math.prod(call.output) * (5 + learned)


def _pool(call: Call) -> float:
    return math.prod(call.output) * math.prod(call.layer.pool_size)


def _pool_all(call: Call) -> float:
    return math.prod(call.first)


def _by_rank(name: str, formula: Callable[[Call], float]) -> dict[str, Callable[[Call], float]]:
    return {f"{name}{rank}D": formula for rank in (1, 2, 3)}


_MOVED = ("Flatten", "Reshape", "Permute", "RepeatVector", "Concatenate", "Identity", "Embedding")
_TRAINED = ("Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise")
_RANKED = ("ZeroPadding", "Cropping", "UpSampling", "SpatialDropout")

_FORMULAS: dict[str, Callable[[Call], float]] = {
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    **_by_rank("Conv", _conv),
    **{f"Conv{rank}DTranspose": _conv_transpose for rank in (1, 2, 3)},
    **_by_rank("DepthwiseConv", _depthwise),
    **_by_rank("SeparableConv", _separable),
    **_by_rank("ConvLSTM", _conv_lstm),
    "MultiHeadAttention": _multi_head,
    "GroupedQueryAttention": _multi_head,
    "Attention": _attention,
    "AdditiveAttention": _attention,
    **dict.fromkeys(_MOVED + _TRAINED + ("InputLayer", "ActivityRegularization"), _nothing),
    **{kind: formula for name in _RANKED for kind, formula in _by_rank(name, _nothing).items()},
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Maximum", "Minimum"), _merge),
    "Average": lambda call: math.prod(call.output) * call.many,
    "Activation": _activation,
    **dict.fromkeys(("ReLU", "LeakyReLU", "ELU", "PReLU"), _each(1)),
    "Softmax": _each(SOFTMAX),
    **dict.fromkeys(("BatchNormalization", "Normalization", "Rescaling"), _each(2)),
    "LayerNormalization": _normalise,
    "GroupNormalization": _normalise,
    "RMSNormalization": _each(4),
    "UnitNormalization": _each(3),
    **_by_rank("MaxPooling", _pool),
    **_by_rank("AveragePooling", _pool),
    **_by_rank("GlobalMaxPooling", _pool_all),
    **_by_rank("GlobalAveragePooling", _pool_all),
}
