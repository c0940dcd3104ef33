import math

import pytest
from lazy_modules import keras, layers, tf

from gpukeras.profiler.cost import graph as cost_graph
from gpukeras.profiler.cost import layer_flops, model_cost, op_flops

pytestmark = pytest.mark.tf

STEPS, IMAGE, SQUARE = [(9, 3)], [(10, 9, 4)], [(6, 6, 4)]
LSTM = 9 * (8 * 5 * (3 + 5) + 13 * 5)
CLOSED = {
    "dense": (lambda L: L.Dense(5, use_bias=False), [(7,)], 2 * 7 * 5),
    "dense, bias, relu": (lambda L: L.Dense(5, "relu"), [(7,)], 2 * 7 * 5 + 5 + 5),
    "dense, softmax": (lambda L: L.Dense(5, "softmax"), [(7,)], 2 * 7 * 5 + 5 + 5 * 5),
    "dense on positions": (lambda L: L.Dense(5), [(4, 3, 7)], 12 * (2 * 7 * 5 + 5)),
    "conv1d": (lambda L: L.Conv1D(6, 3, use_bias=False), [(10, 4)], 8 * 2 * 3 * 4 * 6),
    "conv2d": (lambda L: L.Conv2D(6, 3, use_bias=False), IMAGE, 8 * 7 * 2 * 9 * 4 * 6),
    "conv2d, same, strides": (
        lambda L: L.Conv2D(6, (3, 5), strides=2, padding="same", activation="relu"),
        IMAGE,
        5 * 5 * 6 * (2 * 15 * 4 + 2),
    ),
    "groups": (lambda L: L.Conv2D(6, 3, groups=2, use_bias=False), IMAGE, 8 * 7 * 2 * 9 * 2 * 6),
    "conv3d": (lambda L: L.Conv3D(2, 2), [(4, 4, 4, 3)], 27 * 2 * (2 * 8 * 3 + 1)),
    "conv1d transpose": (
        lambda L: L.Conv1DTranspose(3, 2, strides=2, use_bias=False),
        [(5, 4)],
        2 * 5 * 4 * 2 * 3,
    ),
    "conv2d transpose": (
        lambda L: L.Conv2DTranspose(3, 2, strides=2),
        [(5, 5, 4)],
        2 * 25 * 4 * 4 * 3 + 100 * 3,
    ),
    "depthwise": (
        lambda L: L.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False),
        SQUARE,
        16 * 8 * 2 * 9,
    ),
    "separable": (
        lambda L: L.SeparableConv2D(5, 3, depth_multiplier=2, use_bias=False),
        SQUARE,
        16 * (2 * 8 * 9 + 2 * 8 * 5),
    ),
    "separable1d": (lambda L: L.SeparableConv1D(5, 3), [(6, 4)], 4 * (2 * 4 * (3 + 5) + 5)),
    "lstm": (lambda L: L.LSTM(5), STEPS, LSTM),
    "lstm without bias": (lambda L: L.LSTM(5, use_bias=False), STEPS, LSTM - 9 * 4 * 5),
    "lstm, all steps": (lambda L: L.LSTM(5, return_sequences=True), STEPS, LSTM),
    "gru": (lambda L: L.GRU(5), STEPS, 9 * (6 * 5 * (3 + 5) + 15 * 5)),
    "gru, reset before": (lambda L: L.GRU(5, reset_after=False), STEPS, 9 * (6 * 40 + 11 * 5)),
    "simple rnn": (lambda L: L.SimpleRNN(5), STEPS, 9 * (2 * 5 * (3 + 5) + 2 * 5)),
    "stacked cells": (
        lambda L: L.RNN([L.LSTMCell(5), L.SimpleRNNCell(2)]),
        STEPS,
        LSTM + 9 * (2 * 2 * 7 + 2 * 2),
    ),
    "conv lstm": (lambda L: L.ConvLSTM2D(2, 3), [(4, 6, 6, 3)], 4 * 16 * 2 * (8 * 9 * 5 + 13)),
    "bidirectional": (lambda L: L.Bidirectional(L.LSTM(5)), STEPS, 2 * LSTM),
    "summed": (lambda L: L.Bidirectional(L.LSTM(5), merge_mode="sum"), STEPS, 2 * LSTM + 5),
    "time distributed": (lambda L: L.TimeDistributed(L.Dense(5)), STEPS, 9 * (2 * 3 * 5 + 5)),
    "embedding": (lambda L: L.Embedding(100, 8), [(9,)], 0),
    "batch normalisation": (lambda L: L.BatchNormalization(), [(6, 4)], 2 * 24),
    "layer normalisation": (lambda L: L.LayerNormalization(), [(6, 4)], 7 * 24),
    "max pooling": (lambda L: L.MaxPooling2D(3), [(9, 9, 4)], 9 * 4 * 9),
    "average of all": (lambda L: L.GlobalAveragePooling1D(), [(9, 4)], 36),
    "dropout": (lambda L: L.Dropout(0.5), [(9,)], 0),
    "flatten": (lambda L: L.Flatten(), [(9, 4)], 0),
    "sum of three": (lambda L: L.Add(), [(9,)] * 3, 18),
    "average of three": (lambda L: L.Average(), [(9,)] * 3, 27),
    "softmax": (lambda L: L.Softmax(), [(9,)], 45),
    "relu as a layer": (lambda L: L.Activation("relu"), [(9,)], 9),
    "softmax as a layer": (lambda L: L.Activation("softmax"), [(9,)], 45),
    "einsum dense": (
        lambda L: L.EinsumDense("abc,cde->abde", (None, 2, 5), bias_axes="de"),
        [(9, 4)],
        9 * (2 * 4 * 10 + 10),
    ),
    "dot": (lambda L: L.Dot(axes=2), [(9, 4), (6, 4)], 2 * 9 * 6 * 4),
    "upsampling": (lambda L: L.UpSampling2D(2), [(4, 4, 3)], 0),
}


