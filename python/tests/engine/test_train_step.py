import numpy as np
import pytest
from nightly import few
from small_fits import make_model

from gpukeras.backend import runtime, tensor_ops
from gpukeras.engine import train_step as engine_train_step
from gpukeras.models import losses

pytestmark = pytest.mark.tf

ROWS, COLUMNS = 70, 5
RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, COLUMNS)).astype(np.float32)
Y = RNG.integers(0, 3, ROWS).astype(np.float32)
WEIGHTS = RNG.random(ROWS).astype(np.float32)

SIZES = [(64, 16), (70, 16), (64, 1), (7, 16)]  # rows, and those that go through at once


def built(**options):
    model = make_model(**options)
    model.compile(model.optimizer, model.loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    tensor_ops.build_state(model, (X[:4], Y[:4], WEIGHTS[:4]))
    return model


def step_of(model, micro=None, averages=None):
    return engine_train_step.TrainingStep(
        model, micro, engine_train_step.NonFiniteMonitor(model.optimizer.iterations), averages
    )


def train(model, micro, rows, compiled, times=3):
    tf = runtime.tensorflow()
    step = tf.function(step_of(model, micro), jit_compile=compiled)
    for _ in range(times):
        logs = step(tuple(tf.constant(array[:rows]) for array in (X, Y, WEIGHTS)))
    return {name: float(value) for name, value in logs.items()}


def regularised():
    keras = runtime.keras()
    start = keras.initializers.GlorotUniform(seed=2)
    return [keras.layers.Dense(4, kernel_regularizer="l2", kernel_initializer=start)]


# Micro-batches -----------------------------------------------------------------------------------


@pytest.mark.varies
@pytest.mark.parametrize(
    ("rows", "micro", "compiled"),
    few(
        [(*size, compiled) for size in SIZES for compiled in (False, True)],
        (70, 16, False),
        (64, 1, False),
    ),
)
def test_micro_batches_make_the_same_update(rows, micro, compiled):
    whole, parts = (built(layers=regularised(), optimizer="adam") for _ in range(2))
    found = train(whole, None, rows, compiled)
    assert train(parts, micro, rows, compiled) == pytest.approx(found, rel=1e-5)
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_rows_that_are_only_known_when_it_runs_are_split_too():
    tf = runtime.tensorflow()
    whole, parts = built(), built()
    train(whole, None, ROWS, compiled=False, times=1)
    specs = [tf.TensorSpec([None, COLUMNS]), tf.TensorSpec([None]), tf.TensorSpec([None])]
    step = tf.function(step_of(parts, 16), input_signature=[tuple(specs)])
    step((tf.constant(X), tf.constant(Y), tf.constant(WEIGHTS)))
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_variable_without_a_gradient_stays_without():
    keras = runtime.keras()

    class Idle(keras.layers.Layer):
        def build(self, shape):
            self.unused = self.add_weight(shape=(2,), initializer="ones")

        def call(self, inputs):
            return inputs

    model = built(layers=[Idle()], optimizer=keras.optimizers.AdamW(weight_decay=0.5))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        train(model, 16, 64, compiled=False)
    np.testing.assert_array_equal(model.layers[1].unused.numpy(), [1, 1])


@pytest.mark.slow
def test_scaled_losses_are_scaled_once():
    models = []
    for micro in (None, 16):
        keras = runtime.keras()
        model = built(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
        train(model, micro, 64, compiled=False)
        models.append(model)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_only_means_of_rows_in_keras_own_step_are_split():
    class Own(runtime.keras().Sequential):
        def train_step(self, data):
            return super().train_step(data)

    assert not engine_train_step.why_not_split(make_model())
    assert "train_step()" in engine_train_step.why_not_split(Own())
    adds_up = built()
    losses = runtime.keras().losses
    adds_up.compile("sgd", losses.SparseCategoricalCrossentropy(reduction="sum"))
    assert "adds up rows" in engine_train_step.why_not_split(adds_up)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", False),
        (lambda: runtime.keras().losses.MeanSquaredError(reduction="sum"), True),
        (lambda: {"a": "mse", "b": runtime.keras().losses.Poisson(reduction="sum")}, True),
        (lambda: ["mse", runtime.keras().losses.Poisson()], False),
    ],
)
def test_losses_that_add_up_rows_are_known(loss, expected):
    assert losses.sums_rows(loss() if callable(loss) else loss) is expected


# The watch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_loss_that_is_no_number_is_noted(compiled):
    tf, model = runtime.tensorflow(), built()
    watch = engine_train_step.NonFiniteMonitor(model.optimizer.iterations)
    look = tf.function(watch.look, jit_compile=compiled)
    for loss in (1.0, 2.0, float("inf"), float("nan"), 1.0):
        look({"loss": tf.constant(loss)})
    assert (int(watch.steps.numpy()), int(watch.bad.numpy())) == (5, 3)
    assert not watch.going()


def test_a_step_that_tells_no_loss_is_counted():
    watch = engine_train_step.NonFiniteMonitor(built().optimizer.iterations)
    watch.look({})
    assert (int(watch.steps.numpy()), int(watch.bad.numpy())) == (1, 0)
    assert watch.going()


def test_losses_may_be_ignored_until_the_next_reset():
    watch = engine_train_step.NonFiniteMonitor(built().optimizer.iterations)
    watch.ignore()
    watch.look({"loss": runtime.tensorflow().constant(float("nan"))})
    assert (int(watch.steps.numpy()), bool(watch.going())) == (1, True)
    watch.reset()
    watch.look({"loss": runtime.tensorflow().constant(float("nan"))})
    assert not watch.going()


# Averages ----------------------------------------------------------------------------------------


def test_averages_follow_their_formula():
    tf, model = runtime.tensorflow(), built(optimizer="sgd")
    averages = engine_train_step.Averages(model, 0.6)
    expected = [weight.copy() for weight in model.get_weights()]
    step = tf.function(step_of(model, None, averages))
    for number in range(1, 21):
        step((tf.constant(X), tf.constant(Y), tf.constant(WEIGHTS)))
        momentum = min(0.6, (1 + number) / (10 + number))
        pairs = zip(expected, model.get_weights(), strict=True)
        expected = [momentum * old + (1 - momentum) * new for old, new in pairs]
    averages.show()
    for one, other in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_averages_are_shown_and_hidden_without_a_trace():
    model = built()
    averages = engine_train_step.Averages(model, 0.9)
    train(model, None, 64, compiled=False)
    trained = model.get_weights()
    averages.show()
    averages.show()
    assert not np.array_equal(model.get_weights()[0], trained[0])
    averages.hide()
    averages.hide()
    for one, other in zip(trained, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_averages_go_on_from_their_state():
    model = built()
    averages, other = engine_train_step.Averages(model, 0.9), engine_train_step.Averages(model, 0.9)
    averages.update()
    for weight in model.trainable_weights:
        weight.assign_add(weight)
    averages.update()
    other.set_state(*averages.get_state())
    averages.update()
    other.update()
    (plain, arrays), (plain2, arrays2) = averages.get_state(), other.get_state()
    assert plain == plain2 == {"count": 3}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, arrays2[name])
