"""Calls that are no training tell how far they are, and end when they are asked to."""

import numpy as np
import pytest
from explained_frames import FRAME, fit_frame
from streamed import slices, tfdata

from gpukeras.core import progress
from gpukeras.explain.effects import measure_effects
from gpukeras.explain.gradients import attribute
from gpukeras.explain.permutation import measure_importance
from gpukeras.training import evaluate, predict

pytestmark = pytest.mark.tf

FEATURES = {"kind": "columns", "columns": FRAME}

CALLS = {
    "predict": (lambda model, data, told: predict.predict(model, data=data, on_event=told), 60),
    "predict new rows": (
        lambda model, data, told: predict.predict(model, FEATURES, on_event=told),
        60,
    ),
    "evaluate": (lambda model, data, told: evaluate.evaluate(model, data, on_event=told), 60),
    "importance": (
        lambda model, data, told: measure_importance(model, data, repeats=3, on_event=told),
        1 + 4 * 3,
    ),
    "effects": (
        lambda model, data, told: measure_effects(model, data, on_event=told),
        4,
    ),
    "attribute": (lambda model, data, told: attribute(model, data=data, on_event=told), 60),
}


@pytest.fixture(scope="module")
def fitted():
    return fit_frame()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "EVENT_S", -1.0)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_tells_its_steps_up_to_the_last(name, fitted, at_once):
    call, steps = CALLS[name]
    events = []
    call(*fitted, events.append)
    assert [event["steps"] for event in events] == [steps] * len(events)
    done = [event["step"] for event in events]
    assert done == sorted(done)
    assert done[-1] == steps


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_where_the_listener_says_so_and_another_is_as_before(name, fitted, at_once):
    call, _ = CALLS[name]
    before = predict.predict(fitted[0], data=fitted[1])["values"]
    with pytest.raises(KeyboardInterrupt):
        call(*fitted, lambda event: True)
    np.testing.assert_array_equal(predict.predict(fitted[0], data=fitted[1])["values"], before)


def test_rows_in_sequence_have_no_number_of_steps(at_once):
    import keras

    rows = np.zeros((70, 2), np.float32)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    events = []
    data = tfdata(slices(rows, np.zeros(70)).batch(16))
    predict.predict(model, data=data, on_event=events.append)
    assert {event["steps"] for event in events} == {None}
    assert events[-1]["step"] == 70


def test_a_short_call_tells_nothing(fitted):
    events = []
    call = progress.CallProgress(events.append, 3)
    call.reach(3)
    assert not events
