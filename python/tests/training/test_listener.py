import pytest

from gpukeras.training import listener as training_listener
from gpukeras.training.listener import ProgressReporter


def test_an_event_says_how_far_the_training_is():
    seen = []
    listener = ProgressReporter(seen.append, epochs=3)
    assert not listener.emit("progress", 2, 5, None, {"loss": 0.5})
    assert seen == [
        {
            "kind": "progress",
            "epoch": 2,
            "epochs": 3,
            "step": 5,
            "steps": None,
            "metrics": {"loss": 0.5},
        }
    ]


@pytest.mark.parametrize(
    ("answer", "ends"), [(True, True), (False, False), (None, False), (1, False)]
)
def test_only_true_ends_a_training(answer, ends):
    listener = ProgressReporter(lambda event: answer, 1)
    assert listener.emit("progress", 1, 1, 2, {}) is ends
    assert listener.stopped is ends


def test_an_end_that_was_asked_for_stays_so():
    answers = [True, False]
    listener = ProgressReporter(lambda event: answers.pop(0), 1)
    listener.emit("progress", 1, 1, 2, {})
    assert listener.emit("epoch", 1, 2, 2, {})


def test_nobody_need_listen():
    assert not ProgressReporter(None, 1).emit("epoch", 1, 2, 2, {})


def test_events_are_due_now_and_then(monkeypatch):
    listener = ProgressReporter(None, 1)
    assert listener.due
    monkeypatch.setattr(training_listener, "EVENT_S", 60.0)
    listener.emit("progress", 1, 1, 2, {})
    assert not listener.due
    monkeypatch.setattr(training_listener, "EVENT_S", 0.0)
    assert listener.due
