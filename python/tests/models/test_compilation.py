import itertools

import numpy as np
import pytest
from grouped import array
from lazy_modules import keras, tf
from nightly import few
from small_fits import make_dataset, make_model, make_subclassed

from gpukeras import ModelError
from gpukeras.data.dataset import map_dataset
from gpukeras.models import compilation
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf

ENGINES = ["keras", "graph_loop", "auto"]


# Layers that became trainable ---------------------------------------------------------------------


def train(model, engine="keras", **more):
    return fit.fit(model, make_dataset(), {"epochs": 1, "engine": engine}, **more)


def frozen_first():
    """A model of which the first layer was frozen as it was compiled, trained once."""
    model = make_model(optimizer="adam")
    model.layers[0].trainable = False
    model.compile("adam", model.loss)
    train(model)
    return model


def test_an_optimizer_of_another_model_is_named():
    one, other = frozen_first(), frozen_first()
    other.compile(one.optimizer, other.loss)
    with pytest.raises(ModelError, match="was built for another model") as caught:
        train(other)
    assert "Give each model a new one" in caught.value.hint


@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop"))
def test_a_layer_unfrozen_after_a_training_is_named(engine):
    model = frozen_first()
    model.layers[0].trainable = True
    before = model.get_weights()
    match = f"does not know the layer {model.layers[0].name}, which became trainable"
    with pytest.raises(ModelError, match=match) as caught:
        train(model, engine)
    assert "Compile the model again: compile" in caught.value.hint
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    evaluate.evaluate(model, make_dataset())  # nothing is trained there
    again = {"loss": "sparse_categorical_crossentropy", "optimizer": "adam"}
    assert train(model, engine, compiling=again).stopped == "completed"
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_layers_that_were_added_or_lie_deeper_are_named_too():
    backbone = keras.Sequential([keras.layers.Dense(4, name=f"deep{one}") for one in range(7)])
    backbone.trainable = False
    model = keras.Sequential([keras.Input((5,)), backbone, keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    train(model)
    backbone.trainable = True
    with pytest.raises(ModelError, match="the layers deep0, deep1, deep2, deep3, deep4 and 2 more"):
        train(model)


@pytest.mark.slow
def test_under_loss_scaling_too():
    model = make_model()
    model.layers[0].trainable = False
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    model.compile(scaled, "sparse_categorical_crossentropy")
    train(model)
    train(model)
    model.layers[0].trainable = True
    with pytest.raises(ModelError, match="became trainable after"):
        train(model)


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop"))
def test_a_layer_frozen_after_a_training_stays_as_it_is(engine):
    model = make_model(optimizer="adam")
    train(model)
    model.layers[0].trainable = False
    before = model.get_weights()
    train(model, engine)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[2], after[2])


def build_with_a_step(part):
    """A model whose own step trains a part of it; its optimizer was built with the last layer."""

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data[:2]
            weights = self.layers[-1].trainable_variables
            weights = self.trainable_variables if part == "all" else weights
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    given = keras.Input((5,))
    hidden = keras.layers.Dense(4, name="hidden")(given)
    model, optimizer = Own(given, keras.layers.Dense(3, "softmax")(hidden)), keras.optimizers.SGD()
    optimizer.build(model.layers[-1].trainable_variables)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop"))
def test_a_step_of_ones_own_may_train_some_variables(engine):
    model = build_with_a_step("last")
    assert train(model, engine).stopped == "completed"
    assert train(model, engine).stopped == "completed"
    with pytest.raises(ModelError, match="does not know the layer hidden, which became trainable"):
        train(build_with_a_step("all"), engine)


def test_other_errors_pass():
    with pytest.raises(ValueError, match="of another kind"), compilation.explaining_refusals(None):
        raise ValueError("of another kind")


# A strategy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["MirroredStrategy", "OneDeviceStrategy"])
def test_a_model_of_a_strategys_scope_is_told_of_devices(kind):
    distribute = tf.distribute
    devices = ["CPU:0"] if kind == "MirroredStrategy" else "CPU:0"
    with getattr(distribute, kind)(devices).scope():
        model = make_model()
    match = f"was made in the scope of a {kind}, and gpukeras shares out rows itself"
    for run in (lambda: train(model), lambda: evaluate.evaluate(model, make_dataset())):
        with pytest.raises(ModelError, match=match) as caught:
            run()
        assert 'gpu_fit(devices = "all")' in caught.value.hint
    x = np.ones((4, 5))
    assert predict.predict(model, array(x))["values"].shape == (4, 3)  # that needs no strategy


def test_a_part_of_a_strategys_scope_is_seen():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        part = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model = keras.Sequential([keras.Input((5,)), part])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ModelError, match="in the scope of a tf.distribute strategy"):
        train(model)


# Losses and metrics that do not fit the outputs ---------------------------------------------------

TWO = {"list": list, "tuple": tuple, "dict": lambda heads: dict(zip("ab", heads, strict=True))}


