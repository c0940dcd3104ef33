"""Runs TensorBoard in a process that ends together with its parent.

    python -m gpukeras.monitor.tensorboard_main --logdir ... --host 127.0.0.1 --port ...

The parent holds the other end of standard input, which closes however the parent ends. A killed R
process therefore leaves no server behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types

CLEAN_UP_S = 2.0  # on SIGTERM TensorBoard removes its file on the process


def main() -> None:
    """Runs TensorBoard with its usual arguments until standard input closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # With this module TensorBoard reads files without importing TensorFlow, which takes 3 s and
    # 400 MB (TensorBoard 2.21).
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    from tensorboard.main import run_main

    sys.argv[0] = "tensorboard"
    run_main()


def _end_with_parent() -> None:
    # The descriptor, not sys.stdin: Python waits for the lock of sys.stdin when it shuts down.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CLEAN_UP_S)
    os._exit(0)


if __name__ == "__main__":
    main()
