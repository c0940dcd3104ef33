import numpy as np
import pytest
from lazy_modules import keras, layers, tf
from small_fits import make_subclassed

from gpukeras import ModelError, SpecError
from gpukeras.profiler.cost import memory, model_cost, suggestions

pytestmark = pytest.mark.tf


def stack(*layers, shape=(6,), **options):
    return keras.Sequential([keras.Input(shape, **options), *layers])


def rows(cost):
    return {layer.name: layer for layer in cost.layers}


# Layers ------------------------------------------------------------------------------------------


def test_every_weight_is_counted_once():
    encoder = stack(layers.Dense(4, "relu", name="first"), layers.Dense(2, name="second"))
    encoder.name = "encoder"
    left, right = keras.Input((6,)), keras.Input((6,))
    both = layers.Concatenate(name="both")([encoder(left), encoder(right)])
    model = keras.Model(
        [left, right], layers.Bidirectional(layers.LSTM(3), name="two")(both[:, None])
    )
    cost = model_cost.model_cost(model)
    found = rows(cost)
    assert cost.params == model.count_params() == sum(layer.params for layer in cost.layers)
    assert found["encoder/first"].calls == found["encoder/second"].calls == 2
    assert found["encoder/first"].flops == 2 * (2 * 6 * 4 + 4 + 4)
    forward = [layer.params for name, layer in found.items() if name.startswith("two/forward")]
    assert forward == [4 * 3 * (4 + 3 + 1)]
    assert "encoder" not in found  # it does nothing of its own


def test_weights_that_no_call_uses_are_not_lost():
    class Odd(keras.Model):
        def __init__(self):
            super().__init__(name="odd")
            self.used, self.spare = layers.Dense(2, name="used"), layers.Dense(3)

        def build(self, shape):
            self.used.build(shape)
            self.spare.build(shape)
            self.spare.trainable = False

        def call(self, x):
            return self.used(x) + 1.0

    cost = model_cost.model_cost(Odd(), input_shape=[6])
    assert [(layer.name, layer.params, layer.trainable_params) for layer in cost.layers] == [
        ("used", 14, 14),
        ("odd", 0, 0),
        ("(not called)", 21, 0),
    ]
    assert rows(cost)["odd"].flops == 2  # its own sum
    assert (cost.params, cost.trainable_params) == (35, 14)


def test_what_cannot_be_counted_is_said_and_never_nothing():
    class Spectrum(layers.Layer):
        def call(self, x):
            return keras.ops.fft((x, x))[0]

    class Loop(layers.Layer):
        def __init__(self, name):
            super().__init__(name=name)
            self.inside = layers.Dense(6)

        def build(self, shape):
            self.inside.build(shape)

        def call(self, x):
            return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, self.inside(x)), (0, x))[
                1
            ]

    cost = model_cost.model_cost(stack(Spectrum(name="fft"), Loop(name="loop"), layers.Dense(2)))
    found = rows(cost)
    assert found["fft"].flops is found["loop"].flops is None
    assert "FFT" in found["fft"].unknown
    assert [layer.flops for name, layer in found.items() if name.startswith("loop/")] == [None]
    assert not cost.flops_known
    assert cost.step_flops is None
    assert "3 of 4 layers (fft, loop, loop/dense" in cost.notes[0]
    assert model_cost.count_flops(stack(Spectrum())) is None


def test_an_open_dimension_is_asked_for():
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, layers.Dense(3)(layers.LSTM(4)(inputs)))
    cost = model_cost.model_cost(model)
    assert cost.memory["total_bytes"] is cost.memory["largest_batch"] is None
    assert "input_shape" in cost.notes[0]
    assert [layer.output_shape for layer in cost.layers] == [(4,), (3,)]
    filled = model_cost.model_cost(model, input_shape=[100.0, 8.0])
    assert filled.flops == 100 * (8 * 4 * (8 + 4) + 13 * 4) + 27
    assert filled.flops_known


