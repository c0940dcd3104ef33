"""Models on JAX become StableHLO files, see `jax_models`."""

import pytest
from jax_runs import needs_jax, run_part
from nightly import few
from small_fits import make_model

from gpukeras import BackendError
from gpukeras.export.export import export_model

pytestmark = [pytest.mark.process, needs_jax]


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["dense", "images", "series", "several", "open"], "several"))
def test_a_loaded_file_predicts_any_number_of_rows_as_the_model_does(name):
    part = "exported" if name == "several" else "exported_more"
    apart, difference, runner, inputs = run_part("jax_models", part)[name]
    assert apart < 1e-6
    assert difference < 1e-5
    assert runner.startswith("JAX ")
    assert len(inputs) == (2 if name == "several" else 1)


@pytest.mark.tensorflow
@pytest.mark.tf
def test_it_needs_keras_on_jax(tmp_path):
    with pytest.raises(BackendError, match="needs Keras on JAX, and Keras runs on TensorFlow"):
        export_model(make_model(), str(tmp_path / "model.stablehlo"))
