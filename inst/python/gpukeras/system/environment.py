"""Reads and sets environment variables: C's, which R's `Sys.setenv()` writes, and Python's."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os


def name_c_library(system: str) -> str | None:
    """Returns the C library that R and Python share, by `os.name`; None is this process's own."""
    return "ucrtbase" if system == "nt" else None


@functools.cache
def c_library() -> ctypes.CDLL:
    """Returns the C library of this process."""
    library = ctypes.CDLL(name_c_library(os.name))
    library.getenv.restype = ctypes.c_char_p
    return library


def c_variable(name: str) -> str | None:
    """Returns the C library's value of a variable: the one that R's `Sys.setenv()` writes."""
    value = c_library().getenv(name.encode())
    return None if value is None else value.decode(errors="replace")


def c_variables() -> dict[str, str]:
    """Returns all variables of the C library, if it lists them (Linux); else an empty dict."""
    try:
        block = ctypes.POINTER(ctypes.c_char_p).in_dll(c_library(), "environ")
    except ValueError:  # Windows and macOS export no such symbol
        return {}
    entries = itertools.takewhile(bool, (block[index] for index in itertools.count()))
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def python_variables() -> dict[str, str]:
    """Returns Python's variables: C's at Python's start, and those that Python set since."""
    return dict(os.environ)


def current_variables() -> dict[str, str]:
    """Returns the variables in effect, which child processes get: C's if they can be listed."""
    return c_variables() or python_variables()


def set_variable(name: str, value: str | None) -> None:
    """Sets (or, with None, removes) a variable for both C and Python."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
