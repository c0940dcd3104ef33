"""Workers of an engine: how they are asked, and when they end by themselves."""

import json
import queue
import threading

import pytest

from gpukeras import SpecError
from gpukeras.many.futures import Futures, JobFiles, check_workers
from gpukeras.many.workers import main
from gpukeras.many.workers.plan import WorkerFacts, plan_workers


def start(*_):
    pass


ENGINE = Futures(3, start, lambda place: "")


def test_workers_are_a_number_or_an_engine():
    assert check_workers("workers", 2.0) == 2
    assert check_workers("workers", {"count": 3.0, "start": start, "end": ENGINE.end}) == ENGINE
    with pytest.raises(SpecError, match="`workers` must be a whole number of at least 1"):
        check_workers("workers", "many")


@pytest.mark.parametrize(("jobs", "count"), [(2, 2), (12, 3)])
def test_an_engine_has_as_many_workers_as_jobs_at_most(jobs, count):
    plan = plan_workers(WorkerFacts(ENGINE, jobs, "GPU:0", (), cores=8))
    assert [(one.device, one.threads) for one in plan.workers] == [("auto", None)] * count
    assert plan.reason == f"{count} worker processes of future"
    assert plan.futures is ENGINE


def test_a_worker_that_has_ended_says_why(tmp_path):
    told = []
    engine = Futures(1, lambda *given: told.append(given), lambda place: f"no place {place}")
    files = JobFiles(engine, tmp_path, "0", {"device": "auto"})
    assert told == [(str(tmp_path), "0", '{"device": "auto"}')]
    assert files.read(0, 100) == b""
    assert not files.runs
    assert files.explain_end() == "its worker ended: no place 0"
    files.stop()
    files.stop()  # again does nothing
    assert list(tmp_path.iterdir()) == []


class EndedError(Exception):
    pass


@pytest.fixture
def follow(monkeypatch):
    """Follows a file in a thread; returns the jobs that it finds, and waits for its end."""

    def end(status):
        raise EndedError

    monkeypatch.setattr(main.os, "_exit", end)
    monkeypatch.setattr(main, "FILE_S", 0.01)

    def begin(path):
        asked = queue.SimpleQueue()

        def run():
            with pytest.raises(EndedError):
                main._follow(asked, path)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return asked, thread

    return begin


def test_jobs_are_taken_as_they_come_until_the_file_is_gone(follow, tmp_path):
    files = JobFiles(ENGINE, tmp_path, "0", {})
    asked, thread = follow(tmp_path / "asked-0.jsonl")
    files.write(json.dumps({"job": 1}).encode() + b"\n")
    assert asked.get(timeout=10) == {"job": 1}
    files.write(b'{"job": ')
    files.write(b"2}\n")
    assert asked.get(timeout=10) == {"job": 2}
    assert thread.is_alive()
    files.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_worker_ends_where_nobody_shows_a_sign_of_life(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(main, "QUIET_S", 0.2)
    monkeypatch.setattr("gpukeras.many.futures.TOUCH_S", 0.02)
    files = JobFiles(ENGINE, tmp_path, "0", {})
    _, thread = follow(tmp_path / "asked-0.jsonl")
    for _ in range(20):
        assert files.runs
        thread.join(0.03)
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()
