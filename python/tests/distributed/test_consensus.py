"""What processes decide together; those of the tests are threads with a real channel."""

import io
import threading

import numpy as np
import pytest
from channels import run_threads
from training_states import WHOLE, assert_same

from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.errors import ClusterError
from gpukeras.data.loader.loader import Block
from gpukeras.distributed import consensus
from gpukeras.distributed.timeouts import ClusterTimes, Timeout
from gpukeras.models.state import Snapshot

SAME = {
    "rows": 100,
    "batch_size": 32,
    "seed": 1,
    "model": "0a",
    "options": {"epochs": "3", "engine": "'auto'", "early_stopping": "None"},
}


def together(work, size=2):
    """What `work(agreement, index)` gives or raises on each of some workers."""

    def run(channel):
        times = ClusterTimes(channel.workers, None)
        return work(consensus.DistributedConsensus(channel, times), channel.index)

    return run_threads(size, run)


# The state that is sent ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", [WHOLE, TrainingState(Snapshot({}))], ids=["whole", "empty"])
@pytest.mark.parametrize("begins", [True, False])
def test_a_state_arrives_to_the_last_bit(state, begins):
    back, told = consensus.unpack_bytes(consensus.pack_bytes(state, begins))
    assert told is begins
    for name in vars(state):
        assert_same(getattr(state, name), getattr(back, name))


def test_what_arrives_runs_no_code():
    file = io.BytesIO()
    np.savez(file, np.array([print], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        consensus.unpack_bytes(file.getvalue())


# Differences --------------------------------------------------------------------------------------


def with_options(**changed):
    return {"options": {**SAME["options"], **changed}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"rows": 99}, "the number of training rows is 99, and the chief's is 100"),
        ({"batch_size": 64}, "the batch size is 64, and the chief's is 32"),
        ({"seed": 5}, "the dataset's seed is 5, and the chief's is 1"),
        (with_options(epochs="5"), "`epochs` is 5, and the chief's is 3"),
        (with_options(engine="'keras'"), "`engine` is 'keras', and the chief's is 'auto'"),
        ({"model": "0b"}, "an option of the model's layers is not the same"),
    ],
)
def test_the_first_difference_to_the_chief_is_told(change, told):
    assert consensus.tell_difference({**SAME, **change}, SAME) == told


# Blocks of streams --------------------------------------------------------------------------------

FULL, SHORT = Block((), 1200, rows=64), Block((), 1, rows=5)


def compare_next(blocks):
    """What the workers count or raise whose next blocks are these, or none."""

    def work(agreement, index):
        own = iter([] if blocks[index] is None else [blocks[index]])
        return len(list(agreement.keep_step(own, exact=False)))

    return together(work, len(blocks))


@pytest.mark.parametrize("block", [FULL, SHORT, None])
def test_equal_blocks_pass(block):
    assert compare_next([block] * 3) == [0 if block is None else 1] * 3


@pytest.mark.parametrize(
    ("given", "worker", "told"),
    [
        ([FULL, FULL, None], 3, "has no more rows next, the chief 1,200 batches of 64 rows"),
        ([None, SHORT, None], 2, "has 1 batch of 5 rows next, the chief no more rows"),
        ([FULL, SHORT, None], 2, "has 1 batch of 5 rows next, the chief 1,200 batches of 64 rows"),
    ],
)
def test_the_worker_whose_stream_differs_is_named(given, worker, told):
    for error in compare_next(given):
        assert isinstance(error, ClusterError)
        assert f"orker {worker} (127.0.0.1:{2000 + worker})" in error.message
        assert told in error.message
        assert error.details["worker"] == worker


def test_streams_are_compared_while_they_run():
    def work(agreement, index):
        blocks = [Block((), 2, rows=8)] * (3 - index)
        return len(list(agreement.keep_step(iter(blocks), exact=False)))

    for error in together(work):
        assert isinstance(error, ClusterError)
        assert "Worker 2 (127.0.0.1:2002) has no more rows next" in error.message


def test_rows_by_number_are_not_compared():
    def work(agreement, index):
        blocks = iter([Block((), 2, rows=8)] * (3 - index))
        return agreement.keep_step(blocks, exact=True) is blocks

    assert together(work) == [True, True]


# Deciding -----------------------------------------------------------------------------------------


def test_what_one_wishes_all_do():
    def work(agreement, index):
        return agreement.agree("call", save=index == 0, stop=index == 2, emit=False)

    assert together(work, 3) == [{"save": True, "stop": True, "emit": False}] * 3


def test_all_go_by_the_slowest():
    assert together(lambda agreement, index: agreement.agree_time(0.25 * index), 3) == [0.5] * 3


