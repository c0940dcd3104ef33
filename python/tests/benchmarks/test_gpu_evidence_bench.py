"""Cases that fail, hang or end their process, and the others that go on."""

import json
import os
import sys
from types import SimpleNamespace

import evidence_bench
import evidence_collect
import pytest
from children import PATHS
from evidence_bench import Clock, Measured, average_busy, take_turns
from evidence_cases import CASES
from evidence_questions import NO_TIME

# Stands for `evidence_bench`: what a case does is its name.
PROGRAM = """
import json, os, sys
out, cases = open(sys.argv[1], "a"), [one for one in sys.argv[4:] if not one.startswith("--")]
def write(**record):
    out.write(json.dumps(record) + "\\n")
    out.flush()
for case in cases:
    if case == "late":
        break
    if case == "no_start":
        sys.exit("ImportError: no TensorFlow")
    write(begin=case)
    if case == "abort":
        print("LLVM ERROR: out of order", file=sys.stderr, flush=True)
        os.abort()
    if case == "hang":
        import faulthandler, time
        faulthandler.dump_traceback_later(0.1, exit=True)
        time.sleep(3600)
    xla = os.environ.get("XLA_FLAGS", "")
    write(end=case, ways=[], flags=sys.argv[4:6], xla=xla, process=os.getpid())
"""


@pytest.fixture
def collect(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(evidence_collect, "PROGRAM", program)
    environment = {**os.environ, "PYTHONPATH": PATHS, "EVIDENCE_FOLDER": str(tmp_path)}

    def run(*cases, flags=(), limit_s=600.0):
        return evidence_collect.collect_cases(cases, flags, environment, limit_s)

    return run


def test_cases_after_one_that_aborts_or_hangs_are_measured(collect):
    found = collect("one", "abort", "two", "hang", "three")["found"]
    assert found["abort"]["problem"] == "failed: killed by SIGABRT: LLVM ERROR: out of order"
    assert found["hang"]["problem"] == "did not end in its time"
    assert all(found[name]["ways"] == [] for name in ("one", "two", "three"))


def test_cases_that_found_no_time_are_told(collect):
    found = collect("one", "late", "two")["found"]
    assert "problem" not in found["one"]
    assert found["late"] == found["two"] == {"problem": NO_TIME}
    assert collect("one", limit_s=1.0)["found"] == {"one": {"problem": NO_TIME}}
    assert collect("late")["found"] == {"late": {"problem": NO_TIME}}


def test_a_process_that_comes_to_no_case_is_not_tried_again_and_again(collect):
    found = collect("no_start", "one")["found"]
    expected = {"problem": "failed: exit status 1: ImportError: no TensorFlow"}
    assert found == {"no_start": expected, "one": expected}


def test_cases_with_flags_of_xla_get_a_process_of_their_own_with_these(collect):
    found = collect("one", "dense_small_graphs", "abort", "dense_small_loops")["found"]
    assert found["dense_small_graphs"]["xla"] == CASES["dense_small_graphs"].xla_flags != ""
    assert found["one"]["xla"] == found["dense_small_loops"]["xla"]
    assert found["one"]["process"] != found["dense_small_graphs"]["process"]
    assert found["abort"]["problem"].startswith("failed: killed by SIGABRT")


def test_flags_reach_the_process_and_the_record(collect):
    record = collect("one", flags=("on_cpu", "quick"))
    assert (record["on_cpu"], record["quick"]) == (True, True)
    assert record["found"]["one"]["flags"] == ["--on-cpu", "--quick"]


# Within a case ------------------------------------------------------------------------------------


def make_measured(seconds, steps=10):
    """A way whose epochs take these seconds; an error where one is due."""
    told = iter(seconds)

    def train(epochs):
        value = next(told)
        if isinstance(value, Exception):
            raise value
        return [10 * value] * (epochs // 2) + [value] * (epochs - epochs // 2)

    case = SimpleNamespace(steps=steps, batch=32)
    way = SimpleNamespace(train=train, given=SimpleNamespace(case=case), describe=dict)
    return Measured(way, 4, None)


def test_ways_take_turns_and_one_that_fails_is_taken_out():
    ways = {
        "good": make_measured([0.1, 0.3, 0.2] * 3),
        "bad": make_measured([0.1, MemoryError("full\nof rows")]),
    }
    problems = take_turns(ways, Clock(60.0, 60.0))
    assert problems == {"bad": "MemoryError: full"}
    assert list(ways) == ["good"]
    assert len(ways["good"].step_s) == evidence_bench.TURNS[1]
    record = evidence_bench.to_record("good", ways["good"], [])
    assert record["step_s"] == pytest.approx(0.02)  # the later half of 10 steps, then the median
    assert record["rows_per_s"] == pytest.approx(1600)
    assert (record["busy_percent"], record["peak_bytes"]) == (None, None)


def test_turns_end_with_the_time_but_there_is_one():
    ways = {"good": make_measured([0.1] * 9)}
    assert take_turns(ways, Clock(0.0, 60.0)) == {}
    assert len(ways["good"].step_s) == 1


def test_a_case_waits_for_some_turns_until_its_patience_ends():
    clock = Clock(60.0, 90.0, began=evidence_bench.time.monotonic() - 70.0)
    assert clock.is_over()
    assert not clock.is_over(evidence_bench.PATIENCE)
    ways = {"good": make_measured([0.1] * 9)}
    take_turns(ways, clock)
    assert len(ways["good"].step_s) == evidence_bench.TURNS[0]
    assert Clock(60.0, 65.0, began=clock.began).is_over(evidence_bench.PATIENCE)


def test_the_gpu_is_busy_as_in_the_later_part_of_a_ways_own_turns():
    samples = [(1.1, 0.0), (1.6, 80.0), (1.9, 90.0), (2.6, 10.0), (3.7, 100.0), (3.8, float("nan"))]
    assert average_busy(samples, [(1.0, 2.0), (3.0, 4.0)]) == pytest.approx(90.0)
    assert average_busy(samples, [(5.0, 6.0)]) is None
    assert average_busy([], [(1.0, 2.0)]) is None


@pytest.mark.slow
@pytest.mark.tf
def test_a_case_that_cannot_be_set_up_says_why_and_the_next_goes_on(tmp_path):
    """Without a GPU, and without --on-cpu, every case fails at its device."""
    from children import run_python

    out = tmp_path / "cases.jsonl"
    program = evidence_collect.PROGRAM
    child = run_python(
        str(program), str(out), "--quick", "dense_small", "embedding", CUDA_VISIBLE_DEVICES="-1"
    )
    assert child.returncode == 0, child.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    ended = [line for line in lines if "end" in line]
    assert [line["end"] for line in ended] == ["dense_small", "embedding"]
    for line in ended:
        assert 'NoDeviceError: There is no device "gpu"' in line["problem"]
    assert sys.executable not in out.read_text()
