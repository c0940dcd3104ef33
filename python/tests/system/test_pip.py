import subprocess
import sys
from pathlib import Path

import pytest
from children import CORE

from gpukeras.diagnostics.rules.rule import fill_fix
from gpukeras.system import pip
from gpukeras.system.facts import parse_facts

SYSTEM = Path("/usr/bin/python3")
ASK = (
    "import os, sysconfig; from gpukeras.system import pip; "
    "print(pip.is_managed(), pip.install('pyarrow'))"
)


def ask(python):
    run = [str(python), "-c", f"import sys; sys.path.insert(0, {str(CORE)!r}); {ASK}"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(
    not list(Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED")),
    reason="this system lets pip install into its Python",
)
def test_the_systems_own_python_is_told_to_make_an_environment(tmp_path):
    said = ask(SYSTEM)
    assert said.startswith("True ~/.virtualenvs/r-gpukeras/bin/python -m pip install pyarrow")
    assert "install_gpukeras() in R or python3 -m venv" in said
    subprocess.run([str(SYSTEM), "-m", "venv", "--without-pip", str(tmp_path / "own")], check=True)
    assert ask(tmp_path / "own/bin/python") == "False pip install pyarrow"


def test_this_environment_is_told_to_use_pip():
    if sys.prefix != sys.base_prefix:
        assert not pip.is_managed()
        assert pip.install("pyarrow") == "pip install pyarrow"


def test_an_interpreter_is_told_by_its_path():
    if sys.prefix != sys.base_prefix:
        told = pip.install_with("/a path/python", "uvicorn")
        assert told == "'/a path/python' -m pip install uvicorn"


def test_a_folder_of_the_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "no_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not pip.is_installed("no_package")
    (tmp_path / "no_package" / "__init__.py").touch()
    assert pip.is_installed("no_package")


def test_only_a_module_that_is_missing_is_told_to_be_installed():
    missing = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert pip.hint_import(missing, "pyarrow", "pyarrow").startswith("Install it: ")
    inner = ModuleNotFoundError("No module named 'pyarrow.lib'", name="pyarrow.lib")
    for error in (inner, ImportError("libarrow.so.21: cannot open shared object file")):
        hint = pip.hint_import(error, "pyarrow", "pyarrow")
        assert hint == f"It is installed, and its import fails: {error}."


def test_a_fix_for_a_managed_python_begins_with_an_environment():
    facts = {"python": {"executable": "/usr/bin/python3", "is_managed": True}}
    fix = fill_fix("{python} -m pip install keras", parse_facts(facts))
    assert fix.startswith("This Python is the operating system's")
    assert '"/usr/bin/python3" -m venv ~/.virtualenvs/r-gpukeras' in fix
    assert fix.endswith("~/.virtualenvs/r-gpukeras/bin/python -m pip install keras")
    assert fill_fix("Restart R.", parse_facts(facts)) == "Restart R."
