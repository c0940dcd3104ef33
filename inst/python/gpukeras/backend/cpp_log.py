"""Silences TensorFlow's C++ log for a moment.

TensorFlow reads a kept XLA program as text first, which logs an error each time (2.21), and XLA
reports preferences of its compiler as features that the CPU lacks. Both are also errors to a user
who sees them. A real error of a compilation is an exception as well.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpukeras.system import packages

LIBRARY = "libtensorflow_framework.so.2"
FATAL = 3

Level = tuple[Callable[[], int], Callable[[int], None]]  # reads it, and sets it

_lock = threading.Lock()
_muting = 0
_before = 0


@contextmanager
def muted_cpp_log() -> Iterator[None]:
    """Logs only what ends the process, unless the user asked for TensorFlow's notes.

    Several threads may do this at once: the last one restores the level.
    """
    level = _find_level()
    if level is None or os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1"):
        yield
        return
    _change(level, 1)
    try:
        yield
    finally:
        _change(level, -1)


def _change(level: Level, by: int) -> None:
    global _muting, _before
    read, write = level
    with _lock:
        if not _muting:
            _before = read()
        _muting += by
        write(FATAL if _muting else _before)


@functools.cache
def _find_level() -> Level | None:
    """Finds abseil's functions, whose names contain its version; None if there are none."""
    folder = packages.find_tensorflow()
    if folder is None:
        return None
    try:
        options = (folder / "include" / "absl" / "base" / "options.h").read_text()
        name = re.search(r"^#define ABSL_OPTION_INLINE_NAMESPACE_NAME (\w+)", options, re.M)
        prefix = f"_ZN4absl{len(name[1])}{name[1]}" if name else ""
        library = ctypes.CDLL(str(folder / LIBRARY))
        return (
            getattr(library, f"{prefix}11MinLogLevelEv"),
            getattr(library, f"{prefix}14SetMinLogLevelENS0_18LogSeverityAtLeastE"),
        )
    except (OSError, AttributeError):
        return None