def make(layer, shapes):
    inputs = [keras.Input(shape) for shape in shapes]
    made = layer(keras.layers)
    return keras.Model(inputs, made(inputs if len(inputs) > 1 else inputs[0]))


@pytest.mark.varies
@pytest.mark.parametrize("name", CLOSED)
def test_layers_take_what_the_closed_formula_says(name):
    layer, shapes, expected = CLOSED[name]
    assert model_cost.count_flops(make(layer, shapes)) == expected


# Queries and keys: p positions, s attended, c wide; h heads of k and v numbers.
@pytest.mark.parametrize(("p", "s", "c", "h", "k", "v"), [(12, 12, 6, 2, 3, 3), (5, 9, 8, 4, 2, 6)])
def test_multi_head_attention_takes_what_the_closed_formula_says(p, s, c, h, k, v):
    query, value = keras.Input((p, c)), keras.Input((s, c))
    layer = keras.layers.MultiHeadAttention(h, k, value_dim=v, use_bias=False)
    projections = 2 * p * c * h * k + 2 * s * c * h * (k + v) + 2 * p * h * v * c
    scores = p * s * h * (2 * k + 1 + 5 + 2 * v)
    model = keras.Model([query, value], layer(query, value))
    assert model_cost.count_flops(model) == projections + scores


def test_attention_takes_what_the_closed_formula_says():
    query, value = keras.Input((5, 8)), keras.Input((9, 8))
    for layer, score in [
        (keras.layers.Attention(), 2 * 8),
        (keras.layers.Attention(use_scale=True), 2 * 8 + 1),
        (keras.layers.AdditiveAttention(use_scale=False), 3 * 8),
        (keras.layers.Attention(score_mode="concat"), 3 * 8 + 1),
    ]:
        model = keras.Model([query, value], layer([query, value]))
        assert model_cost.count_flops(model) == 5 * 9 * (score + 5 + 2 * 8)


# Loops are shown once in a graph, and normalisations are fused or split: not among these.
AGREE = [
    "dense, softmax",
    "dense on positions",
    "conv1d",
    "conv2d, same, strides",
    "conv3d",
    "conv2d transpose",
    "depthwise",
    "separable",
    "max pooling",
    "average of all",
    "einsum dense",
]


@pytest.mark.parametrize("name", AGREE)
def test_formulas_agree_with_the_operations_that_tensorflow_makes(name):
    layer, shapes, expected = CLOSED[name]
    model = make(layer, shapes)
    traced = cost_graph.trace_model(model, cost_graph.input_specs(model))
    counted, unknown = op_flops.count_ops(op for seen in traced.seen for op in seen.ops)
    assert (counted / traced.rows, unknown) == (expected, [])


def test_the_total_is_that_of_tensorflows_profiler():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3),
            layers.MaxPooling2D(2),
            layers.DepthwiseConv2D(3, use_bias=False),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )
    step = tf.function(lambda x: model(x, training=False), autograph=False)
    graph = step.get_concrete_function(tf.TensorSpec((1, 12, 12, 3))).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    profiled = tf.compat.v1.profiler.profile(graph, options={**options, "output": "none"})
    assert model_cost.count_flops(model) == profiled.total_float_ops


def test_an_open_dimension_is_not_known():
    layer = keras.layers.Dense(3)
    assert (
        layer_flops.layer_flops(layer_flops.Call(layer, {"x": (1, math.nan, 4)}, (1, math.nan, 3)))
        is None
    )


def test_a_class_that_computes_otherwise_has_no_formula():
    class Same(layers.Dense):
        pass

    class Other(layers.Dense):
        def call(self, inputs):
            return super().call(inputs) * 2

    class Cell(layers.LSTMCell):
        def call(self, *args, **kwargs):
            return super().call(*args, **kwargs)

    assert layer_flops.has_formula(Same(3))
    assert not layer_flops.has_formula(Other(3))
    assert not layer_flops.has_formula(layers.RNN(Cell(3)))
    assert not layer_flops.has_formula(layers.UpSampling2D(interpolation="bilinear"))