def test_inputs_by_name_keep_their_shapes():
    ids = keras.Input((None,), name="ids", dtype="int32")
    wide = keras.Input((6,), name="a")
    flat = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(ids))
    model = keras.Model(
        {"ids": ids, "a": wide}, layers.Dense(2)(layers.Concatenate()([flat, wide]))
    )
    by_name = model_cost.model_cost(model, input_shape={"ids": [5], "a": [6]})
    assert by_name.flops == 5 * 4 + 2 * 10 * 2 + 2
    with pytest.raises(SpecError, match="no shape for the model's input `ids`"):
        model_cost.model_cost(model, input_shape={"a": [6]})
    with pytest.raises(SpecError, match="has 1 shape, and the model has 2 inputs"):
        model_cost.model_cost(model, input_shape=[6])


# The model ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_model_is_left_as_it_was():
    model = stack(
        layers.Dense(4, "relu", activity_regularizer="l2"),
        layers.BatchNormalization(),
        layers.Dense(1),
    )
    model.compile("adam", "mse")
    before, own = model.get_weights(), [dict(vars(layer)) for layer in model.layers]
    model_cost.model_cost(model)
    assert all(map(np.array_equal, before, model.get_weights()))
    assert [set(vars(layer)) for layer in model.layers] == [set(each) for each in own]
    assert not model.optimizer.built
    assert model.losses == []
    model.fit(np.ones((8, 6)), np.ones((8, 1)), verbose=0)


def test_a_failing_call_leaves_the_model_as_it_was():
    class Broken(layers.Layer):
        def call(self, x, training=False):
            if training:
                raise ValueError("only for predictions")
            return x

    model = stack(layers.Dense(3), Broken())
    cost = model_cost.model_cost(model)
    assert cost.flops == 2 * 6 * 3 + 3
    assert cost.activation_bytes is cost.memory["total_bytes"] is None
    assert "only for predictions" in cost.notes[0]
    assert all("call" not in vars(layer) for layer in model.layers)


def test_a_stack_without_weights_gets_them_for_any_batch():
    model = keras.Sequential([layers.Dense(3), layers.Dropout(0.1)])
    assert model_cost.count_flops(model, [4]) == 2 * 4 * 3 + 3
    assert model.input_shape == (None, 4)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"model": 3}, SpecError, "must be a Keras 3 model"),
        ({"batch_size": 0}, SpecError, "`batch_size` must be a whole number"),
        ({"memory": -1}, SpecError, "`memory` must be above 0"),
        ({"input_shape": [9]}, SpecError, "`input_shape` is 9, and the model takes 6"),
        ({"input_shape": [2, 3]}, SpecError, "is 2 x 3, and the model takes 6"),
    ],
)
def test_bad_options_are_refused(given, error, match):
    with pytest.raises(error, match=match):
        model_cost.model_cost(**{"model": stack(layers.Dense(2)), **given})


def test_a_model_that_knows_no_shape_says_so():
    with pytest.raises(ModelError, match="does not tell the shape"):
        model_cost.model_cost(keras.Sequential([layers.Dense(2)]))


def test_a_shape_that_does_not_fit_is_told():
    with pytest.raises(ModelError, match="`model` cannot be built for rows of 5: .*ndim"):
        model_cost.model_cost(keras.Sequential([layers.Conv2D(2, 3)]), input_shape=[5])
    model = make_subclassed(2)
    model(np.zeros((1, 6)))
    with pytest.raises(ModelError, match="`model` cannot be called on inputs of shape 9: .* 6"):
        model_cost.model_cost(model, input_shape=[9])


# Memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "times"),
    [("sgd", 0), ("adam", 2), ("RMSprop", 1), ("Adagrad", 1), ("Lion", 1), ("AdamW", 2)],
)
def test_an_optimizer_keeps_what_it_will_have_once_it_is_built(optimizer, times):
    model = stack(layers.Dense(50))
    model.compile(optimizer, "mse")
    weights = 4 * 7 * 50
    guessed = memory.read_optimizer_bytes(model)
    assert guessed == times * weights
    model.optimizer.build(model.trainable_variables)
    few = 64  # its counter and rate
    assert guessed <= memory.read_optimizer_bytes(model) <= guessed + few


def test_the_largest_batch_is_the_last_that_fits():
    model = stack(layers.Dense(100, "relu"), layers.Dense(10))
    model.compile("adam", "mse")
    given = 1.0  # MiB
    largest = model_cost.model_cost(model, memory=given).memory["largest_batch"]
    at, above = (
        model_cost.model_cost(model, batch_size=size, memory=given).memory["total_bytes"]
        for size in (largest, largest + 1)
    )
    assert at <= 2**20 < above


