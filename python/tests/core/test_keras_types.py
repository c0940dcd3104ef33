"""Keras' own classes have what the protocols promise."""

import numpy as np
import pytest

from gpukeras.core import keras_types

pytestmark = pytest.mark.tf


def names_of(protocol):
    own = {name for name in vars(protocol) if not name.startswith("_")}
    return sorted(own | set(protocol.__annotations__))


@pytest.fixture(scope="module")
def trained():
    import keras

    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", "mse")
    rows = np.zeros((4, 5), np.float32), np.zeros((4, 3))
    model.fit(*rows, verbose=0)
    model.evaluate(*rows, verbose=0)
    return model


@pytest.mark.parametrize("name", names_of(keras_types.Model))
def test_a_model_has_what_its_protocol_names(trained, name):
    assert hasattr(trained, name)


@pytest.mark.parametrize("name", names_of(keras_types.Optimizer))
def test_an_optimizer_has_what_its_protocol_names(trained, name):
    assert hasattr(trained.optimizer, name)


@pytest.mark.parametrize("name", names_of(keras_types.Variable))
def test_a_variable_has_what_its_protocol_names(trained, name):
    assert hasattr(trained.variables[0], name)
