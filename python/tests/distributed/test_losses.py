"""Workers as processes that are killed, stopped, or fail: who learns what."""

import signal
import time

import pytest
from channels import start_workers
from nightly import few

FOREVER = ["rounds", 10**6]


@pytest.mark.varies
@pytest.mark.parametrize("size", [2, 4])
def test_processes_agree_send_much_and_leave_nothing(size):
    with start_workers(size, [["rounds", 20], ["send", 40]]) as workers:
        for worker in workers:
            assert worker.finish() == (0, None)
            assert worker.told("sent") == [40 * 2**20]
            assert worker.told("threads") == [0]


@pytest.mark.varies
@pytest.mark.parametrize(("victim", "size"), [(1, 2), (0, 4)])
def test_killed_worker_is_named_on_all_others(victim, size):
    with start_workers(size, [FOREVER]) as workers:
        for worker in workers:
            worker.wait_for("round", 3)
        workers[victim].signal(signal.SIGKILL)
        survivors = [worker for worker in workers if worker is not workers[victim]]
        name = f"orker {victim + 1} (127.0.0.1:{2001 + victim})"
        for worker in survivors:
            status, error = worker.finish()
            assert status == 0
            assert name in error
            assert error.rstrip(".").endswith("has ended")
            assert worker.told("lost") == [error]
            assert worker.told("details")[0]["worker"] == victim + 1
            assert worker.told("threads") == [0]


@pytest.mark.varies
@pytest.mark.parametrize("victim", [0, 1])
def test_stopped_worker_is_lost_after_the_time_out_and_learns_it(victim):
    with start_workers(3, [FOREVER], timeout_s=5.0) as workers:
        for worker in workers:
            worker.wait_for("round", 3)
        workers[victim].signal(signal.SIGSTOP)
        survivors = [worker for worker in workers if worker is not workers[victim]]
        for worker in survivors:
            _, error = worker.finish()
            assert "has not answered for 5 s" in error
            assert f"orker {victim + 1} " in error
        workers[victim].signal(signal.SIGCONT)
        _, error = workers[victim].finish()
        assert f"orker {victim + 1} " in error
        assert workers[victim].told("details")[0]["worker"] == victim + 1


def test_worker_stopped_for_less_than_the_time_out_is_not_lost():
    with start_workers(2, [["rounds", 60]], timeout_s=30.0) as workers:
        for worker in workers:
            worker.wait_for("round", 3)
        workers[1].signal(signal.SIGSTOP)
        workers[0].process.poll()
        time.sleep(0.2)
        workers[1].signal(signal.SIGCONT)
        assert [worker.finish() for worker in workers] == [(0, None)] * 2


@pytest.mark.parametrize("resting", few([0, 1], 1))
def test_silence_of_a_worker_that_rests_means_nothing(resting):
    other = 1 - resting
    steps = {resting: [["rest"], ["rounds", 2]], other: [["look", 6.0], ["rounds", 2]]}
    with start_workers(2, steps, timeout_s=3.0) as workers:
        workers[resting].wait_for("rests")
        workers[resting].signal(signal.SIGSTOP)  # its threads do not run, as while R works
        workers[other].wait_for("fault")
        assert workers[other].told("fault") == [None]
        workers[resting].signal(signal.SIGCONT)
        workers[resting].process.stdin.write("\n")
        workers[resting].process.stdin.flush()
        assert [worker.finish() for worker in workers] == [(0, None)] * 2


def test_worker_that_ends_while_it_rests_is_lost():
    with start_workers(2, {0: [["rounds", 1]], 1: [["rest"]]}) as workers:
        workers[1].wait_for("rests")
        workers[1].signal(signal.SIGKILL)
        assert workers[0].finish() == (0, "Worker 2 (127.0.0.1:2002) has ended.")


def test_loss_is_told_to_one_that_is_busy_elsewhere():
    steps = {None: [["watch"]], 1: [["fail", "broken"]]}
    with start_workers(3, steps) as workers:
        for index in (0, 2):
            workers[index].wait_for("lost")
            [message] = workers[index].told("lost")
            assert message == "Worker 2 (127.0.0.1:2002) has failed: ValueError: broken."


@pytest.mark.varies
@pytest.mark.parametrize("victim", [0, 1])
def test_interrupt_comes_through_and_is_told(victim):
    with start_workers(2, {victim: [FOREVER], 1 - victim: [["rounds", 3], ["watch"]]}) as workers:
        for worker in workers:
            worker.wait_for("round", 3)
        workers[victim].signal(signal.SIGINT)  # while it waits for the other
        assert workers[victim].finish() == (0, "interrupted")
        workers[1 - victim].wait_for("lost")
        [message] = workers[1 - victim].told("lost")
        assert message.endswith("was interrupted.")
