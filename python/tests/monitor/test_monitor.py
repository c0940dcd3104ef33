"""A monitor from start to end, with its real process."""

import gc
import os
import signal
import time
from itertools import pairwise

import psutil
import pytest

from gpukeras.core.errors import RuntimeMissingError, SpecError
from gpukeras.monitor import monitor
from gpukeras.monitor.monitor import monitor_start, monitor_stop, start_monitor


def spin(running, samples):
    """Computes until the sampler has written so many lines behind its header."""
    while len(running._out.read().splitlines()) <= samples:
        pass


def ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_this_process_is_sampled_while_it_computes():
    running = start_monitor(0.02)
    spin(running, 6)
    record = running.finish()
    times = record.samples["time_s"]
    assert len(times) >= 5
    assert all(before < after for before, after in pairwise(times))
    assert record.samples["process_cpu_percent"].mean() > 0
    assert record.cores >= 1
    assert record.verdict.endswith(".")
    assert not [note for note in record.notes if "sampler" in note]
    assert ended(running.pid)


def test_r_gets_a_handle_and_a_record():
    handle = monitor_start(0.05)["handle"]
    assert monitor_stop(handle) is monitor_stop(handle)


def test_code_shorter_than_the_interval_has_a_sample():
    running = start_monitor(60)
    time.sleep(0.1)
    assert len(running.finish().samples["time_s"]) == 1


@pytest.mark.parametrize("interval", [0, 0.009, -1, 61, float("nan"), "fast", None, True])
def test_intervals_are_checked(interval):
    with pytest.raises(SpecError, match="`monitor` must be a number from 0.01 to 60") as caught:
        monitor_start(interval, "monitor")
    assert caught.value.details == {"arg": "monitor"}


def test_a_sampler_that_is_killed_leaves_what_it_saw():
    running = start_monitor(0.02)
    spin(running, 2)
    os.kill(running.pid, signal.SIGKILL)
    record = running.finish()
    assert len(record.samples["time_s"]) >= 1
    assert record.notes[0] == "The sampler failed, so samples may be missing (killed by SIGKILL)."


@pytest.mark.slow
def test_a_monitor_that_is_forgotten_ends():
    running = start_monitor(0.02)
    pid = running.pid
    del running
    gc.collect()
    assert ended(pid)


def test_a_sampler_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(monitor, "PROGRAM", "gpukeras.monitoring.nowhere")
    with pytest.raises(RuntimeMissingError, match="No module named"):
        start_monitor()


def test_a_sampler_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(monitor, "START_LIMIT_S", 0.0)
    with pytest.raises(RuntimeMissingError, match="not ready within 0 s"):
        start_monitor()
