"""Joins concurrent requests to batches, in front of a model that predicts one batch at a time.

    submit(request) --> queue --> up to `max_batch` rows, or after `max_wait` --> predict() --> rows

While one batch is predicted the next one gathers, so a busy server does not wait at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpukeras.serving.answers import busy_error
from gpukeras.serving.requests import Request

QUEUED_BATCHES = 16  # more would wait for seconds, and clients had rather ask elsewhere

Predict = Callable[[Sequence[Request]], list[list[Any]]]


@dataclass
class Waiting:
    """A request in the queue.

    Args:
        request: The request.
        answer: Its predictions, once they are there.
    """

    request: Request
    answer: asyncio.Future[list[Any]]


class Batcher:
    """A queue of requests, and the task that predicts them.

    Args:
        predict: Predicts requests of one group together; returns the rows of each. Runs in a
            thread of its own.
        max_batch: Rows of a batch at most; a single request may have more.
        max_wait: Milliseconds that a request waits for others at most.
    """

    def __init__(self, predict: Predict, max_batch: int, max_wait: float) -> None:
        """Starts nothing: `run()` does."""
        self._predict, self._most, self._wait_s = predict, max_batch, max_wait / 1000
        self._queue: deque[Waiting] = deque()
        self._rows = 0
        self._filled = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "predict")
        self.batches = 0

    async def submit(self, request: Request) -> list[Any]:
        """Returns the predictions of a request, once its batch is predicted.

        Raises:
            ServiceError: if the queue is full (503).
            GpuKerasError: what the model raises for it.
        """
        rows = request.rows.size
        if not rows:
            return []
        if self._queue and self._rows + rows > QUEUED_BATCHES * self._most:
            raise busy_error("The server has as many rows to predict as it queues.")
        waiting = Waiting(request, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._rows += rows
        self._filled.set()
        return await waiting.answer

    async def run(self) -> None:
        """Predicts batches until it is cancelled; then ends the thread."""
        try:
            while True:
                await self._gather()
                await self._answer(self._next_batch())
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> None:
        """Waits for a request, and then for others until a batch is full or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = None
        while self._rows < self._most:
            deadline = deadline or (loop.time() + self._wait_s if self._queue else None)
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return
            self._filled.clear()
            try:
                await asyncio.wait_for(self._filled.wait(), left)
            except asyncio.TimeoutError:
                return

    def _next_batch(self) -> list[Waiting]:
        """Takes requests of the first one's group, in order; others keep their places."""
        batch: list[Waiting] = []
        others, rows = deque[Waiting](), 0
        group = self._queue[0].request.group
        while self._queue:
            waiting = self._queue.popleft()
            size = waiting.request.rows.size
            fits = not batch or rows + size <= self._most
            if waiting.answer.done():  # its client has gone
                self._rows -= size
            elif fits and waiting.request.group == group:
                batch.append(waiting)
                rows += size
            else:
                others.append(waiting)
        self._queue = others
        self._rows -= rows
        return batch

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        """Predicts a batch; if that fails, each of its requests alone."""
        if not batch:
            return
        self.batches += 1
        requests = [waiting.request for waiting in batch]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._predict, requests)
        except Exception as error:
            if len(batch) > 1:
                for waiting in batch:
                    await self._answer([waiting])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for waiting, rows in zip(batch, answers, strict=True):
            if not waiting.answer.done():  # its client waits
                waiting.answer.set_result(rows)
