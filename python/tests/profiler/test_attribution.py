"""Time that is divided sums to time that passed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.profiler.attribution import attribute_windows, shares
from gpukeras.profiler.trace.activity import Activity, Step, Work
from gpukeras.profiler.trace.events import measure_union

moments = st.integers(0, 40)
kinds = st.sampled_from(["kernel", "transfer", "host"])


@st.composite
def works(draw):
    begin = draw(moments)
    end = begin + draw(st.integers(0, 15))
    return Work(
        draw(st.sampled_from("ab")), draw(st.sampled_from("xyz")), draw(kinds), "", begin, end
    )


@st.composite
def windows(draw):
    edges = sorted(draw(st.lists(moments, min_size=2, max_size=8, unique=True)))
    return list(zip(edges[::2], edges[1::2], strict=False))


def name_of(one):
    return one.name


def work(name, begin, end, kind="kernel", lane="CPU 1"):
    return Work(lane, name, kind, "", begin, end)


def covered(some, window_list):
    """The union by brute force: every whole second on its own."""
    inside = [second for begin, end in window_list for second in range(begin, end)]
    return sum(any(w.begin_s <= s < w.end_s for w in some) for s in inside)


@pytest.mark.parametrize(
    ("given_works", "expected"),
    [
        ([], {}),
        ([("a", 0, 4)], {"a": 4}),
        ([("a", 0, 4), ("b", 2, 4)], {"a": 3, "b": 1}),
        ([("a", 0, 6), ("b", 0, 6), ("c", 3, 6)], {"a": 2.5, "b": 2.5, "c": 1}),
        ([("a", 0, 4), ("a", 0, 4), ("b", 0, 4)], {"a": 8 / 3, "b": 4 / 3}),
        ([("a", 8, 30)], {"a": 2}),
        ([("a", -5, 1), ("b", 10, 12)], {"a": 1}),
        ([("a", 3, 3)], {}),
    ],
)
def test_every_moment_is_divided_equally(given_works, expected):
    found = attribute_windows([work(*one) for one in given_works], [(0, 10)], name_of)
    assert found == pytest.approx(expected)


def test_works_count_for_what_the_key_says():
    both = [work("a", 0, 4), work("b", 2, 4, lane="CPU 2")]
    assert attribute_windows(both, [(0, 10)], lambda one: one.lane) == {"CPU 1": 3, "CPU 2": 1}


@pytest.mark.costly
@settings(max_examples=150)
@given(st.lists(works(), max_size=12), windows())
def test_the_parts_sum_to_the_union_within_the_windows(some, window_list):
    found = attribute_windows(some, window_list, name_of)
    assert sum(found.values()) == pytest.approx(covered(some, window_list))
    assert sum(found.values()) <= sum(end - begin for begin, end in window_list) + 1e-9
    assert min(found.values(), default=1) > 0


@pytest.mark.costly
@settings(max_examples=100)
@given(st.lists(works(), max_size=12))
def test_the_cover_is_the_union(some):
    found = measure_union((one.begin_s, one.end_s) for one in some)
    assert found == covered(some, [(0, 60)])


# Shares ------------------------------------------------------------------------------------------


def test_kernels_come_before_transfers_and_those_before_the_host():
    some = [
        work("call", 0, 8, "host"),
        work("copy", 1, 5, "transfer"),
        work("kernel", 2, 4),
        work("kernel", 3, 4),
    ]
    found = shares(Activity(tuple(some), (Step(0, 0, 10),), "GPU:0", ("GPU:0",)))
    parts = (found.kernels_s, found.transfers_s, found.host_s, found.idle_s)
    assert parts == (2, 2, 4, 2)
    assert (found.wall_s, found.steps) == (10, 1)


def test_only_the_steps_count_unless_all_is_asked_for():
    steps = (Step(0, 0, 2), Step(1, 6, 8))
    activity = Activity((work("a", 1, 7),), steps, "CPU", ("CPU",))
    inside, all_of_it = shares(activity), shares(activity, steps=False)
    assert (inside.wall_s, inside.kernels_s, inside.idle_s) == (4, 2, 2)
    assert (all_of_it.wall_s, all_of_it.kernels_s, all_of_it.idle_s) == (8, 6, 2)


def test_without_marks_the_device_s_own_work_is_the_window():
    some = (work("early call", 0, 2, "host"), work("a", 4, 5), work("b", 7, 8))
    found = shares(Activity(some, (), "GPU:0", ("GPU:0",)))
    assert (found.wall_s, found.kernels_s, found.steps) == (4, 2, 0)


@pytest.mark.costly
@settings(max_examples=100)
@given(st.lists(works(), max_size=12), windows())
def test_the_shares_sum_to_the_wall_time(some, window_list):
    steps = tuple(Step(n, begin, end) for n, (begin, end) in enumerate(window_list))
    found = shares(Activity(tuple(some), steps, "CPU", ("CPU",)))
    parts = (found.kernels_s, found.transfers_s, found.host_s, found.idle_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(found.wall_s)
