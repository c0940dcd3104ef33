"""What needs TensorFlow is refused on JAX by its name."""

import pytest

from gpukeras.backend import features, runtime
from gpukeras.backend.features import FEATURES, require_feature
from gpukeras.core.errors import BackendError

ON_TENSORFLOW = [key for key, feature in FEATURES.items() if feature.backend == "tensorflow"]


def test_nothing_of_tensorflow_is_refused_on_tensorflow(monkeypatch):
    monkeypatch.setattr(runtime, "backend", lambda: "tensorflow")
    for key in ON_TENSORFLOW:
        require_feature(key)


@pytest.mark.parametrize("key", ON_TENSORFLOW)
@pytest.mark.parametrize("installed", [True, False])
def test_on_jax_a_feature_is_refused_by_name_unless_tensorflow_may_stand_beside(
    monkeypatch, key, installed
):
    monkeypatch.setattr(runtime, "backend", lambda: "jax")
    monkeypatch.setattr(features, "find_spec", lambda name: object() if installed else None)
    feature = FEATURES[key]
    if feature.beside and installed:
        require_feature(key)
        return
    with pytest.raises(BackendError) as caught:
        require_feature(key)
    assert caught.value.message.startswith(f"{feature.name} needs ")
    assert caught.value.hint.startswith(
        feature.instead or ("Install" if feature.beside else "Start")
    )
    assert ("install_gpukeras()" in caught.value.hint) is feature.beside
