import numpy as np
import pytest
from explained_frames import FRAME, fit_frame
from rules import label_rule
from small_fits import make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.explain.gradients import attribute, choose_target
from gpukeras.models import model_recipes
from gpukeras.training import predict

pytestmark = pytest.mark.tf
ROWS = {"kind": "array", "values": np.random.default_rng(1).normal(size=(20, 5))}


@pytest.fixture(scope="module")
def fitted():
    return fit_frame()


def test_a_linear_model_gets_its_weights_times_the_inputs():
    import keras

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    found = attribute(model, ROWS, steps=3)
    kernel = model.get_weights()[0][:, 0]
    np.testing.assert_allclose(found.values, ROWS["values"] * kernel, rtol=1e-5, atol=1e-7)
    other = {"kind": "array", "values": np.ones((1, 5))}
    found = attribute(model, ROWS, baseline=other, steps=1)
    np.testing.assert_allclose(found.values, (ROWS["values"] - 1) * kernel, rtol=1e-4, atol=1e-6)
    assert found.columns == ("1", "2", "3", "4", "5")


def test_attributions_add_up_to_the_difference_of_outputs(fitted):
    model, data = fitted
    found = attribute(model, {"kind": "columns", "columns": FRAME}, steps=200)
    assert found.columns == ("a", "kind", "b", "flag")
    values = predict.predict(model, data=data)["values"]
    zero = model.predict(np.zeros((1, 6), np.float32), verbose=0)[0, 0]
    np.testing.assert_allclose(found.outputs, values, rtol=1e-6)
    np.testing.assert_allclose(found.baselines, zero, rtol=1e-6)
    np.testing.assert_allclose(found.values.sum(1), values - zero, atol=0.05)
    assert found.gap == pytest.approx(np.abs(found.values.sum(1) - (values - zero)).max(), abs=1e-4)
    assert (found.notes, len(found.missing)) == ((), 0)


@pytest.mark.tensorflow
def test_it_is_the_integral_of_the_gradients(monkeypatch):
    import tensorflow as tf

    from gpukeras.backend import tensor_ops

    model, x = make_model(layers=[]), ROWS["values"].astype(np.float32)
    found = attribute(model, ROWS, output="2", steps=20)
    points, shares = np.polynomial.legendre.leggauss(20)
    mean = np.zeros_like(x)
    for point, share in zip((points + 1) / 2, shares / 2, strict=True):
        with tf.GradientTape() as tape:
            inputs = tf.constant(x * np.float32(point))
            tape.watch(inputs)
            output = model(inputs)[:, 1]
        mean += share * tape.gradient(output, inputs).numpy()
    np.testing.assert_allclose(found.values, x * mean, atol=1e-6)
    monkeypatch.setattr(tensor_ops, "batch_bytes", lambda device: 1)
    apart = attribute(model, ROWS, output="2", steps=20)
    np.testing.assert_allclose(apart.values, found.values, atol=1e-7)


