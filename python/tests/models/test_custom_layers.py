import pytest

from gpukeras.models.custom_layers import LayerBody, keras_class

pytestmark = pytest.mark.tf


class Twice(LayerBody):
    """A layer of a test."""

    FIELDS = ("factor",)

    def __init__(self, factor=2, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor


def test_a_body_becomes_a_layer_that_keras_saves():
    import keras

    made = keras_class(Twice)
    assert made is keras_class(Twice)
    layer = made(factor=3, name="three")
    config = keras.saving.serialize_keras_object(layer)
    assert config["registered_name"] == "gpukeras>Twice"
    again = keras.saving.deserialize_keras_object(config, safe_mode=True)
    assert (again.factor, again.name) == (3, "three")
    assert float(again(keras.ops.ones((1,)))[0]) == 3.0
