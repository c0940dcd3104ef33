import threading

import pytest
from children import PATIENCE_S

from gpukeras.core.prefetch import DEPTH, map_ahead, read_ahead


def test_results_come_in_the_order_of_the_items():
    second_done = threading.Event()

    def work(item):
        if item == 0:
            second_done.wait(PATIENCE_S)
        if item == 1:
            second_done.set()
        return item * 10

    assert list(map_ahead(work, range(20), workers=3)) == [item * 10 for item in range(20)]


def test_never_more_than_some_items_are_ahead():
    taken = []
    results = map_ahead(lambda item: item, (taken.append(i) or i for i in range(100)), workers=2)
    for result in results:
        assert len(taken) <= result + 2 + DEPTH
    assert len(taken) == 100


def test_an_error_comes_behind_the_results_before_it():
    def items():
        yield from (1, 2)
        raise OSError("gone")

    for make in (lambda: map_ahead(lambda item: item, items(), 2), lambda: read_ahead(items())):
        found = []
        with pytest.raises(OSError, match="gone"):
            found.extend(iter_into(found, make()))
        assert found == [1, 2]


def iter_into(found, results):
    for result in results:
        found.append(result)
    return ()


def test_an_error_in_the_work_comes_in_its_place():
    results = map_ahead(lambda item: 1 // item, [1, 1, 0, 1], workers=2)
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_items_are_made_in_another_thread_and_given_up_with_the_consumer():
    threads, closed = set(), threading.Event()

    def items():
        try:
            for item in range(1000):
                threads.add(threading.current_thread().name)
                yield item
        finally:
            closed.set()

    before = set(threading.enumerate())
    results = read_ahead(items())
    assert [next(results), next(results)] == [0, 1]
    results.close()
    assert closed.wait(PATIENCE_S)
    for thread in set(threading.enumerate()) - before:  # they end by themselves
        thread.join(PATIENCE_S)
    assert set(threading.enumerate()) <= before
    assert threading.current_thread().name not in threads


def test_nothing_gives_nothing():
    assert list(read_ahead([])) == list(map_ahead(str, [], 2)) == []


@pytest.mark.skipif(
    not hasattr(threading, "_shutdown_locks_lock"), reason="this Python has no such lock"
)
def test_a_generator_that_is_collected_in_a_starting_thread_waits_for_no_other():
    results = map_ahead(lambda item: item, range(100), workers=2)
    assert next(results) == 0

    def collect():
        with threading._shutdown_locks_lock:  # as a thread does that is just starting
            results.close()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