def test_the_first_is_the_chief():
    assert together(lambda agreement, index: agreement.is_chief, 3) == [True, False, False]


def test_the_chiefs_state_goes_to_all():
    def work(agreement, index):
        return agreement.share_state(WHOLE if index == 0 else None, None)

    for state in together(work):
        assert_same(state.snapshot, WHOLE.snapshot)
        assert (state.epoch, state.position) == (WHOLE.epoch, WHOLE.position)


def test_who_leaves_is_named_to_the_others():
    def work(agreement, index):
        if index == 1:
            agreement.leave(ValueError("a reason of its own"))
            return "left"
        return agreement.agree("call", stop=False)

    error, left = together(work)
    assert left == "left"
    assert isinstance(error, ClusterError)
    assert "orker 2 (127.0.0.1:2002)" in error.message
    assert "ValueError: a reason of its own" in error.message


def test_one_process_decides_for_itself():
    alone, blocks = consensus.LocalConsensus(), iter([])
    assert alone.agree("call", save=True, stop=False) == {"save": True, "stop": False}
    assert alone.agree_time(1.5) == 1.5
    assert alone.share_state(WHOLE, None) is WHOLE
    assert alone.keep_step(blocks, exact=False) is blocks
    assert alone.compare(None, None, None, None) is None
    assert alone.leave(ValueError()) is None


# Times --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own_s", "found"),
    [
        ([], []),
        ([5.0], []),
        ([2.0, 8.0], [1]),
        ([8.0, 2.0, 2.2, 1.9], [0]),
        ([7.0, 8.0], []),  # 0.875 of it: no straggler
        ([0.01, 0.9], []),  # less than a second in a whole training
        ([2.0, 9.0, 9.0, 2.0, 2.0], [1, 2]),
    ],
)
def test_a_straggler_is_slower_than_the_median_of_the_others(own_s, found):
    workers = [f"a:{worker}" for worker in range(len(own_s))]
    notes = consensus.explain_stragglers(own_s, workers)
    assert [note.partition(" was slow")[0] for note in notes] == [
        f"Worker {worker + 1} (a:{worker})" for worker in found
    ]


def test_a_straggler_is_named():
    (note,) = consensus.explain_stragglers([2.0, 8.25], ["a:1", "b:1"])
    assert note == (
        "Worker 2 (b:1) was slow: outside of the steps it took 8.2 s for its rows, callbacks and "
        "R, and the others 2.0 s (median), so they waited for it."
    )


@pytest.fixture
def clocks(monkeypatch):
    """A clock for each thread, which stands still until its `now` grows."""
    local = threading.local()

    class Time:
        def monotonic(self):
            return getattr(local, "now", 0.0)

    monkeypatch.setattr("gpukeras.distributed.consensus.time", Time())
    return local


def test_the_worker_that_the_others_wait_for_is_named(clocks):
    def work(agreement, index):
        clocks.now = 0.0
        for _ in range(3):
            agreement.agree("call", stop=False)
            clocks.now += 10.0 + 2.0 * index  # 9 of these in the engine's calls
            agreement.agree_time(9.0)
        agreement.agree("epoch", stop=False)
        return agreement.explain()

    for notes in together(work):
        assert len(notes) == 1
        assert notes[0].startswith(
            "Worker 2 (127.0.0.1:2002) was slow: outside of the steps it took 9.0 s"
        )


def test_the_longest_time_between_two_agreements_is_kept(clocks):
    class Times:
        def __init__(self):
            self.kept = []

        def timeout(self, what):
            return Timeout(what, 5.0, "")

        def add(self, what, seconds):
            self.kept.append((what, seconds))

    def run(channel):
        times = Times()
        agreement = consensus.DistributedConsensus(channel, times)
        clocks.now = 0.0
        for seconds in (1.0, 7.0, 2.0):
            agreement.agree("call", stop=False)
            clocks.now += seconds
        agreement.agree("epoch", stop=False)
        return times.kept

    assert run_threads(2, run) == [[("call", 7.0)]] * 2


def test_a_worker_that_makes_no_call_is_an_error_after_the_learned_time():
    class Times:
        def timeout(self, what):
            return Timeout(what, 0.2, "learned")

    def run(channel):
        agreement = consensus.DistributedConsensus(channel, Times())
        if channel.index == 0:
            with pytest.raises(ClusterError) as raised:
                agreement.agree("call", stop=False)
            return raised.value.message
        return channel.fault(60.0).message

    first, _ = run_threads(2, run)
    assert "127.0.0.1" in first
