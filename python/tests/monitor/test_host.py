import os
import time

import psutil
import pytest

from gpukeras.monitor.fields import HOST_UNITS
from gpukeras.monitor.host import HostReader, Meter, count_bytes, find_rates


def read_host(reader):
    return dict(zip(HOST_UNITS, reader.read(), strict=True))


def test_a_busy_process_is_seen():
    reader = HostReader(os.getpid())
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    sample = read_host(reader)
    assert 5 < sample["process_cpu_percent"] <= 110  # of a core; the computer has others to serve
    assert 0 < sample["cpu_percent"] <= 100.01
    assert sample["process_memory_bytes"] == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.2
    )
    assert 0 < sample["available_memory_bytes"] < psutil.virtual_memory().total


def test_a_process_that_has_ended_is_an_error():
    with pytest.raises(psutil.NoSuchProcess):
        HostReader(2**22 + 1)


def test_reads_are_rates():
    assert find_rates([0, 10, None, 5], [50, 10, 3, None], 0.5) == [100, 0, None, None]
    assert find_rates([7], [6], 1.0) == [None]  # a card was removed


def test_a_slow_counter_is_not_read_at_each_sample():
    reads = []
    meter = Meter(lambda: reads.append(1) or [float(len(reads))], shortest_s=60)
    assert [meter.read(), meter.read()] == [[None], [None]]  # it has not grown for long enough
    assert len(reads) == 1


def test_a_fast_counter_is_read_at_each_sample():
    counts = iter([[1.0], [3.0], [3.0]])
    meter = Meter(lambda: next(counts))
    time.sleep(0.01)
    (rate,) = meter.read()
    assert 0 < rate <= 2 / 0.01
    time.sleep(0.01)
    assert meter.read() == [0.0]


def test_bytes_are_counted():
    disk, network = count_bytes()
    assert disk is None or disk >= 0
    assert network >= 0
