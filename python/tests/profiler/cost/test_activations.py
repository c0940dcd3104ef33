import pytest
from lazy_modules import keras, layers, tf

from gpukeras.profiler.cost import activations, graph

pytestmark = pytest.mark.tf


def kept(*layers, shape=(6,)):
    """Bytes a row that each layer of a stack keeps."""
    model = keras.Sequential([keras.Input(shape), *layers])
    specs = graph.input_specs(model)
    found = activations.sum_kept(graph.trace_model(model, specs, gradients=True))
    return [found.by_layer[id(layer)] for layer in layers]


def test_an_activation_keeps_its_output_and_a_linear_layer_only_what_the_next_reads():
    # The last layer's output is read by no gradient of the sum of the outputs.
    assert kept(layers.Dense(5, "relu"), layers.Dense(4)) == [20, 0]
    assert kept(layers.Dense(5), layers.Dense(4, "tanh")) == [20, 16]


def test_views_are_counted_once():
    assert kept(layers.Dense(8), layers.Reshape((2, 4)), layers.Flatten(), layers.Dense(3)) == [
        32,
        0,
        0,
        0,
    ]


def test_dropout_keeps_a_mask_of_a_byte_a_number():
    assert kept(layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(3)) == [32, 32 + 8, 0]


def test_an_image_is_kept_between_convolutions():
    found = kept(layers.Conv2D(4, 3, activation="relu"), layers.Conv2D(2, 3), shape=(8, 8, 1))
    assert found == [6 * 6 * 4 * 4, 0]


@pytest.mark.slow
def test_recurrent_layers_keep_numbers_of_every_step():
    assert kept(layers.LSTM(5), shape=(9, 3)) == [9 * 7 * 5 * 4]
    assert kept(layers.GRU(5), shape=(9, 3)) == [9 * 5 * 5 * 4]
    assert kept(layers.SimpleRNN(5), shape=(9, 3)) == [9 * 5 * 4]
    cells = layers.RNN([layers.LSTMCell(5), layers.SimpleRNNCell(2)])
    assert kept(cells, shape=(9, 3)) == [9 * (7 * 5 + 2) * 4]


def test_half_precision_keeps_half_and_copies_of_weights():
    stack = [layers.Dense(64, "relu", dtype="mixed_float16") for _ in range(3)]
    model = keras.Sequential([keras.Input((64,)), *stack])
    specs = graph.input_specs(model)
    found = activations.sum_kept(graph.trace_model(model, specs, gradients=True))
    assert [found.by_layer[id(layer)] for layer in stack] == [128, 128, 128]
    assert found.fixed_bytes == 2 * 64 * 64 * 2  # no gradient goes back through the first
    assert found.largest_bytes == 128


def test_what_a_loop_keeps_is_not_known():
    loop = layers.Lambda(
        lambda x: tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x), (0, x))[1]
    )
    assert kept(layers.Dense(4), loop)[1] is None


def test_nothing_is_kept_for_weights_that_are_not_trained():
    frozen = layers.Dense(4, trainable=False)
    assert kept(layers.Dense(5, "relu", trainable=False), frozen) == [0, 0]
