"""Decisions about workers: their GPUs, the first failure, the error that a log ends with."""

from types import SimpleNamespace

import pytest

from gpukeras import DataError, RuntimeMissingError, SpecError
from gpukeras.distributed.cluster_config import ClusterSpec
from gpukeras.distributed.launcher import launcher
from gpukeras.distributed.launcher.launcher import read_gpus, start_launch
from gpukeras.distributed.launcher.plan import (
    LaunchSpec,
    choose_first,
    choose_shares,
    plan_workers,
    without_default_folders,
)
from gpukeras.distributed.launcher.worker_process import parse_error, read_log_end
from gpukeras.system import host


@pytest.mark.parametrize(
    ("gpus", "workers", "shares", "words"),
    [
        ([], 2, [None, None], ""),
        (["0", "1"], 0, [], ""),
        (["0", "1", "2", "3"], 2, ["0,1", "2,3"], ""),
        (["2", "GPU-ab"], 2, ["2", "GPU-ab"], ""),
        (["0", "1", "2"], 2, ["0", "1"], "Each worker gets 1 of 3 GPUs, and 1 is not used"),
        (["0", "1"], 1, ["0,1"], ""),
        (["0"], 2, ["-1", "-1"], "2 workers here, more than GPUs (1): workers cannot share one"),
    ],
)
def test_gpus_are_shared_out_evenly(gpus, workers, shares, words):
    found, note = choose_shares(gpus, workers)
    assert found == shares
    assert note.startswith(words) if not words.startswith("2") else words in note
    assert bool(note) is bool(words)


@pytest.mark.parametrize(
    ("visible", "tokens"),
    [(None, ["0", "1"]), ("1", ["1"]), ("GPU-bb, 0", ["GPU-bb", "0"]), ("0,7,1", ["0"]), ("", [])],
)
def test_hidden_gpus_are_not_shared_out(monkeypatch, visible, tokens):
    gpus = [host.NvmlGpu("A", f"GPU-{two}", 1.0, 1.0) for two in ("aa", "bb")]
    monkeypatch.setattr(host, "read_nvml", lambda: gpus)
    assert read_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == tokens


def test_variables_without_names_are_refused():
    with pytest.raises(SpecError, match="`variables` must be texts by name, not a list"):
        LaunchSpec(variables=["a"])


def test_a_share_of_gpus_is_in_the_workers_variables():
    cluster = ClusterSpec(("a:1", "b:1"))
    plans = plan_workers(
        cluster,
        "t.R",
        LaunchSpec(),
        here=(True, False),
        shares=("0,1", None),
        python="python3",
        secret="s" * 16,
    )
    assert [plan.gpus for plan in plans] == ["0,1", ""]
    assert "CUDA_VISIBLE_DEVICES=0,1 Rscript t.R" in plans[0].line
    assert "CUDA_VISIBLE_DEVICES" not in plans[1].line
    assert plans[0].command == ("Rscript", "t.R")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def test_a_system_without_workers_is_refused(script, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "os", SimpleNamespace(name="nt"))
    with pytest.raises(RuntimeMissingError, match="Workers can be started on Linux and macOS only"):
        start_launch(script, 2, {"log_dir": str(tmp_path / "logs")})
    assert not (tmp_path / "logs").exists()


def test_a_python_that_is_not_there_is_named(script, tmp_path):
    with pytest.raises(DataError, match="Worker 1 cannot be started: No such file") as caught:
        start_launch(script, 2, {"log_dir": str(tmp_path), "python": "/no/python"})
    assert caught.value.details["path"] == "/no/python"


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ({2: (1.0, "no good")}, 2),
        ({1: (1.0, "no good"), 2: (2.0, "worker 1 (a:1) has ended")}, 1),
        ({1: (1.0, "Worker 2 (a:1) has ended"), 2: (2.0, "no good")}, 2),
        ({1: (1.0, "worker 2 (a:1) has x, the chief has y"), 2: (2.0, "worker 2 (a:1) has x")}, 2),
        ({1: (1.0, "worker 3 (a:1) has ended"), 2: (2.0, "worker 3 (a:1) has ended")}, 1),
        ({1: (1.0, "worker 2 (a:1)"), 2: (2.0, "worker 1 (a:1)")}, 1),
        ({1: (2.0, "worker 2 (b:1)"), 2: (1.0, "worker 3 (b:1)"), 3: (3.0, "no good")}, 3),
    ],
)
def test_the_first_failure_is_the_one_that_nobody_else_caused(ends, first):
    assert choose_first(ends) == first


TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1, in f', "    f()"]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], ""),
        (["epoch 1", "a mean error of 2", " indented Error"], ""),
        (["  File 'x.py', line 1", "    f(", "SyntaxError: no good"], "SyntaxError: no good"),
        (["keras.errors.OwnError: no good", "more"], "keras.errors.OwnError: no good"),
        (["Fatal Python error: Aborted", "", "Thread"], "Fatal Python error: Aborted"),
        ([" *** caught segfault ***", "address (nil)"], "*** caught segfault ***"),
        ([*TRACEBACK, "KeyboardInterrupt"], "KeyboardInterrupt"),
        (["x", "Error in f() : no good", "Calls: f -> g", "Execution halted"], "Error in f() : no"),
        (["Error in f(1) : ", "  no good", "Execution halted"], "Error in f(1) : no good"),
        (
            ["Error in `g()`:", "! no good", "i Do it.", "Backtrace:", " 1. g()"],
            "Error in `g()`: no good i Do it.",
        ),
        (["Fehler in f() : no good", "Ruft auf: f"], "Fehler in f() : no good"),
        (["Erreur : no good", "Exécution arrêtée"], "Erreur : no good"),
        (["以下にエラー f() : no good", "実行が停止されました"], "以下にエラー f() : no good"),
        (["Errors are no R errors", "Fehlerfrei"], ""),
        ([*TRACEBACK, "ValueError: no good"], "ValueError: no good"),
        ([*TRACEBACK, "A: 1", "", *TRACEBACK, "B: 2"], "B: 2"),
        (TRACEBACK, "Traceback (most recent call last):"),
        (["Error: " + "x" * 1000], "Error: " + "x" * 493),
    ],
)
def test_the_error_at_the_end_of_a_log(lines, error):
    assert parse_error(lines).startswith(error)
    assert "Ruft auf" not in parse_error(lines)
    assert bool(parse_error(lines)) is bool(error)
    assert len(parse_error(lines)) <= 500


def test_the_end_of_a_long_log_and_what_a_progress_bar_shows_last(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 200_000 + b"\n1/2\r2/2\r\n\n\xff end\r\n")
    assert read_log_end(log, 2) == ["2/2", "\ufffd end"]
    assert len(read_log_end(log, 20)) == 3
    assert read_log_end(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "/usr/lib/R/lib:/usr/lib/x86_64-linux-gnu:/opt/cuda",
            "/usr/lib/R/lib:/opt/cuda",
        ),
        ("/usr/lib:/lib64:/lib/aarch64-linux-gnu/", ""),
        ("/opt/lib", "/opt/lib"),
    ],
)
def test_the_systems_folders_of_libraries_come_last(before, after):
    found = without_default_folders({"LD_LIBRARY_PATH": before, "HOME": "/root"})
    assert found == {"LD_LIBRARY_PATH": after, "HOME": "/root"}
    assert without_default_folders({"HOME": "/root"}) == {"HOME": "/root"}
