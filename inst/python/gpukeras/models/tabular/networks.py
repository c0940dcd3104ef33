"""The backbones of networks for tables: what lies between embedded columns and the output.

Each is made of Keras' layers and those of `tabular`. Kernels begin uniform in +-1 / sqrt(inputs),
PyTorch's default and so that of the papers' code; biases begin with 0.

References:
    Gorishniy, Y. et al. (2021). Revisiting deep learning models for tabular data. arXiv:2106.11959.
    Wang, R. et al. (2021). DCN V2: improved deep & cross network. arXiv:2008.13535, section 3.
    Gorishniy, Y., Kotelnikov, A. & Babenko, A. (2025). TabM. arXiv:2410.24210.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpukeras.backend import runtime
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular.column_layers import ClassToken
from gpukeras.models.tabular.members import BatchEnsemble
from gpukeras.models.tabular.options import Sizes, TabularSpec

EPSILON, MOMENTUM = 1e-5, 0.9  # PyTorch's defaults of normalisation; its momentum is 1 - Keras'


class Seeds:
    """Gives one seed after the other, all from the user's.

    Args:
        seed: The user's seed.
    """

    def __init__(self, seed: int) -> None:
        """Begins before the first seed."""
        self._last = seed

    def __call__(self) -> int:
        """Returns the next seed, below 2^31."""
        self._last = (self._last * 1103515245 + 12345) % 2**31
        return self._last


def uniform(seed: int) -> Any:
    """Returns the initializer that is uniform in +-1 / sqrt(inputs)."""
    return runtime.keras().initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed)


def dense(units: int, draw: Seeds, activation: str | None = None, bias: bool = True) -> Any:
    """Returns a dense layer."""
    layers = runtime.keras().layers
    return layers.Dense(units, activation, use_bias=bias, kernel_initializer=uniform(draw()))


def drop(share: float, draw: Seeds, values: Any) -> Any:
    """Returns the values after dropout, if there is any."""
    return runtime.keras().layers.Dropout(share, seed=draw())(values) if share else values


def build_mlp(values: Any, sizes: Sizes, draw: Seeds) -> Any:
    """Returns the last hidden values of a perceptron, (rows, units)."""
    for _ in range(sizes.blocks):
        values = drop(sizes.dropout, draw, dense(sizes.units, draw, "relu")(values))
    return values


def build_resnet(values: Any, sizes: Sizes, draw: Seeds) -> Any:
    """Returns the last hidden values of a residual network (arXiv:2106.11959, section 3.2).

    A block's hidden layer has twice the units, and only it has dropout: the defaults of
    rtdl_revisiting_models.
    """
    layers = runtime.keras().layers
    values = dense(sizes.units, draw)(values)
    for _ in range(sizes.blocks):
        hidden = layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)(values)
        hidden = dense(2 * sizes.units, draw, "relu")(hidden)
        hidden = dense(sizes.units, draw)(drop(sizes.dropout, draw, hidden))
        values = layers.Add()([values, hidden])
    values = layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)(values)
    return layers.Activation("relu")(values)


def build_dcn(values: Any, sizes: Sizes, draw: Seeds, rank: int | None) -> Any:
    """Returns the last hidden values of a stacked DCN-v2: cross layers, then dense ones.

    A cross layer is x0 * (W x + b) + x (equation 1), with W of full rank, or U V' (equation 3).
    """
    layers = runtime.keras().layers
    first = values
    width = values.shape[-1]
    for _ in range(sizes.blocks):
        inner = values if rank is None else dense(min(rank, width), draw, bias=False)(values)
        crossed = layers.Multiply()([first, dense(width, draw)(inner)])
        values = layers.Add()([crossed, values])
    return build_mlp(values, sizes, draw)


def build_transformer(tokens: Any, sizes: Sizes, draw: Seeds, heads: int) -> Any:
    """Returns the class token's values after a transformer (arXiv:2106.11959, section 3.3).

    Normalisation comes before each part, but not before the first attention; the hidden layer is
    ReGLU with 4/3 of the units; the last attention is asked by the class token alone. Attention
    drops 0.1 more than the hidden layer if that drops anything, as the package's defaults do.
    """
    layers = runtime.keras().layers
    tokens, last = keras_class(ClassToken)(draw())(tokens), sizes.blocks - 1
    for block in range(sizes.blocks):
        known = tokens if not block else layers.LayerNormalization(epsilon=EPSILON)(tokens)
        attention = layers.MultiHeadAttention(
            heads,
            sizes.units // heads,
            dropout=min(0.99, sizes.dropout + 0.1),
            kernel_initializer=runtime.keras().initializers.GlorotUniform(draw()),
            seed=draw(),
        )
        asked = known if block < last else _class_token(known)
        tokens = tokens if block < last else _class_token(tokens)
        tokens = layers.Add()([tokens, attention(asked, known)])
        tokens = layers.Add()([tokens, _feed_forward(tokens, sizes, draw)])
    tokens = layers.Flatten()(layers.LayerNormalization(epsilon=EPSILON)(tokens))
    return layers.Activation("relu")(tokens)


def _class_token(tokens: Any) -> Any:
    return runtime.keras().layers.Cropping1D((0, tokens.shape[1] - 1))(tokens)


def _feed_forward(tokens: Any, sizes: Sizes, draw: Seeds) -> Any:
    """Returns the tokens after their normalisation, the layer ReGLU and its way back."""
    layers, hidden = runtime.keras().layers, int(sizes.units * 4 / 3)
    tokens = layers.LayerNormalization(epsilon=EPSILON)(tokens)
    gated = [dense(hidden, draw)(tokens), dense(hidden, draw, "relu")(tokens)]
    return dense(sizes.units, draw)(drop(sizes.dropout, draw, layers.Multiply()(gated)))


def build_members(
    values: Any, sizes: Sizes, draw: Seeds, spec: TabularSpec, chunks: Sequence[int]
) -> Any:
    """Returns the last hidden values of TabM's members, (rows, members, units).

    Only r of the first layer begins at random, one value for each feature of `chunks`: "normal" if
    numbers are embedded, otherwise random signs, as in the package tabm.
    """
    layers, made = runtime.keras().layers, keras_class(BatchEnsemble)
    start = "random-signs" if spec.numeric_embeddings == "none" else "normal"
    for block in range(sizes.blocks):
        scaling, parts = ("ones", []) if block else (start, list(chunks))
        values = made(sizes.units, sizes.members, scaling, parts, draw())(values)
        values = drop(sizes.dropout, draw, layers.Activation("relu")(values))
    return values


def build_heads(units: int, activation: Any, members: int, draw: Seeds, values: Any) -> Any:
    """Returns the output of one dense layer for each member, (rows, members, units), in float32."""
    layers, keras = runtime.keras().layers, runtime.keras()
    limit = values.shape[-1] ** -0.5
    kernels = keras.initializers.RandomUniform(-limit, limit, draw())
    return layers.EinsumDense(
        "bki,kio->bko",
        (members, units),
        activation,
        bias_axes="ko",
        kernel_initializer=kernels,
        dtype="float32",
    )(values)
