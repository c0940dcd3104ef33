"""Root that obeys the permissions of files, as every other user does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of linux/capability.h
OVERRIDING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def obeying_permissions() -> Iterator[None]:
    """Takes from this thread what lets root read and write every file; other users have no such."""
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable
    _call(LIBC.capget, header, sets)
    effective = sets[0]
    sets[0] = effective & ~OVERRIDING
    _call(LIBC.capset, header, sets)
    try:
        yield
    finally:
        sets[0] = effective
        _call(LIBC.capset, header, sets)


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
