"""Models share a structure only if they compute the same but for numbers."""

import functools

import numpy as np
import pytest
from small_fits import make_model

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError

pytestmark = pytest.mark.tf


def describe(**changes):
    from gpukeras.many.structure import describe_structure

    return describe_structure(build(**changes))


def build(rate=0.1, drop=0.2, penalty=0.01, units=3, power=2.0, scale=1.0, mean=0.0, inner=None):
    import keras

    def loss(true, predicted):
        return scale * keras.ops.mean(keras.ops.abs(true - predicted) ** power, axis=-1)

    normal = keras.layers.Normalization()
    normal.adapt(np.arange(8.0).reshape(2, 4) + mean)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            normal,
            keras.layers.Dense(units, kernel_regularizer=keras.regularizers.L2(penalty)),
            keras.layers.Dropout(drop),
            *([] if inner is None else [own_layer()(inner)]),
            keras.layers.Dense(1, activation=lambda x: scale * x),
        ]
    )
    model.compile(keras.optimizers.SGD(rate), loss)
    model.optimizer.build(model.trainable_variables)
    return model


@functools.cache
def own_layer():
    import keras

    class Scaled(keras.layers.Layer):  # its configuration says nothing of the factor
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def call(self, x):
            return self.factor * x

        def get_config(self):
            return super().get_config()

    return Scaled


def test_numbers_may_differ():
    one, other = describe(), describe(rate=0.3, drop=0.4, penalty=0.1)
    assert one.key == other.key
    assert sorted(one.numbers.values()) == pytest.approx([0.01, 0.1, 0.2])


@pytest.mark.parametrize(
    "changes",
    [{"units": 4}, {"drop": 0.0}, {"scale": 2.0}, {"power": 1.0}, {"mean": 1.0}, {"inner": 3.0}],
    ids=str,
)
def test_what_changes_the_program_makes_another_structure(changes):
    assert describe().key != describe(**changes).key


def test_the_user_s_objects_are_compared_by_what_they_hold():
    assert describe(inner=3.0).key == describe(inner=3.0).key
    assert describe(inner=3.0).key != describe(inner=4.0).key


def test_numbers_of_the_user_s_classes_may_not_differ():
    import keras

    class Dropout(keras.layers.Dropout):  # its own class of the same name
        pass

    def make(rate):
        from gpukeras.many.structure import describe_structure

        return describe_structure(make_model(layers=[Dropout(rate)]))

    assert make(0.1).key != make(0.2).key


def test_a_model_without_a_configuration_is_refused():
    import keras

    class Closed(keras.layers.Layer):
        def __init__(self, size):
            super().__init__()

        def call(self, x):
            return x

        def get_config(self):
            raise NotImplementedError("no configuration")

    from gpukeras.many.structure import describe_structure

    with pytest.raises(ModelError, match="has no configuration to compare: no configuration"):
        describe_structure(make_model(layers=[Closed(3)]))


def test_settings_of_single_variables_make_another_structure():
    import keras

    def make(name=None, value=None):
        from gpukeras.many.structure import describe_structure

        model = make_model()
        if name == "decay":
            keras_private.without_scaling(model.optimizer).exclude_from_weight_decay(
                var_names=value
            )
        elif name:
            setattr(model.variables[0], name, value)
        return describe_structure(model).key

    keys = [
        make(),
        make("trainable", False),
        make("constraint", keras.constraints.NonNeg()),
        make("regularizer", keras.regularizers.L2(0.1)),
        make("regularizer", keras.regularizers.L2(0.2)),
        make("decay", ["kernel"]),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[3] == make("regularizer", keras.regularizers.L2(0.1))


def test_models_of_another_precision_have_another_structure():
    from gpukeras.many.structure import describe_structure

    found = set()
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
        with runtime.dtype_policy_scope(policy):
            model = make_model()
        model.optimizer.build(model.trainable_variables)
        found.add(describe_structure(model).key)
    assert len(found) == 3
