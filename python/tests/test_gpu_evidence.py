"""What `make gpu-evidence` does without a GPU, and how it tells what it found with one."""

import json
from pathlib import Path

import evidence_table
import gpu_evidence
import pytest
from children import needs_no_gpu, run_python
from computers import make_computer

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS = {
    "check": {
        "verdict": "CONFIRMED",
        "cause": None,
        "evidence": ["The profiler saw 420 kernels."],
        "findings": [{"id": "hardware", "evidence": "NVIDIA H200"}],
    },
    "use": {"problem": "did not end within 120 s"},
    "tests": {"summary": "4 passed in 20 s", "problem": ""},
    "trace": {"kernels": 900, "kernel_s": 0.0125},
    "timings": {"keras fit()": [3.0, 2.0, 4.0], "resident": [0.2, 0.1, 0.3], "problem": ""},
}


@needs_no_gpu
def test_without_a_gpu_it_says_so_writes_nothing_and_succeeds(tmp_path):
    child = run_python(str(BENCHMARKS / "gpu_evidence.py"), "--out", str(tmp_path / "out"))
    assert child.returncode == 0
    assert child.stdout == "This computer has no NVIDIA GPU: there is no evidence to collect.\n"
    assert not (tmp_path / "out").exists()


def test_a_gpu_is_told_by_its_device_nodes(tmp_path):
    assert evidence_table.has_gpu(make_computer(tmp_path / "one"))
    assert not evidence_table.has_gpu(make_computer(tmp_path / "two", gpus=0, driver=""))


def test_the_table_tells_every_step_and_what_went_wrong():
    rows = evidence_table.format_table(RESULTS).splitlines()
    assert rows == [
        "| what | result |",
        "| --- | --- |",
        "| GPU | NVIDIA H200 |",
        "| gpu_check() | CONFIRMED |",
        "| evidence | The profiler saw 420 kernels. |",
        "| gpu_check(model, data) | did not end within 120 s |",
        "| tests on the GPU | 4 passed in 20 s |",
        "| trace | 900 kernels, 12.5 ms on the GPU's streams |",
        "| epoch, keras fit() | 3.000 s, 1.0 times Keras |",
        "| epoch, resident | 0.200 s, 15.0 times Keras |",
    ]


def test_steps_that_were_not_run_are_told_too():
    text = evidence_table.format_table({"check": {"problem": "killed by SIGSEGV"}})
    assert "| gpu_check() | killed by SIGSEGV |" in text
    assert text.count("not run") == 4


@pytest.mark.parametrize(
    ("name", "stdout", "record"),
    [
        ("check", 'noise\n{"verdict": "CONFIRMED"}', {"verdict": "CONFIRMED"}),
        ("check", "no answer", {}),
        ("check", '{"verdict": ', {"problem": "no answer", "stderr": "said"}),
        ("tests", "....\n4 passed in 1 s\n", {"summary": "4 passed in 1 s"}),
        ("tests", "", {"summary": "no output"}),
    ],
)
def test_a_steps_answer_is_read_whatever_it_printed(name, stdout, record):
    end = {"seconds": 1.04, "problem": "", "stdout": stdout, "stderr": "said"}
    expected = {"seconds": 1.0, "problem": "", **record}
    assert gpu_evidence.read_step(name, end) == expected


def test_facts_are_written_apart_and_without_names(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gpukeras.diagnosis.read_names",
        lambda: {"users": ["ada"], "hosts": ["node7"], "homes": ["/home/ada"]},
    )
    facts = {"python": {"executable": "/home/ada/env/bin/python"}, "host": "node7"}
    results = {"check": {"verdict": "CONFIRMED", "facts": facts}}
    gpu_evidence.write_results(results, tmp_path)
    healthy = json.loads((tmp_path / "healthy.json").read_text())
    assert healthy == {"python": {"executable": "~/env/bin/python"}, "host": "<host>"}
    assert "facts" not in json.loads((tmp_path / "results.json").read_text())["check"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "healthy.json",
        "results.json",
        "results.md",
    ]


def test_the_steps_fit_into_ten_minutes():
    assert gpu_evidence.BUDGET_S < 600
    assert all(limit <= gpu_evidence.BUDGET_S for _, limit in gpu_evidence.STEPS.values())
