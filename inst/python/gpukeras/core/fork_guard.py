"""Detects a process that was forked from one that imported TensorFlow.

Threads do not survive a fork, so work that TensorFlow hands to its threads would never finish.
"""

from __future__ import annotations

import functools
import os

from gpukeras.core.errors import ForkError


@functools.cache
def first_process() -> int:
    """Returns the id of the first process to call this, which is the one importing TensorFlow."""
    return os.getpid()


def check_process() -> None:
    """Raises ForkError in a fork of the process that imported TensorFlow.

    Raises:
        ForkError: in such a fork.
    """
    if first_process() != os.getpid():
        raise ForkError(
            "This process is a fork of the one that imported TensorFlow, whose threads it lacks: "
            "it would wait without end.",
            hint="Start a process anew: by gpu_run() or mirai in R, by multiprocessing's "
            '"spawn" in Python.',
        )
