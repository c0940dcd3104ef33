"""Zeros stay zeros, whatever trains the model."""

import numpy as np
import pytest
from lazy_modules import keras, layers
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras import DataError
from gpukeras.compression import masks
from gpukeras.engine import engine_cache
from gpukeras.models import clone
from gpukeras.training import fit

pytestmark = pytest.mark.tf


def half(model, seed=1):
    """Random masks of half of each kernel."""
    rng = np.random.default_rng(seed)
    return {
        kernel.path: rng.random(kernel.variable.shape) < 0.5 for kernel in masks.list_kernels(model)
    }


def assert_masked(model, wanted):
    for kernel in masks.list_kernels(model):
        values = kernel.variable.numpy()
        assert not values[~wanted[kernel.path]].any()
        assert values[wanted[kernel.path]].all()


def keras_fit(model):
    data = make_dataset()
    model.fit(*[np.asarray(each) for each in data.arrays], epochs=1, batch_size=32, verbose=0)


@pytest.mark.parametrize("engine", few(["keras", "graph_loop", "compiled"], "graph_loop"))
def test_masks_hold_in_every_engine_and_moved_weights_show_that_it_trained(engine):
    model = make_model(optimizer="adam")
    wanted = half(model)
    masks.apply_masks(model, wanted)
    before = [weight.numpy() for weight in model.weights]
    fit.fit(model, make_dataset(), {"epochs": 2, "engine": engine})
    assert_masked(model, wanted)
    assert all((a != b.numpy()).any() for a, b in zip(before, model.weights, strict=True))


def test_masks_hold_in_keras_own_fit_and_after_compiling_again():
    model = make_model(optimizer="adam")
    masks.apply_masks(model, half(model))
    keras_fit(model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    keras_fit(model)
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    keras_fit(model)
    assert_masked(model, half(model))


@pytest.mark.parametrize("copy", [clone.copy_model, lambda model: clone.copy_with_seed(model, 2)])
def test_masks_hold_in_copies(copy):
    model = make_model()
    wanted = half(model)
    masks.apply_masks(model, wanted)
    copied = copy(model)
    assert_masked(copied, wanted)
    keras_fit(copied)
    assert_masked(copied, wanted)


@pytest.mark.slow
def test_programs_traced_before_are_not_used_again():
    model = make_model(optimizer="adam")
    keras_fit(model)
    fit.fit(model, make_dataset(), {"epochs": 1, "engine": "graph_loop"})
    masks.apply_masks(model, half(model))
    assert engine_cache.ATTRIBUTE not in vars(model)
    keras_fit(model)
    fit.fit(model, make_dataset(), {"epochs": 1, "engine": "graph_loop"})
    assert_masked(model, half(model))


OPTIMIZERS = {
    "decay": lambda o: o.AdamW(0.01, weight_decay=0.1),
    "ema": lambda o: o.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda o: o.SGD(0.01, momentum=0.9, gradient_accumulation_steps=3),
    "loss scale": lambda o: o.LossScaleOptimizer(o.SGD(0.01)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    few(OPTIMIZERS.values(), OPTIMIZERS["decay"], OPTIMIZERS["accumulation"]),
    ids=OPTIMIZERS,
)
def test_masks_hold_under_optimizers_that_do_more(make):
    model = make_model(optimizer=make(keras.optimizers))
    masks.apply_masks(model, half(model))
    fit.fit(model, make_dataset(), {"epochs": 2, "engine": "graph_loop", "ema": 0.9})
    assert_masked(model, half(model))


def test_a_constraint_of_the_layers_own_still_holds():
    model = make_model(
        layers=[keras.layers.Dense(6, kernel_constraint=keras.constraints.UnitNorm(axis=0))]
    )
    masks.apply_masks(model, half(model))
    fit.fit(model, make_dataset(), {"epochs": 1, "engine": "graph_loop"})
    assert_masked(model, half(model))
    kernel = model.layers[1].kernel
    norms = np.linalg.norm(kernel.numpy(), axis=0)
    np.testing.assert_allclose(norms[norms > 0], 1, rtol=1e-5)  # a unit may have lost all weights
    assert isinstance(kernel.constraint.own, keras.constraints.UnitNorm)


def test_masks_are_read_as_they_were_given():
    model = make_model()
    assert masks.read_masks(model) == {}
    wanted = half(model)
    masks.apply_masks(model, wanted)
    found = masks.read_masks(model)
    assert list(found) == [f"{layer.name}/kernel" for layer in model.layers]
    assert all((found[path] == wanted[path]).all() for path in wanted)
    other = half(model, seed=2)
    masks.apply_masks(model, other)  # in place of the ones before, not around them
    assert model.layers[0].kernel.constraint.own is None


def test_a_saved_file_is_plain_keras(tmp_path):
    model = make_model()
    masks.apply_masks(model, half(model))
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert masks.read_masks(loaded) == {}
    masks.apply_masks(loaded, half(model))
    keras_fit(loaded)
    assert_masked(loaded, half(model))


def test_kernels_of_every_kind_have_a_path_and_nothing_else_has():
    given = keras.Input((8, 8, 2))
    inner = keras.Sequential([keras.Input((16,)), layers.Dense(4, name="dense")], name="inner")
    x = layers.Conv2D(4, 3, name="conv")(given)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.SeparableConv2D(4, 3, name="separable")(x)
    x = layers.Reshape((2, 8))(x)
    x = layers.LSTM(16, name="lstm")(x)
    model = keras.Model(given, layers.BatchNormalization()(inner(x)))
    paths = [kernel.path for kernel in masks.list_kernels(model)]
    assert paths == [
        "conv/kernel",
        "separable/pointwise_kernel",
        "lstm/lstm_cell/kernel",
        "lstm/lstm_cell/recurrent_kernel",
        "inner/dense/kernel",
    ]
    words = keras.Sequential([keras.Input((3,)), layers.Embedding(9, 4)])
    assert masks.list_kernels(words) == []


@pytest.mark.parametrize(
    ("name", "rows", "says"),
    [
        ("none/kernel", 5, "does not have"),
        ("dense/kernel", 2, r"shape \(2, 8\), and the kernel \(5, 8\)"),
    ],
)
def test_masks_of_another_model_are_refused_and_nothing_is_changed(name, rows, says):
    model = make_model()
    model.layers[0].name = "dense"
    with pytest.raises(DataError, match=says):
        masks.apply_masks(model, {name: np.zeros((rows, 8), bool)})
    assert masks.read_masks(model) == {}


def test_no_number_is_never_left_under_a_mask():
    model = make_model()
    kernel = model.layers[0].kernel
    masks.apply_masks(model, half(model))
    value = kernel.constraint(np.full(kernel.shape, np.nan, "float32")).numpy()
    keep = half(model)[f"{model.layers[0].name}/kernel"]
    assert (value[~keep] == 0).all()
    assert np.isnan(value[keep]).all()


def test_sparsity_is_the_share_of_zeros():
    assert masks.sparsity({}) == 0
    assert masks.sparsity({"a": np.array([True, False]), "b": np.array([False] * 6)}) == 7 / 8
