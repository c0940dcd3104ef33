"""What `make gpu-evidence` does without a GPU, and how it tells what it found with one."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import evidence_cases
import evidence_collect
import evidence_questions
import evidence_table
import gpu_evidence
import pytest
from children import PATHS, needs_no_gpu, run_python
from computers import make_computer
from evidence_bench import average_busy
from evidence_cases import CASES, QUESTIONS, allot, choose_cases, limit_case, share_time
from evidence_questions import ARRAYS, BARE, LIMIT, NO_TIME, PIPELINE, STEPS
from evidence_steps import without_field

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


# Cases, time and tables --------------------------------------------------------------------------


def test_every_question_has_its_cases_and_all_that_was_promised_is_asked():
    assert {name for question in QUESTIONS for name in question.cases} == set(CASES)
    assert all(one.base in one.cases or not one.base for one in QUESTIONS)
    for question in QUESTIONS:
        assert len({CASES[name].title for name in question.cases}) == len(question.cases)
    cases = CASES.values()
    assert {place for case in cases for place in case.places} == {"auto", "host", "disk"}
    assert {case.precision for case in cases} == {"float32", "mixed_float16", "mixed_bfloat16"}
    assert {case.tf32 for case in cases if case.precision == "float32"} == {True, False}
    models = {case.model for case in cases}
    assert models == {
        "dense_small",
        "dense_large",
        "convolutional",
        "embedding",
        "recurrent",
        "unrolled",
    }
    on_jax = {case.name for case in choose_cases(backend="jax")}
    assert set(CASES) - on_jax == {
        f"{model}_{how}" for model in ("dense_small", "convolutional") for how in ("xla", "no_xla")
    }
    assert [case.name for case in choose_cases("^embedding$")] == ["embedding"]
    quick = choose_cases(quick=True)
    assert all(case.rows <= 8 * 1024 and case.title.endswith(", tiny") for case in quick)


def test_time_is_shared_by_weight_and_a_step_leaves_the_later_ones_theirs():
    assert allot(570, 200, [60, 300]) == 200
    assert allot(370, 200, [60, 300]) == 10
    assert allot(100, 200, [60, 300]) == 0
    assert share_time(100.0, [1.0, 1.0, 2.0], 0.0) == 25.0
    assert share_time(100.0, [1.0] * 10, 20.0) == 20.0
    assert share_time(15.0, [1.0], 20.0) == 15.0
    assert [limit_case(*given) for given in ((100.0, 10.0), (12.0, 10.0), (0.0, 0.0))] == [
        30,
        12,
        1,
    ]


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
    write(end=case, ways=[], flags=sys.argv[4:6], xla=os.environ.get("XLA_FLAGS", ""))
"""


