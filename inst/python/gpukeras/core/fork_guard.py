"""A process that was forked off the one in which TensorFlow runs.

Threads do not survive a fork. What TensorFlow hands to its own would be waited for without end.
"""

from __future__ import annotations

import functools
import os

from gpukeras.core.errors import ForkError


@functools.cache
def first_process() -> int:
    """The process that asked first, which is the one that imports TensorFlow."""
    return os.getpid()


def check_process() -> None:
    """Refuses to use TensorFlow in a fork of the process that imported it.

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
