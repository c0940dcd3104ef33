"""Work on items ahead of their consumer, in threads, in order, and never far ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_WORKERS = 8
DEPTH = 2  # items beyond those being worked on: each is some MiB of memory


def count_workers() -> int:
    """Threads that work on items: one for each core that this process may use."""
    bound = getattr(os, "sched_getaffinity", None)  # Linux
    return min(MAX_WORKERS, len(bound(0)) if bound else os.cpu_count() or 1)


def map_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """`work` of each item, in order; errors come out where a result would, behind those before.

    Args:
        work: Runs in a thread; gains from several only where it lets go of Python's lock.
        items: Taken one by one in the consumer's thread, as results are taken.
        workers: Threads.
    """
    threads = ThreadPoolExecutor(workers, thread_name_prefix="gpukeras-reader")
    waiting: deque[Future[Result]] = deque()
    with letting_go(threads) as pool:
        for each in _each_or_error(items):
            if isinstance(each, _Failed):
                waiting.append(pool.submit(_raise, each.error))
            else:
                waiting.append(pool.submit(work, each[0]))
            if len(waiting) >= workers + DEPTH:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def letting_go(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A pool for use in a generator: its threads end by themselves, and nobody waits for them.

    A generator that was left unfinished is closed by the garbage collector, in whichever thread
    that runs; where it is one that is just starting, waiting for another is a deadlock: a starting
    thread holds a lock of Python's `threading` that `join()` needs.
    """
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The items, made in a thread while the consumer works on the ones before."""
    source = iter(items)
    steps = iter(lambda: None, 0)  # without end
    with closing(map_ahead(lambda _: _take(source), steps, workers=1)) as results:
        for found in results:
            if not found:
                return
            yield found[0]


@dataclass(frozen=True)
class _Failed:
    """What took the place of the items that were left."""

    error: Exception


def _each_or_error(items: Iterable[Item]) -> Iterator[tuple[Item] | _Failed]:
    try:
        for item in items:
            yield (item,)
    except Exception as error:
        yield _Failed(error)


def _raise(error: Exception) -> NoReturn:
    raise error


def _take(source: Iterator[Item]) -> tuple[Item] | tuple[()]:
    """The next item alone, or nothing at the end (what comes after the end is the end again)."""
    for item in source:
        return (item,)
    return ()
