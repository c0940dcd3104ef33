import threading

import pytest

from gpukeras.core import progress
from gpukeras.core.progress import count_pass, heard_by


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "EVENT_S", 0.0)


def test_a_pass_tells_the_listener_of_its_call_what_is_done():
    events = []
    with heard_by(events.append):
        items = list(count_pass(["ab", "c"], "reading", 3, len))
    assert items == ["ab", "c"]
    said = {"steps": 3, "verb": "reading", "units": "rows"}
    assert events == [{"step": 2, **said}, {"step": 3, **said}]


def test_outside_of_a_call_a_pass_tells_nobody():
    events = []
    with heard_by(events.append):
        pass
    assert list(count_pass([1, 2], "reading", None, int)) == [1, 2]
    assert not events


def test_another_thread_never_calls_the_listener():
    events, items = [], []
    with heard_by(events.append):
        reading = threading.Thread(
            target=lambda: items.extend(count_pass([1, 2], "reading", 2, int))
        )
        reading.start()
        reading.join()
    assert items == [1, 2]
    assert not events


def test_the_listener_ends_a_pass_behind_an_item():
    taken = []
    with heard_by(lambda event: event["step"] == 2), pytest.raises(KeyboardInterrupt):
        taken.extend(count_pass([1, 1, 1], "reading", 3, int))
    assert taken == [1, 1]


def test_an_error_ends_what_the_listener_hears():
    events = []
    with pytest.raises(ValueError, match="broken"), heard_by(events.append):
        raise ValueError("broken")
    list(count_pass([1], "reading", 1, int))
    assert not events
