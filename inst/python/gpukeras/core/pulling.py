"""Waiting for an iterator without sleeping: Python code inside it may need this thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

AWAKE_S = 0.01  # between two looks: how long code of R's in a pipeline waits for its turn


class Puller:
    """Asks a dataset for elements on a thread of its own while the calling thread stays awake.

    Python code inside the pipeline that belongs to R may need R's main thread to come round: a
    thread that slept inside TensorFlow would wait for it forever.

    Args:
        make: Gives the dataset.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Starts the thread; a daemon, as a pipeline may be stuck for ever."""
        self._make = make
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="gpukeras-tfdata", daemon=True).start()

    def pull(self, idle: Callable[[], None] = lambda: None) -> Any:
        """The next element, or None at the end; `idle` is called while it is waited for."""
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
        """Ends the thread after the element it may be waiting for."""
        self._asked.put(False)

    def _serve(self) -> None:
        iterator = None
        while self._asked.get():
            try:
                iterator = iter(self._make()) if iterator is None else iterator
                self._given.put((next(iterator, None), None))
            except BaseException as error:  # whatever it is, the other thread raises it
                self._given.put((None, error))