def test_pixels_of_images_have_attributions():
    import keras

    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(3, 3, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    images = {"kind": "array", "values": np.random.default_rng(2).normal(size=(4, 6, 6, 2))}
    found = attribute(model, images, output="3")
    assert (found.values.shape, found.columns, set(found.classes)) == ((4, 6, 6, 2), (), {"3"})
    difference = found.outputs - found.baselines
    np.testing.assert_allclose(found.values.sum((1, 2, 3)), difference, atol=1e-5)


def test_several_inputs_have_attributions_by_column():
    import keras
    from grouped import IMAGE, TABLE, build, two_heads

    whole = two_heads({"image": IMAGE.shape[1:], "table": TABLE.shape[1:]}, style="dict")
    model = keras.Model(whole.inputs, keras.layers.Dense(1)(whole.layers[-1].output))
    data = build(labels=None)
    found = attribute(model, data=data, steps=200)
    assert [name for name in found.columns if name.startswith("table$")]
    np.testing.assert_allclose(
        found.values.sum(1), found.outputs - found.baselines, atol=1e-3, rtol=1e-2
    )


def test_the_class_that_is_explained_has_a_name():
    outputs = np.array([[0.1, 0.9], [0.7, 0.3]])
    recipe = Recipe(ArrayEncoding((2,)), label=label_rule("class", 2, ("no", "yes")))
    names = ("no", "yes")
    assert choose_target(recipe, outputs, names, None).names == ("yes", "no")
    assert choose_target(recipe, outputs, names, "no").take(outputs).tolist() == [0.1, 0.7]
    single = np.array([[0.2], [0.6]])
    assert choose_target(recipe, single, ("1",), None).take(single).tolist() == [0.2, 0.6]
    np.testing.assert_allclose(choose_target(recipe, single, ("1",), "no").take(single), [0.8, 0.4])
    logits = choose_target(recipe, single, ("1",), "no", logits=True)
    np.testing.assert_allclose(logits.take(single), -single[:, 0])
    with pytest.raises(SpecError, match="`class` names `maybe`, which is no output of `model`"):
        choose_target(recipe, outputs, names, "maybe")
    numbers = Recipe(ArrayEncoding((2,)), label=label_rule("matrix", 2, names=("u", "v")))
    assert choose_target(numbers, outputs, ("u", "v"), "v").names == ("v", "v")
    with pytest.raises(SpecError, match="`model` gives 2 numbers a row, and `class` does not say"):
        choose_target(numbers, outputs, ("u", "v"), None)


def test_a_baseline_that_training_would_leave_out_is_none():
    column = {"name": "a", "kind": "numeric", "levels": []}
    values = np.array([1.0, 2.0, 3.0, 4.0])
    given = {"kind": "columns", "columns": [{**column, "values": values}]}
    labels = {"kind": "numeric", "values": values, "levels": []}
    data = map_dataset.build_dataset(given, {"batch_size": 2, "na": "drop"}, labels)
    model = make_model(1)
    model_recipes.tie_recipe(model, data.recipe)
    for rows, why in (([np.nan], "has a missing value"), ([], "must be a single row, not 0")):
        other = {**given, "columns": [{**column, "values": np.array(rows)}]}
        with pytest.raises(DataError, match=f"`baseline` {why}"):
            attribute(model, given, baseline=other, output="1")


def test_what_has_no_gradient_is_refused_or_noted():
    import keras
    from streamed import as_function

    two = {"kind": "array", "values": np.zeros((2, 5))}
    with pytest.raises(DataError, match="`baseline` must be a single row, not 2"):
        attribute(make_model(), ROWS, baseline=two, output="1")
    stream = as_function()
    other = make_model(stream.recipe.shape[0])
    with pytest.raises(DataError, match="`newdata` comes in sequence: attributions need rows with"):
        attribute(other, data=stream)
    codes = {"kind": "array", "values": np.array([[1.0], [2.0]])}
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Embedding(4, 2, embeddings_initializer="uniform"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    found = attribute(model, codes)
    assert not found.values.any()
    assert found.notes[0].startswith("The sums of attributions miss the differences of outputs by")


@pytest.mark.tensorflow
def test_texts_have_no_gradient():
    texts = {"kind": "strings", "values": np.array([[1], [2]]), "levels": ["a", "b"]}
    data = map_dataset.build_dataset(texts, {"batch_size": 2})
    with pytest.raises(DataError, match="`newdata` has texts, which have no gradient"):
        attribute(make_model(), data=data)


def test_rows_that_lack_values_keep_their_place():
    import keras

    x = ROWS["values"].copy()
    x[3, 1] = np.nan
    data = map_dataset.build_dataset(
        {"kind": "array", "values": x}, {"batch_size": 5, "na": "drop"}
    )
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model_recipes.tie_recipe(model, data.recipe)
    found = attribute(model, {"kind": "array", "values": x}, steps=2)
    assert (found.missing.tolist(), len(found.values), found.classes[3]) == ([4], 20, "")
    assert not found.values[3].any()
    whole = attribute(model, data=data, steps=2)
    np.testing.assert_allclose(np.delete(found.values, 3, 0), whole.values, rtol=1e-6)


def test_the_baseline_of_an_offset_is_its_mean_in_a_model_without_a_family_too():
    import keras

    draw = np.random.default_rng(3)
    values = {"a": draw.normal(size=20), "o": 5 + draw.normal(size=20)}
    columns = [{"name": key, "kind": "numeric", "values": each} for key, each in values.items()]
    columns[1]["offset"] = True
    groups = [{"name": "features", "columns": ["a"]}, {"name": "offset", "columns": ["o"]}]
    data = builder.assemble({"kind": "columns", "columns": columns, "groups": groups}, {})
    inputs = [keras.Input((1,), name=name) for name in ("features", "offset")]
    linear = keras.layers.Dense(1, kernel_initializer="ones")(inputs[0])
    model = keras.Model(inputs, keras.layers.Add()([linear, inputs[1]]))
    found = attribute(model, data=data, steps=2)
    mean = values["o"].mean()
    np.testing.assert_allclose(found.baselines, mean, rtol=1e-5)
    np.testing.assert_allclose(found.values[:, 1], values["o"] - mean, rtol=1e-4, atol=1e-5)


def test_a_model_that_keeps_a_state_gives_no_row_attributions_of_its_own():
    import keras

    x = np.random.default_rng(0).normal(size=(8, 4, 2))
    recurrent = keras.layers.SimpleRNN(3, stateful=True)
    model = keras.Sequential([keras.Input((4, 2), batch_size=4), recurrent, keras.layers.Dense(1)])
    with pytest.raises(ModelError, match="layers keep a state from one batch to the next"):
        attribute(model, {"kind": "array", "values": x})


def test_outputs_of_a_family_have_its_names():
    from gpukeras.explain.effects import measure_effects
    from gpukeras.models import mlp

    rng = np.random.default_rng(1)
    labels = {"kind": "numeric", "values": rng.poisson(3, 20).astype(float)}
    data = map_dataset.build_dataset(ROWS, {"batch_size": 8}, labels)
    model = mlp.build_mlp(data, {"units": [3], "family": {"name": "negative_binomial"}})
    assert measure_effects(model, data).columns[0].outputs == ("mean", "size")
    whole = attribute(model, ROWS, output="mean", steps=3)
    np.testing.assert_allclose(whole.outputs, predict.predict(model, ROWS)["values"], rtol=1e-5)
    with pytest.raises(SpecError, match="`class` names `2`, which is no output"):
        attribute(model, ROWS, output="2")
