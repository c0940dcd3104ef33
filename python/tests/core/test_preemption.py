"""Signals that ask a process to end: they are caught, and their former handlers come back."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from children import PATHS

from gpukeras.core.preemption import SIGNALS, catch_preemption, ignore_preemption

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")

NUMBERS = [getattr(signal, name) for name in SIGNALS]


@pytest.fixture
def received():
    """Signals that a handler of the user's gets."""
    got = []
    before = {number: signal.signal(number, lambda n, _: got.append(n)) for number in NUMBERS}
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_noticed_and_the_former_handlers_come_back(received, number):
    with catch_preemption() as notice:
        assert notice.signal == ""
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert notice.signal == signal.Signals(number).name  # the first one counts
        assert notice.at > 0
        notice.heeded = True
    assert received == []
    os.kill(os.getpid(), number)
    assert received == [number]


def test_a_signal_that_was_not_heeded_comes_after_all(received):
    with catch_preemption():
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == []
    assert received == [signal.SIGTERM]


def test_a_call_that_saves_nothing_leaves_the_signals_alone_for_the_calls_within(received):
    with catch_preemption(wanted=False), catch_preemption() as notice:
        os.kill(os.getpid(), signal.SIGTERM)
    assert (notice.signal, received) == ("", [signal.SIGTERM])
    with catch_preemption() as notice:
        os.kill(os.getpid(), signal.SIGTERM)
        notice.heeded = True
    assert (notice.signal, received) == ("SIGTERM", [signal.SIGTERM])


def test_calls_within_have_the_notice_of_the_call_that_they_are_part_of(received):
    with catch_preemption() as outer:
        with catch_preemption() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert received == []
        assert (outer.signal, inner.at) == ("SIGTERM", outer.at)
        with catch_preemption(wanted=False), catch_preemption() as lost:
            assert lost.signal == ""  # what it would save is lost with the call around it
    assert received == [signal.SIGTERM]


def test_a_process_that_ignores_the_signals_goes_on_doing_so(received):
    ignore_preemption()
    with catch_preemption() as notice:
        for number in NUMBERS:
            os.kill(os.getpid(), number)
    assert (notice.signal, received) == ("", [])


def test_signals_are_left_alone_where_none_is_wanted_and_in_other_threads(received):
    with catch_preemption(wanted=False) as notice:
        os.kill(os.getpid(), signal.SIGTERM)
    assert (received, notice.signal) == ([signal.SIGTERM], "")
    held, end = threading.Event(), threading.Event()

    def hold():
        with catch_preemption():
            held.set()
            end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    end.set()
    thread.join()
    assert received == [signal.SIGTERM] * 2


def test_a_handler_that_python_does_not_know_comes_back():
    """As R's: the C library sets `_exit()` as the handler, which gets the signal's number."""
    code = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal(signal.SIGUSR1, ctypes.cast(libc._exit, ctypes.c_void_p))
from gpukeras.core.preemption import catch_preemption
with catch_preemption() as notice:
    os.kill(os.getpid(), signal.SIGUSR1)
    notice.heeded = True
print(notice.signal, flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
"""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.stdout, child.returncode) == ("SIGUSR1\n", int(signal.SIGUSR1)), child.stderr
