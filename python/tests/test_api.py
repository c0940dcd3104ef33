import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpukeras
from gpukeras import api
from gpukeras.core.errors import DataError


def test_the_contract_file_is_up_to_date():
    path = Path(gpukeras.__file__).parents[1] / "contract.json"
    assert json.loads(path.read_text()) == api.contract(), "run make contract"


@pytest.mark.tf
def test_a_value_comes_in_an_envelope():
    features = {"kind": "array", "values": np.zeros((2, 2))}
    answer = api.invoke("dataset", {"features": features, "options": {}})
    assert answer["ok"] is True
    assert answer["value"]["shape"] == [2]


@pytest.mark.tf
def test_no_arguments_come_as_an_empty_list_from_r():
    assert api.invoke("devices", [])["value"][0]["name"] == "CPU:0"


def test_an_error_comes_with_its_parts():
    options = {"batch_size": 0}
    args = {"features": {"kind": "array", "values": np.zeros((2, 2))}, "options": options}
    answer = api.invoke("dataset", args)
    assert (answer["ok"], answer["code"]) == (False, "spec")
    assert answer["details"] == {"arg": "batch_size"}
    assert "batch_size" in answer["message"]
    assert answer["hint"] == ""


def test_a_bug_passes_through():
    with pytest.raises(TypeError):
        api.invoke("dataset", {"nonsense": 1})


def raise_r(how):
    """Raises what reticulate makes of an R condition, as Keras and the core pass it on."""
    raised = RuntimeError("x")
    raised.r_class, raised.message, raised.extra = ["mine", "error"], "x", 7
    raised.__notes__ = ["of Python, not of R"]
    if how == "itself":
        raise raised
    try:
        raise raised
    except RuntimeError as error:
        if how == "wrapped":
            raise ValueError("in layer: x") from None
        raise DataError("The model fails.") from error


@pytest.mark.parametrize(
    ("how", "code"), [("itself", "generator"), ("wrapped", "generator"), ("ours", "data")]
)
def test_a_condition_of_r_comes_with_its_fields(monkeypatch, how, code):
    monkeypatch.setitem(api.ENTRY_POINTS, "raise_r", raise_r)
    answer = api.invoke("raise_r", {"how": how})
    assert (answer["ok"], answer["code"]) == (False, code)
    assert answer["condition"] == {"r_class": ["mine", "error"], "message": "x", "extra": 7}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
)


def leaves(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.costly
@given(plain)
def test_nothing_that_reticulate_would_break_crosses(value):
    for leaf in leaves(api.to_plain(value)):
        assert leaf is None or type(leaf) in (bool, int, float, str)
        if type(leaf) is int:
            assert abs(leaf) < 2**31


def test_numpy_scalars_and_records_become_plain():
    @dataclasses.dataclass(frozen=True)
    class Record:
        size: int
        names: tuple

    record = Record(np.int64(2**40), ("a",))
    assert api.to_plain(record) == {"size": 2.0**40, "names": ["a"]}


def test_arrays_and_handles_cross_as_they_are():
    array, handle = np.zeros(3), object()
    assert api.to_plain({"a": array})["a"] is array
    assert api.to_plain([handle])[0] is handle
