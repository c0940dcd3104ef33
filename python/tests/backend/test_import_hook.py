import subprocess
import sys

import pytest
from children import CORE, run_script


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
