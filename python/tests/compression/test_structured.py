"""Smaller models predict as the wide ones do where the units taken out gave nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_modules import keras, layers, tf
from small_fits import make_subclassed

from gpukeras import ModelError
from gpukeras.compression import channel_graph, masks, structured
from gpukeras.profiler.cost.model_cost import count_flops

pytestmark = pytest.mark.tf


def stack():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(6, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Dropout(0.3),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10, "relu"),
            layers.Dense(3, "softmax"),
        ]
    )


def residual():
    given = keras.Input((8, 8, 2))
    first = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(given)
    inner = layers.Conv2D(4, 3, padding="same", activation="relu", name="inner")(first)
    inner = layers.Conv2D(6, 3, padding="same", name="last")(inner)
    inner = layers.BatchNormalization()(inner)
    both = layers.ReLU()(layers.Add()([first, inner]))
    return keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling2D()(both)))


def branches():
    image, numbers = keras.Input((8, 8, 2), name="image"), keras.Input((5,), name="numbers")
    wide = layers.Conv2D(6, 3, padding="same", activation="relu", name="wide")(image)
    narrow = layers.Conv2D(4, 1, activation="relu", name="narrow")(image)
    joined = layers.Concatenate()([wide, narrow])
    joined = layers.BatchNormalization()(joined)
    joined = layers.Conv2D(4, 3, strides=2, activation="relu", name="joined")(joined)
    flat = layers.Reshape((-1,))(joined)
    hidden = layers.Dense(6, "relu", name="hidden")(numbers)
    both = layers.Concatenate()([flat, hidden])
    return keras.Model(
        [image, numbers],
        {"a": layers.Dense(2, name="a")(both), "b": layers.Dense(1, name="b")(hidden)},
    )


def separable():
    return keras.Sequential(
        [
            keras.Input((9, 9, 2)),
            layers.SeparableConv2D(6, 3, depth_multiplier=2, activation="relu"),
            layers.DepthwiseConv2D(3, depth_multiplier=3, use_bias=False),
            layers.ReLU(),
            layers.Conv2DTranspose(4, 2, activation="relu"),
            layers.SeparableConv2D(5, 3, depth_multiplier=2, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(2),
        ]
    )


def gated():
    """A squeeze and excitation block (Hu et al. 2018), with keras.ops' own addition after it."""
    given = keras.Input((6, 6, 2))
    wide = layers.Conv2D(8, 3, padding="same", activation="relu", name="wide")(given)
    gate = layers.GlobalAveragePooling2D()(wide)
    gate = layers.Dense(4, "relu", name="squeeze")(gate)
    gate = layers.Dense(8, "relu", name="excite")(gate)
    gate = layers.Reshape((1, 1, 8))(gate)
    return keras.Model(given, layers.Dense(2)(layers.Multiply()([wide, gate])))


def nested():
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(4, "relu")], name="inner"
    )
    given = keras.Input((4,))
    before = layers.Dense(4, "relu", name="before")
    both = layers.Concatenate()([inner(before(given)), inner(before(inner(given)))])
    return keras.Model(given, layers.Dense(2)(layers.Dense(6, "relu", name="after")(both)))


