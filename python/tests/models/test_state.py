import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras import ModelError
from gpukeras.models import state
from gpukeras.training import fit

pytestmark = pytest.mark.tf


def dropout():
    return [
        keras.layers.Dropout(0.5, seed=3),
        keras.layers.BatchNormalization(),
    ]


def train(model, epochs=1):
    fit.fit(model, make_dataset(), {"epochs": epochs, "engine": "graph_loop"})


def test_a_model_with_its_state_back_goes_on_as_if_nothing_had_been():
    model = make_model(optimizer="adam", layers=dropout())
    train(model)
    kept = state.take_snapshot(model)
    train(model, 2)
    expected = model.get_weights()
    state.apply_snapshot(model, kept)
    train(model, 2)
    for one, other in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {name.split("/")[0] for name in kept.arrays} >= {"weights", "optimizer", "metrics"}


@pytest.mark.varies
@pytest.mark.parametrize("engine", ["graph_loop", "compiled", "keras"])
def test_a_held_state_is_what_it_was_after_a_step_of_each_engine(engine):
    model = make_model(optimizer="adam", layers=dropout())
    train(model)
    kept, held = state.take_snapshot(model), state.hold_state(model)
    fit.fit(model, make_dataset(), {"epochs": 1, "engine": engine})
    found = state.read_held(held)
    assert found.arrays.keys() == kept.arrays.keys()
    for name, array in kept.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


@pytest.mark.slow
def test_the_state_of_another_model_changes_nothing():
    model, other = make_model(), make_model(columns=7)
    train(model)
    fit.fit(other, make_dataset(columns=7), {"epochs": 1, "engine": "keras"})
    before = model.get_weights()
    words = r"The state is that of another model: .* \(5, 8\) here and .* of shape \(7, 8\) there"
    with pytest.raises(ModelError, match=words):
        state.apply_snapshot(model, state.take_snapshot(other))
    for one, other_weight in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other_weight)


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ({"a": ((1,), "float32")}, {"a": ((1,), "float32")}, ""),
        ({"a": ((1,), "float32")}, {}, "a is float32 of shape (1,) here and missing there"),
        ({}, {"b": ((), "int64")}, "b is missing here and int64 of shape () there"),
    ],
)
def test_differences_are_told_in_words(here, there, expected):
    assert state.find_difference(here, there) == expected
