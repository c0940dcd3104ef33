"""Workers are started, watched and ended for real; their scripts need no TensorFlow."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import CORE, PATIENCE_S

from gpukeras import DataError, SpecError
from gpukeras.distributed.cluster_config import read_cluster
from gpukeras.distributed.launcher import launcher, worker_main
from gpukeras.distributed.launcher.launcher import (
    launch,
    launch_log,
    launch_status,
    launch_stop,
    launch_wait,
    start_launch,
)
from gpukeras.distributed.launcher.worker_process import read_log_end

START = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print(os.getpid(), flush=True)
"""
HANG = "time.sleep(600)\n"

needs_rscript = pytest.mark.skipif(not shutil.which("Rscript"), reason="R is not installed")


@pytest.fixture
def script(tmp_path):
    def write(code="", name="train.py", start=START):
        path = tmp_path / name
        path.write_text(start + code)
        return str(path)

    return write


@pytest.fixture
def start(script, tmp_path):
    """Starts workers of Python code; all of them end with the test."""
    made = []

    def begin(code="", workers=2, **options):
        options = {"log_dir": str(tmp_path / "logs"), **options}
        made.append(start_launch(script(code), workers, options))
        return made[-1]

    yield begin
    for one in made:
        one.stop()


def pid_of(one, worker):
    deadline = time.monotonic() + PATIENCE_S
    while not one.tail(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    return int(one.tail(worker)[0])


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def are_gone(*pids):
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def statuses(record):
    return [worker.status for worker in record.workers]


# Good ends ----------------------------------------------------------------------------------------


def test_each_worker_learns_who_it_is(start):
    code = "print(json.dumps([os.environ['TF_CONFIG'], os.environ['GPUKERAS_CONTROL'], sys.argv]))"
    one = start(code, 3, args=["a b", "--epochs=2"])
    record = one.wait(PATIENCE_S)
    assert statuses(record) == ["done"] * 3
    assert (record.running, record.failure, record.notes) == (False, None, ())
    for index, worker in enumerate(record.workers):
        config, control, args = json.loads(one.tail(worker.worker, 1)[0])
        found = read_cluster({}, {"TF_CONFIG": config, "GPUKERAS_CONTROL": control})
        assert found.index == index
        assert found.workers == tuple(other.address for other in record.workers)
        assert (found.own, found.control) == (worker.address, record.control)
        assert found.loopback
        assert args[1:] == ["a b", "--epochs=2"]
        assert (worker.exit_status, worker.worker) == (0, index + 1)
        assert worker.seconds > 0


def test_python_scripts_find_this_package_and_variables_are_added(start):
    code = "from gpukeras.distributed import cluster_config as cluster; print(os.environ['MORE'])"
    one = start(code, 1, variables={"MORE": "than before"})
    one.wait(PATIENCE_S)
    assert one.tail(1, 1) == ["than before"]


@needs_rscript
def test_r_scripts_run_too(script, tmp_path):
    code = 'cat(Sys.getenv("TF_CONFIG"), "\\n"); stopifnot(identical(commandArgs(TRUE), "x y"))'
    path = script(code, "train.R", "")
    one = start_launch(path, 2, {"args": "x y", "log_dir": str(tmp_path)})
    assert statuses(one.wait(PATIENCE_S)) == ["done", "done"]
    assert json.loads(one.tail(2)[0])["task"] == {"type": "worker", "index": 1}


def test_logs_of_earlier_launches_stay(start, tmp_path):
    records = [start().wait(PATIENCE_S) for _ in range(3)]
    logs = [[Path(worker.log).name for worker in record.workers] for record in records]
    assert logs == [
        ["worker-1.log", "worker-2.log"],
        ["worker-1-run-2.log", "worker-2-run-2.log"],
        ["worker-1-run-3.log", "worker-2-run-3.log"],
    ]
    assert len(list((tmp_path / "logs").iterdir())) == 6


def test_a_folder_is_made_where_none_is_given(start):
    record = start(log_dir=None).wait(PATIENCE_S)
    assert Path(record.workers[0].log).parent == Path(record.log_dir)
    shutil.rmtree(record.log_dir)


# Failures -----------------------------------------------------------------------------------------


def test_the_worker_that_fails_is_named_and_the_one_that_waits_for_it_stopped(start):
    one = start("if index == 1: sys.exit(3)\n" + HANG, timeout_s=0.3)
    record = one.wait(PATIENCE_S)
    assert statuses(record) == ["stopped", "failed"]
    assert [worker.exit_status for worker in record.workers] == [-signal.SIGTERM, 3]
    assert record.failure.worker == 2
    assert record.failure.reason == "exit status 3"
    assert record.failure.address == record.workers[1].address
    assert record.failure.log == record.workers[1].log
    note = "Worker 1 was stopped: it had not ended 0.3 s after worker 2 failed."
    assert record.notes == (note,)
    assert one.look().notes == (note,)


def test_the_others_may_end_by_themselves(start):
    code = "if index == 1: raise ValueError('no good')\ntime.sleep(1)"
    record = start(code, timeout_s=PATIENCE_S).wait(PATIENCE_S)
    assert statuses(record) == ["done", "failed"]
    assert (record.failure.error, record.notes) == ("ValueError: no good", ())


def test_what_was_told_by_another_is_not_the_first_failure(start):
    code = """
if index == 1:
    time.sleep(0.5)
    raise ValueError("no good")
raise RuntimeError(f"worker 2 (127.0.0.1:7) failed: no good")
"""
    record = start(code, 3, timeout_s=PATIENCE_S).wait(PATIENCE_S)
    assert statuses(record) == ["failed"] * 3
    assert (record.failure.worker, record.failure.error) == (2, "ValueError: no good")


@needs_rscript
def test_an_error_of_r_is_told(script, tmp_path, monkeypatch):
    monkeypatch.setenv("LANGUAGE", "en")  # R's own words differ by language
    path = script('f <- function() stop("no good")\nf()', "train.R", "")
    record = start_launch(path, 1, {"log_dir": str(tmp_path)}).wait(PATIENCE_S)
    assert record.failure.reason == "exit status 1"
    assert record.failure.error == "Error in f() : no good"


def test_a_worker_that_is_killed_and_one_that_heeds_no_signal(start):
    code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
"""
    one = start(code + HANG)
    pids = [pid_of(one, worker) for worker in (1, 2)]
    while "deaf" not in one.tail(1):
        time.sleep(0.02)
    os.kill(pids[1], signal.SIGKILL)
    while one.look().failure is None:
        time.sleep(0.02)
    record = one.look()
    assert (record.failure.worker, record.failure.reason) == (2, "killed by SIGKILL")
    assert record.running
    record = one.stop()
    assert statuses(record) == ["stopped", "failed"]
    assert record.workers[0].exit_status == -signal.SIGKILL
    assert are_gone(*pids)


def test_a_program_that_is_not_there_is_a_failure(script, tmp_path):
    options = {"rscript": "/no/Rscript", "log_dir": str(tmp_path)}
    record = start_launch(script(name="train.R"), 1, options).wait(PATIENCE_S)
    assert (record.failure.reason, record.failure.worker) == ("exit status 127", 1)
    assert "Rscript could not be started" in record.failure.error


# Ends that come from outside ----------------------------------------------------------------------


def test_stopping_ends_workers_with_what_they_have_started(start):
    code = """
import subprocess
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
"""
    one = start(code + HANG)
    pids = []
    for worker in (1, 2):
        pid_of(one, worker)
        while len(one.tail(worker)) < 2:
            time.sleep(0.02)
        pids += map(int, one.tail(worker))
    assert one.runs
    record = one.stop()
    assert statuses(record) == ["stopped", "stopped"]
    assert (record.running, record.failure) == (False, None)
    assert are_gone(*pids)
    assert statuses(one.stop()) == ["stopped", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_the_process_that_launched_them(script, tmp_path, number):
    code = f"""
import sys, time
sys.path.insert(0, {str(CORE)!r})
from gpukeras.distributed.launcher.launcher import start_launch
one = start_launch({script(HANG)!r}, 2, {{"log_dir": {str(tmp_path / "logs")!r}}})
while not (one.tail(1) and one.tail(2)):
    time.sleep(0.02)
print(*one.tail(1), *one.tail(2), flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pids = list(map(int, parent.stdout.readline().split()))
    assert len(pids) == 2
    assert all(map(is_running, pids))
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    assert are_gone(*pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of that")
def test_a_worker_dies_with_the_program_that_watches_it(start):
    one = start(HANG, 1)
    pid = pid_of(one, 1)
    watcher = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(watcher, signal.SIGKILL)
    assert are_gone(pid)
    record = one.wait(PATIENCE_S)
    assert (statuses(record), record.failure.reason) == (["failed"], "killed by SIGKILL")


def test_a_watcher_whose_input_stays_open_still_sees_that_the_launcher_is_gone(tmp_path):
    # A fork of R's holds it open, for one.
    held, log = os.pipe(), tmp_path / "log"
    worker = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); " + HANG]
    command = [sys.executable, "-I", "-S", worker_main.__file__, *worker]
    code = f"""
import os, subprocess, time
with open({str(log)!r}, "wb") as log:
    subprocess.Popen({command!r}, stdin={held[0]}, stdout=subprocess.PIPE, stderr=log)
while not os.path.getsize({str(log)!r}):
    time.sleep(0.02)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], pass_fds=held[:1], check=True)
    assert are_gone(int(read_log_end(log)[0]))
    for end in held:
        os.close(end)


# Other computers ----------------------------------------------------------------------------------


def test_workers_elsewhere_get_their_command_and_those_here_are_started(start):
    ports = launcher.find_ports(2)
    here = [f"127.0.0.1:{port}" for port in ports]
    record = start(workers=here).wait(PATIENCE_S)
    assert statuses(record) == ["done", "done"]
    assert [worker.address for worker in record.workers] == here
    elsewhere = ["one.invalid:2222", "two.invalid:2222"]  # no computer has such a name
    record = start(workers=elsewhere, args=["it's"]).look()
    assert statuses(record) == ["not started"] * 2
    assert (record.log_dir, record.running, record.workers[0].log) == ("", False, "")
    for index, worker in enumerate(record.workers):
        words = shlex.split(worker.command)
        variables = dict(word.split("=", 1) for word in words[:3])
        found = read_cluster({}, variables)
        assert (found.workers, found.index) == (tuple(elsewhere), index)
        assert found.control == record.control == "one.invalid:2223"
        assert len(variables["GPUKERAS_SECRET"]) == 64
        assert words[3] == "python"
        assert words[5:] == ["it's"]
    first, second = (worker.command.partition("SECRET=")[2][:64] for worker in record.workers)
    assert first == second


def test_the_command_starts_the_worker(start):
    one = start("print(index, sys.argv[1:])", 2, start=False, args=["x y", "$HOME"])
    record = one.look()
    assert statuses(record) == ["not started"] * 2
    typed = record.workers[1].command.replace(" python ", f" {shlex.quote(sys.executable)} ")
    shell = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines()[1] == "1 ['x y', '$HOME']"


def test_a_port_in_use_is_told_before_anything_is_started(start, tmp_path):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(SpecError, match=f"127.0.0.1:{port}, and that port .* is in use"):
            start(workers=f"127.0.0.1:{port}")
    assert not (tmp_path / "logs").exists()


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"workers": 0}, SpecError, "`workers` must be a whole number from 1 to 1000, not 0"),
        ({"workers": 1.5}, SpecError, "`workers` must be a whole number"),
        ({"workers": True}, SpecError, "`workers` must be a whole number"),
        ({"workers": ["a"]}, SpecError, 'addresses "host:port"'),
        ({"workers": []}, SpecError, "at least one address"),
        ({"options": {"timeout_s": -1}}, SpecError, "`timeout` must be a number of at least 0"),
        ({"options": {"args": [1]}}, SpecError, "`args` must be texts"),
        ({"options": {"start": 1}}, SpecError, "`start` must be TRUE or FALSE"),
        ({"options": {"log_dir": 3}}, SpecError, "`log_dir` must be a folder, not 3"),
        ({"options": {"logs": "x"}}, SpecError, "Unknown option `logs`"),
        (
            {"script": "train.sh"},
            SpecError,
            r'R script \(.R\) or Python script \(.py\), not "train',
        ),
        ({"script": 3}, SpecError, "`script` must be the path of an R script"),
        ({"script": "no/such.R"}, DataError, "`script` is the file such.R, which is not there"),
    ],
)
def test_what_cannot_be_started_is_refused(script, arguments, error, words):
    with pytest.raises(error, match=words):
        start_launch(**{"script": script(), **arguments})


def test_a_folder_that_is_a_file_is_refused(start, tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(DataError, match="`log_dir` is logs, which cannot be made a folder") as e:
        start()
    assert e.value.details == {"arg": "log_dir", "path": str(tmp_path / "logs")}


def test_logs_are_of_workers_that_are_there(start):
    one = start(workers=["one.invalid:2222"])
    with pytest.raises(SpecError, match="not started on this computer"):
        one.tail(1)
    with pytest.raises(SpecError, match="`worker` must be a whole number from 1 to 1"):
        one.tail(2)


# What R calls ------------------------------------------------------------------------------------


def test_what_r_gets(script, tmp_path):
    options = {"log_dir": str(tmp_path), "args": [], "variables": {}, "python": sys.executable}
    record = launch(script(HANG), 2.0, options)
    handle = record.pop("handle")
    assert set(record) == {
        "script", "workers", "control", "log_dir", "running", "failure", "notes"
    }  # fmt: skip
    assert record["running"]
    assert launch_wait(handle, 0.05)["running"]
    pids = [pid_of(handle, worker) for worker in (1, 2)]
    assert launch_log(handle, 2.0, 5.0) == [str(pids[1])]
    record = launch_stop(handle)
    assert (record["running"], statuses(handle.look())) == (False, ["stopped", "stopped"])
    assert not launch_status(handle)["running"]
    assert are_gone(*pids)
    assert handle not in launcher._launches
