"""The sampler as it is run: a process that prints, and ends when it should."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
from children import CORE, PATIENCE_S
from stub_driver import stub_environment

from gpukeras.monitor.fields import HOST_UNITS


def start_sampler(pid, interval, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "gpukeras.monitor.sampler", str(pid), str(interval)],
        cwd=CORE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def sampler():
    child = start_sampler(os.getpid(), 0.02)
    yield child
    child.kill()
    child.communicate()


def read_lines(child, count):
    return [json.loads(child.stdout.readline()) for _ in range(count)]


def test_a_header_and_then_samples(sampler):
    header, *samples = read_lines(sampler, 4)
    known = {"gpus", "gpu_error", "energy_error", "cores", "computer_cores", "memory_total_bytes"}
    assert set(header) == known
    times = [sample[0] for sample in samples]
    assert times == sorted(times)
    assert times[0] >= 0.02
    assert all(len(sample[1]) == len(HOST_UNITS) for sample in samples)


@pytest.mark.parametrize("word", ["\n", ""])  # "" closes its standard input
def test_it_ends_when_told(sampler, word):
    read_lines(sampler, 1)
    sampler.communicate(word, timeout=PATIENCE_S)
    assert sampler.returncode == 0


def test_a_word_brings_a_last_sample():
    with start_sampler(os.getpid(), 3600) as child:
        read_lines(child, 1)
        time.sleep(0.06)
        rest, _ = child.communicate("\n", timeout=PATIENCE_S)
    (last,) = (json.loads(line) for line in rest.splitlines())
    assert last[0] >= 0.05


def test_it_ends_with_the_process_it_samples():
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as watched:
        child = start_sampler(watched.pid, 0.02)
        read_lines(child, 2)
        watched.kill()
    with child:
        assert child.wait(PATIENCE_S) == 0


def test_it_imports_neither_tensorflow_nor_numpy():
    code = "import gpukeras.monitor.sampler, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, cwd=CORE, capture_output=True, text=True, timeout=PATIENCE_S)
    assert not {"tensorflow", "keras", "numpy"} & set(child.stdout.split())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-ins are for Linux")
def test_gpus_are_in_each_sample():
    variables = stub_environment(("nvml",), STUB_COUNT=2, STUB_UTILIZATION="10,20")
    with start_sampler(os.getpid(), 0.02, **variables) as child:
        header, sample = read_lines(child, 2)
        child.communicate("\n", timeout=PATIENCE_S)
    assert [gpu["device"] for gpu in header["gpus"]] == ["GPU:0", "GPU:1"]
    assert [gpu[0] for gpu in sample[2]] == [10, 20]


def test_its_parent_may_be_killed():
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpukeras.monitor.monitor import start_monitor\n"
        "print(start_monitor(0.02).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(CORE)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert child.returncode < 0
    assert has_ended(int(child.stdout))


def has_ended(pid):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_fork_that_keeps_the_pipe_does_not_keep_it_alive():
    script = (
        "import os, signal, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from gpukeras.monitor.monitor import start_monitor\n"
        "monitor = start_monitor(0.02)\n"
        "forked = os.fork() or (os.closerange(0, 3), time.sleep(60))\n"
        "print(monitor.pid, forked, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    if not hasattr(os, "fork"):
        pytest.skip("this system has no forks")
    command = [sys.executable, "-c", script, str(CORE)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    sampler, forked = (int(word) for word in child.stdout.split())
    try:
        assert has_ended(sampler)
    finally:
        os.kill(forked, 9)
