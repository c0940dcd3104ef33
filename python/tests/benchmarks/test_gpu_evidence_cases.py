"""Which cases `make gpu-evidence` measures, what answers which question, and who gets what time."""

from dataclasses import replace

import evidence_cases
import evidence_models
import numpy as np
import pytest
from evidence_cases import CASES, LEAST_S, QUESTIONS, Case, choose_cases, share_time
from hypothesis import given
from hypothesis import strategies as st


def test_every_case_answers_a_question_and_every_question_has_its_cases():
    asked = {name for question in QUESTIONS for name in question.cases}
    assert asked == set(CASES)
    assert all(one.base in one.cases or not one.base for one in QUESTIONS)


def test_all_that_was_promised_is_asked():
    cases = CASES.values()
    assert {place for case in cases for place in case.places} == {"auto", "host", "disk"}
    assert {case.precision for case in cases} == {"float32", "mixed_float16", "mixed_bfloat16"}
    assert {case.tf32 for case in cases if case.precision == "float32"} == {True, False}
    assert {case.jit for case in cases} == {None, True, False}
    assert len({case.batch for case in cases if case.model == "dense_small"}) >= 4
    models = {case.model for case in cases}
    assert models == {"dense_small", "dense_large", "convolutional", "embedding"}


def test_cases_of_a_question_differ_in_what_it_asks():
    for question in QUESTIONS:
        cases = [CASES[name] for name in question.cases]
        assert len({case.title for case in cases}) == len(cases)
        if question.title == "Precision":
            same = {replace(case, name="", title="", precision="", tf32=True) for case in cases}
            assert len(same) == 1


def test_cases_are_chosen_by_a_pattern():
    assert [case.name for case in choose_cases("^embedding$")] == ["embedding"]
    assert choose_cases("nothing like it") == []
    assert len(choose_cases()) == len(CASES)


def test_on_jax_xla_compiles_every_case():
    names = [case.name for case in choose_cases(backend="jax")]
    assert set(CASES) - set(names) == {
        "dense_small_no_xla",
        "dense_small_xla",
        "convolutional_no_xla",
        "convolutional_xla",
    }
    assert {"dense_small_loops", "dense_small_graphs"} <= set(names)


def test_quick_cases_are_small_and_say_so():
    for case in choose_cases(quick=True):
        assert case.rows <= 8 * 1024
        assert case.title.endswith(", tiny")
        assert f"batch {case.batch}" in case.title or "batch" not in case.title
    batches = [case.batch for case in choose_cases("dense_small", True) if case.jit is None]
    assert len(set(batches)) == len(batches)


def test_numbers_of_a_case_are_checked():
    with pytest.raises(ValueError, match="odd: batch, steps and weight"):
        Case("odd", "dense_small", 0, 1, "odd")


@pytest.mark.parametrize("name", sorted({case.model for case in CASES.values()}))
def test_rows_of_every_model_have_labels_that_depend_on_them(name):
    features, labels = evidence_models.make_rows(name, 64)
    again, _ = evidence_models.make_rows(name, 64)
    assert (len(features), features.dtype) == (64, np.float32)
    np.testing.assert_array_equal(features, again)
    assert set(labels) <= set(range(evidence_models.CLASSES))
    assert len(set(labels)) > 1


# Time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "limit", "later", "given"),
    [
        (570, 200, [60, 300], 200),
        (370, 200, [60, 300], 10),
        (100, 200, [60, 300], 0),
        (9, 20, [], 9),
    ],
)
def test_a_step_leaves_the_later_ones_what_they_need(left, limit, later, given):
    assert evidence_cases.allot(left, limit, later) == given


def test_time_is_shared_by_weight():
    assert share_time(100.0, [1.0, 1.0, 2.0], 0.0) == 25.0
    assert share_time(100.0, [2.0, 1.0, 1.0], 0.0) == 50.0


def test_cases_are_measured_whole_or_not_at_all():
    assert share_time(100.0, [1.0] * 10, 20.0) == 20.0
    assert share_time(15.0, [1.0], 20.0) == 15.0
    heavy = replace(CASES["dense_small"], weight=1.5)
    assert evidence_cases.is_enough(30.0, heavy, 20.0)
    assert not evidence_cases.is_enough(29.0, heavy, 20.0)
    assert LEAST_S[True] < LEAST_S[False]


@given(
    st.floats(0, 600),
    st.lists(st.floats(0.1, 5), min_size=1, max_size=15),
    st.floats(0, 30),
)
def test_shares_never_exceed_what_is_left(left, weights, least):
    for place in range(len(weights)):
        share = share_time(left, weights[place:], least)
        assert 0 <= share <= left
        left -= share
    assert left >= -1e-6


def test_a_case_hangs_when_it_takes_many_times_its_share_or_all_there_is():
    assert evidence_cases.limit_case(100.0, 10.0) == 30.0
    assert evidence_cases.limit_case(12.0, 10.0) == 12.0
    assert evidence_cases.limit_case(0.0, 0.0) == 1.0
