"""TensorFlow's own ways of losing workers are off: only the channel decides who is lost, and when.

Workers stop for a while, as those of a suspended computer do, and a stranger reports errors.
"""

import signal
import time

import grpc
import pytest
from clusters import plan_workers, started

pytestmark = pytest.mark.tf
TIMEOUT_S = 200.0
REPORT = "/tensorflow.CoordinationService/ReportErrorToService"
# error_code: 13 (internal), error_message: "a stranger's", error_origin: task 1 of job "worker"
ERROR = b"\x08\x0d\x12\x0ca stranger's\x2a\x0a\x0a\x06worker\x10\x01"
# Who notices first says so to the other, if that has not noticed too.
CUT = (
    ["LostConnectionError", "LostConnectionError"],
    ["LostConnectionError", "ClusterError"],
    ["ClusterError", "LostConnectionError"],
)
# What a worker does when it is stopped, and for how many seconds. Only stops of more than 8 s ended
# trainings by TensorFlow's heartbeats, and of more than 58 s by its check of health.
STOPS = [
    (victim, when, seconds)
    for seconds in (20, 75)
    for when in ("steps", "rest", "start")
    for victim in (0, 1)
]


def report_error(address):
    """Sends a worker of TensorFlow an error without knowing any secret."""
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary(REPORT)(ERROR, timeout=10.0)


def stop(worker, seconds):
    worker.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    worker.process.send_signal(signal.SIGCONT)


def finish_all(workers):
    """What each case found, one list for each worker."""
    for worker in workers:
        assert worker.finish() == 0, worker.explain()
    return [worker.cases() for worker in workers]


def check_trained(workers):
    """All trainings have ended well, with the same weights on all workers."""
    trained = [[found for found in cases if found] for cases in finish_all(workers)]
    for found in zip(*trained, strict=True):
        assert {one.get("stopped") for one in found} == {"completed"}, found
        assert len({one["hash"] for one in found}) == 1


@pytest.mark.slow
def test_a_stop_below_the_time_out_and_a_strangers_report_end_no_training():
    cases = [["long", {"folder": "", "epochs": 40}]]
    with started(plan_workers(2, cases, TIMEOUT_S)) as workers:
        for victim in (0, 1):
            workers[victim].wait_for("epoch", 2 + victim)
            stop(workers[victim], 5)
        for worker in workers:
            with pytest.raises(grpc.RpcError, match="Coordination service is not enabled"):
                report_error(worker.told("joined")[0]["record"]["address"])
        check_trained(workers)


@pytest.mark.nightly
@pytest.mark.parametrize(("victim", "when", "seconds"), STOPS)
def test_a_worker_may_stop_at_any_time_for_less_than_the_time_out(victim, when, seconds):
    training = ["long", {"folder": "", "epochs": 3}]
    cases = [training, ["rest", {"seconds": 3}], training] if when == "rest" else [training]
    with started(plan_workers(2, cases, TIMEOUT_S)) as workers:
        event = {"steps": "epoch", "rest": "rests", "start": "started"}[when]
        workers[victim].wait_for(event)
        stop(workers[victim], seconds)
        check_trained(workers)


@pytest.mark.slow
def test_a_lost_connection_blames_no_worker():
    with started(plan_workers(2, [["cut", {"worker": 1}]], timeout_s=3.0)) as workers:
        found = [one for cases in finish_all(workers) for one in cases]
    assert [one.get("error") for one in found] in CUT, found
    for one in found:
        assert "lost its connection to another worker: " in one["message"]
        assert "Graph execution error" not in one["message"]
        assert "has failed" not in one["message"]


@pytest.mark.slow
def test_an_operation_that_fails_is_its_workers_own():
    with started(plan_workers(2, [["compute_nothing", {"worker": 1}]], timeout_s=20.0)) as workers:
        (told,), (own,) = finish_all(workers)
    assert (told["error"], told["worker"]) == ("ClusterError", 2)
    assert "has failed: " in told["message"]
    assert "assertion failed: [too large]" in told["message"]
    assert "Graph execution error" not in told["message"]
    assert "too large" in own["message"]
