import pytest
from lazy_modules import keras

from gpukeras.models import registry
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular import members

pytestmark = pytest.mark.tf


def test_all_classes_are_known_to_keras_by_their_names():
    found = registry.custom_objects()
    assert {"gpukeras>BatchEnsemble", "gpukeras>FactorCodes", "gpukeras>MembersModel"} <= set(found)
    for name, made in found.items():
        assert keras.saving.get_registered_object(name) is made
        assert issubclass(made, (keras.Layer, keras.Loss, keras.Initializer))
    assert registry.custom_objects() == found  # the same classes each time
    assert found["gpukeras>MembersModel"] is keras_class(members.MembersModel)