def test_cases_after_one_that_aborts_hangs_or_finds_no_time_are_told(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(evidence_collect, "PROGRAM", program)
    environment = {**os.environ, "PYTHONPATH": PATHS, "EVIDENCE_FOLDER": str(tmp_path)}

    def collect(*cases, flags=(), limit_s=600.0):
        return evidence_collect.collect_cases(cases, flags, environment, limit_s)

    graphs = "dense_small_graphs"
    record = collect("one", "abort", graphs, "hang", "three", "late", flags=("on_cpu", "quick"))
    found = record["found"]
    assert (record["on_cpu"], record["quick"]) == (True, True)
    assert found["abort"]["problem"] == "failed: killed by SIGABRT: LLVM ERROR: out of order"
    assert found["hang"]["problem"] == "did not end in its time"
    assert found["late"] == {"problem": NO_TIME}
    assert all(found[name]["flags"] == ["--on-cpu", "--quick"] for name in ("one", "three"))
    assert found[graphs]["xla"] == CASES[graphs].xla_flags != found["one"]["xla"]
    assert collect("one", limit_s=1.0)["found"] == {"one": {"problem": NO_TIME}}
    expected = {"problem": "failed: exit status 1: ImportError: no TensorFlow"}
    assert collect("no_start", "one")["found"] == {"no_start": expected, "one": expected}


def test_the_gpu_is_busy_as_in_the_later_part_of_a_ways_own_turns():
    samples = [(1.1, 0.0), (1.6, 80.0), (1.9, 90.0), (2.6, 10.0), (3.7, 100.0), (3.8, float("nan"))]
    assert average_busy(samples, [(1.0, 2.0), (3.0, 4.0)]) == pytest.approx(90.0)
    assert average_busy(samples, [(5.0, 6.0)]) is None


def make_way(way, step_s, **more):
    return {"way": way, "step_s": step_s, "rows_per_s": 256 / step_s, **more}


OURS = make_way(
    "gpukeras",
    0.001,
    busy_percent=93.4,
    peak_bytes=50 * 2**20,
    mode="resident",
    mode_reason="10.0 MiB fit in half of 1,000 MiB free on GPU:0",
    engine="compiled",
    engine_reason="measured fastest: 900 us a batch",
    precision="float32",
    trained_on="GPU:0",
)
KERAS = make_way(ARRAYS, 0.004, busy_percent=20.0, peak_bytes=2**20)
FOUND = {
    "dense_small": {"ways": [KERAS, make_way(PIPELINE, 0.002), OURS, make_way(LIMIT, 0.0008)]},
    "dense_large": {"ways": [{"way": ARRAYS, "problem": "ResourceExhaustedError: a | b"}]},
    "dense_large_float32": {"ways": [make_way(ARRAYS, 0.008)]},
    "dense_large_bfloat16": {"ways": [make_way(ARRAYS, 0.002)]},
    "embedding": {"problem": NO_TIME},
    "convolutional": {"problem": "failed: killed by SIGABRT"},
}


def table(text, title):
    part = text.split(f"## {title}\n")[1].split("\n\n##")[0]
    return [line for line in part.splitlines() if line.startswith("|")]


def test_tables_compare_each_way_and_say_what_went_wrong():
    text = evidence_questions.format_questions({"found": FOUND})
    lines = table(text, "Where the data lives")
    assert lines[0].startswith("| case | way | ms a step | rows/s | times Keras, arrays |")
    same = "| dense small, batch 256 |"
    assert lines[2:] == [
        f"{same} Keras, arrays | 4.000 | 64,000 | 1.00 | 0.50 | 20 % | 20 % | 1 MiB |",
        f"{same} Keras, tf.data | 2.000 | 128,000 | 2.00 | 1.00 | 40 % | - | - |",
        f"{same} gpukeras | 1.000 | 256,000 | 4.00 | 2.00 | 80 % | 93 % | 50 MiB |",
        f"{same} limit: step alone | 0.800 | 320,000 | 5.00 | 2.50 | 100 % | - | - |",
    ]
    lines = table(text, "Precision")
    assert lines[0].endswith("| times dense large, float32 in full |")
    assert [lines[place].split("|")[-2].strip() for place in (2, -1)] == ["1.00", "4.00"]
    sizes = "\n".join(table(text, "Model size"))
    assert "float32 as TF32 | Keras, arrays | ResourceExhaustedError: a / b |" in sizes
    assert "| convolutional, batch 256 |  | failed: killed by SIGABRT |" in sizes
    assert "| embedding, batch 1024 |  | not run: no time left |" in sizes
    assert text.endswith(
        "- dense small, batch 256, gpukeras: rows resident (10.0 MiB fit in half of 1,000 MiB free "
        "on GPU:0); engine compiled (measured fastest: 900 us a batch); float32 on GPU:0."
    )
    assert evidence_questions.count_cases({"found": FOUND}) == (
        "4 of 6 cases measured, 1 of them in part, 1 failed, 1 not run"
    )
    ways = [KERAS, make_way(STEPS, 0.002, steps=32), OURS]
    jax = {"backend": "jax", "found": {"dense_small": {"ways": ways}}}
    lines = table(evidence_questions.format_questions(jax), "Where the data lives")
    assert f"| times {ARRAYS} | times {STEPS} |" in lines[0]
    assert f"| {STEPS}: 32 | 2.000 | 128,000 | 2.00 | 1.00 |" in lines[3]
    marked = evidence_questions.format_questions({"found": FOUND, "on_cpu": True, "quick": True})
    headings = [line for line in marked.splitlines() if line.startswith("## ")]
    assert all("(CPU: not evidence of a GPU)" in line for line in headings[:-1])


def test_names_of_computers_are_left_out_of_a_trace():
    # As Protobuf writes fields 1 (a varint above 127), 4 twice, 2 (8 bytes), 3 (4), 5 (a text).
    number, host, text = b"\x08\x96\x01", b"\x22\x05node7", b"\x2a\x03abc"
    double, single = b"\x11" + bytes(8), b"\x1d" + bytes(4)
    kept = number + double + single + text
    assert without_field(host + number + double + host + single + text, 4) == kept
    assert without_field(b"", 4) == b""
    for cut in (host[:-1], b"\x08\x96", b"\x0b", double[:-1]):
        with pytest.raises(ValueError, match="Protobuf message"):
            without_field(cut, 4)


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


@pytest.mark.tf
@pytest.mark.parametrize(("peak", "added"), [(9.0, 4.0), (7.0, None)])
def test_memory_of_a_case_is_what_rose_above_the_peak_before_it(monkeypatch, peak, added):
    import evidence_ways

    monkeypatch.setattr(evidence_ways.runtime, "memory_info", lambda device: {"peak": peak})
    assert evidence_ways.added_memory((5.0, 7.0), "GPU:0") == added
    assert evidence_ways.added_memory(evidence_ways.hold_memory("CPU:0"), "CPU:0") is None
