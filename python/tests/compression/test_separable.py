"""Separable convolutions: which, how near, and what they save."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fits import make_model

from gpukeras.compression import latency, masks, separable
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.data import dataset
from gpukeras.profiler.cost.model_cost import count_flops


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(latency, "BUDGET_S", 0.0)  # the least runs


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.data())
@settings(max_examples=40)
def test_factors_are_the_nearest_of_their_rank(high, wide, channels, filters, data):
    seed = data.draw(st.integers(0, 2**20))
    kernel = np.random.default_rng(seed).normal(size=(high, wide, channels, filters))
    full = min(high * wide, filters)
    shares = []
    for rank in range(1, full + 1):
        depth, point, share = separable.factor_kernel(kernel, rank)
        assert depth.shape == (high, wide, channels, rank)
        assert point.shape == (1, 1, channels * rank, filters)
        near = np.einsum("hwcm,cmf->hwcf", depth, point[0, 0].reshape(channels, rank, filters))
        lost = ((kernel - near) ** 2).sum() / (kernel**2).sum()
        assert lost == pytest.approx(1 - share, abs=1e-9)
        shares.append(share)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_a_kernel_of_zeros_stays_zeros():
    depth, point, share = separable.factor_kernel(np.zeros((3, 2, 4), np.float32), 2)
    assert share == 1
    assert not depth.any()
    assert not point.any()
    assert depth.dtype == np.float32


@pytest.mark.parametrize(
    ("options", "arg"),
    [({"rank": 0}, "rank"), ({"least_gain": 0.5}, "least_gain"), ({"exclude": 3}, "exclude")],
)
def test_bad_options_are_refused(options, arg):
    with pytest.raises(SpecError) as caught:
        separable.SeparateSpec.from_dict(options)
    assert caught.value.details["arg"] == arg


def branched():
    import keras

    layers = keras.layers
    given = keras.Input((12, 12, 3))
    left = layers.Conv2D(16, 3, padding="same", activation="relu", name="gains")(given)
    right = layers.Conv2D(16, 1, name="point")(left)
    right = layers.Conv2D(16, 3, padding="same", use_bias=False, name="bare")(right)
    joined = layers.Add()([left, layers.BatchNormalization()(right)])
    joined = layers.Conv2D(8, 3, groups=2, name="groups")(joined)
    joined = layers.Conv2D(8, 3, strides=(1, 2), name="strides")(joined)
    joined = layers.Conv2D(1, 3, name="narrow")(joined)
    output = layers.Dense(2, "softmax")(layers.Flatten()(joined))
    return keras.Model(given, output)


@pytest.mark.tf
def test_convolutions_that_gain_are_replaced_and_others_listed():
    model = branched()
    weights = model.get_weights()
    found = separable.separate(model)
    made, report = found["model"], found["report"]
    assert [one.layer for one in report.layers] == ["gains", "bare"]
    assert {one.layer: one.reason for one in report.listed} == {
        "point": "its kernel has one tap",
        "groups": "it works on groups of channels",
        "strides": "its strides differ",
        "narrow": "it would need as many FLOPs",
    }
    assert type(made.get_layer("gains")).__name__ == "SeparableConv2D"
    assert made.get_layer("gains").activation.__name__ == "relu"
    assert made.get_layer("bare").bias is None
    saved = sum(one.before - one.after for one in report.layers)
    assert count_flops(model) - count_flops(made) == saved
    assert report.before.flops - report.after.flops == saved
    assert "not trained" in report.notes[0]
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.tf
@pytest.mark.parametrize("kind", ["Conv1D", "Conv2D"])
def test_full_rank_computes_the_same(kind):
    import keras

    shape = (10, 4) if kind == "Conv1D" else (6, 6, 4)
    layer = getattr(keras.layers, kind)(2, 3, strides=2, padding="same", activation="tanh")
    model = keras.Sequential([keras.Input(shape), layer])
    made = separable._replace(model, {layer.name}, 2)
    kept = separable._copy_weights(model, made)
    rows = np.random.default_rng(1).normal(size=(3, *shape)).astype(np.float32)
    np.testing.assert_allclose(made(rows), model(rows), atol=1e-5)
    assert kept[layer.name] == pytest.approx(1)


def pruned(model):
    return [one for one in masks.list_kernels(model) if one.path in ("bare/kernel", "point/kernel")]


@pytest.mark.tf
def test_it_is_fine_tuned_on_rows_and_what_stays_keeps_its_zeros():
    rng = np.random.default_rng(1)
    values = np.asfortranarray(rng.normal(size=(96, 12, 12, 3)))
    codes = (values[:, :6].mean((1, 2, 3)) > 0).astype(np.int32)
    labels = {"kind": "factor", "values": codes + 1, "levels": ["a", "b"]}
    options = {"validation": 0.25, "batch_size": 24, "seed": 1}
    data = dataset.build_dataset({"kind": "array", "values": values}, options, labels)
    model = branched()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    halves = {one.path: np.indices(one.variable.shape).sum(0) % 2 == 0 for one in pruned(model)}
    masks.apply_masks(model, halves)
    options = {"epochs": 2, "exclude": ["bare"], "fit": {"engine": "keras"}}
    found = separable.separate(model, data, options)
    report = found["report"]
    for kernel in pruned(found["model"]):
        assert not kernel.variable.numpy()[~halves[kernel.path]].any()
    assert [one.layer for one in report.layers] == ["gains"]
    assert ("bare", "excluded") in [(one.layer, one.reason) for one in report.listed]
    assert report.training.epochs == 2
    assert report.settings == {"rank": 1, "epochs": 2}
    assert report.metric == "accuracy"
    assert report.notes == ()


@pytest.mark.tf
def test_a_model_without_such_convolutions_is_refused():
    with pytest.raises(ModelError, match="No convolution of `model` gains by being separable"):
        separable.separate(make_model())
    with pytest.raises(ModelError, match="gains: it would need as many FLOPs"):
        separable.separate(branched(), options={"rank": 100})
