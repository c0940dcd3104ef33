"""What `make gpu-evidence` does without a GPU, and how it tells what it found with one."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import evidence_cases
import evidence_table
import gpu_evidence
import pytest
from children import needs_no_gpu, run_python
from computers import make_computer
from evidence_questions import ARRAYS, BARE, LIMIT, STEPS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
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
    "cases": {
        "problem": "",
        "found": {
            "dense_small": {"ways": [{"way": "gpukeras", "step_s": 0.001, "rows_per_s": 256_000}]},
            "dense_large": {"problem": "not run: no time left"},
        },
    },
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
        "| measurements | 1 of 2 cases measured, 1 not run |",
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
        ("tests", "== 4 passed in 1 s ==\n", {"summary": "4 passed in 1 s"}),
        ("tests", "", {"summary": "no output"}),
        (
            "tests",
            "FAILED a.py::b - no\n1 failed in 1 s",
            {"summary": "1 failed in 1 s", "failed": ["FAILED a.py::b - no"]},
        ),
    ],
)
def test_a_steps_answer_is_read_whatever_it_printed(name, stdout, record):
    end = {"problem": "", "stdout": stdout, "stderr": "said"}
    expected = {"seconds": 1.0, "problem": "", **record}
    assert gpu_evidence.read_step(name, end, 1.04) == expected


def test_a_step_is_a_process_of_its_own_whose_answer_is_read(monkeypatch):
    script = "import os; print('{\"backend\": \"' + os.environ['KERAS_BACKEND'] + '\"}')"
    monkeypatch.setattr(gpu_evidence, "list_arguments", lambda name, backend: ("-c", script))
    options = gpu_evidence.read_options(["--on-cpu", "--backend", "jax"])
    environment = gpu_evidence.make_environment("folder", True, "jax")
    record = gpu_evidence.run_step("use", options, environment, 60.0)
    assert record.keys() == {"seconds", "problem", "backend"}
    assert (record["problem"], record["backend"]) == ("", "jax")


def test_the_other_backends_tests_are_left_out():
    assert "gpu and not jax" in gpu_evidence.list_arguments("tests")
    assert "gpu and not tf" in gpu_evidence.list_arguments("tests", "jax")


def test_facts_are_written_apart_and_without_names(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gpukeras.diagnostics.check.read_names",
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


def test_facts_of_a_cpu_are_not_kept_as_those_of_a_healthy_gpu(tmp_path):
    results = {"on_cpu": True, "check": {"verdict": "NOT USED", "facts": {"host": "any"}}}
    gpu_evidence.write_results(results, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]


def test_tests_that_were_ended_still_tell_what_passed():
    stdout = (
        "a.py::one PASSED [ 25%]\na.py::two FAILED [ 50%]\na.py::three PASSED [ 75%]\na.py::four"
    )
    found = gpu_evidence.read_tests(stdout, "did not end within 150 s")
    assert found == {
        "summary": "did not end within 150 s; 2 had passed",
        "failed": ["a.py::two FAILED [ 50%]"],
    }
    text = evidence_table.format_table({"tests": found})
    assert "| tests on the GPU | did not end within 150 s; 2 had passed |" in text
    assert "| failed test | a.py::two FAILED [ 50%] |" in text


def test_the_steps_fit_into_ten_minutes():
    assert gpu_evidence.BUDGET_S < 600
    kept = [least for _, least in gpu_evidence.STEPS.values()]
    assert sum(kept) <= gpu_evidence.BUDGET_S
    assert all(least <= limit for limit, least in gpu_evidence.STEPS.values())


@pytest.mark.parametrize("used", [0.0, 0.5, 1.0])
def test_every_step_gets_what_is_kept_for_it_whatever_the_others_take(used):
    steps = list(gpu_evidence.STEPS.values())
    left = gpu_evidence.BUDGET_S
    for place, (limit, least) in enumerate(steps):
        given = evidence_cases.allot(left, limit, [kept for _, kept in steps[place + 1 :]])
        assert least <= given <= limit
        left -= used * given
    assert left >= 0


def test_the_tests_that_need_a_gpu_are_found_and_no_others():
    files = [Path(file).name for file in gpu_evidence.find_gpu_tests()]
    assert "test_on_a_gpu.py" in files
    assert "test_devices.py" in files
    assert "test_specs.py" not in files


def test_evidence_of_a_gpu_has_a_place_and_that_of_a_cpu_only_where_it_was_asked_for(tmp_path):
    read = gpu_evidence.read_options
    assert read([]).out == BENCHMARKS / "evidence"
    assert read(["--on-cpu"]).out is None
    assert read(["--on-cpu", "--out", str(tmp_path)]).out == tmp_path
    assert read(["--backend", "jax"]).out == BENCHMARKS / "evidence" / "jax"
    hidden = gpu_evidence.make_environment("folder", True, "jax")
    assert (hidden["CUDA_VISIBLE_DEVICES"], hidden["JAX_PLATFORMS"]) == ("-1", "cpu")
    assert gpu_evidence.make_environment("folder", True)["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_budget_that_is_used_up_starts_nothing(tmp_path):
    options = gpu_evidence.read_options(["--on-cpu", "--seconds", "5", "--steps", "use", "cases"])
    results = gpu_evidence.collect(options)
    assert results["use"] == results["cases"] == {"problem": "no time was left"}
    text = evidence_table.format_results(results)
    assert text.startswith("# CPU: not evidence of a GPU\n\n| what | result |")
    assert text.endswith("| measurements | no time was left |")


@pytest.mark.slow
@pytest.mark.tf
def test_the_whole_way_goes_on_a_cpu_and_says_that_it_is_no_evidence(tmp_path):
    arguments = ("--on-cpu", "--quick", "--steps", "cases", "--only", "^dense_small_no_xla$")
    child = run_python(
        str(BENCHMARKS / "gpu_evidence.py"), *arguments, "--seconds", "250", "--out", str(tmp_path)
    )
    assert child.returncode == 0, child.stderr
    cases = json.loads((tmp_path / "results.json").read_text())["cases"]
    record = cases["found"]["dense_small_no_xla"]
    assert (cases["on_cpu"], record["device"]) == (True, "CPU:0")
    ways = {way["way"]: way for way in record["ways"]}
    assert list(ways) == ["Keras, arrays", "Keras, tf.data", "gpukeras", "limit: step alone"]
    for way in ways.values():
        assert "problem" not in way
        assert way["step_s"] > 0
        assert len(way["turns_s"]) >= 3
        assert way["busy_percent"] is way["peak_bytes"] is None
    assert (ways["gpukeras"]["engine"], ways["gpukeras"]["trained_on"]) == ("graph_loop", "CPU:0")
    text = (tmp_path / "results.md").read_text()
    assert child.stdout.strip() == text.strip()
    assert text.startswith("# CPU: not evidence of a GPU\n")
    assert "## XLA (CPU: not evidence of a GPU)" in text
    assert "1 of 1 cases measured (CPU: not evidence of a GPU)" in text


@pytest.mark.nightly
@pytest.mark.jax
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_the_whole_way_goes_on_jax_without_tensorflow(tmp_path):
    blocked = tmp_path / "blocked" / "tensorflow"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('TensorFlow is not to be used')\n")
    only = ("--steps", "cases", "--only", "^dense_small_32$", "--seconds", "250")
    environment = gpu_evidence.make_environment(str(tmp_path), True, "jax")
    paths = os.pathsep.join([str(blocked.parent), environment["PYTHONPATH"]])
    program = (
        f"import gpu_evidence, sys; gpu_evidence.CORE = {paths!r}; sys.exit(gpu_evidence.main())"
    )
    arguments = ("--on-cpu", "--quick", "--backend", "jax", *only, "--out", str(tmp_path))
    child = run_python("-c", program, *arguments, PYTHONPATH=paths)
    assert child.returncode == 0, child.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["backend"] == results["cases"]["backend"] == "jax"
    ways = {way["way"]: way for way in results["cases"]["found"]["dense_small_32"]["ways"]}
    assert set(ways) == {ARRAYS, STEPS, "gpukeras", LIMIT, BARE}
    for way in ways.values():
        assert "problem" not in way, way
        assert way["step_s"] > 0
    best = ways[STEPS]
    assert str(best["steps"]) in best["searched"]
    text = (tmp_path / "results.md").read_text()
    assert text.startswith("# CPU: not evidence of a GPU\n")
    assert f"| times {STEPS} |" in text
    assert f"| {STEPS}: {best['steps']} |" in text