def heads(struct, names="ab"):
    keras.utils.set_random_seed(2)
    given = keras.Input((3,))
    made = [keras.layers.Dense(1, name=name)(given) for name in names]
    return keras.Model(given, TWO[struct](made) if len(made) > 1 else made[0])


def rows(names="ab"):
    x = np.random.default_rng(3).normal(size=(16, 3))
    each = {name: {"kind": "numeric", "values": x[:, 0], "levels": []} for name in names}
    several = {"kind": "outputs", "outputs": [{"name": n, "labels": each[n]} for n in each]}
    labels = several if len(each) > 1 else next(iter(each.values()))
    return map_dataset.build_dataset(array(x), {"batch_size": 8, "shuffle": False}, labels)


@pytest.mark.parametrize(
    ("struct", "given", "fault"),
    [
        ("list", {"loss": {"a": "mse", "z": "mae"}}, "`loss` of compile() names a, z"),
        ("tuple", {"loss": {"a": "mse"}}, "`loss` of compile() names a"),
        ("dict", {"loss": {"a": "mse", "b": "mse", "z": "mse"}}, "`loss` of compile() names a, b,"),
        ("list", {"loss": ["mse"] * 3}, "`loss` of compile() has 3 of them"),
        ("dict", {"loss": ["mse"]}, "`loss` of compile() has 1 of them"),
        ("list", {"metrics": {"z": ["mae"]}}, "`metrics` of compile() names z"),
        ("dict", {"metrics": {"z": ["mae"]}}, "`metrics` of compile() names z"),
        ("tuple", {"metrics": ["mae"]}, "`metrics` of compile() has 1 of them"),
        ("dict", {"weighted_metrics": ["mae"] * 3}, "`weighted_metrics` of compile() has 3 of"),
        ("list", {"loss_weights": [1.0]}, "`loss_weights` of compile() has 1 of them"),
        ("list", {"loss_weights": 0.5}, "`loss_weights` of compile() is one number"),
        (
            "list",
            {"loss": {"a": "mse", "b": "mse"}, "loss_weights": {"a": 1.0, "z": 1.0}},
            "`loss_weights` of compile() names a, z",
        ),
    ],
)
def test_what_does_not_fit_the_outputs_is_told_with_their_names(struct, given, fault):
    model = heads(struct)
    model.compile(**{"optimizer": "sgd", "loss": ["mse", "mse"], **given})
    with pytest.raises(ModelError) as caught:
        fit.fit(model, rows(), {"epochs": 1})
    assert caught.value.message.startswith(f"`model` has the outputs a, b, but {fault}")
    name = fault.split("`")[1]
    assert caught.value.hint == (
        f"Give `{name}` as a list with the outputs' names, or one for each in their order."
    )


def test_of_one_output_the_name_is_told():
    model = heads("list", "a")
    model.compile("sgd", {"z": "mse"})
    message = r"`model` has the output a, but `loss` of compile\(\) names z\."
    with pytest.raises(ModelError, match=message) as caught:
        fit.fit(model, rows("a"), {"epochs": 1})
    assert caught.value.hint == "Give `loss` as one for that output, or as a list with its name."


def test_names_that_only_a_call_could_tell():
    model = make_subclassed(1, lambda output: {"a": output})
    model.compile("sgd", {"z": "mse"})
    with pytest.raises(ModelError, match="Keras cannot build the model on this data") as caught:
        fit.fit(model, rows("a"), {"epochs": 1})
    assert caught.value.hint == (
        "Check the names in `loss` and `metrics` of compile() against what its call() gives."
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("struct", "loss"),
    few(
        itertools.product((list, tuple), ("mse", ["mse"], ("mse",))),
        (list, "mse"),
        (tuple, ["mse"]),
    ),
)
def test_one_output_in_a_list_trains_as_keras_does(struct, loss):
    trained = []
    for ours in (True, False):
        keras.utils.set_random_seed(2)
        model, data = make_subclassed(1, lambda output: struct([output])), rows("a")
        model(np.zeros((1, 3), np.float32))
        model.compile("sgd", loss)
        x, y = data.batch(16)
        if ours:
            fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
        else:
            model.fit(x, struct([y]), batch_size=8, epochs=2, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("trains_first", [False, True])
def test_a_layer_that_mixes_types_is_named_with_the_way_to_cast(trains_first):
    class Shift(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.ones(x.shape[-1:]) if training or not trains_first else x

    layers = [Shift(name="mine", dtype="mixed_bfloat16"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    if trains_first:
        model.build((None, 5))
    said = r"The call\(\) of Shift \(mine\) mixes numbers of float32 and bfloat16\. Cast them to "
    with pytest.raises(ModelError, match=said) as raised:
        fit.fit(model, make_dataset(64), {"epochs": 1, "engine": "keras"})
    assert raised.value.details["layers"] == ["mine"]
