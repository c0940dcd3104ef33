import ctypes
import os

import pytest

from gpukeras.system import environment


def test_python_writes_through_to_c_and_c_does_not_write_back(monkeypatch):
    monkeypatch.delenv("GPUKERAS_TEST", raising=False)
    environment.set_variable("GPUKERAS_TEST", "one=1")
    assert environment.c_variable("GPUKERAS_TEST") == "one=1"
    assert environment.c_variables()["GPUKERAS_TEST"] == "one=1"
    environment.set_variable("GPUKERAS_TEST", None)
    assert environment.c_variable("GPUKERAS_TEST") is None
    assert "GPUKERAS_TEST" not in environment.c_variables()


def test_c_variables_are_the_whole_environment():
    assert environment.c_variables().keys() >= os.environ.keys() - {"PYTEST_CURRENT_TEST"}


def test_children_get_what_r_set_after_pythons_start():
    libc = ctypes.CDLL(None)
    libc.setenv(b"GPUKERAS_TEST", b"of R", 1)
    try:
        assert environment.current_variables()["GPUKERAS_TEST"] == "of R"
        assert "GPUKERAS_TEST" not in environment.python_variables()
    finally:
        libc.unsetenv(b"GPUKERAS_TEST")


@pytest.mark.parametrize(("system", "library"), [("nt", "ucrtbase"), ("posix", None)])
def test_windows_has_no_library_of_the_process_itself(system, library):
    assert environment.name_c_library(system) == library
