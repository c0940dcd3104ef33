import os
import sys
from types import ModuleType

import pytest
from children import PATHS, run_script

from gpukeras.backend import import_errors
from gpukeras.backend.import_errors import check_package, check_processor, refuse_import
from gpukeras.system import host


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
    ended = refuse_import("Keras", "keras", ImportError("It ends with a full stop."), "")
    assert ended.message == "Keras cannot be imported: It ends with a full stop."


@pytest.mark.parametrize("name", ["tensorflow", "jax", "keras"])
def test_an_import_that_ends_python_is_an_error(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("import sys\nsys.exit('no licence')")
    if name == "keras":  # without the seconds that TensorFlow takes
        stand_in = "from logging import getLogger as get_logger\n__version__ = '2.21.0'"
        (tmp_path / "tensorflow.py").write_text(stand_in)
    script = """
    from gpukeras.backend import runtime
    from gpukeras.core.errors import RuntimeMissingError
    try:
        runtime.keras()
    except RuntimeMissingError as error:
        answer = error.message + error.hint
    """
    paths = os.pathsep.join((str(tmp_path), PATHS))
    backend = "jax" if name == "jax" else "tensorflow"
    said = run_script(script, PYTHONPATH=paths, KERAS_BACKEND=backend)
    assert "cannot be imported: " in said
    assert "no licence." in said
    assert "It is installed" in said


@pytest.mark.parametrize("name", ["tensorflow", "jax", "keras"])
def test_a_file_with_the_name_of_a_package_is_named(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("")
    if name == "keras":  # without the seconds that TensorFlow takes
        stand_in = "from logging import getLogger as get_logger\n__version__ = '2.21.0'"
        (tmp_path / "tensorflow.py").write_text(stand_in)
    script = f"""
    from gpukeras.backend import runtime
    from gpukeras.core.errors import RuntimeMissingError
    try:
        runtime.jax() if {name!r} == "jax" else runtime.keras()
    except RuntimeMissingError as error:
        answer = error.message
    """
    paths = os.pathsep.join((str(tmp_path), PATHS))
    said = run_script(script, PYTHONPATH=paths, KERAS_BACKEND="tensorflow")
    assert f"cannot be imported: {tmp_path / name}.py has its name and is another module" in said


def test_a_folder_that_is_left_of_a_package_is_named(tmp_path):
    left = ModuleType("keras")
    left.__path__ = [str(tmp_path)]
    with pytest.raises(ImportError, match="has its name and is another module") as caught:
        check_package(left)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize(("backend", "title"), [("tensorflow", "TensorFlow"), ("jax", "JAX")])
def test_on_a_processor_without_avx_a_deadly_import_is_refused_before(tmp_path, backend, title):
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"
    (tmp_path / f"{backend}.py").write_text(source)
    script = """
    from gpukeras.backend import runtime
    from gpukeras.core.errors import RuntimeMissingError
    from gpukeras.system import host
    host.lacks_avx = lambda: True
    try:
        runtime.keras()
    except RuntimeMissingError as error:
        answer = error.message
    """
    paths = os.pathsep.join((str(tmp_path), PATHS))
    said = run_script(script, PYTHONPATH=paths, KERAS_BACKEND=backend)
    assert said.startswith(f"{title} cannot be imported")
    assert "killed by SIGILL" in said


def test_an_import_that_ends_well_elsewhere_is_not_refused(tmp_path, monkeypatch):
    (tmp_path / "built_for_it.py").write_text("")
    monkeypatch.setattr(host, "lacks_avx", lambda: True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_processor("TensorFlow", "built_for_it")
