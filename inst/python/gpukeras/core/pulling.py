"""Waits for an iterator by polling, because Python code inside it may need this thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

AWAKE_S = 0.01  # polling interval, the longest wait of R code in a pipeline


class Puller:
    """A thread that iterates over a dataset while the calling thread polls for elements.

    R functions inside the pipeline run on R's main thread. Blocked inside TensorFlow, that thread
    would wait forever.

    Args:
        make: Returns the dataset.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Starts the thread as a daemon, because a pipeline may block forever."""
        self._make = make
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="gpukeras-tfdata", daemon=True).start()

    def pull(self, idle: Callable[[], None] = lambda: None) -> Any:
        """Returns the next element, or None at the end; calls `idle` at each poll."""
        self._asked.put(True)
        while True:
            try:
                element, error = self._given.get(timeout=AWAKE_S)
            except queue.Empty:
                idle()
                continue
            if error is not None:
                raise error
            return element

    def close(self) -> None:
        """Ends the thread once the current element, if any, arrives."""
        self._asked.put(False)

    def _serve(self) -> None:
        iterator = None
        while self._asked.get():
            try:
                iterator = iter(self._make()) if iterator is None else iterator
                self._given.put((next(iterator, None), None))
            except BaseException as error:  # the calling thread raises it
                self._given.put((None, error))
