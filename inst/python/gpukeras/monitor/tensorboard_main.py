"""Runs TensorBoard in a process of its own, which ends with the process that started it.

    python -m gpukeras.monitor.tensorboard_main --logdir ... --host 127.0.0.1 --port ...

The parent holds the other end of standard input. It closes when the parent ends, in whatever way,
so no server is left behind by an R that was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types

CLEAN_UP_S = 2.0  # TensorBoard removes its note of the process when it is asked to end


def main() -> None:
    """Serves until standard input ends; arguments are TensorBoard's own."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # TensorBoard's own switch: it reads files by itself, and does not import TensorFlow for that,
    # which takes 3 s and 400 MB (TensorBoard 2.21).
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    from tensorboard.main import run_main

    sys.argv[0] = "tensorboard"
    run_main()


def _end_with_parent() -> None:
    # The descriptor, not sys.stdin: Python waits for that one's lock when it shuts down.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CLEAN_UP_S)
    os._exit(0)


if __name__ == "__main__":
    main()
