import asyncio
import threading

import numpy as np
import pytest

from gpukeras import DataError, ServiceError
from gpukeras.serving.batching import QUEUED_BATCHES, Batcher
from gpukeras.serving.requests import Request
from gpukeras.serving.rows import GivenRows


def request(*values, kind="response"):
    given = np.array(values, float).reshape(-1, 1)
    features = {"kind": "array", "values": given, "names": []}
    return Request(GivenRows(features, None, len(given)), kind)


class Doubling:
    """A model that doubles; it notes its batches, refuses 13 and breaks on 14."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, requests):
        assert self.gate.wait(60)
        found = [one.rows.features["values"][:, 0].tolist() for one in requests]
        self.batches.append(found)
        if any(13 in rows for rows in found):
            raise DataError("13 is refused.")
        if any(14 in rows for rows in found):
            raise ZeroDivisionError
        return [[2 * value for value in rows] for rows in found]


def run(work, max_batch=4, max_wait=20.0):
    model = Doubling()

    async def serve():
        batcher = Batcher(model, max_batch, max_wait)
        task = asyncio.create_task(batcher.run())
        try:
            return await work(batcher, model)
        finally:
            task.cancel()

    return asyncio.run(serve()), model


def gather(*requests):
    async def work(batcher, _):
        asked = [batcher.submit(one) for one in requests]
        return await asyncio.gather(*asked, return_exceptions=True)

    return work


def test_requests_that_arrive_together_are_one_batch_and_get_their_own_rows():
    found, model = run(gather(request(1), request(2, 3), request(4)))
    assert found == [[2], [4, 6], [8]]
    assert model.batches == [[[1], [2, 3], [4]]]


def test_a_full_batch_does_not_wait():
    found, model = run(gather(*map(request, range(8))), max_wait=1000.0)
    assert found == [[2 * value] for value in range(8)]
    assert [len(batch) for batch in model.batches] == [4, 4]


def test_other_types_are_batches_of_their_own():
    found, model = run(gather(request(1), request(2, kind="class"), request(3)))
    assert found == [[2], [4], [6]]
    assert model.batches == [[[1], [3]], [[2]]]


def test_a_request_may_be_larger_than_a_batch():
    found, _ = run(gather(request(*range(20, 60)), request(5)))
    assert found == [[2 * value for value in range(20, 60)], [10]]


def test_no_rows_are_no_work():
    found, model = run(gather(request()))
    assert found == [[]]
    assert model.batches == []


def test_an_error_reaches_only_the_request_that_caused_it():
    found, _ = run(gather(request(1), request(13), request(2)))
    assert (found[0], found[2]) == ([2], [4])
    assert isinstance(found[1], DataError)
    found, _ = run(gather(request(1), request(14), request(2)))  # a defect, that a client found
    assert (found[0], found[2]) == ([2], [4])
    assert isinstance(found[1], ZeroDivisionError)


def test_a_defect_ends_a_batch_and_not_the_server():
    async def work(batcher, model):
        broken = await gather(request(14))(batcher, model)
        return broken, await batcher.submit(request(5))

    (broken, after), _ = run(work)
    assert isinstance(broken[0], ZeroDivisionError)
    assert after == [10]


def test_a_full_queue_refuses_and_goes_on_once_it_is_empty():
    async def work(batcher, model):
        model.gate.clear()
        asked = [asyncio.create_task(batcher.submit(request(*range(4)))) for _ in range(40)]
        await asyncio.sleep(0)
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(ServiceError, match="as many rows to predict as it queues") as refused:
            await batcher.submit(request(*range(100)))
        model.gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        return refused.value, found, await batcher.submit(request(1))

    (refused, found, after), _ = run(work)
    assert refused.details == {"status": 503, "retry_after": 1}
    answered = [one for one in found if one == [0, 2, 4, 6]]
    assert len(answered) >= QUEUED_BATCHES
    assert all(isinstance(one, ServiceError) for one in found if one not in answered)
    assert after == [2]


def test_a_client_that_has_gone_costs_nothing():
    async def work(batcher, model):
        model.gate.clear()
        first = asyncio.create_task(batcher.submit(request(1)))
        await asyncio.sleep(0.1)  # its batch runs
        gone = asyncio.create_task(batcher.submit(request(2)))
        await asyncio.sleep(0)
        gone.cancel()
        last = asyncio.create_task(batcher.submit(request(3)))
        await asyncio.sleep(0)
        model.gate.set()
        return await asyncio.gather(first, last)

    found, model = run(work)
    assert found == [[2], [6]]
    assert [2] not in [rows for batch in model.batches for rows in batch]
