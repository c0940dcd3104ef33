"""The tables of `make gpu-evidence`: what was measured, what failed, what found no time."""

import evidence_questions
from evidence_questions import ARRAYS, LIMIT, NO_TIME, PIPELINE, STEPS


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
WAYS = [
    make_way(ARRAYS, 0.004, busy_percent=20.0, peak_bytes=2**20),
    make_way(PIPELINE, 0.002),
    OURS,
    make_way(LIMIT, 0.0008),
]
CASES = {
    "found": {
        "dense_small": {"ways": WAYS},
        "dense_large": {"ways": [{"way": ARRAYS, "problem": "ResourceExhaustedError: a | b"}]},
        "dense_large_float32": {"ways": [make_way(ARRAYS, 0.008)]},
        "dense_large_bfloat16": {"ways": [make_way(ARRAYS, 0.002)]},
        "embedding": {"problem": NO_TIME},
        "convolutional": {"problem": "failed: killed by SIGABRT"},
    }
}


def table(cases, title):
    text = evidence_questions.format_questions(cases)
    part = text.split(f"## {title}")[1].split("\n\n##")[0]
    return [line for line in part.splitlines() if line.startswith("|")]


def test_a_table_compares_each_way_with_keras_and_with_the_limit():
    lines = table(CASES, "Where the data lives\n")
    assert lines[0].startswith("| case | way | ms a step | rows/s | times Keras, arrays |")
    same = "| dense small, batch 256 |"
    assert lines[2:] == [
        f"{same} Keras, arrays | 4.000 | 64,000 | 1.00 | 0.50 | 20 % | 20 % | 1 MiB |",
        f"{same} Keras, tf.data | 2.000 | 128,000 | 2.00 | 1.00 | 40 % | - | - |",
        f"{same} gpukeras | 1.000 | 256,000 | 4.00 | 2.00 | 80 % | 93 % | 50 MiB |",
        f"{same} limit: step alone | 0.800 | 320,000 | 5.00 | 2.50 | 100 % | - | - |",
    ]


def test_on_jax_keras_with_its_best_steps_is_compared_with():
    ways = [make_way(ARRAYS, 0.004), make_way(STEPS, 0.002, steps=32), OURS]
    lines = table(
        {"backend": "jax", "found": {"dense_small": {"ways": ways}}}, "Where the data lives\n"
    )
    assert f"| times {ARRAYS} | times {STEPS} |" in lines[0]
    assert f"| {STEPS}: 32 | 2.000 | 128,000 | 2.00 | 1.00 |" in lines[3]
    assert "| gpukeras | 1.000 | 256,000 | 4.00 | 2.00 |" in lines[4]


def test_a_question_with_a_base_tells_the_same_way_there():
    lines = table(CASES, "Precision\n")
    assert lines[0].endswith("| times dense large, float32 in full |")
    assert lines[2].endswith("| 1.00 |")
    assert lines[-1].endswith("| 4.00 |")


def test_what_went_wrong_stands_where_the_figures_would_be():
    lines = table(CASES, "Model size\n")
    assert "| dense large, float32 as TF32 | Keras, arrays | ResourceExhaustedError: a / b |" in (
        "\n".join(lines)
    )
    assert "| convolutional, batch 256 |  | failed: killed by SIGABRT |" in "\n".join(lines)
    assert "| embedding, batch 1024 |  | not run: no time left |" in "\n".join(lines)
    assert len({line.count("|") for line in lines}) == 1


def test_questions_without_cases_are_left_out():
    text = evidence_questions.format_questions({"found": {"embedding": {"problem": NO_TIME}}})
    assert text.count("\n## Model size\n") == 1
    assert "## Precision" not in text
    assert evidence_questions.format_questions({}) == ""


def test_the_reasons_of_the_plan_and_of_the_engine_are_told():
    text = evidence_questions.format_questions(CASES)
    assert text.endswith(
        "- dense small, batch 256, gpukeras: rows resident (10.0 MiB fit in half of 1,000 MiB free "
        "on GPU:0); engine compiled (measured fastest: 900 us a batch); float32 on GPU:0."
    )


def test_what_a_cpu_did_is_marked_in_every_table():
    text = evidence_questions.format_questions({**CASES, "on_cpu": True, "quick": True})
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert all("(CPU: not evidence of a GPU)" in line for line in headings[:-1])
    assert headings[-1] == "## Why gpukeras chose so"
    assert "dense small, batch 16, tiny" in text


def test_cases_are_counted():
    assert evidence_questions.count_cases(CASES) == (
        "4 of 6 cases measured, 1 of them in part, 1 failed, 1 not run"
    )
    assert evidence_questions.count_cases({}) == "not run"
    assert evidence_questions.count_cases({"problem": "no time was left"}) == "no time was left"
