"""Models are described as equal only if their steps do the same."""

import json

import numpy as np
import pytest

from gpukeras.compression.masks import Mask, set_mask
from gpukeras.models import identity
from gpukeras.models.variables import build_variables

pytestmark = pytest.mark.tf
ROWS = np.zeros((2, 5), "float32"), np.zeros(2, "int32")


def describe_model(model):
    return identity.describe_model(model, model.train_step)


def build(
    rate=0.1,
    seed=3,
    units=8,
    activation="relu",
    loss="sparse_categorical_crossentropy",
    optimizer=None,
    freeze=False,
    metrics=("accuracy",),
    layers=(),
    compiled=None,
    kind=None,
):
    import keras

    inner = keras.layers.Dense(units, activation)
    dropout = keras.layers.Dropout(rate, seed=seed)
    last = keras.layers.Dense(3, "softmax")
    model = (kind or keras.Sequential)([keras.Input((5,)), *layers, inner, dropout, last])
    inner.trainable = not freeze
    optimizer = optimizer or keras.optimizers.Adam()
    model.compile(optimizer, loss, metrics=list(metrics), **(compiled or {}))
    build_variables(model, ROWS)
    return model


def test_names_do_not_distinguish_models():
    one, other = describe_model(build()), describe_model(build())
    assert one is not None
    assert one == other
    assert json.loads(one)


def test_models_of_the_functional_api_are_told_apart_by_their_links():
    import keras

    def build_linked(from_first):
        layers = keras.layers
        rows = keras.Input((5,))
        first = layers.Dense(4)(rows)
        second = layers.Dense(4)(first)
        added = layers.Add()([first, first if from_first else second])
        model = keras.Model(rows, layers.Dense(3, "softmax")(layers.Concatenate()([added, second])))
        model.compile("sgd", "sparse_categorical_crossentropy")
        build_variables(model, ROWS)
        return describe_model(model)

    one, other, linked = build_linked(False), build_linked(False), build_linked(True)
    assert one is not None
    assert one == other
    assert linked not in (None, one)


def test_seeds_and_initializers_are_no_difference():
    import keras

    drawn = dense(5, kernel_initializer=keras.initializers.HeNormal(seed=1))
    others = build(seed=4), build(seed=None)
    assert {describe_model(build()), *map(describe_model, others)} == {describe_model(build())}
    assert describe_model(build(layers=[drawn])) == describe_model(build(layers=[dense(5)]))


def test_an_input_may_be_called_as_a_setting_is():
    config = {"config": {"seed": 1, "units": 2}, "input_layers": {"seed": ["layer 1", 0, 0]}}
    kept = {"config": {"units": 2}, "input_layers": {"seed": ["layer 1", 0, 0]}}
    assert identity._strip_initial(config) == kept


def test_the_rate_is_a_variable_and_no_difference():
    import keras

    found = [describe_model(build(optimizer=keras.optimizers.Adam(rate))) for rate in (0.1, 0.2)]
    assert found[0] is not None
    assert found[0] == found[1]


def test_the_numbers_of_rescaling_distinguish_models():
    import keras

    numbers = (2.0, 1.0), (2.0, 1.0), (3.0, 1.0), (2.0, 0.5)
    found = [describe_model(build(layers=[keras.layers.Rescaling(*each)])) for each in numbers]
    assert found[0] is not None
    assert found[0] == found[1]
    assert len(set(found)) == 3


def schedule(rate):
    import keras

    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5))


def with_ignored_class():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(ignore_class=2)


def with_a_number_of_no_setting():
    model = build()
    model.layers[0].supports_masking = False
    return model


def changed_epsilon():
    model = build()
    model.optimizer.epsilon = 1e-3
    return model


def of_other_slots():
    import keras

    model = build()
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables[::-1])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    build_variables(model, ROWS)
    return model


def with_tied_weights(tie=True):
    import keras

    twins = [keras.layers.Dense(5), keras.layers.Dense(5)]
    model = build(layers=twins)
    if tie:
        vars(twins[1])["bias"] = twins[0].bias
    return model


def scaled(initial):
    import keras

    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=initial)


def clipping(norm):
    import keras

    return keras.optimizers.Adam(clipnorm=norm)


def dense(units, **options):
    import keras

    return keras.layers.Dense(units, **options)


def accumulating(steps):
    import keras

    return keras.optimizers.Adam(gradient_accumulation_steps=steps)


