"""Models are described as equal only if their steps do the same."""

import json

import numpy as np
import pytest
from lazy_modules import keras, layers

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
    def build_linked(from_first):
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
    drawn = dense(5, kernel_initializer=keras.initializers.HeNormal(seed=1))
    others = build(seed=4), build(seed=None)
    assert {describe_model(build()), *map(describe_model, others)} == {describe_model(build())}
    assert describe_model(build(layers=[drawn])) == describe_model(build(layers=[dense(5)]))


def test_an_input_may_be_called_as_a_setting_is():
    config = {"config": {"seed": 1, "units": 2}, "input_layers": {"seed": ["layer 1", 0, 0]}}
    kept = {"config": {"units": 2}, "input_layers": {"seed": ["layer 1", 0, 0]}}
    assert identity._strip_initial(config) == kept


def test_the_rate_is_a_variable_and_no_difference():
    found = [describe_model(build(optimizer=adam(rate))) for rate in (0.1, 0.2)]
    assert found[0] is not None
    assert found[0] == found[1]


def test_the_numbers_of_rescaling_distinguish_models():
    numbers = (2.0, 1.0), (2.0, 1.0), (3.0, 1.0), (2.0, 0.5)
    found = [describe_model(build(layers=[keras.layers.Rescaling(*each)])) for each in numbers]
    assert found[0] is not None
    assert found[0] == found[1]
    assert len(set(found)) == 3


def with_a_number_of_no_setting():
    model = build()
    model.layers[0].supports_masking = False
    return model


def changed_epsilon():
    model = build()
    model.optimizer.epsilon = 1e-3
    return model


def of_other_slots():
    model = build()
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables[::-1])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    build_variables(model, ROWS)
    return model


def with_tied_weights(tie=True):
    twins = [keras.layers.Dense(5), keras.layers.Dense(5)]
    model = build(layers=twins)
    if tie:
        vars(twins[1])["bias"] = twins[0].bias
    return model


def dense(units, **options):
    return keras.layers.Dense(units, **options)


def adam(rate=0.001, **options):
    return keras.optimizers.Adam(rate, **options)


def decaying(rate):
    return adam(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5))


UNLIKE = {
    "dropout": lambda: build(rate=0.2),
    "activation": lambda: build(activation="tanh"),
    "units": lambda: build(units=9),
    "frozen": lambda: build(freeze=True),
    "loss": lambda: build(loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=2)),
    "metrics": lambda: build(metrics=()),
    "optimizer": lambda: build(optimizer="sgd"),
    "schedule": lambda: build(optimizer=decaying(0.1)),
    "other schedule": lambda: build(optimizer=decaying(0.2)),
    "a changed epsilon": changed_epsilon,
    "a number of no setting": with_a_number_of_no_setting,
    "slots in another order": of_other_slots,
    "weights that could be tied": lambda: with_tied_weights(False),
    "tied weights": with_tied_weights,
    "loss scaling": lambda: build(
        optimizer=keras.optimizers.LossScaleOptimizer(adam(), initial_scale=2.0)
    ),
    "accumulation": lambda: build(optimizer=adam(gradient_accumulation_steps=2)),
    "more accumulation": lambda: build(optimizer=adam(gradient_accumulation_steps=3)),
    "averages": lambda: build(optimizer=adam(use_ema=True, ema_momentum=0.9)),
    "other averages": lambda: build(optimizer=adam(use_ema=True, ema_momentum=0.8)),
    "clipping": lambda: build(optimizer=adam(clipnorm=1.0)),
    "precision": lambda: build(layers=[dense(5, dtype="mixed_bfloat16")]),
    "regularizer": lambda: build(layers=[dense(5, kernel_regularizer="l2")]),
    "loss weights": lambda: build(compiled={"loss_weights": 2.0}),
}


@pytest.mark.slow
def test_what_a_step_depends_on_distinguishes_models():
    found = [describe_model(make()) for make in (build, *UNLIKE.values())]
    assert None not in found
    assert len(set(found)) == len(found)


def relu(x):
    return x * 2


def accuracy(y, p):
    return p[:, 0]


def doubled_loss(y, p):
    return keras.losses.sparse_categorical_crossentropy(y, p) * 2


def subclass(base, **methods):
    """A user's own class, with the name of the one that it is of."""
    return type(base.__name__, (base,), methods)


def with_adapted_numbers():
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


def without_decay_of_some():
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return build(optimizer=optimizer)


def without_decay_of_one():
    model = build(optimizer=keras.optimizers.AdamW())
    model.optimizer.exclude_from_weight_decay([model.layers[0].kernel])
    return model


def with_mask():
    model = build()
    kernel = model.layers[0].kernel
    set_mask(kernel, Mask(kernel, np.ones(kernel.shape, bool), None))
    return model


def with_many_numbers():
    model = build()
    model.layers[0].numbers = np.zeros(2000)
    return model


OWN = {
    "activation": lambda: build(activation=relu),
    "loss": lambda: build(loss=doubled_loss),
    "metric": lambda: build(metrics=(accuracy,)),
    "lambda": lambda: build(layers=[keras.layers.Lambda(lambda x: x * 2)]),
    "adapted numbers": with_adapted_numbers,
    "replaced call": with_replaced_call,
    "replaced step": with_replaced_step,
    "no decay of some": without_decay_of_some,
    "no decay of one": without_decay_of_one,
    "mask": with_mask,
    "many numbers": with_many_numbers,
    "class of a layer": lambda: build(
        layers=[subclass(keras.layers.Dense, call=lambda self, x: x * 2)(5)]
    ),
    "class of a model": lambda: build(
        kind=subclass(
            keras.Sequential, train_step=lambda self, data: keras.Sequential.train_step(self, data)
        )
    ),
    "class of a metric": lambda: build(
        metrics=[subclass(keras.metrics.SparseCategoricalAccuracy, result=lambda self: 2.0)()]
    ),
    "class of an optimizer": lambda: build(
        optimizer=subclass(keras.optimizers.Adam, update_step=lambda self, *given: None)()
    ),
    "class of a schedule": lambda: build(
        optimizer=adam(
            subclass(
                keras.optimizers.schedules.LearningRateSchedule,
                __call__=lambda self, step: 0.5 / (1.0 + keras.ops.cast(step, "float32")),
                get_config=lambda self: {},
            )()
        )
    ),
}


@pytest.mark.varies
@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_model_with_code_or_numbers_of_the_users_is_not_described(make):
    assert describe_model(make()) is None
