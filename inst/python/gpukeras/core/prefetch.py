"""Processes items in threads ahead of their consumer, in order, with a bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
DEPTH = 2  # queued items beyond those in progress; each takes some MiB


def map_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """Yields `work(item)` of each item in order; an error is raised at its place in the order.

    Args:
        work: Runs in a thread; several threads help only where it releases the GIL.
        items: Iterated in the consumer's thread, as results are consumed.
        workers: Number of threads.
    """
    threads = ThreadPoolExecutor(workers, thread_name_prefix="gpukeras-reader")
    waiting: deque[Future[Result]] = deque()
    with shutdown_without_join(threads) as pool:
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
def shutdown_without_join(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Yields a pool for use in a generator and shuts it down without joining its threads.

    The garbage collector closes an unfinished generator in whichever thread it runs. If that thread
    is just starting, joining another thread deadlocks: a starting thread holds a lock of Python's
    `threading` that `join()` needs.
    """
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """Yields the items, produced in a thread while the consumer works on earlier ones."""
    source = iter(items)
    steps = iter(lambda: None, 0)  # infinite
    with closing(map_ahead(lambda _: _take(source), steps, workers=1)) as results:
        for result in results:
            if not result:
                return
            yield result[0]


@dataclass(frozen=True)
class _Failed:
    """The error of an iterator, in place of its remaining items."""

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
    """Returns the next item in a tuple; an empty tuple at the end and after it."""
    for item in source:
        return (item,)
    return ()
