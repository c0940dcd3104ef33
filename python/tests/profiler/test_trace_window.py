"""A traced window: which of its rounds counts, what it says of a step, and when it says nothing."""

from functools import partial
from pathlib import Path

import pytest
from lazy_modules import tf
from xspaces import content_of

from gpukeras.core.errors import DataError
from gpukeras.profiler.attribution import shares
from gpukeras.profiler.bottleneck import judge, split_step
from gpukeras.profiler.layer_times import ModelLayer, top_ops
from gpukeras.profiler.report import PARTS
from gpukeras.profiler.trace.xplane import Activity, Step, Work
from gpukeras.profiler.trace_window import Window, choose_round, open_window, read_window


def kernel(begin_s, end_s, scope="model/dense/MatMul", kind="kernel"):
    return Work("CPU thread 1", "MatMul", kind, scope, begin_s, end_s, None, "MatMul")


def activity(**changes):
    """Two rounds of two steps, the second one quieter: 2 s of kernels in 4 s."""
    steps = [Step(n, *at) for n, at in enumerate([(0, 5), (5, 10), (10, 12), (12, 14)])]
    works = (kernel(1, 4), kernel(6, 9), kernel(10, 11), kernel(13, 14, "model/out/MatMul"))
    fields = {
        "works": works,
        "steps": tuple(steps),
        "device": "CPU",
        "devices": ("CPU",),
        "bytes": None,
    }
    return Activity(**{**fields, **changes})


def test_the_quietest_round_counts():
    assert [step.number for step in choose_round(activity(), 2).steps] == [2, 3]
    assert len(choose_round(activity(), 4).steps) == 4


def test_what_a_device_computes_after_a_call_returned_belongs_to_its_round():
    marks = [(0, 0.1), (0.2, 3), (3, 3.1), (3.2, 5)]  # the first of two calls only launches
    steps = tuple(Step(number, *at) for number, at in enumerate(marks))
    found = choose_round(activity(steps=steps, works=(kernel(0.1, 3), kernel(3.1, 5))), 2)
    assert found.windows == ((3, 3.2), (3.2, 5))
    assert shares(found).kernels_s == pytest.approx(1.9)


def test_bytes_are_those_of_a_round():
    found = choose_round(activity(bytes={"to_device": 100, "to_host": 8}), 2)
    assert found.bytes == {"to_device": 50, "to_host": 4}


def test_a_window_is_scaled_to_an_untraced_step():
    window = open_window(activity(), "CPU:0", 2, 2)
    assert window.shares.kernels_s == pytest.approx(2)
    layers = [ModelLayer("dense", "Dense", "model/dense"), ModelLayer("out", "Dense", "model/out")]
    rows = window.list_layers(layers, kernels_s=0.1)
    assert sum(row.total_s for row in rows) == pytest.approx(0.1)
    assert [row.layer for row in rows[:2]] == ["dense", "out"]
    ops = window.list_ops(partial(top_ops, layers=layers), kernels_s=0.1)
    assert sum(op.total_s for op in ops) == pytest.approx(0.1)
    assert {op.count for op in ops} == {1}
    bars = window.draw_timeline()
    assert max(bar.end_s for bar in bars) <= 4


def test_a_timeline_shows_two_steps():
    works = (*activity().works, kernel(11.9, 12.5))
    window = open_window(activity(works=works), "CPU:0", 20, 2)  # 20 steps in 4 s, from 10 s on
    bars = window.draw_timeline()  # of 11.8 to 12.2 s
    assert [(bar.begin_s, bar.end_s) for bar in bars] == [pytest.approx((0.1, 0.4))]


def test_what_is_sent_for_each_step_counts_as_bytes_to_the_device():
    copied = {"to_device": 80, "to_host": 16}
    window = open_window(activity(bytes=copied), "CPU:0", 2, 2)
    assert window.count_bytes(sent=1000) == {"to_device": 1020, "to_host": 4}
    assert open_window(activity(), "CPU:0", 2, 2).count_bytes(sent=1000) is None


def test_a_tracer_that_slows_steps_down_is_told():
    window = open_window(activity(notes=("The trace was cut.",)), "CPU:0", 2, 2)
    assert window.explain(step_s=2.0) == ("The trace was cut.",)
    assert "2.0 times as long" in window.explain(step_s=1.0)[1]


@pytest.mark.parametrize(
    ("changes", "device", "calls", "why"),
    [
        ({"error": "CUPTI may not be used"}, "GPU:0", 2, "CUPTI may not be used"),
        ({}, "GPU:0", 2, "the trace shows no work of GPU:0"),
        ({"steps": ()}, "CPU:0", 2, "does not hold the steps"),
        ({}, "CPU:0", 3, "does not hold the steps"),
        ({"works": ()}, "CPU:0", 2, "no kernels"),
        ({"works": (kernel(20, 21),)}, "CPU:0", 2, "no kernels"),
    ],
)
def test_a_trace_that_does_not_tell_gives_no_verdict(changes, device, calls, why):
    window = open_window(activity(**changes), device, 2, calls)
    assert why in window.unread
    assert window.list_layers([], 0.0) == window.list_ops(top_ops, 0.0) == ()
    assert window.draw_timeline() == window.explain(1.0) == ()
    assert window.count_bytes(1) is None
    assert judge(split_step(1.0, 0.1, window.shares, 2), window.unread).verdict == "undetermined"


class Recorded:
    """Stands for a bench: leaves a given trace in the folder, or fails as a profiler may."""

    def __init__(self, content=b"", error=None):
        self.content, self.error = content, error

    def trace(self, folder, steps):
        if self.error:
            raise self.error
        if self.content is not None:
            (Path(folder) / "host.xplane.pb").write_bytes(self.content)
        return 1


@pytest.mark.tf
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"not a trace at all",
        pytest.param(content_of("v100x8")[:5000], id="truncated"),
    ],
)
def test_a_missing_or_damaged_trace_is_undetermined_never_wrong(content, tmp_path):
    window = read_window(Recorded(content), str(tmp_path), "CPU:0", 5)
    assert window.activity is None
    assert window.unread
    assert not window.unread.endswith(".")
    parts = split_step(1.0, 0.1, window.shares, 5)
    assert parts == {**dict.fromkeys(PARTS), "input": 0.1}
    assert judge(parts, window.unread).verdict == "undetermined"


@pytest.mark.tf
def test_a_trace_of_before_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "old.xplane.pb").write_bytes(content_of("v100x8"))
    window = read_window(Recorded(None), str(tmp_path), "GPU:0", 5)
    assert window.unread == "the profiler wrote no trace"


@pytest.mark.tf
def test_a_profiler_that_fails_is_undetermined_too(tmp_path):
    for error in (
        DataError("The folder holds nothing."),
        PermissionError(13, "Permission denied"),
        tf.errors.AlreadyExistsError(None, None, "Another profiler is running."),
    ):
        window = read_window(Recorded(error=error), str(tmp_path), "CPU:0", 5)
        assert window == Window(None, None, window.unread, 5)
        assert window.unread.endswith(("nothing", "Permission denied", "is running"))


@pytest.mark.tf
def test_running_out_of_memory_is_no_matter_of_the_trace(tmp_path):
    error = tf.errors.ResourceExhaustedError(None, None, "OOM")
    with pytest.raises(tf.errors.ResourceExhaustedError):
        read_window(Recorded(error=error), str(tmp_path), "CPU:0", 5)
