"""Bars that a plot can show, with nothing lost but detail."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.profiler.timeline import Bar, merge_bars, timeline
from gpukeras.profiler.trace.activity import Activity, Work


def activity(works):
    return Activity(tuple(works), (), "CPU", ("CPU",))


def work(name, begin, end, lane="CPU 1", kind="kernel", scope=""):
    return Work(lane, name, kind, scope, begin, end)


def test_bars_are_cut_to_the_window_and_count_from_its_begin():
    some = [work("a", 0, 4), work("b", 5, 9), work("late", 12, 13), work("c", 3, 6, "main", "host")]
    assert timeline(activity(some), 2, 8) == [
        Bar("CPU 1", "a", "kernel", 0, 2),
        Bar("CPU 1", "b", "kernel", 3, 6),
        Bar("main", "c", "host", 1, 4),
    ]


def test_a_bar_is_named_as_people_would_name_it():
    op = work("MatMul.3", 0, 1, scope="while/body/_1/while/small_1/dense_1/MatMul")
    assert timeline(activity([op]), 0, 1)[0].name == "small_1/dense_1/MatMul"


def test_short_neighbours_become_one_bar_named_after_the_longest():
    bars = [Bar("l", name, "kernel", begin, end) for name, begin, end in ROW]
    assert merge_bars(bars, 2) == [
        Bar("l", "b (+ 2)", "kernel", 0, 5),
        Bar("l", "long", "kernel", 20, 30),
        Bar("l", "far", "kernel", 40, 41),
    ]


ROW = [("a", 0, 1), ("b", 2, 4), ("c", 4.5, 5), ("long", 20, 30), ("far", 40, 41)]


def test_long_neighbours_stay_apart():
    bars = [Bar("l", "a", "kernel", 0, 10), Bar("l", "b", "kernel", 10, 20)]
    assert merge_bars(bars, 2) == bars


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 90), st.floats(0.001, 10), st.sampled_from("ab")),
        min_size=1,
        max_size=80,
    ),
    st.integers(2, 30),
)
def test_there_are_never_more_bars_than_asked_for_and_no_work_is_lost(items, most):
    works = [work("x", begin, begin + length, lane) for begin, length, lane in items]
    bars = timeline(activity(works), 0, 100, most)
    assert len(bars) <= most
    for one in works:
        middle = (one.begin_s + one.end_s) / 2
        assert any(b.lane == one.lane and b.begin_s <= middle <= b.end_s for b in bars)


@pytest.mark.parametrize("most", [1, 2, 1500])
def test_an_empty_window_has_no_bars(most):
    assert timeline(activity([work("a", 5, 6)]), 0, 1, most) == []
