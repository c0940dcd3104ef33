"""The control channel with real connections; its workers are threads of this process."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from channels import Peer, connect, free_address, make_spec, open_files, run_threads

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel.channel import open_channel
from gpukeras.distributed.channel.protocol import BEAT
from gpukeras.distributed.cluster_config import ClusterSpec


def names(outcomes):
    return {getattr(outcome, "message", outcome) for outcome in outcomes}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_get_what_all_gave_in_order(size):
    def work(channel):
        told = [channel.exchange(f"step {i}", {"of": channel.index, "i": i}) for i in range(50)]
        assert told == [[{"of": w, "i": i} for w in range(size)] for i in range(50)]
        assert channel.gather(b"x" * channel.index) == [b"x" * w for w in range(size)]
        assert (channel.gather(b""), channel.exchange("", {})) == ([b""] * size, [{}] * size)
        return channel.gather(b"y" * 10**6 if channel.index == 0 else b"")[0]

    assert run_threads(size, work) == [b"y" * 10**6] * size


def test_description_that_is_no_json_fails_before_anything_is_opened():
    with pytest.raises(TypeError):
        open_channel(make_spec(free_address(), 2, 0), {"x": object()})


@pytest.mark.parametrize("size", [2, 3])
def test_difference_is_refused_on_every_worker(size):
    descriptions = [{"tensorflow": "2.21"}] * size
    descriptions[1] = {"tensorflow": "2.20"}
    outcomes = run_threads(size, lambda channel: "joined", descriptions)
    assert names(outcomes) == {"Worker 2 (127.0.0.1:2002) has tensorflow 2.20, the chief has 2.21."}
    expected = {"worker": 2, "address": "127.0.0.1:2002", "differences": ["tensorflow"]}
    for outcome in outcomes:
        assert isinstance(outcome, ClusterError)
        assert expected.items() <= outcome.details.items()
        assert json.loads(json.dumps(outcome.details)) == outcome.details


def test_same_index_twice_is_refused_on_both_and_the_chief():
    outcomes = run_threads(3, lambda channel: "joined", indices=[0, 1, 1], timeout_s=0.5)
    assert names(outcomes) == {"Worker 2 (127.0.0.1:2002) has come twice."}


def test_worker_that_does_not_come_is_named_to_those_that_came():
    control = free_address()

    def join(index, limit_s):
        with pytest.raises(ClusterError) as caught:
            open_channel(make_spec(control, 3, index), {}, join_timeout_s=limit_s)
        return caught.value.message

    with ThreadPoolExecutor(2) as pool:
        # The chief decides, though this worker's own patience ends before.
        found = list(pool.map(join, (1, 0), (0.3, 0.6)))
    assert found == ["Worker 3 (127.0.0.1:2003) has not come within 0.6 s."] * 2


def test_chief_that_is_not_there_is_named():
    with pytest.raises(
        ClusterError, match=r"The chief, worker 1 .* has not been found at 127.*in 0.2 s"
    ) as caught:
        open_channel(make_spec(free_address(), 2, 1), {}, join_timeout_s=0.2)
    assert caught.value.details["worker"] == 1


def test_address_of_another_computer_cannot_be_listened_on():
    with pytest.raises(ClusterError, match="cannot listen on 203.0.113.1"):
        open_channel(make_spec("203.0.113.1:2000", 2, 0), {}, join_timeout_s=1)


def test_nothing_listens_after_all_have_joined():
    control = free_address()
    address = ("127.0.0.1", int(control.rpartition(":")[2]))

    def work(channel):
        channel.exchange("joined", {})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 1)
        return channel.exchange("looked", {}) and "refused"

    assert run_threads(2, work, control=control) == ["refused", "refused"]


def test_worker_that_ends_before_all_have_come_may_be_started_again():
    control = free_address()

    def run(index):
        with open_channel(make_spec(control, 3, index), {}, join_timeout_s=10) as channel:
            return channel.exchange("joined", {})

    with ThreadPoolExecutor(3) as pool:
        chief = pool.submit(run, 0)
        first = Peer(connect(control))
        first.greet(1, 3)
        assert first.hear(beats=True).kind == BEAT
        first.close()
        others = [pool.submit(run, index) for index in (1, 2)]
        assert [one.result() for one in (chief, *others)] == [[{}] * 3] * 3


def test_cluster_as_the_user_gives_it():
    workers = (free_address(), free_address())

    def run(index):
        with open_channel(ClusterSpec(workers=workers, index=index), {}) as channel:
            return channel.exchange("joined", {"index": index})

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [[{"index": 0}, {"index": 1}]] * 2


def test_worker_at_another_place_is_named_on_all():
    def work(channel):
        return channel.exchange("call" if channel.index != 1 else "epoch", {})

    outcomes = run_threads(3, work)
    assert len(names(outcomes) - {None}) <= 2
    for index, outcome in enumerate(outcomes):
        assert isinstance(outcome, ClusterError)
        assert "worker" in outcome.message.lower()
        assert '"call"' in outcome.message
        assert '"epoch"' in outcome.message, index


def test_another_operation_is_another_place():
    def work(channel):
        return channel.gather(b"") if channel.index else channel.exchange("epoch", {})

    outcomes = run_threads(2, work)
    assert outcomes[0].details["reason"] == 'is at a gathering where the chief is at "epoch"'
    assert outcomes[1].message.startswith("This worker, worker 2 (127.0.0.1:2002), is at a gath")


def test_worker_that_does_not_come_in_time_is_named():
    def work(channel):
        if channel.index == 2:
            assert channel.fault(10) is not None
        return channel.exchange("epoch", {}, timeout_s=0.2)

    outcomes = run_threads(3, work)
    assert {outcome.details["reason"] for outcome in outcomes} == {
        'has not come to "epoch" for 0.2 s'
    }
    assert {outcome.details["worker"] for outcome in outcomes} == {3}


def test_late_worker_that_beats_is_waited_for():
    late = threading.Event()
    threading.Timer(6.0, late.set).start()

    def work(channel):
        if channel.index == 1:
            late.wait()
        return channel.exchange("epoch", {})

    assert run_threads(2, work, timeout_s=3.0) == [[{}, {}]] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_failure_is_told_to_all(failing):
    lost = []

    def work(channel):
        channel.exchange("start", {})
        if channel.index == failing:
            raise ValueError("no such column\nand more")
        return channel.exchange("epoch", {})

    outcomes = run_threads(3, work, on_loss=lost.append)
    assert isinstance(outcomes.pop(failing), ValueError)
    assert {o.details["reason"] for o in outcomes} == {"has failed: ValueError: no such column"}
    assert {o.details["worker"] for o in outcomes} == {failing + 1}
    assert len(lost) == 2  # once on each of the others
    assert len(set(lost)) == 1


def test_worker_that_leaves_while_others_wait_is_named_at_once():
    def work(channel):
        return channel.exchange("epoch", {}) if channel.index != 1 else "left"

    outcomes = run_threads(3, work)
    assert outcomes[1] == "left"
    assert outcomes[0].message == "Worker 2 (127.0.0.1:2002) has left."
    assert outcomes[2].message == outcomes[0].message


def test_leaving_before_others_have_finished_is_no_loss_if_they_only_close():
    lost = []

    def work(channel):
        if channel.index == 0:
            assert channel.fault(0.2) is None
        return "done"

    assert run_threads(3, work, on_loss=lost.append) == ["done"] * 3
    assert not lost


def test_nothing_is_left_over():
    files, threads = open_files(), threading.active_count()
    for _ in range(5):
        run_threads(3, lambda channel: channel.exchange("epoch", {}))
        run_threads(2, lambda channel: channel.exchange(str(channel.index), {}))
        run_threads(2, lambda channel: "joined", [{}, {"a": 1}])
    assert threading.active_count() <= threads  # one of an earlier test may have ended meanwhile
    assert open_files() == files


def test_closed_channel_says_so():
    with open_channel(make_spec(free_address(), 1, 0), {}) as channel:
        channel.close()
        channel.close()
        channel.fail(ValueError("too late"))
    with pytest.raises(ClusterError, match="The channel to the other workers is closed"):
        channel.exchange("epoch", {})


def test_on_loss_may_close_the_channel_itself():
    closed = threading.Event()
    channels = []

    def on_loss(message):
        channels[0].close()
        closed.set()

    def work(channel):
        if channel.index == 0:
            channels.append(channel)
            channel.exchange("ready", {})
            assert closed.wait(10)
            return "closed"
        channel.exchange("ready", {})
        raise ValueError("broken")

    outcomes = run_threads(2, work, on_loss=on_loss)
    assert outcomes[0] == "closed"


def test_calls_of_several_threads_take_turns():
    def work(channel):
        def call(_):
            return len([channel.exchange("epoch", {}) for _ in range(50)])

        with ThreadPoolExecutor(3) as pool:
            return sum(pool.map(call, range(3)))

    assert run_threads(2, work) == [150, 150]
