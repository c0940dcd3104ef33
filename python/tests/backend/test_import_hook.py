import importlib
import importlib.machinery
import subprocess
import sys

import pytest
from children import CORE, run_script

from gpukeras.backend import import_hook


@pytest.mark.tf
def test_whoever_imports_tensorflow_has_it_prepared_by_importing_the_package_alone():
    script = """
    import sys
    import gpukeras
    from gpukeras.system import packages as inventory
    from gpukeras.backend import cuda_preload as preload
    gpukeras.await_tensorflow()  # a second time changes nothing
    inventory.read_build()
    before = preload.done
    import tensorflow
    waiting = [type(finder).__name__ for finder in sys.meta_path].count("_Awaiter")
    answer = [before, preload.done.reason, waiting]
    """
    found = run_script(script, GPUKERAS_PRELOAD="false")
    assert found == [None, "GPUKERAS_PRELOAD switches it off", 0]


def test_once_tensorflow_is_there_nothing_is_awaited():
    script = """
    import sys
    sys.modules["tensorflow"] = sys  # imported by somebody else
    before = list(sys.meta_path)
    from gpukeras.backend import cuda_preload as preload
    answer = [before == sys.meta_path, preload.prepare().status]
    """
    assert run_script(script) in ([True, "not needed"], [True, "too late"])


def test_a_preparation_that_fails_leaves_the_import_to_python():
    script = """
    import gpukeras
    from gpukeras.backend import cuda_preload as preload
    def fail():
        raise RuntimeError("odd")
    preload.prepare = fail
    from importlib.util import find_spec
    answer = [find_spec("tensorflow") is not None, find_spec("no_such_module") is None]
    """
    assert run_script(script) == [True, True]


def test_the_package_is_imported_with_the_standard_library_alone():
    script = f"""
import sys
sys.path[:0] = [{str(CORE)!r}]
import gpukeras
other = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
print(sorted(other - {{"__main__", "gpukeras"}}), "gpukeras.backend.cuda_preload" in sys.modules)
"""
    command = [sys.executable, "-I", "-S", "-c", script]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert child.stdout == "[] False\n"


def test_an_action_follows_the_import_of_keras(monkeypatch, tmp_path):
    (tmp_path / "keras.py").write_text("seen = []\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setitem(sys.modules, "keras", None)  # so that this file does not stay there
    for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
        monkeypatch.delitem(sys.modules, name)
    before, acted = list(sys.meta_path), []
    import_hook.follow_keras(lambda: acted.append("an earlier one"))
    import_hook.follow_keras(lambda: acted.append(len(sys.modules["keras"].seen)))
    import_hook.follow_keras(None)
    assert sys.meta_path == before
    import_hook.follow_keras(lambda: acted.append(len(sys.modules["keras"].seen)))
    importlib.import_module("json")
    assert acted == []
    importlib.import_module("keras")
    assert acted == [0]
    assert sys.meta_path == before
    import_hook.follow_keras(lambda: acted.append("at once"))
    assert acted == [0, "at once"]


def test_a_keras_that_is_not_there_is_missed_as_ever(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
        monkeypatch.delitem(sys.modules, name)
    import_hook.follow_keras(lambda: None)
    with pytest.raises(ModuleNotFoundError, match="keras"):
        importlib.import_module("keras")