def sequences():
    return keras.Sequential(
        [
            keras.Input((12, 3)),
            layers.Conv1D(6, 3, activation="relu"),
            layers.UpSampling1D(2),
            layers.LSTM(5, return_sequences=True),
            layers.Conv1D(4, 2, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )


def side_by_side():
    """Images put beside one another have one kind of channel: a unit is taken out of both."""
    given = keras.Input((6, 6, 2))
    left = layers.Conv2D(6, 3, padding="same", activation="relu", name="left")(given)
    right = layers.Conv2D(6, 3, padding="same", activation="relu", name="right")(given)
    both = layers.Conv2D(4, 3, activation="relu")(layers.Concatenate(axis=1)([left, right]))
    return keras.Model(given, layers.Dense(2)(layers.GlobalAveragePooling2D()(both)))


BUILDERS = [stack, residual, branches, separable, gated, nested, sequences, side_by_side]


def made(build, seed=1):
    keras.utils.set_random_seed(seed)
    model = build()
    rng = np.random.default_rng(seed)
    for weight in model.weights:  # also biases and statistics, which begin as 0 and 1
        weight.assign(np.abs(rng.normal(size=weight.shape)) / 3 + 0.1)
    return model


def rows(model, count=4):
    rng = np.random.default_rng(3)
    return [rng.normal(size=(count, *each.shape[1:])).astype("float32") for each in model.inputs]


def predict(model):
    given = rows(model)
    return tf.nest.flatten(model(given if len(given) > 1 else given[0]))


def silence(wiring, gone):
    """Takes away what makes units, so that they are 0 wherever they go."""
    for wired in wiring.layers:
        if not wired.produces and wired.kind != "BatchNormalization":
            continue
        ids = wired.outputs
        keep = structured.find_kept(wiring, ids, gone)
        names = ("kernel", "pointwise_kernel", "bias", "gamma", "beta")
        for weight in wired.layer.weights:
            if weight.name in names:
                axis = -2 if wired.kind.endswith("Transpose") and weight.name == "kernel" else -1
                shape = [1] * len(weight.shape)
                shape[axis] = len(keep)
                weight.assign(weight.numpy() * keep.reshape(shape))


@pytest.mark.varies
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("whole", [False, True])
def test_units_that_give_nothing_are_taken_out_and_nothing_changes(build, whole):
    model = made(build)
    wiring = channel_graph.wire_model(model)
    groups = structured.find_groups(wiring)
    choose = structured._choose_smallest if whole else structured._choose_each
    gone = choose(groups, 0.4)
    assert gone
    silence(wiring, gone)
    small = structured.build_narrow(model, wiring, gone)
    assert small.count_params() < model.count_params()
    assert [each.shape for each in small.inputs] == [each.shape for each in model.inputs]
    for one, other in zip(predict(model), predict(small), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.varies
@pytest.mark.parametrize("build", BUILDERS)
def test_the_units_worth_least_go_and_the_model_is_as_it_was(build):
    model = made(build)
    before = [weight.numpy() for weight in model.weights]
    found = structured.narrow_model(model, 0.5, "units")
    assert found.changes
    for change in found.changes:
        assert change.after == change.before - change.before // 2
    assert all(
        (one == other.numpy()).all() for one, other in zip(before, model.weights, strict=True)
    )


@pytest.mark.slow
@settings(max_examples=4)
@given(share=st.floats(0.05, 0.6), whole=st.booleans())
def test_flops_are_brought_below_what_was_asked_for(share, whole):
    model = made(residual)
    found = structured.narrow_model(model, share, "flops", whole=whole)
    left = count_flops(found.model) / count_flops(model)
    assert left <= 1 - share + 0.01
    assert not found.notes


def test_what_cannot_be_reached_is_said():
    found = structured.narrow_model(made(nested), 0.99)
    assert "cannot be made smaller" in found.notes[0]
    assert [change.after for change in found.changes] == [1, 1]


def test_tied_layers_lose_the_same_units():
    model = made(residual)
    found = structured.narrow_model(model, 0.5, "units")
    first, last = found.model.get_layer("first"), found.model.get_layer("last")
    assert first.filters == last.filters == 3
    worth = sum(
        np.square(model.get_layer(name).kernel.numpy()).sum((0, 1, 2)) for name in ("first", "last")
    )
    kept = np.sort(np.argsort(worth)[3:])
    np.testing.assert_array_equal(
        first.kernel.numpy(), model.get_layer("first").kernel.numpy()[..., kept]
    )


@pytest.mark.parametrize("norm", ["l1", "l2", "bn"])
def test_worth_is_the_norm_that_was_asked_for(norm):
    model = made(stack)
    conv, scale = model.layers[0], model.layers[1]
    kernel = np.zeros((18, 6), "float32")  # taps and channels, units
    for unit in range(6):
        kernel[: 6 - unit, unit] = 1.0  # less and less
    kernel[:, 5] = 0
    kernel[17, 5] = 3.5  # a single one: as large as 3.5 in the sum, as 12.25 in the squares
    conv.kernel.assign(kernel.reshape(conv.kernel.shape))
    scale.gamma.assign(np.arange(6, dtype="float32") + 1)
    groups = structured.find_groups(channel_graph.wire_model(model), norm)
    order = np.argsort(next(g for g in groups if g.layers[0].layer is conv).worth).tolist()
    wanted = {"l1": [4, 3, 5, 2, 1, 0], "l2": [4, 3, 2, 1, 0, 5], "bn": [0, 1, 2, 3, 4, 5]}
    assert order == wanted[norm]


def test_what_keeps_its_units_is_listed_with_the_reason():
    given = keras.Input((8, 4))
    hidden = layers.Dense(6, "relu", name="free")(given)
    hidden = layers.Dense(6, "relu", name="fed")(hidden)
    hidden = layers.MultiHeadAttention(2, 3, name="attention")(hidden, hidden)
    hidden = layers.LSTM(5, name="memory")(hidden)
    model = keras.Model(given, layers.Dense(2, name="out")(hidden))
    found = structured.narrow_model(model, 0.5, "units", excluded=lambda path: path == "none")
    reasons = {one.layer: one.reason for one in found.listed}
    assert reasons == {
        "fed": "feeds `attention` (MultiHeadAttention), whose input is fixed",
        "attention": "has no units that can be taken out one by one",
        "memory": "has no units that can be taken out one by one",
        "out": "gives the output",
    }
    assert [change.layer for change in found.changes] == ["free"]


def test_excluded_layers_keep_their_units_and_so_do_those_tied_to_them():
    found = structured.narrow_model(
        made(residual), 0.5, "units", excluded=lambda path: path == "last"
    )
    assert [change.layer for change in found.changes] == ["inner"]
    reasons = {one.layer: one.reason for one in found.listed}
    assert reasons["last"] == reasons["first"] == "excluded"


def test_the_new_model_is_compiled_as_the_old_one():
    model = made(stack)
    model.compile(keras.optimizers.SGD(0.25), "sparse_categorical_crossentropy")
    small = structured.narrow_model(model, 0.5).model
    assert float(small.optimizer.learning_rate.numpy()) == 0.25
    assert small.loss == "sparse_categorical_crossentropy"
    small.fit(np.zeros((8, 8, 8, 2)), np.zeros(8, int), verbose=0)


def test_settings_of_layers_survive():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, strides=2, padding="same", dilation_rate=1, activation="elu"),
            keras.layers.BatchNormalization(momentum=0.5, trainable=False),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    conv, scale = structured.narrow_model(model, 0.5, "units").model.layers[:2]
    assert (conv.filters, conv.strides, conv.padding) == (2, (2, 2), "same")
    assert conv.activation.__name__ == "elu"
    assert (scale.momentum, scale.trainable) == (0.5, False)


def times(factor):
    def tanh(x):  # as Keras has one too
        return factor * keras.ops.tanh(x)

    return tanh


def test_functions_of_the_users_stay_apart_from_those_of_the_same_name():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(8, times(2)),
            layers.Dense(8, times(3)),
            layers.Dense(3, "tanh"),
        ]
    )
    small = structured.narrow_model(model, 0.5).model
    for own, narrow in zip(model.layers, small.layers, strict=True):
        assert narrow.activation is own.activation


