import importlib
import importlib.machinery
import importlib.util
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

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
    from importlib.util import find_spec
    assert find_spec("tensorflow")  # asked for, not imported
    before = preload.done
    seen = []
    real, preload.read_preload_facts = preload.read_preload_facts, lambda late: (
        seen.append(late), real(late))[1]
    import tensorflow
    answer = [before, seen, preload.done.reason]
    """
    found = run_script(script, GPUKERAS_PRELOAD="false")
    assert found == [None, [False], "GPUKERAS_PRELOAD switches it off"]


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
    from importlib.util import find_spec, module_from_spec
    spec = find_spec("tensorflow")
    spec.loader.get_code = lambda name: compile("", "tensorflow", "exec")
    spec.loader.exec_module(module_from_spec(spec))
    answer = [spec is not None, find_spec("no_such_module") is None]
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


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """A module that can be imported; gives its name."""
    (tmp_path / "made_up.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "made_up"
    sys.modules.pop("made_up", None)


def ask(name):
    assert find_spec(name) is not None


def ask_twice(name):
    ask(name)
    ask(name)


def fail_first(name):
    path = Path(find_spec(name).origin)
    path.write_text("raise ImportError('its backend is missing')\n", encoding="utf-8")
    with pytest.raises(ImportError, match="its backend"):
        importlib.import_module(name)
    path.write_text("value = 100\n", encoding="utf-8")


def hold_a_spec(name):
    """The specification of the module that is executed was asked for long before."""
    spec = find_spec(name)
    sys.meta_path.insert(0, types.SimpleNamespace(find_spec=lambda found, *_: spec))


@pytest.mark.parametrize("first", [lambda name: None, ask, ask_twice, fail_first, hold_a_spec])
def test_an_action_follows_the_execution_of_a_module(made_up, first):
    acted = []
    import_hook.follow(made_up, lambda module: acted.append(module.value))
    first(made_up)
    importlib.import_module("json")
    assert acted == []
    module = importlib.import_module(made_up)
    assert acted == [module.value]
    importlib.import_module(made_up)
    assert acted == [module.value]


def test_an_action_follows_each_execution(made_up):
    acted = []
    import_hook.follow(made_up, acted.append)
    module = importlib.import_module(made_up)
    importlib.reload(module)
    del sys.modules[made_up]
    again = importlib.import_module(made_up)
    assert again is not module
    assert [id(one) for one in acted] == [id(module), id(module), id(again)]


def test_an_action_is_replaced_and_taken_back(made_up):
    before, acted = list(sys.meta_path), []
    import_hook.follow(made_up, lambda module: acted.append("an earlier one"))
    spec = find_spec(made_up)
    import_hook.follow(made_up, lambda module: acted.append("this"))
    importlib.import_module(made_up)
    assert acted == ["this"]
    import_hook.follow(made_up, None)
    assert sys.meta_path == before
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert acted == ["this"]


def test_a_keras_that_is_not_there_is_missed_as_ever(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
        monkeypatch.delitem(sys.modules, name)
    import_hook.follow("keras", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="keras"):
        importlib.import_module("keras")
