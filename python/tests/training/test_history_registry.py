"""A training's record out of a file: kept, or left out with a reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.training import history_registry

NUMBERS = st.none() | st.integers() | st.floats() | st.just(10**400)
VALUES = st.recursive(
    NUMBERS | st.booleans() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
RECORDS = st.fixed_dictionaries(
    {"history": VALUES | st.dictionaries(st.text(max_size=5), st.lists(NUMBERS, max_size=3))},
    optional={"epochs": VALUES, "notes": VALUES, "elapsed_s": NUMBERS},
)


class Model:
    """Anything that can be referred to weakly."""


@given(RECORDS | VALUES)
def test_what_is_kept_can_be_written_again_and_counted(record):
    model = Model()
    fault = history_registry.keep_stored(model, record)
    kept = history_registry.history_of(model)
    assert (kept is None) == (bool(fault) or record is None)
    if kept is not None:
        json.dumps(kept, allow_nan=False)
        assert int(kept.get("epochs") or 0) >= 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "it is no record"),
        ('"text"', "it is no record"),
        ('{"history": {}, "epochs": "3"}', "`epochs` is no number of epochs"),
        ('{"history": {}, "epochs": -1}', "`epochs` is no number of epochs"),
        ('{"history": {}, "epochs": 1e9}', "`epochs` is no number of epochs"),
        ('{"history": [1]}', "`history` has no metrics"),
        ('{"epochs": 3}', "`history` has no metrics"),
        ('{"history": {"loss": 3}}', "a metric has values that are no numbers"),
        ('{"history": {"loss": ["\\u001b[31m"]}}', "a metric has values that are no numbers"),
        ('{"history": {"loss": [1e999]}}', "a number that is infinite or too large"),
        ('{"history": {"loss": [NaN]}}', "a number that is infinite or too large"),
        (f'{{"history": {{"loss": [1{"0" * 400}]}}}}', "a number that is infinite or too large"),
        (f'{{"history": {{"a": [{"[" * 900}{"]" * 900}]}}}}', "it is nested too deeply"),
    ],
)
def test_what_is_no_history_is_left_out_with_a_reason(text, fault):
    assert fault in history_registry.explain_history(json.loads(text))


def test_a_whole_history_is_kept_with_its_arrays():
    record = {"history": {"loss": [1.5, None], "f1": [[0.5, 1], [0.25, 0]]}, "epochs": 2}
    model = Model()
    assert history_registry.keep_stored(model, record) == ""
    assert history_registry.history_of(model) == record
    assert history_registry.keep_stored(Model(), None) == ""