def test_zeros_of_single_weights_stay_where_units_go():
    model = made(stack)
    dense = next(one for one in masks.list_kernels(model) if one.name == model.layers[-2].name)
    keep = np.random.default_rng(1).random(dense.variable.shape) < 0.5
    masks.apply_masks(model, {dense.path: keep})
    small = structured.narrow_model(model, 0.3, "units").model
    (kept,) = masks.read_masks(small).values()
    np.testing.assert_array_equal(kept, small.layers[-2].kernel.numpy() != 0)


def test_settings_of_single_variables_survive():
    model = made(stack)
    conv, *_, last = (one.variable for one in masks.list_kernels(model))
    conv.trainable = False
    conv.regularizer = keras.regularizers.L1(0.1)
    last.constraint = keras.constraints.NonNeg()
    small = structured.narrow_model(model, 0.3, "units").model
    narrow, *_, same = (one.variable for one in masks.list_kernels(small))
    assert (narrow.trainable, narrow.regularizer) == (False, conv.regularizer)
    assert same.constraint is last.constraint


def test_models_whose_layers_are_not_known_are_refused():
    model = make_subclassed(2)
    model(np.zeros((1, 3)))
    with pytest.raises(ModelError, match="neither sequential nor functional"):
        structured.narrow_model(model, 0.5)
    single = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ModelError, match="no units that can be taken out"):
        structured.narrow_model(single, 0.5)


def test_a_layer_that_does_not_tell_its_settings_is_refused():
    class Times(keras.layers.Layer):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def call(self, x):
            return x * self.factor

        def get_config(self):
            return super().get_config()  # without the factor

    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((3,)), dense(4), dense(4), Times(2.0), dense(2)])
    with pytest.raises(ModelError, match="`model` cannot be copied: .*Times") as caught:
        structured.narrow_model(model, 0.5, "units")
    assert "get_config" in caught.value.hint