def test_the_memory_is_the_sum_of_its_parts():
    model = stack(layers.Dense(100, "relu"), layers.Dense(10))
    model.compile("adam", "mse")
    need = model_cost.model_cost(model, batch_size=20).memory
    weights = 4 * (7 * 100 + 101 * 10)
    row = 4 * (6 + 10) + 400 + 2 * 400  # inputs, outputs; kept; its gradient, twice
    assert need["weights_bytes"] == need["gradients_bytes"] == weights
    assert need["row_bytes"] == row
    assert need["total_bytes"] == 4 * weights + 20 * row
    assert need["device"] == "CPU:0"
    assert 0 < need["available_bytes"] <= need["device_bytes"]


def test_a_model_without_optimizer_says_so_and_a_small_one_gets_no_advice():
    cost = model_cost.model_cost(stack(layers.Dense(2)))
    assert cost.memory["optimizer_bytes"] == 0
    assert cost.notes == ("The model is not compiled: no optimizer is counted.",)
    assert cost.suggestions == ()


# Suggestions -------------------------------------------------------------------------------------


def find(cost, kind):
    return next((one for one in cost.suggestions if one.id == kind), None)


def test_separable_convolutions_save_what_is_said():
    def cost_with(conv):
        convolved = conv(16, 3, activation="relu"), conv(32, 3)
        rest = layers.GlobalMaxPooling2D(), layers.Dense(5)
        return model_cost.model_cost(stack(*convolved, *rest, shape=(16, 16, 8)))

    cost, other = cost_with(layers.Conv2D), cost_with(layers.SeparableConv2D)
    said = find(cost, "separable")
    assert said.layers[0].startswith("conv2d")
    assert len(said.layers) == 2
    assert said.flops_share == pytest.approx(1 - other.flops / cost.flops)
    assert said.params_share == pytest.approx(1 - other.params / cost.params)
    assert find(other, "separable") is None


def test_pooling_in_place_of_flatten_saves_what_is_said():
    def cost_with(flat):
        parts = layers.Conv2D(4, 1), flat, layers.Dense(50)
        return model_cost.model_cost(stack(*parts, shape=(8, 8, 1)))

    cost, other = cost_with(layers.Flatten()), cost_with(layers.GlobalAveragePooling2D())
    said = find(cost, "pooling")
    assert said.params_share == pytest.approx(1 - other.params / cost.params)
    assert "64 times fewer" in said.text
    assert find(other, "pooling") is None


def test_long_attention_is_told_to_be_shorter():
    def network(length):
        inputs = keras.Input((length, 8))
        return keras.Model(inputs, layers.MultiHeadAttention(2, 4)(inputs, inputs))

    assert find(model_cost.model_cost(network(2)), "shorter") is None
    said = find(model_cost.model_cost(network(64)), "shorter")
    scores = 64 * 64 * 2 * (2 * 4 + 6 + 2 * 4)
    assert said.flops_share == pytest.approx(0.75 * scores / model_cost.count_flops(network(64)))


def test_a_batch_that_does_not_fit_is_told_which_one_does():
    model = stack(layers.Dense(1000, "relu"), layers.Dense(10))
    cost = model_cost.model_cost(model, batch_size=10_000, memory=1)
    said = find(cost, "smaller_batch")
    assert f"about {cost.memory['largest_batch']} rows fit" in said.text
    tight = model_cost.model_cost(model, memory=0.001)
    assert tight.memory["largest_batch"] == 0
    assert "Weights, gradients and optimizer alone" in find(tight, "smaller_batch").text


def test_mixed_precision_is_for_a_gpu_full_of_float32_activations():
    need = memory.MemoryNeed(10, 10, 20, 0, 1000, 8, "GPU:0", 1e4, 1e4)
    room = memory.MemoryNeed(10, 10, 20, 0, 1000, 8, "GPU:0", 1e6, 1e6)
    assert suggestions.suggest_memory(room, "float32") == []
    assert [one.id for one in suggestions.suggest_memory(need, "float32")] == ["mixed_precision"]
    assert suggestions.suggest_memory(need, "mixed_float16") == []
    cpu = memory.MemoryNeed(10, 10, 20, 0, 1000, 8, "CPU:0", 1e6, 1e6)
    assert suggestions.suggest_memory(cpu, "float32") == []
