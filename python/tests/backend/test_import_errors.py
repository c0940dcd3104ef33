import pytest

from gpukeras.backend import import_errors
from gpukeras.backend.import_errors import refuse_import


@pytest.fixture(autouse=True)
def no_failures(monkeypatch):
    monkeypatch.setattr(import_errors, "failures", {})


def test_a_missing_module_is_told_to_be_installed_and_no_other():
    missing = ModuleNotFoundError("No module named 'jax'", name="jax")
    assert refuse_import("JAX", "jax", missing, "Install it.").hint == "Install it."
    inner = ModuleNotFoundError("No module named 'jax.extra'", name="jax.extra")
    for error in (inner, ImportError("libx.so: file too short"), RuntimeError("another jaxlib")):
        assert "gpu_check() says why" in refuse_import("JAX", "jax", error, "Install it.").hint


def test_the_first_failure_is_kept():
    first = refuse_import("JAX", "jax", TypeError("no descriptors"), "")
    assert first.message == "JAX cannot be imported: TypeError: no descriptors."
    again = refuse_import("JAX", "jax", ImportError("cannot load module twice"), "")
    assert again.message == first.message
    assert import_errors.failures == {"jax": first.message}
