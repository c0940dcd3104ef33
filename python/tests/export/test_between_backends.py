"""A model's file predicts the same on TensorFlow and on JAX; see `jax_tools`."""

import numpy as np
import pytest
from jax_runs import needs_jax, run_part

from gpukeras.export import transfer

pytestmark = [pytest.mark.process, pytest.mark.tf, needs_jax]


@pytest.mark.slow
def test_a_model_trained_on_jax_predicts_the_same_on_tensorflow_and_trains_on(
    tmp_path, monkeypatch
):
    path = str(tmp_path / "model.keras")
    monkeypatch.setenv("MOVED_MODEL", path)
    found = np.array(run_part("jax_tools", "written"))
    model = transfer.load_model(path)
    rows = np.linspace(-1, 1, 5 * len(found), dtype=np.float32).reshape(-1, 5)
    np.testing.assert_allclose(model.predict(rows, verbose=0), found, atol=1e-5)
    history = model.fit(rows, np.arange(len(rows)) % 3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