def averaging(momentum):
    import keras

    return keras.optimizers.Adam(use_ema=True, ema_momentum=momentum)


UNLIKE = {
    "dropout": lambda: build(rate=0.2),
    "activation": lambda: build(activation="tanh"),
    "units": lambda: build(units=9),
    "frozen": lambda: build(freeze=True),
    "loss": lambda: build(loss=with_ignored_class()),
    "metrics": lambda: build(metrics=()),
    "optimizer": lambda: build(optimizer="sgd"),
    "schedule": lambda: build(optimizer=schedule(0.1)),
    "other schedule": lambda: build(optimizer=schedule(0.2)),
    "a changed epsilon": changed_epsilon,
    "a number of no setting": with_a_number_of_no_setting,
    "slots in another order": of_other_slots,
    "weights that could be tied": lambda: with_tied_weights(False),
    "tied weights": with_tied_weights,
    "loss scaling": lambda: build(optimizer=scaled(2.0)),
    "accumulation": lambda: build(optimizer=accumulating(2)),
    "more accumulation": lambda: build(optimizer=accumulating(3)),
    "averages": lambda: build(optimizer=averaging(0.9)),
    "other averages": lambda: build(optimizer=averaging(0.8)),
    "clipping": lambda: build(optimizer=clipping(1.0)),
    "precision": lambda: build(layers=[dense(5, dtype="mixed_bfloat16")]),
    "regularizer": lambda: build(layers=[dense(5, kernel_regularizer="l2")]),
    "loss weights": lambda: build(compiled={"loss_weights": 2.0}),
}


@pytest.mark.slow
def test_what_a_step_depends_on_distinguishes_models():
    found = [describe_model(make()) for make in (build, *UNLIKE.values())]
    assert None not in found
    assert len(set(found)) == len(found)


def with_own_activation():
    def relu(x):
        return x * 2

    return build(activation=relu)


def with_own_loss():
    import keras

    return build(loss=lambda y, p: keras.losses.sparse_categorical_crossentropy(y, p) * 2)


def with_own_metric():
    def accuracy(y, p):
        return p[:, 0]

    return build(metrics=(accuracy,))


def with_own_layer():
    import keras

    class Dense(keras.layers.Dense):
        def call(self, x):
            return super().call(x) * 2

    return build(layers=[Dense(5)])


def with_lambda():
    import keras

    return build(layers=[keras.layers.Lambda(lambda x: x * 2)])


def with_adapted_numbers():
    import keras

    layer = keras.layers.Normalization()
    layer.adapt(np.arange(20.0).reshape(4, 5))
    return build(layers=[layer])


def with_replaced_call():
    model = build()
    before = model.layers[0].call
    model.layers[0].call = lambda x: before(x) * 2
    return model


def with_replaced_step():
    model = build()
    before = model.train_step
    model.train_step = lambda data: before(data)
    return model


def with_own_schedule():
    import keras

    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 / (1.0 + keras.ops.cast(step, "float32"))

        def get_config(self):
            return {}

    return build(optimizer=keras.optimizers.Adam(Halved()))


def without_decay_of_some():
    import keras

    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return build(optimizer=optimizer)


def with_mask():
    model = build()
    kernel = model.layers[0].kernel
    set_mask(kernel, Mask(kernel, np.ones(kernel.shape, bool), None))
    return model


def with_many_numbers():
    model = build()
    model.layers[0].numbers = np.zeros(2000)
    return model


def with_own_class():
    import keras

    class Sequential(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    return build(kind=Sequential)


def with_own_metric_class():
    import keras

    class Mean(keras.metrics.SparseCategoricalAccuracy):
        def result(self):
            return super().result() * 2

    return build(metrics=[Mean()])


def with_own_optimizer():
    import keras

    class Adam(keras.optimizers.Adam):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(-gradient, variable, learning_rate)

    return build(optimizer=Adam())


@pytest.mark.varies
@pytest.mark.parametrize(
    "make",
    [
        with_own_activation,
        with_own_loss,
        with_own_metric,
        with_own_layer,
        with_lambda,
        with_adapted_numbers,
        with_replaced_call,
        with_replaced_step,
        with_own_schedule,
        without_decay_of_some,
        with_mask,
        with_many_numbers,
        with_own_class,
        with_own_metric_class,
        with_own_optimizer,
    ],
)
def test_a_model_with_code_or_numbers_of_the_users_is_not_described(make):
    assert describe_model(make()) is None
